"""A ledger on ext4 with blocks of 1 KiB, which mkfs chooses below 512 MB, when the disk is full."""

from __future__ import annotations

import contextlib
import faulthandler
import os
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from domain.errors import LedgerUnavailable
from tests.agent.ledger.records import made
from tests.real.filesystem.disks import Disk, small_disk
from tests.real.filesystem.test_ledger import record_until_full


def live_through_a_full_disk(disk: Disk, leave: int, url: str) -> None:
    """Open a ledger, let its disk be filled, go on until there is room again, and record then."""
    with Ledger.open(url) as ledger:
        number = FleetStore(ledger).loop_state("web").decisions
        if not number:
            # A log that finds no room to be folded, so that its index is made anew for each connection.
            FleetStore(ledger).record([made(n) for n in range(5)])
            number = 5
        disk.fill(leave)
        number, _ = record_until_full(ledger, number)
        for _ in range(40 if not leave else 2):
            with contextlib.suppress(LedgerUnavailable):
                FleetStore(ledger).record([made(number)])
                number += 1
            with contextlib.suppress(LedgerUnavailable):
                Ledger.open(url, read_only=True).close()
        disk.free()
        FleetStore(ledger).record([made(number)])
        assert FleetStore(ledger).loop_state("web").decisions == number + 1


@pytest.mark.needs_loop
@pytest.mark.needs_mkfs
def test_a_full_disk_of_small_blocks_does_not_end_the_process(tmp_path: Path) -> None:
    with small_disk("ext4", tmp_path / "disk", block_bytes=1024) as disk:
        url = f"sqlite:///{disk.path}/ledger.db"
        # From the second on the log takes the room that is left, and its index then finds none at one of these.
        for leave in range(0, 160 * 1024, 8 * 1024):
            child = os.fork()
            if child == 0:
                status = 1
                faulthandler.disable()
                try:
                    live_through_a_full_disk(disk, leave, url)
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, f"{leave} bytes were left"
