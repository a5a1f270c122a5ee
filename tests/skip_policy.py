"""A pytest plugin: which stage a test belongs to, and what becomes of one whose surroundings are missing.

A stage is chosen by `-m` (Makefile): `make test` runs what is neither `real` nor `exhaustive`. A test is `real` where
it lies in tests/real/ or carries a needs_ mark, but for the one `smoke` test of each program.

A missing program skips a test and is listed; where TRIMTAB_REQUIRE_REAL=1, as in `.ci/run`, that skip and every other
is a failure. A missing right (to mount, say) never is: the test that `emulates` the surroundings runs in its place. The
list of what did not run is appended to the file that TESTS_NOT_RUN names.
"""

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system_programs import SYSTEM_PROGRAMS, SYSTEM_RIGHTS

REAL = Path(__file__).with_name("real")


def _real_required() -> bool:
    return os.environ.get("TRIMTAB_REQUIRE_REAL") == "1"


def pytest_configure(config: pytest.Config) -> None:
    for program in SYSTEM_PROGRAMS:
        config.addinivalue_line("markers", f"{program.mark}: needs {program.name} ({program.install_line})")
    for right in SYSTEM_RIGHTS:
        config.addinivalue_line("markers", f"{right.mark}: needs the right to {right.name}")


def _needs_program(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(program.mark) is not None for program in SYSTEM_PROGRAMS)


def _is_replaced(item: pytest.Item) -> bool:
    """Tell whether a test emulates surroundings that are real here."""
    emulated = item.get_closest_marker("emulates")
    granted = {right.mark for right in SYSTEM_RIGHTS if right.is_granted()}
    return emulated is not None and emulated.args[0] in granted


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    replaced = [item for item in items if _is_replaced(item)]
    if replaced:
        config.hook.pytest_deselected(items=replaced)
        items[:] = [item for item in items if item not in replaced]
    for item in items:
        if item.path.is_relative_to(REAL) or (_needs_program(item) and item.get_closest_marker("smoke") is None):
            item.add_marker("real")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for program in SYSTEM_PROGRAMS:
        if item.get_closest_marker(program.mark) is not None and not program.is_present():
            pytest.skip(f"needs {program.name}: {program.install_line}")
    for right in SYSTEM_RIGHTS:
        if item.get_closest_marker(right.mark) is not None and not right.is_granted():
            pytest.skip(right.reason)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not _real_required() or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = _reason(report)
    if not any(right.reason in reason for right in SYSTEM_RIGHTS):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: a skip is a failure under TRIMTAB_REQUIRE_REAL=1: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped(report)
    emulated = item.get_closest_marker("emulates")
    if emulated is not None and report.when == "call":
        report.user_properties.append(("emulates", emulated.args[0]))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped(report)
    return report


def _tests_need(count: int) -> str:
    return "1 test needs" if count == 1 else f"{count} tests need"


def _not_run(stats: dict[str, list[Any]]) -> Iterator[str]:
    """Yield a line for each program and right that was missing, and for each right that was emulated."""
    reasons = [_reason(report) for report in stats.get("skipped", [])]
    for program in SYSTEM_PROGRAMS:
        if count := sum(f"needs {program.name}: " in reason for reason in reasons):
            yield f"{_tests_need(count)} {program.name}: {program.install_line}"
    reports = [report for some in stats.values() for report in some if isinstance(report, pytest.TestReport)]
    for right in SYSTEM_RIGHTS:
        if count := sum(right.reason in reason for reason in reasons):
            yield f"{_tests_need(count)} the right to {right.name}"
        if count := sum(("emulates", right.mark) in report.user_properties for report in reports):
            yield f"{count} tests emulated what needs the right to {right.name}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what was missing, how many tests each kept from running, and the install line of a program."""
    lines = list(_not_run(terminalreporter.stats))
    if lines:
        terminalreporter.section("real parts that did not run")
        for line in lines:
            terminalreporter.line(line)
        if path := os.environ.get("TESTS_NOT_RUN"):
            with open(path, "a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
