"""A cluster on a ledger of its own, at a time that only the test moves."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.admission.service import AdmissionService
from agent.admission.store import AdmissionStore
from agent.ledger import Ledger
from domain.clock import VirtualClock
from tests.agent.admission.clusters import START, rules
from tests.in_memory import tmp_path

__all__ = ["tmp_path"]

Make = Callable[..., AdmissionService]


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


@pytest.fixture
def make(ledger: Ledger, clock: VirtualClock) -> Make:
    """Make a service of the cluster `main`, its rules changed as said."""

    def made(**changes: object) -> AdmissionService:
        return AdmissionService(rules(**changes), AdmissionStore(ledger), clock)

    return made
