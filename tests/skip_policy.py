"""A pytest plugin: tests whose system program is missing are skipped and listed, or fail where it is required.

`.ci/run` sets TRIMTAB_REQUIRE_REAL=1. Every other skip is a failure there too: what is skipped is not tested.
"""

import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.system_programs import SYSTEM_PROGRAMS


def _real_required() -> bool:
    return os.environ.get("TRIMTAB_REQUIRE_REAL") == "1"


def pytest_configure(config: pytest.Config) -> None:
    for program in SYSTEM_PROGRAMS:
        config.addinivalue_line("markers", f"{program.mark}: needs {program.name} ({program.install_line})")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for program in SYSTEM_PROGRAMS:
        if item.get_closest_marker(program.mark) is not None and not program.is_present():
            pytest.skip(f"needs {program.name}: {program.install_line}")


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _real_required() and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: a skip is a failure under TRIMTAB_REQUIRE_REAL=1: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the programs that were missing, how many tests each kept from running, and its install line."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    missing = [(sum(f"needs {program.name}: " in reason for reason in skipped), program) for program in SYSTEM_PROGRAMS]
    if any(count for count, _ in missing):
        terminalreporter.section("not tested here: system programs are missing")
        for count, program in missing:
            if count:
                tests = "1 test needs" if count == 1 else f"{count} tests need"
                terminalreporter.line(f"{tests} {program.name}: {program.install_line}")
