"""A fresh cloud in a thread for what needs no process of its own, and daemons at a module's site for what does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from domain.clock import VirtualClock
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.agent.service.site import Daemon, Site
from tests.simulator.aws.world import START, World


@pytest.fixture
def cloud() -> Iterator[World]:
    """A cloud on a clock that stands still."""
    running = start_in_thread(VirtualClock(START), seed=7)
    made = World(running, CloudControl(running.endpoint))
    yield made
    made.close()


@pytest.fixture
def make_daemon(site: Site, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """Return a maker of started daemons at the module's `site`, each with a directory and settings."""
    made: list[Daemon] = []

    def make(directory: str = "agent", **settings: str) -> Daemon:
        made.append(Daemon(site, tmp_path / directory, **settings))
        made[-1].start()
        return made[-1]

    yield make
    for daemon in made:
        daemon.close()
