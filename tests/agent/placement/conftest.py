"""A ledger of its own, at a time that only the test moves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ledger import Ledger
from domain.clock import VirtualClock
from tests.agent.placement.hosts import START
from tests.in_memory import tmp_path

__all__ = ["tmp_path"]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{path}", busy_timeout_s=30.0) as opened:
        yield opened
