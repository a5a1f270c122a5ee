"""A fresh cloud per test, served over HTTP on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domain.clock import VirtualClock
from simulator.aws.client import CloudControl
from simulator.aws.lifecycle import Delays
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World


@pytest.fixture
def world() -> Iterator[World]:
    """A fresh cloud whose clock stands still until `world.control.advance`; terminations take exactly 15 s."""
    running = start_in_thread(VirtualClock(START), seed=7, delays=Delays(terminate_s=(15.0, 15.0)))
    made = World(running, CloudControl(running.endpoint))
    yield made
    made.close()
