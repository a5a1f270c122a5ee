"""The cloud of the service tests, and a ledger in a directory of its own."""

from tests.agent.ledger.conftest import ledger, path, url
from tests.agent.service.conftest import cloud

__all__ = ["cloud", "ledger", "path", "url"]
