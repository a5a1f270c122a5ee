"""What is specified of the ledger on SQLite holds on PostgreSQL too, but for what is about the file."""

from __future__ import annotations

import inspect

import pytest

from tests.agent.ledger import test_operators, test_reading, test_recording, test_retention

pytestmark = pytest.mark.needs_postgresql

for _module in (test_recording, test_operators, test_reading, test_retention):
    for _name, _test in vars(_module).items():
        if _name.startswith("test_") and "path" not in inspect.signature(_test).parameters:
            globals()[_name] = _test


def test_the_specifications_are_all_there() -> None:
    assert sum(name.startswith("test_") and callable(thing) for name, thing in globals().items()) >= 40
