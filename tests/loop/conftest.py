"""Worlds for the loop's specifications, closed when the test is over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from collectors.aws_models import SlimLoader
from tests.loop.world import Plan, World


@pytest.fixture(autouse=True)
def _no_account_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class OneLoader(SlimLoader):
    """Reads AWS's descriptions once for all worlds, which takes longer than most of them."""

    @cache  # noqa: B019
    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        """Return the description as the agent's own loader does."""
        return super().load_service_model(service_name, type_name, api_version)


LOADER = OneLoader()


@pytest.fixture(autouse=True)
def _one_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.aws.SlimLoader", lambda data_path: LOADER)


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[..., World]]:
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
def world(make_world: Callable[..., World]) -> World:
    """A world with limits that hold nothing back."""
    return make_world()
