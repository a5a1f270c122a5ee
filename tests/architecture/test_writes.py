"""The ledger is written by the shared transaction: no decision has a road around its fence and its conflicts."""

from __future__ import annotations

import re

from tests.architecture.product import ROOT

_WRITE = re.compile(r"database\.write\(\)|\.fenced\(")
WRITERS = {"agent/kernel/transaction.py", "agent/kernel/decision.py", "agent/autoscaling/state.py"}
"""The transaction, `Part.record` on it, and the minutes of fleets."""


def test_only_the_transaction_writes() -> None:
    modules = [path for path in sorted((ROOT / "agent").rglob("*.py")) if "agent/ledger/" not in path.as_posix()]
    found = {path.relative_to(ROOT).as_posix() for path in modules if _WRITE.search(path.read_text(encoding="utf-8"))}
    assert found == WRITERS
