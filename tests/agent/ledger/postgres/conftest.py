"""The one PostgreSQL server of the tests, an empty database for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from agent.ledger import Ledger
from tests.agent.ledger.postgres.server import EMPTY_LEDGER, Proxy, Server, shared_server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Server:
    return shared_server(pytestconfig)


@pytest.fixture
def url(server: Server) -> str:
    return server.new_database(f"ledger_{next(_numbers)}", EMPTY_LEDGER)


@pytest.fixture
def open_ledger(url: str) -> Iterator[Callable[..., Ledger]]:
    """Opens the test's ledger, as often as wanted: each is an agent's own."""
    opened: list[Ledger] = []

    def make(through: str | None = None, busy_timeout_s: float = 2.0) -> Ledger:
        opened.append(Ledger.open(through or url, busy_timeout_s=busy_timeout_s))
        return opened[-1]

    yield make
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Callable[..., Ledger]) -> Ledger:
    return open_ledger()


@pytest.fixture
def make_proxy(server: Server) -> Iterator[Callable[[], Proxy]]:
    made: list[Proxy] = []

    def make() -> Proxy:
        made.append(Proxy(server.port))
        return made[-1]

    yield make
    for proxy in made:
        proxy.close()
