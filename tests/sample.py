"""A pytest plugin: a slice of the exhaustive stage, chosen by a seed and bounded in time (`make test-slice`).

TESTS_SLICE is the seed, in `.ci/run` the hash of the commit. It orders the tests: a few of each file at a time, files
in an order of their own for each seed. No test begins after TESTS_SLICE_S seconds, so how far a slice gets depends on
the machine; what it begins with does not. No exhaustive test may have more than LONGEST_S: a slice could not draw it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from typing import Any

import pytest

NO_COMMIT = "none"
"""The seed that the Makefile gives where git knows no commit."""
OF_A_FILE_AT_A_TIME = 6
LONGEST_S = 300.0


def _digest(seed: str, name: str) -> str:
    return hashlib.sha256(f"{seed}/{name}".encode()).hexdigest()


def sliced(seed: str, names: list[str]) -> list[str]:
    """Return names of tests ("file::test") in the order of a seed."""
    rank: dict[str, int] = {}
    of_file: Counter[str] = Counter()
    for name in sorted(names, key=lambda name: _digest(seed, name)):
        file = name.partition("::")[0]
        rank[name] = of_file[file] // OF_A_FILE_AT_A_TIME
        of_file[file] += 1
    place = {name: index for index, name in enumerate(names)}
    return sorted(names, key=lambda name: (rank[name], _digest(seed, name.partition("::")[0]), place[name]))


def _longest_s(item: pytest.Item) -> float:
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit is not None and limit.args else 0.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long = [item.nodeid for item in items if item.get_closest_marker("exhaustive") and _longest_s(item) > LONGEST_S]
    if long:
        raise pytest.UsageError(f"exhaustive, and its timeout is above {LONGEST_S:g} s: split it: {', '.join(long)}")


class Slice:
    """Orders the tests by the seed, and begins none when the time is up."""

    def __init__(self, seed: str, until: float) -> None:
        self.seed = seed
        self.until = until
        self.total = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put them in the order of the seed."""
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in sliced(self.seed, list(by_name))]
        self.total = len(items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Learn from a worker how many there are."""
        self.total = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        """Leave out a test that would begin too late."""
        return True if time.time() > self.until else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run whose time was up before the first test."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self.total and not self._ran(reporter):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @staticmethod
    def _ran(terminalreporter: Any) -> int:
        return sum(len(terminalreporter.stats.get(outcome, [])) for outcome in ("passed", "failed"))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say which slice it was."""
        ran = self._ran(terminalreporter)
        terminalreporter.line(
            f"slice {self.seed}: {ran} of {self.total} tests; again: make test-slice SEED={self.seed}"
        )
        if self.seed == NO_COMMIT:
            terminalreporter.line(
                "git names no commit here, so each run draws this same slice: give SEED=... for another one"
            )


def pytest_configure(config: pytest.Config) -> None:
    seed = os.environ.get("TESTS_SLICE")
    if not seed:
        return
    if not hasattr(config, "workerinput"):
        # Workers inherit the end, and stop at the same time.
        os.environ["TESTS_SLICE_UNTIL"] = str(time.time() + float(os.environ.get("TESTS_SLICE_S", "360")))
    config.pluginmanager.register(Slice(seed, float(os.environ["TESTS_SLICE_UNTIL"])))
