"""Probation and watch of pools and clusters: what is surely beyond the promise is taken back, and nothing else is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.models.directory import Champion, Probationer, Then, read_model_file
from agent.oversubscription.settings import read_rates
from domain.errors import BadInput
from domain.rules.oversubscription.risk import clopper_pearson_lower
from domain.subject import Subject
from domain.units import HOUR_S
from tests.trainer.learning import steps
from tests.trainer.learning.steps import directory_of
from trainer.learning.trial import (
    Inspection,
    ProbationStatus,
    Promise,
    PromiseReplay,
    WatchEvidence,
    WatchResult,
    examine,
    take_back,
    watch,
    watched_promotion,
    write_probation,
    write_watch,
)
from trainer.promotion.directory import ModelsWriter

START = 1_790_553_600.0
SUBJECT = Subject("oversubscription", "main")
PROMISED = clopper_pearson_lower(3, 120)


def rates(folder: Path, rate: float) -> Path:
    path = folder / f"rates-{rate:g}.json"
    path.write_text(json.dumps({"kind": "oversubscription-rates", "rates": {"web": rate}}))
    return path


def promoted(directory: ModelsWriter, folder: Path, rate: float, hour: float = 0.0) -> Champion:
    return steps.promoted(directory, rates(folder, rate), SUBJECT, START + hour * HOUR_S, read_rates)


def tried(directory: ModelsWriter, folder: Path, rate: float = 0.2, then: Then = Then.PROMOTE) -> Probationer:
    return steps.tried(directory, rates(folder, rate), SUBJECT, START, 48.0, read_rates, then)


def look(
    directory: ModelsWriter,
    hour: float,
    lived: Promise | str = "",
    replay: Callable[[Probationer], PromiseReplay] = lambda one: PromiseReplay("cores reserved", 0, 24, ""),
) -> Inspection:
    """A look so many hours after the begin, which finds this."""
    now_s = START + hour * HOUR_S
    return Inspection(SUBJECT, directory, read_rates, now_s, lambda champion: lived, replay)


def watched(case: Inspection) -> WatchResult | None:
    """The watch over a promotion of the last week, None without one."""
    champion = watched_promotion(case.directory, case.subject, case.now_s, 168.0)
    return None if champion is None else watch(case, champion)


def kept(bad: int, of: int = 120) -> Promise:
    return Promise(bad, of, PROMISED, "hours were hot")


@pytest.mark.parametrize(
    ("bad", "of", "broken"),
    [(0, 120, False), (2, 120, False), (3, 120, True), (1, 7, True), (1, 8, False), (2, 24, True), (3, 168, False)],
)
def test_the_promise_is_surely_broken_where_chance_does_not_explain_what_was_bad(
    bad: int, of: int, broken: bool
) -> None:
    found = kept(bad, of)
    assert found.broken is broken
    assert found.low <= bad / of <= found.high
    assert f"{bad} of {of} hours were hot" in found.counts


def test_nothing_seen_breaks_nothing() -> None:
    assert (kept(0, 0).broken, kept(0, 0).low, kept(0, 0).high) == (False, 0.0, 1.0)
    assert Promise(0, 50, 0.0, "hours were hot").broken is False


def test_a_promotion_that_surely_breaks_the_promise_is_taken_back(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    before, now = promoted(directory, tmp_path, 0.5), promoted(directory, tmp_path, 0.3, 10.0)
    case = look(directory, 60.0, kept(3, 50))
    found = watched(case)
    assert found is not None
    assert (found.fault != "", found.model) == (True, now.model)
    page = write_watch(tmp_path, SUBJECT, found)
    assert "surely more" in page.read_text()
    assert json.loads((page.parent / "summary.json").read_text())["broken"] is True
    assert take_back(case, found) == f"{before.model[:12]} decides again"
    assert directory.champions()[SUBJECT].model == before.model
    last = directory.history(SUBJECT)[-1]
    assert last["event"] == "rolled back"
    assert "3 of 50 hours were hot" in last["reason"]
    # What a rollback brought back is not watched, and the next look takes nothing more back.
    assert watched(case) is None


LOSS_OF_ALL = WatchEvidence("a loss", "a loss", {}, (), is_of_all=True)


def four_times(directory: ModelsWriter, folder: Path) -> WatchResult:
    """Two models that are promoted in turn, and a loss of all of them."""
    for hour in range(4):
        champion = promoted(directory, folder, (0.5, 0.3)[hour % 2], float(hour))
    return WatchResult(champion.model, START, LOSS_OF_ALL)


def test_a_loss_of_all_promotions_takes_all_back_in_one_change(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    found = four_times(directory, tmp_path)
    assert "settings decides again" in take_back(look(directory, 60.0, kept(0)), found)
    assert SUBJECT not in directory.champions()
    changes = [one["event"] for one in directory.history(SUBJECT)]
    assert changes == [*["promoted"] * 4, "rolled back"]


def test_a_loss_of_all_leaves_the_model_that_a_person_forced(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    file = rates(tmp_path, 0.4)
    forced = directory.force(read_model_file(file), SUBJECT, "a trial", "2026-11-20T00:00:00Z", read_rates)
    found = four_times(directory, tmp_path)
    assert take_back(look(directory, 60.0, kept(0)), found) == f"{forced.model[:12]} decides again"


def test_a_busy_lock_leaves_the_models_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.promotion.directory.WAITS_S", 0.0)
    directory = directory_of(tmp_path)
    found = four_times(directory, tmp_path)
    with directory.locked(), pytest.raises(BadInput, match="under way"):
        take_back(look(directory, 60.0, kept(0)), found)
    assert directory.champions()[SUBJECT].model == found.model


@pytest.mark.parametrize("lived", [kept(1, 120), kept(0, 50), "too few hours"])
def test_one_that_keeps_it_or_of_which_too_little_is_known_stays(tmp_path: Path, lived: Promise | str) -> None:
    directory = directory_of(tmp_path)
    promoted(directory, tmp_path, 0.3)
    found = watched(look(directory, 130.0, lived))
    assert found is not None
    assert found.fault == ""
    assert watched(look(directory, 169.0, kept(9))) is None


def test_a_rollback_of_the_first_champion_leaves_the_settings(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    promoted(directory, tmp_path, 0.3)
    case = look(directory, 60.0, kept(9, 60))
    found = watched(case)
    assert found is not None
    # Another one has come meanwhile: nothing of it is taken back.
    promoted(directory, tmp_path, 0.4, 59.0)
    with pytest.raises(BadInput, match="it has taken the place"):
        take_back(case, found)
    directory.rollback(case.now, SUBJECT, read_rates)
    assert "settings decides again" in take_back(case, found)
    assert SUBJECT not in directory.champions()


def replayed(bad: int, challenger: float, asked: int = 48) -> Callable[[Probationer], PromiseReplay]:
    """Four windows in which what decided reserved half of the cores."""
    windows, now = tuple("abcd"), (0.50, 0.52, 0.48, 0.51)
    ours = tuple(challenger * cost for cost in now)
    return lambda one: PromiseReplay("cores reserved", asked, 24, "it differs", windows, now, ours, kept(bad, 48))


@pytest.mark.parametrize(
    ("bad", "challenger", "status", "said"),
    [
        (0, 0.8, ProbationStatus.HELD, "-20.0%"),
        (0, 1.0, ProbationStatus.HELD, r"\+0.0%"),
        (0, 1.04, ProbationStatus.BROKEN, "surely dearer"),
        (0, 1.06, ProbationStatus.BROKEN, r"more than \+5%"),
        (1, 0.8, ProbationStatus.HELD, "1 of 48 hours were hot"),
        (3, 0.8, ProbationStatus.BROKEN, "the promise is surely broken"),
    ],
)
def test_a_probation_is_held_to_the_promise_and_to_what_decides(
    tmp_path: Path, bad: int, challenger: float, status: ProbationStatus, said: str
) -> None:
    directory = directory_of(tmp_path)
    one = tried(directory, tmp_path)
    found = examine(look(directory, 49.0, "", replayed(bad, challenger)), one)
    assert found.status is status
    assert re.search(said, found.why), found.why
    page = write_probation(tmp_path, SUBJECT, found)
    assert "it differs" in page.read_text()
    # Nothing is changed by looking.
    assert directory.probationers()[SUBJECT] == one


def test_it_runs_and_waits_and_is_given_up_in_its_time(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    promoted(directory, tmp_path, 0.5, -1.0)
    one = tried(directory, tmp_path)

    def status(hour: float, replay: PromiseReplay) -> ProbationStatus:
        return examine(look(directory, hour, "", lambda _: replay), one).status

    good = replayed(0, 0.8)(one)
    few = replace(good, asked=23)
    assert status(47.9, good) is ProbationStatus.RUNNING
    assert status(48.0, good) is ProbationStatus.HELD
    assert status(48.0, few) is ProbationStatus.WAITING
    assert status(48.0, replace(good, unknown="no window")) is ProbationStatus.WAITING
    assert status(96.0, few) is ProbationStatus.GIVEN_UP
    promoted(directory, tmp_path, 0.6, 1.0)
    assert status(20.0, good) is ProbationStatus.GIVEN_UP
    assert "it was compared with" in examine(look(directory, 20.0), one).why


def test_a_model_that_was_changed_is_not_judged(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    one = tried(directory, tmp_path)
    file = directory.file_of(one.model)
    file.write_text(file.read_text().replace("web", "w"))
    with pytest.raises(BadInput, match="its content has SHA-256"):
        examine(look(directory, 49.0, "", replayed(0, 0.8)), one)
