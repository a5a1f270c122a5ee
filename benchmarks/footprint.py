"""What the daemon costs at rest: seconds until it is ready, memory with a model loaded, and no heavy library inside.

Each run starts `trimtab run` as a process against the simulated cloud, waits for READY=1 on a real notify socket, lets
it turn a few times, and reads its memory from the kernel. Beside it, in the same run, a bare process that imports the
same third-party libraries and does nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from benchmarks.report import Target, arguments, repeat, report
from simulator.aws.client import start_process
from tests.oracles.lstm_model import write_model

HEAVY = ("torch", "numba", "moto", "simulator", "trainer", "pandas", "matplotlib", "onnx", "scipy")
RUN = """
import pathlib, sys
from agent.commands.run import run
try:
    run()
finally:
    pathlib.Path(sys.argv[1]).write_text("\\n".join(sorted(sys.modules)))
"""
LIBRARIES = (
    "alembic apscheduler boto3 fastapi graphyte httpx numpy onnxruntime prometheus_client pydantic sqlalchemy uvicorn"
)
BARE = f"import {LIBRARIES.replace(' ', ', ')}; print('up', flush=True); input()"
READY_WITHIN_S = 60.0


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__ or "", runs=3)
    parser.add_argument("--idle", type=float, default=25.0, help="seconds at rest before memory is read (default 25)")
    chosen = parser.parse_args()
    heavy: set[str] = set()
    with tempfile.TemporaryDirectory(dir=chosen.directory) as place, start_process() as cloud:
        make_group(cloud.endpoint)
        model = write_model(Path(place))
        turn = 0

        def measure() -> Mapping[str, float]:
            nonlocal turn
            turn += 1
            directory = Path(place) / str(turn)
            directory.mkdir()
            figures, found = one_run(cloud.endpoint, directory, model, chosen.idle)
            heavy.update(found)
            bare_mb = bare_rss_mb()
            return {**figures, "bare_imports_rss_mb": bare_mb, "rss_vs_bare": figures["idle_rss_mb"] / bare_mb}

        figures = repeat(measure, chosen.runs)
    figures["heavy_import_count"] = float(len(heavy))
    return report(
        "footprint",
        figures,
        as_json=chosen.json,
        packages=("boto3", "fastapi", "onnxruntime", "numpy"),
        targets=(Target("ready_s", 2.0), Target("idle_rss_mb", 160.0), Target("heavy_import_count", 0.0)),
        notes={"heavy_imports": sorted(heavy), "idle_s": chosen.idle, "runs": chosen.runs},
    )


def make_group(endpoint: str) -> None:
    """Make the group that the daemon manages."""
    make: Callable[..., Any] = boto3.client
    keys = {"aws_access_key_id": "owner", "aws_secret_access_key": "simulated", "region_name": "us-east-1"}
    machines, groups = (make(service, endpoint_url=endpoint, **keys) for service in ("ec2", "autoscaling"))
    machines.create_launch_template(
        LaunchTemplateName="web", LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "m5a.large"}
    )
    groups.create_auto_scaling_group(
        AutoScalingGroupName="web",
        LaunchTemplate={"LaunchTemplateName": "web", "Version": "$Latest"},
        MinSize=1,
        MaxSize=5,
        DesiredCapacity=2,
        AvailabilityZones=["us-east-1a"],
    )


def environment(endpoint: str, directory: Path, model: Path) -> dict[str, str]:
    """Return the daemon's environment: one fleet, observed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRIMTAB_", "AWS_"))}
    return kept | {
        "AWS_ACCESS_KEY_ID": "agent",
        "AWS_SECRET_ACCESS_KEY": "simulated",
        "AWS_EC2_METADATA_DISABLED": "true",
        "OMP_NUM_THREADS": "1",
        "NOTIFY_SOCKET": str(directory / "notify"),
        "TRIMTAB_STATE_DIRECTORY": str(directory),
        "TRIMTAB_TICK_INTERVAL_S": "10",
        "TRIMTAB_SAMPLE_INTERVAL_S": "2",
        "TRIMTAB_GRACE_S": "0",
        "TRIMTAB_LISTENER__PORT": "0",
        "TRIMTAB_AWS__REGION": "us-east-1",
        "TRIMTAB_AWS__ENDPOINT_URL": endpoint,
        "TRIMTAB_LEARNED__MODEL_FILE": str(model),
        "TRIMTAB_FLEETS__web__GROUPS__web__VM_TYPE": "m5a.large",
        "TRIMTAB_FLEETS__web__GROUPS__web__CORES": "2",
        "TRIMTAB_FLEETS__web__GROUPS__web__MEMORY_GB": "8",
        "TRIMTAB_FLEETS__web__GROUPS__web__PRICE_PER_HOUR": "0.086",
        "TRIMTAB_FLEETS__web__GROUPS__web__MIN": "1",
        "TRIMTAB_FLEETS__web__GROUPS__web__MAX": "5",
    }


