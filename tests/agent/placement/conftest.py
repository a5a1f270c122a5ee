"""A ledger of its own, at a time that only the test moves."""

import pytest

from domain.clock import VirtualClock
from tests.agent.ledger.conftest import ledger, path, url
from tests.agent.placement.hosts import START

__all__ = ["ledger", "path", "url"]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)
