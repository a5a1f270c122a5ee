"""A small real file system of each kind, and worlds and a models directory on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.world import MakeWorld, Plan, World
from tests.real.filesystem.disks import Disk, small_disk

TMPFS = pytest.param("tmpfs", marks=pytest.mark.needs_mount)
EXT4 = pytest.param("ext4", marks=[pytest.mark.needs_loop, pytest.mark.needs_mkfs])


@pytest.fixture(params=[TMPFS, EXT4])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    with small_disk(request.param, tmp_path / "disk") as made:
        yield made


@pytest.fixture
def make_world(disk: Disk, tmp_path: Path) -> Iterator[MakeWorld]:
    """Return a maker of worlds whose ledger is on the disk: fields of `Plan` by name."""
    made: list[World] = []

    def make(**plan: object) -> World:
        made.append(World(tmp_path, Plan(ledger_url=f"sqlite:///{disk.path}/ledger.db", **plan)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world with limits that hold nothing back."""
    return make_world()
