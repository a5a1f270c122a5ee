"""A cluster on a ledger of its own, at a time that only the test moves."""

from collections.abc import Callable

import pytest

from agent.admission.cluster import AdmissionService
from agent.admission.state import AdmissionStore
from agent.ledger import Ledger
from domain.clock import VirtualClock
from tests.agent.admission.clusters import START, rules
from tests.agent.sqlite_ledger import ledger, path

__all__ = ["ledger", "path"]

Make = Callable[..., AdmissionService]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def make(ledger: Ledger, clock: VirtualClock) -> Make:
    """Make a service of the cluster `main`, its rules changed as said."""

    def made(**changes: object) -> AdmissionService:
        return AdmissionService(rules(**changes), AdmissionStore(ledger), clock)

    return made
