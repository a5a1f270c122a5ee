"""Turns of the tuner: first tuning, watch, rollback, rest and proposals, each turn by a process that knows nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agent.models.directory import PROMOTED, ROLLED_BACK, moment_text
from agent.models.queue_rule import load_rule, rule_file, tuning_in
from agent.models.rounds import Ending, read_status, status_file
from agent.rehearsal.virtual_time import START
from domain.rules.autoscaling import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from domain.units import DAY_S, HOUR_S, MINUTE_S
from simulator.autoscaling.configuration import SimulationConfig
from tests.trainer.learning.recording import FLEET, batches, made
from trainer.learning import self_tuning
from trainer.learning.minutes import Record, Span, record_of
from trainer.learning.replay import Loop
from trainer.learning.self_tuning_turn import NOTHING, REST_S, TUNED, WATCHED, Tuner, Turn, changed_at
from trainer.promotion.directory import ModelsWriter

Floats = NDArray[np.float64]
SUBJECT, DAY_0, FOUND = Subject(QUEUE_RULE, FLEET), RuleSetting(150.0, 120.0), RuleSetting(212.0, 120.0)
HOURS = 8.0
FIRST_S = START + 3.0 * HOUR_S


@pytest.fixture(autouse=True)
def short_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hours are enough to tune."""
    monkeypatch.setattr(self_tuning, "LEAST_HOURS", 3.0)
    monkeypatch.setattr(self_tuning, "LEAST_BUSY_HOURS", 2)


@pytest.fixture(scope="module")
def recorded() -> Record:
    """Eight hours with a batch every half an hour."""
    return record_of(FLEET, [inputs for inputs, _ in made(HOURS, trace=batches(HOURS, jobs=20))])


def until(recorded: Record, end_s: float) -> Record:
    return replace(recorded, stretches=(tuple(one for one in recorded.stretches[0] if one.end_s <= end_s),))


