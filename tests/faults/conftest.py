"""Worlds for the loop's specifications, closed when the test is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.world import MakeWorld, Plan, World


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[MakeWorld]:
    """Return a maker of worlds: fields of `Plan` by name."""
    made: list[World] = []

    def make(**plan: object) -> World:
        directory = tmp_path / f"world-{len(made)}"
        directory.mkdir()
        world = World(directory, Plan(**plan))  # type: ignore[arg-type]
        made.append(world)
        return world

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """A world with limits that hold nothing back."""
    return make_world()
