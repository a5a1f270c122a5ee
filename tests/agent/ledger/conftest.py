"""A ledger in a directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger.open(url, busy_timeout_s=30.0) as opened:
        yield opened
