"""The cloud as a process: it announces its readiness, keeps the given clock, and leaves nothing behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from domain.clock import ScaledClock, VirtualClock
from simulator.aws.client import CloudControl, ControlError, start_process
from simulator.aws.process import start_in_thread
from simulator.paced_clock import paced_clock
from tests.simulator.aws.world import START
from tests.waiting import until


@pytest.mark.exhaustive
def test_a_process_keeps_the_scaled_time_it_was_given_and_is_gone_afterwards(tmp_path: Path) -> None:
    wall = time.time()
    ready = tmp_path / "ready.json"
    clock = ScaledClock(START, wall, 60.0)
    arguments = ["--origin", str(START), "--wall-origin", str(wall), "--speed", "60", "--ready-file", str(ready)]
    with start_process(arguments) as cloud:
        assert json.loads(ready.read_text())["endpoint"] == cloud.endpoint
        assert CloudControl(cloud.endpoint).now() == pytest.approx(clock.now(), abs=60.0)
        with pytest.raises(ControlError, match="start it with --virtual"):
            CloudControl(cloud.endpoint).advance(1.0)
    assert cloud.popen.returncode == 0


@pytest.mark.exhaustive
def test_a_process_follows_the_clock_of_another(tmp_path: Path) -> None:
    with (
        paced_clock(tmp_path, START, 60.0) as clock,
        start_process(["--clock-file", str(clock.path)]) as cloud,
    ):
        control = CloudControl(cloud.endpoint)
        assert control.now() == START
        clock.pace(START + 20.0, threading.Event())
        assert control.now() == START + 20.0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--launch-delay", "97:45"], "97:45: the low end must not be negative or above the high end"),
        (["--clock-file", "/nowhere/clock"], "No such file or directory: '/nowhere/clock'"),
        (["--clock-file", "/nowhere/clock", "--speed", "60"], "leave out --origin, --wall-origin, --speed and --virt"),
        (["--clock-file", "/nowhere/clock", "--virtual", "0"], "leave out --origin, --wall-origin, --speed and --virt"),
    ],
)
def test_a_wrong_option_is_refused_with_the_reason(arguments: list[str], why: str) -> None:
    command = [sys.executable, "-m", "simulator.aws", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.split())


@pytest.mark.exhaustive
def test_the_process_dies_with_its_parent() -> None:
    script = (
        "import sys; sys.path.insert(0, '.')\n"
        "from simulator.aws.client import start_process\n"
        "with start_process(['--virtual', '0']) as cloud:\n"
        "    print(cloud.popen.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    until(lambda: not _alive(child))


def test_one_process_runs_one_cloud_at_a_time() -> None:
    running = start_in_thread(VirtualClock(START))
    try:
        with pytest.raises(RuntimeError, match="already runs a cloud"):
            start_in_thread(VirtualClock(START))
    finally:
        running.stop()
        running.stop()
    start_in_thread(VirtualClock(START)).stop()


def test_a_connection_is_kept_for_the_next_request_and_ends_with_the_cloud() -> None:
    running = start_in_thread(VirtualClock(START))
    address = urlsplit(running.endpoint)
    connection = HTTPConnection(str(address.hostname), address.port, timeout=10.0)
    try:
        opened = []
        for method, path, body in (("POST", "nothing-here", b"{}"), ("GET", "clock", None)):
            connection.request(method, f"/_trimtab/{path}", body)
            response = connection.getresponse()
            opened.append((response.status, response.read() != b"", connection.sock))
        kept = opened[0][2]
        assert kept is not None
        assert opened == [(404, True, kept), (200, True, kept)]
        running.stop()
        assert kept.recv(1) == b""
    finally:
        running.stop()
        connection.close()


def test_moto_reads_both_of_its_times_from_the_clock_until_the_cloud_ends() -> None:
    queues, core = importlib.import_module("moto.sqs.models"), importlib.import_module("moto.core.utils")
    original = core.unix_time
    running = start_in_thread(VirtualClock(START))
    now = datetime.fromtimestamp(START, tz=UTC).replace(tzinfo=None)
    try:
        assert (queues.unix_time(), core.unix_time_millis(), core.utcnow()) == (START, 1000.0 * START, now)
        assert core.unix_time(now) == START
    finally:
        running.stop()
    assert queues.unix_time is core.unix_time is original


def test_the_same_seed_launches_the_same_machines_in_the_same_time() -> None:
    def story(seed: int, other_requests: int = 0) -> list[tuple[str, float]]:
        from tests.simulator.aws.world import World

        running = start_in_thread(VirtualClock(START), seed=seed)
        world = World(running, CloudControl(running.endpoint))
        try:
            for number in range(other_requests):
                world.client("sqs").create_queue(QueueName=f"queue{number}")
                world.client("ec2").create_vpc(CidrBlock="10.1.0.0/16")
            world.group(size=(0, 4, 5))
            world.control.advance(97.0)
            return [(one["Description"], one["EndTime"].timestamp() - START) for one in world.activities()]
        finally:
            world.close()

    assert story(1) == story(1, other_requests=2)
    for first, second in zip(story(1), story(2), strict=True):
        assert first[0] != second[0]
        assert first[1] != second[1]
    assert all(45.0 <= delay_s <= 97.0 for _, delay_s in story(1))


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
