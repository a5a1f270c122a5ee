"""A simulated AWS of each test, on the clock that the fixture `clock` of its module names."""

from collections.abc import Iterator

import pytest

from domain.clock import VirtualClock
from simulator.aws.process import RunningCloud, start_in_thread


@pytest.fixture
def cloud(clock: VirtualClock) -> Iterator[RunningCloud]:
    running = start_in_thread(clock)
    yield running
    running.stop()
