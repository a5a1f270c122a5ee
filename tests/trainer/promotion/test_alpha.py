"""The account of alpha: it accrues with time, tests spend it, and the sealed reports of the subject hold it."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.subject import AUTOSCALING, Subject
from domain.units import DAY_S
from trainer.promotion.alpha import LEAST, MOST, PER_DAY, Spent, account_of, left, next_s
from trainer.promotion.directory import ModelsWriter, sealed

WEB = Subject(AUTOSCALING, "web")


def report(directory: ModelsWriter, subject: Subject, day: int, key: str, alpha: float) -> str:
    body = {"passed": False, "test": {"sha256": key, "alpha": alpha}, "challenger": {"sha256": f"{day}"}}
    return directory.store_report(body, subject, f"2026-11-{day:02d}T00:00:00Z")


def test_a_test_spends_all_that_is_left_and_the_next_one_waits_until_enough_has_accrued() -> None:
    assert left({}, 0.0) == MOST
    account = {"first": Spent(0.0, MOST)}
    assert left(account, 0.0) == 0.0
    assert left(account, 6 * DAY_S) == pytest.approx(6 * PER_DAY)
    assert next_s(account, 6 * DAY_S) == pytest.approx(LEAST / PER_DAY * DAY_S)
    assert left(account, 1000 * DAY_S) == MOST


def test_a_clock_that_was_set_back_gives_nothing() -> None:
    account = {"first": Spent(100 * DAY_S, MOST)}
    assert left(account, 0.0) == 0.0
    assert next_s(account, 0.0) > 0.0


@given(st.lists(st.floats(0.0, 365.0), max_size=60))
def test_however_often_a_subject_is_tested_the_alphas_of_a_year_have_a_bound(days: list[float]) -> None:
    account: dict[str, Spent] = {}
    for number, day in enumerate(sorted(days)):
        if (alpha := left(account, day * DAY_S)) >= LEAST:
            account[f"{number}"] = Spent(day * DAY_S, alpha)
    assert sum(one.alpha for one in account.values()) <= MOST + 365.0 * PER_DAY + 1e-9


def test_the_reports_of_a_subject_are_its_account_and_a_test_that_is_made_again_counts_once(tmp_path: Path) -> None:
    directory = ModelsWriter(tmp_path)
    report(directory, WEB, 1, "a", 0.05)
    report(directory, WEB, 2, "a", 0.05)
    report(directory, WEB, 20, "b", 0.01)
    report(directory, Subject(AUTOSCALING, "other"), 3, "c", 0.05)
    report(directory, Subject("admission", "web"), 3, "d", 0.05)
    directory.store_report({"passed": True}, WEB, "2026-11-04T00:00:00Z")
    (tmp_path / "report-damaged.json").write_text('{"test": ')
    found = account_of(ModelsWriter(tmp_path), WEB)
    assert {key: one.alpha for key, one in found.items()} == {"a": 0.05, "b": 0.01}
    assert found["b"].at_s - found["a"].at_s == 19 * DAY_S
    assert account_of(ModelsWriter(tmp_path / "none"), WEB) == {}


def body_of(report: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name not in ("sha256", "signature", *left_out)}


def unsigned(report: dict[str, Any]) -> dict[str, Any]:
    """The report with another alpha, whole, but not signed."""
    return sealed({**body_of(report), "test": {**report["test"], "alpha": 0.0}}, None)


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "alpha": lambda report: {**report, "test": {**report["test"], "alpha": 0.0}},
    "time": lambda report: {**report, "at": "2020-01-01T00:00:00Z"},
    "signature": unsigned,
    "no time": lambda report: sealed(body_of(report, "at"), b"key"),
    "no test": lambda report: {**report, "test": None},
    "below 0": lambda report: sealed({**body_of(report), "test": {"sha256": "a", "alpha": -1.0}}, b"key"),
    "not a number": lambda report: {**report, "test": {"sha256": "a", "alpha": math.nan}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_report_that_was_changed_has_spent_most_when_it_was_written(
    change: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    directory = ModelsWriter(tmp_path, b"key")
    path = tmp_path / report(directory, WEB, 1, "a", 0.02)
    now_s = path.stat().st_mtime
    assert account_of(directory, WEB)["a"].alpha == 0.02
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    os.utime(path, (now_s, now_s))
    assert account_of(directory, WEB) == {path.name: Spent(now_s, MOST)}
    assert left(account_of(directory, WEB), now_s) == 0.0