def cheaper(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
    """A longer horizon saves a tenth."""
    assert loop.terms is not None
    return (span.rent + span.penalty) * (0.9 if loop.terms.horizon_s > 150.0 else 1.0)


def dearer_later(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
    """The rule of day 0 would have cost half as much since the change."""
    later = span.start_s + np.arange(span.steps) * MINUTE_S >= FIRST_S
    return (span.rent + span.penalty) * np.where(later, 0.5, 1.0)


@pytest.fixture
def turn(tmp_path: Path, recorded: Record) -> Callable[..., Turn]:
    """Do a turn at a time; each is done by a new process, as it were."""

    def do(now_s: float, *, use: bool = True, plan: bool = False, **more: Any) -> Turn:
        def read(source: str, fleet: str, days: float) -> Record:
            assert (source, fleet) == ("ledger", FLEET)
            return until(recorded, now_s)

        given = {"play": cheaper, "read": read, "read_since": read} | more
        tuner = Tuner(FLEET, "ledger", ModelsWriter(tmp_path), DAY_0, use, now_s, plan, **given)
        return tuner.tuned() if plan else tuner.turn()

    return do


def setting(folder: Path) -> RuleSetting | None:
    directory = ModelsWriter(folder)
    champion = directory.champions().get(SUBJECT)
    return None if champion is None else load_rule(directory.file_of(champion.model)).rule


def test_enough_of_a_record_puts_a_setting_in_use_and_the_report_has_the_reason(
    turn: Callable[..., Turn], tmp_path: Path
) -> None:
    found = turn(FIRST_S)
    assert (found.did, found.outcome) == (TUNED, Ending.PROMOTED)
    assert setting(tmp_path) == FOUND
    directory = ModelsWriter(tmp_path)
    champion = directory.champions()[SUBJECT]
    report = directory.check(SUBJECT, champion)
    shown = tuning_in(report)
    assert shown is not None
    assert (shown.before.horizon_s, shown.after.horizon_s) == (150.0, 212.0)
    tuning = report["self_tuning"]
    assert tuning["from"]["horizon_s"] == 150.0
    assert tuning["to"]["horizon_s"] == 212.0
    assert tuning["gain"]["share"] == pytest.approx(0.1, abs=0.001)
    assert tuning["dollars_a_month"] > 0.0
    assert json.loads(json.dumps(found.as_data))["tuning"]["setting"]["horizon_s"] == 212.0


def test_a_tuning_is_due_once_a_day(turn: Callable[..., Turn], tmp_path: Path) -> None:
    turn(FIRST_S, use=False)
    assert turn(FIRST_S + HOUR_S, use=False).did == NOTHING
    assert turn(FIRST_S + DAY_S, use=False).did == TUNED


def test_with_too_short_a_record_the_next_turn_tries_again(turn: Callable[..., Turn], tmp_path: Path) -> None:
    found = turn(START + 2 * HOUR_S)
    assert found.outcome == Ending.TOO_LITTLE
    assert read_status(status_file(tmp_path, SUBJECT)).outcome is Ending.TOO_LITTLE
    assert turn(FIRST_S).outcome == Ending.PROMOTED


def test_a_plan_changes_nothing(turn: Callable[..., Turn], tmp_path: Path) -> None:
    found = turn(FIRST_S, plan=True)
    assert found.tuning is not None
    assert found.tuning.setting == FOUND
    assert list(tmp_path.iterdir()) == []


def test_a_proposal_waits_for_a_person_and_a_newer_one_takes_its_place(
    turn: Callable[..., Turn], tmp_path: Path
) -> None:
    directory = ModelsWriter(tmp_path)
    assert turn(FIRST_S, use=False).outcome == Ending.PROBATION
    assert setting(tmp_path) is None
    first = directory.probationers()[SUBJECT]
    assert turn(FIRST_S + DAY_S, use=False).outcome == Ending.PROBATION
    assert directory.probationers()[SUBJECT].since == FIRST_S + DAY_S > first.since
    directory.approve(SUBJECT, moment_text(FIRST_S + DAY_S), load_rule)
    assert setting(tmp_path) == FOUND


def test_a_proposal_that_a_later_record_does_not_bear_out_ends(turn: Callable[..., Turn], tmp_path: Path) -> None:
    turn(FIRST_S, use=False)
    same: Callable[..., Floats] = lambda loop, config, span, seed: span.rent + span.penalty  # noqa: E731
    assert turn(FIRST_S + DAY_S, use=False, play=same).outcome == Ending.KEPT
    assert ModelsWriter(tmp_path).probationers() == {}


def test_where_the_replay_is_not_near_enough_a_setting_is_proposed_only(
    turn: Callable[..., Turn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_tuning, "USED_WITHIN", -1.0)
    assert turn(FIRST_S).outcome == Ending.PROBATION
    assert setting(tmp_path) is None


def test_a_setting_that_does_no_harm_is_watched_and_stays(turn: Callable[..., Turn], tmp_path: Path) -> None:
    turn(FIRST_S)
    found = turn(FIRST_S + 2 * HOUR_S, play=lambda loop, config, span, seed: span.rent + span.penalty)
    assert (found.did, found.outcome) == (WATCHED, "continue")
    assert setting(tmp_path) == FOUND


def test_after_a_loss_the_rule_of_day_0_decides_and_nothing_is_tuned_for_a_week(
    turn: Callable[..., Turn], tmp_path: Path
) -> None:
    turn(FIRST_S)
    plan = Tuner(FLEET, "ledger", ModelsWriter(tmp_path), DAY_0, True, FIRST_S)
    assert plan.subject == SUBJECT
    back_s = FIRST_S + 5 * HOUR_S
    found = turn(back_s, play=dearer_later)
    assert (found.did, found.outcome) == (WATCHED, Ending.ROLLED_BACK)
    assert setting(tmp_path) is None
    assert "rule of day 0" in ModelsWriter(tmp_path).history(SUBJECT)[-1]["reason"]
    assert turn(back_s + DAY_S).did == NOTHING
    assert turn(back_s + REST_S - HOUR_S).did == NOTHING
    assert turn(back_s + REST_S + HOUR_S).outcome == Ending.PROMOTED


def test_after_two_changes_a_rollback_leads_to_day_0(turn: Callable[..., Turn], tmp_path: Path) -> None:
    turn(FIRST_S)
    second = RuleSetting(300.0, 120.0)

    def longer(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
        assert loop.terms is not None
        return (span.rent + span.penalty) * (0.9 if loop.terms.horizon_s >= 300.0 else 1.0)

    assert turn(FIRST_S + DAY_S, play=longer).outcome == Ending.PROMOTED
    assert setting(tmp_path) == second
    assert changed_at(ModelsWriter(tmp_path).history(SUBJECT)) == FIRST_S
    turn(FIRST_S + DAY_S + 5 * HOUR_S, play=dearer_later)
    assert setting(tmp_path) is None


def test_a_rollback_is_one_step_however_the_settings_changed_and_reads_no_earlier_file(
    turn: Callable[..., Turn], tmp_path: Path
) -> None:
    directory = ModelsWriter(tmp_path)
    names = []
    for k, horizon_s in enumerate((212.0, 300.0, 212.0, 300.0)):
        at, file = moment_text(FIRST_S - (4 - k) * MINUTE_S), rule_file(FLEET, RuleSetting(horizon_s, 120.0))
        body = {"passed": True, "challenger": {"sha256": file.sha256}}
        report = directory.store_report(body, SUBJECT, at)
        names.append(directory.promote(file, SUBJECT, report, at, load_rule).model)
    (tmp_path / names[0]).unlink()
    count = len(directory.history())
    assert turn(FIRST_S + 5 * HOUR_S, play=dearer_later).outcome == Ending.ROLLED_BACK
    assert setting(tmp_path) is None
    assert len(directory.history()) == count + 1


def test_a_change_counts_since_the_rule_of_day_0_decided_last() -> None:
    first, back, again = (moment_text(START + k * DAY_S) for k in range(3))
    lines: list[dict[str, Any]] = [
        {"event": PROMOTED, "model": "a.json", "at": first},
        {"event": PROMOTED, "model": "b.json", "at": back},
    ]
    assert changed_at(lines) == pytest.approx(START)
    ended = {"event": ROLLED_BACK, "model": "", "at": back}
    assert changed_at([*lines, ended, {"event": PROMOTED, "model": "c.json", "at": again}]) == START + 2 * DAY_S
