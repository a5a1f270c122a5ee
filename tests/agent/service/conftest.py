"""No account of ours, and a fresh cloud in a thread for what needs no process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domain.clock import VirtualClock
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World


@pytest.fixture
def cloud() -> Iterator[World]:
    """A cloud on a clock that stands still."""
    running = start_in_thread(VirtualClock(START), seed=7)
    made = World(running, CloudControl(running.endpoint))
    yield made
    made.close()
