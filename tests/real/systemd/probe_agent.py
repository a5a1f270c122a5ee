"""Tries, as a service, what the agent's sandbox forbids and what it must allow; prints a line of JSON.

probe_agent.py MODEL: an LSTM in a file of ONNX.
"""

import json
import mmap
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime


def outcome(attempt: Callable[[], object]) -> str:
    """Return "allowed", or the name of the refusal."""
    try:
        attempt()
    except OSError as error:
        return type(error).__name__ if error.errno is None else os.strerror(error.errno)
    return "allowed"


def lstm(model: str) -> list[int]:
    """Run a network of ONNX Runtime, and return the shape of what comes out."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"X": np.ones((1, 1, 3), np.float32)})
    return list(found.shape)


print(
    json.dumps(
        {
            "executable memory": outcome(lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)),
            "processor affinity": outcome(lambda: os.sched_setaffinity(0, {0})),
            "priority": outcome(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5)),
            "low priority": outcome(lambda: os.setpriority(os.PRIO_PROCESS, 0, 19)),
            "limit": outcome(lambda: resource.prlimit(os.getpid(), resource.RLIMIT_CPU, (120, 120))),
            "first out of memory": outcome(lambda: Path("/proc/self/oom_score_adj").write_text("1000")),
            "owner of a file": outcome(lambda: os.chown("here", 0, 0)),
            "root directory": outcome(lambda: os.chroot("/")),
            "packets": outcome(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
            "settings": outcome(lambda: Path("/etc/trimtab/agent.env").write_text("")),
            "program": outcome(lambda: Path("/opt/trimtab/here").write_text("")),
            "home": outcome(lambda: os.listdir("/root")),
            "process 1": outcome(lambda: Path("/proc/1/cmdline").read_bytes()),
            "processor": outcome(lambda: Path("/proc/cpuinfo").read_bytes()),
            "state": outcome(lambda: Path("here").write_text("")),
            "algebra": float(np.linalg.solve(np.eye(3), np.ones(3)).sum()),
            "lstm": lstm(sys.argv[1]),
        }
    )
)
