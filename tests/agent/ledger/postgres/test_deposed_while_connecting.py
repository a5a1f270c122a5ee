"""A leader stopped while it connects to AWS, and resumed when another leads: its call does not leave the process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ledger import Ledger
from domain.clock import WallClock
from tests.agent.ledger.postgres.sharing import leader_of_web
from tests.waiting import until

pytestmark = [pytest.mark.needs_postgresql]

LEASE_S = 1.5
SYN_SENT, ESTABLISHED = "02", "01"
ROOT = Path(__file__).parents[4]


@pytest.fixture
def full_door() -> Iterator[socket.socket]:
    """A listening socket whose queue is full: connecting to it goes on until somebody is accepted."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        waiting = []
        for _ in range(3):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
            waiting.append(one)
        yield listening
        for one in waiting:
            one.close()


def connections(port: int, state: str) -> set[str]:
    """Local ends of this host's connections to a port in a state."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[2] == f"0100007F:{port:04X}" and row[3] == state}


@pytest.mark.exhaustive
def test_a_leader_stopped_while_it_connects_sends_nothing_when_it_is_resumed_after_another_took_over(
    url: str, full_door: socket.socket
) -> None:
    port = full_door.getsockname()[1]
    before = connections(port, SYN_SENT) | connections(port, ESTABLISHED)
    caller = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.agent.ledger.postgres.deposed_caller",
            url,
            f"http://127.0.0.1:{port}",
            str(LEASE_S),
        ],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert caller.stdin is not None
    assert caller.stderr is not None
    second_ledger = Ledger.open(url, busy_timeout_s=2.0)
    second = leader_of_web(second_ledger, "heir", WallClock(), LEASE_S, LEASE_S / 3.0)
    try:
        assert caller.stderr.readline() == "leading\n"
        second.start()
        assert second.leads().numbers == ()
        caller.stdin.write("call\n")
        caller.stdin.flush()
        until(lambda: connections(port, SYN_SENT) - before)
        os.kill(caller.pid, signal.SIGSTOP)
        until(lambda: second.leads().numbers == (2,))

        # The kernel goes on knocking for the stopped process, and is let in.
        full_door.settimeout(30.0)
        heard = b""
        accepted = []
        while not connections(port, ESTABLISHED) - before:
            accepted.append(full_door.accept()[0])
        until(lambda: connections(port, ESTABLISHED) - before)
        os.kill(caller.pid, signal.SIGCONT)
        _, ended = caller.communicate(timeout=60.0)
        full_door.setblocking(False)
        while True:
            try:
                accepted.append(full_door.accept()[0])
            except BlockingIOError:
                break
        for connection in accepted:
            connection.setblocking(False)
            try:
                heard += connection.recv(65_536)
            except BlockingIOError:
                continue
            finally:
                connection.close()
        assert heard == b""
        assert ended.startswith("Fenced: the lease under epoch 1 is over"), ended
    finally:
        caller.kill()
        caller.wait()
        second.stop()
        second_ledger.close()
