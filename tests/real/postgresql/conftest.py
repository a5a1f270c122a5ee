"""The one PostgreSQL server of the tests, and pgbouncer in front of a ledger in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.agent.ledger.postgres.conftest import server, url
from tests.agent.ledger.postgres.server import Server
from tests.real.postgresql.pooler import Pooler, running_pooler

__all__ = ["server", "url"]


@pytest.fixture
def make_pooler(server: Server, url: str) -> Iterator[Callable[[int], Pooler]]:
    """Return a maker of poolers in front of the test's ledger, by how many connections they share."""
    with ExitStack() as stack:
        yield lambda size: stack.enter_context(running_pooler(server.port, urlsplit(url).path[1:], size))
