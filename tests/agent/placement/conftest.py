"""A ledger of its own, at a time that only the test moves."""

import pytest

from domain.clock import VirtualClock
from tests.agent.placement.hosts import START
from tests.agent.sqlite_ledger import ledger, path

__all__ = ["ledger", "path"]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)