def one_run(endpoint: str, directory: Path, model: Path, idle_s: float) -> tuple[dict[str, float], set[str]]:
    """Start the daemon, wait until it is ready and has rested, and stop it; return figures and heavy modules loaded."""
    modules = directory / "modules"
    with notify_socket(directory / "notify") as events:
        began = time.perf_counter()
        daemon = subprocess.Popen(
            [sys.executable, "-c", RUN, str(modules)],
            env=environment(endpoint, directory, model),
            stderr=(directory / "log").open("wb"),
        )
        try:
            wait_ready(events, daemon, directory / "log")
            ready_s = time.perf_counter() - began
            time.sleep(idle_s)
            resident_mb, peak_mb = memory_mb(daemon.pid)
            threads = float(len(list(Path(f"/proc/{daemon.pid}/task").iterdir())))
            stopping = time.perf_counter()
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(20.0)
            stop_s = time.perf_counter() - stopping
        finally:
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()
    if b'"model_ready"' not in (directory / "log").read_bytes():
        raise RuntimeError("the daemon did not load the model: " + tail(directory / "log"))
    loaded = {name.partition(".")[0] for name in modules.read_text().splitlines()}
    figures = {
        "ready_s": ready_s,
        "idle_rss_mb": resident_mb,
        "peak_rss_mb": peak_mb,
        "threads": threads,
        "stop_s": stop_s,
    }
    return figures, loaded & set(HEAVY)


@contextmanager
def notify_socket(path: Path) -> Iterator[socket.socket]:
    """Bind the datagram socket that a supervisor would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(path))
        bound.settimeout(0.5)
        yield bound


def wait_ready(events: socket.socket, daemon: subprocess.Popen[bytes], log: Path) -> None:
    """Return when READY=1 arrives; RuntimeError with the end of the log when the daemon ends or is never ready."""
    end = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < end and daemon.poll() is None:
        try:
            if b"READY=1" in events.recv(4096):
                return
        except TimeoutError:
            continue
    raise RuntimeError("the daemon did not become ready: " + tail(log))


def tail(log: Path) -> str:
    """Return the end of the daemon's log."""
    return log.read_text(errors="replace")[-1500:]


def memory_mb(pid: int) -> tuple[float, float]:
    """Return resident memory now and at its peak, in MiB, as the kernel counts it."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    resident_mb, peak_mb = (float(lines[name].split()[0]) / 1024.0 for name in ("VmRSS", "VmHWM"))
    return resident_mb, peak_mb


def bare_rss_mb() -> float:
    """Return the resident memory of a process that only imports the libraries."""
    with subprocess.Popen([sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bare:
        if bare.stdout is None or bare.stdout.readline() != b"up\n":
            raise RuntimeError("the bare process could not import the libraries")
        resident_mb, _ = memory_mb(bare.pid)
        bare.communicate(b"\n")
    return resident_mb


if __name__ == "__main__":
    raise SystemExit(main())
