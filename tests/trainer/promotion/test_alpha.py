"""The account of alpha: it accrues with time, tests spend it, and the sealed reports of the subject hold it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.subject import AUTOSCALING, Subject
from domain.units import DAY_S
from trainer.promotion.alpha import LEAST, MOST, PER_DAY, Spent, account_of, left, next_s
from trainer.promotion.directory import ModelsWriter

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
