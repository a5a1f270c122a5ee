"""A ledger on ext4 with blocks of 1 KiB, which mkfs chooses below 512 MB, when the disk is full."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from pathlib import Path

import pytest

from agent.autoscaling.store import FleetStore
from agent.ledger import Ledger
from domain.errors import LedgerUnavailable
from tests.agent.ledger.records import made
from tests.real.filesystem.disks import small_disk
from tests.real.filesystem.test_ledger import record_until_full


@pytest.mark.needs_loop
@pytest.mark.needs_mkfs
@pytest.mark.parametrize("leave", [0, 4096, 48 * 1024, 200 * 1024])
def test_a_full_disk_of_small_blocks_does_not_end_the_process(tmp_path: Path, leave: int) -> None:
    with small_disk("ext4", tmp_path / "disk", block_bytes=1024) as disk:
        child = os.fork()
        if child == 0:
            status = 1
            faulthandler.disable()
            try:
                ledger = Ledger.open(f"sqlite:///{disk.path}/ledger.db")
                FleetStore(ledger).record([made(n) for n in range(5)])
                disk.fill(leave)
                number, _ = record_until_full(ledger, 5)
                for _ in range(40):
                    with contextlib.suppress(LedgerUnavailable):
                        FleetStore(ledger).record([made(number)])
                        number += 1
                    with contextlib.suppress(LedgerUnavailable):
                        Ledger.open(f"sqlite:///{disk.path}/ledger.db", read_only=True).close()
                disk.free()
                FleetStore(ledger).record([made(number)])
                status = 0 if FleetStore(ledger).loop_state("web").decisions == number + 1 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
