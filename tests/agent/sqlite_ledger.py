"""A SQLite ledger of each test, whichever database the fixture `url` of its module names."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{path}", busy_timeout_s=30.0) as opened:
        yield opened
