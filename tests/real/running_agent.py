"""The agent as a process, in a directory of its own, asked over its socket."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.contract.running import over_socket
from tests.waiting import until


class Agent:
    """An agent with these settings; `start` returns when it answers."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._socket = directory / "trimtab.sock"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TRIMTAB_"))}
        self._environ = {
            **own,
            "AWS_EC2_METADATA_DISABLED": "true",
            "TRIMTAB_LISTENER__PORT": "0",
            **settings,
            "TRIMTAB_STATE_DIRECTORY": str(directory),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(sys.executable).with_name("trimtab")
        process = self._process = subprocess.Popen([program, "run"], env=self._environ, stderr=subprocess.DEVNULL)
        until(lambda: process.poll() is not None or self._answers())
        assert process.poll() is None, "the agent ended"

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, contextlib.suppress(OSError):
            probe.connect(str(self._socket))
            return True
        return False

    def end(self, by: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(by)
        return self._process.wait(30.0)

    def asked(self, path: str) -> Any:
        """The body of the answer to a GET below /api/v1."""
        with over_socket(self._socket, "/api/v1") as client:
            return client.get(path).raise_for_status().json()
