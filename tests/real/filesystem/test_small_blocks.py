"""A ledger on ext4 with blocks of 1 KiB, which mkfs chooses below 512 MB, when the disk is full."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path

import pytest

from agent.autoscaling.store import FleetStore
from agent.ledger import Ledger
from domain.errors import LedgerUnavailable
from tests.agent.ledger.records import made
from tests.real.filesystem.disks import small_disk


@pytest.mark.needs_loop
@pytest.mark.needs_mkfs
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="SQLite maps the index of its log into memory; a page whose blocks have no room ends the process by SIGBUS",
)
def test_a_full_disk_of_small_blocks_does_not_end_the_process(tmp_path: Path) -> None:
    with small_disk("ext4", tmp_path / "disk", block_bytes=1024) as disk:
        child = os.fork()
        if child == 0:
            status = 1
            faulthandler.disable()
            try:
                ledger = Ledger.open(f"sqlite:///{disk.path}/ledger.db")
                FleetStore(ledger).record([made(n) for n in range(5)])
                disk.fill()
                for number in range(5, 50):
                    with contextlib.suppress(LedgerUnavailable):
                        FleetStore(ledger).record([made(number)])
                status = 0
            finally:
                os._exit(status)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended not in (0, -signal.SIGBUS):
            raise RuntimeError(f"the process ended with {ended}")
        assert ended == 0
