"""A round of learning on a disk that is full: no half result decides, and the round goes on from its state."""

from __future__ import annotations

import errno
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.real.filesystem.disks import Disk
from tests.trainer.learning.test_pool import round_of
from tests.trainer.learning.test_pools import lived
from trainer.learning.state import State, opened
from trainer.promotion.directory import ModelsWriter

FACTS = {"pool": "main"}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a pool that was watched for five days, whose horizon is a day."""
    folder = tmp_path_factory.mktemp("pool")
    lived(folder, 5, every_h=1, policy="static:1").ledger.close()
    return folder / "ledger.db"


def keep_stages(state: State) -> None:
    """Keep the results of more stages than a disk with little room can hold."""
    for number in range(100):
        state.done(f"stage {number}", {"found": "x" * 2000}, 0.1)


@pytest.mark.parametrize("leave", [0, 8192])
def test_a_state_that_finds_no_room_is_the_one_before(disk: Disk, leave: int) -> None:
    state = opened(disk.path / "round", FACTS)
    state.done("now", {"policy": "grid:0.8"}, 0.1)
    disk.fill(leave)
    with pytest.raises(OSError, match="No space left") as full:
        keep_stages(state)
    assert full.value.errno == errno.ENOSPC
    again = opened(disk.path / "round", FACTS)
    assert again.stages == state.stages
    assert not list(disk.path.rglob("*.part"))
    disk.free()
    again.done("fit", {"found": 1}, 0.1)
    assert opened(disk.path / "round", FACTS).stages == {**state.stages, "fit": {"found": 1}}


def test_a_round_whose_disk_is_full_decides_nothing_and_keeps_its_state(ledger: Path, disk: Disk) -> None:
    work = round_of(ledger, disk.path)
    work.state.done("now", asdict(work.in_use), 0.1)
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        work.go_on()
    assert list(opened(disk.path / "round", FACTS).stages) == ["now"]
    assert ModelsWriter(disk.path / "models").champions() == {}
    disk.free()
    assert round_of(ledger, disk.path).state.stages == work.state.stages
