"""Turns of the tuner: first tuning, watch, rollback, rest and proposals, each turn by a process that knows nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agent.models.directory import ON_PROBATION, PROBATION_ENDED, PROMOTED, ROLLED_BACK, moment_text
from agent.models.queue_rule import load_rule, rule_file, tuning_in
from agent.models.rounds import Ending, read_status, status_file
from agent.rehearsal.virtual_time import START
from domain.errors import BadInput
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from domain.units import DAY_S, HOUR_S, MINUTE_S
from simulator.autoscaling.configuration import SimulationConfig
from tests.trainer.learning.recording import FLEET, as_decided, batches, dearer, made
from trainer.learning import self_tuning
from trainer.learning.ledgers import NoRecord
from trainer.learning.lived_hours import loss_of
from trainer.learning.minutes import Record, Span, record_of
from trainer.learning.replay import Loop
from trainer.learning.self_tuning_turn import (
    NOTHING,
    REST_S,
    TUNED,
    WATCHED,
    Tuner,
    Turn,
    changed_at,
    is_watched,
    joined,
    rests_until,
)
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
    """A longer horizon saves 15 %."""
    assert loop.terms is not None
    return (span.rent + span.penalty) * (0.85 if loop.terms.horizon_s > 150.0 else 1.0)


def dearer_later(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
    """The rule of day 0 would have cost half as much since the change."""
    later = span.start_s + np.arange(span.steps) * MINUTE_S >= FIRST_S
    return (span.rent + span.penalty) * np.where(later & (not as_decided(loop)), 0.5, 1.0)


@pytest.fixture
def turn(tmp_path: Path, recorded: Record) -> Callable[..., Turn]:
    """Do a turn at a time; each is done by a new process, as it were."""

    def do(now_s: float, *, use: bool = True, plan: bool = False, **more: Any) -> Turn:
        def read(source: str, fleet: str, days: float, end_s: float | None = None) -> Record:
            assert (source, fleet) == ("ledger", FLEET)
            return until(recorded, now_s if end_s is None else end_s)

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
    assert tuning["gain"]["share"] == pytest.approx(0.15, abs=0.001)
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
    turn: Callable[..., Turn], tmp_path: Path, recorded: Record
) -> None:
    def read(source: str, fleet: str, since_s: float, end_s: float | None = None) -> Record:
        return dearer(until(recorded, FIRST_S), 1.2)

    assert turn(FIRST_S, read=read).outcome == Ending.PROBATION
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


def test_a_setting_that_a_person_puts_in_use_meanwhile_is_not_taken_back(
    turn: Callable[..., Turn], tmp_path: Path
) -> None:
    turn(FIRST_S)
    chosen = RuleSetting(600.0, 0.0)

    def meanwhile(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
        if setting(tmp_path) != chosen:
            ModelsWriter(tmp_path).force(
                rule_file(FLEET, chosen), SUBJECT, "no job waits", moment_text(FIRST_S + 5 * HOUR_S), load_rule
            )
        return dearer_later(loop, config, span, seed)

    with pytest.raises(BadInput, match="taken the place"):
        turn(FIRST_S + 5 * HOUR_S, play=meanwhile)
    assert setting(tmp_path) == chosen


def test_after_two_changes_a_rollback_leads_to_day_0(turn: Callable[..., Turn], tmp_path: Path) -> None:
    turn(FIRST_S)
    second = RuleSetting(300.0, 120.0)

    def longer(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
        assert loop.terms is not None
        return (span.rent + span.penalty) * (0.85 if loop.terms.horizon_s >= 300.0 else 1.0)

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


def test_each_six_hours_are_watched_however_late_calls_are() -> None:
    assert [hours for hours in range(48) if is_watched(hours)] == [*range(1, 26), 30, 31, 36, 37, 42, 43]
    for phase in (0.0, 0.2, 0.5, 0.97):
        calls = [k + phase + 0.2 * (-1) ** k for k in range(1, 150)]
        seen = {int(hours // 6) for hours in calls if is_watched(hours)}
        assert seen >= set(range(24))
    assert not is_watched(0.5)
    assert not is_watched(28.0)
    assert is_watched(-5.0)


def test_a_turn_after_a_stop_between_promotion_and_status_tunes_nothing(
    turn: Callable[..., Turn], tmp_path: Path
) -> None:
    turn(FIRST_S)
    status_file(tmp_path, SUBJECT).unlink()
    assert turn(FIRST_S + HOUR_S / 2.0).did == NOTHING
    assert setting(tmp_path) == FOUND


def test_a_setting_that_cannot_be_proposed_leaves_the_proposal_before(
    turn: Callable[..., Turn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn(FIRST_S, use=False)
    monkeypatch.setattr(ModelsWriter, "check_probationer", lambda *_: (_ for _ in ()).throw(BadInput("a", 1, "b")))
    with pytest.raises(BadInput):
        turn(FIRST_S + DAY_S, use=False)
    assert ModelsWriter(tmp_path).probationers()[SUBJECT].since == FIRST_S


def forced(folder: Path, at_s: float) -> RuleSetting:
    one = RuleSetting(250.0, 120.0)
    ModelsWriter(folder).force(rule_file(FLEET, one), SUBJECT, "mine", moment_text(at_s), load_rule)
    return one


def test_the_choice_of_a_person_is_not_taken_back_and_another_setting_is_proposed(
    turn: Callable[..., Turn], tmp_path: Path
) -> None:
    one = forced(tmp_path, FIRST_S)
    turn(FIRST_S + 5 * HOUR_S, play=dearer_later)
    assert setting(tmp_path) == one

    def longer(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
        assert loop.terms is not None
        return (span.rent + span.penalty) * (0.85 if loop.terms.horizon_s > 250.0 else 1.0)

    assert turn(FIRST_S + DAY_S, play=longer).outcome == Ending.PROBATION
    assert setting(tmp_path) == one


@pytest.mark.parametrize("damaged", [False, True])
def test_where_the_setting_in_use_is_damaged_or_lost_it_is_tuned_from_day_0(
    turn: Callable[..., Turn], tmp_path: Path, damaged: bool
) -> None:
    turn(FIRST_S)
    file = tmp_path / ModelsWriter(tmp_path).champions()[SUBJECT].model
    file.write_text("damaged") if damaged else file.unlink()
    found = turn(FIRST_S + DAY_S)
    assert found.tuning is not None
    assert found.tuning.now == DAY_0
    assert file.name[:12] in found.why
    assert setting(tmp_path) == FOUND


def test_while_a_model_decides_a_tuning_is_due_once_a_day(
    turn: Callable[..., Turn], tmp_path: Path, recorded: Record
) -> None:
    (minutes,) = recorded.stretches
    learned = tuple(replace(one, policy="learned:" + 64 * "0") for one in minutes)
    read: Callable[..., Record] = lambda *_: replace(recorded, stretches=(learned,))  # noqa: E731
    assert turn(FIRST_S, read=read).outcome == Ending.KEPT
    assert turn(FIRST_S + HOUR_S, read=read).did == NOTHING


def test_a_minute_of_a_lost_model_stops_neither_tuning_nor_watch(
    turn: Callable[..., Turn], tmp_path: Path, recorded: Record
) -> None:
    (minutes,) = recorded.stretches
    mixed = replace(
        recorded,
        stretches=(
            tuple(replace(one, policy="learned:" + 64 * "0") if k == 30 else one for k, one in enumerate(minutes)),
        ),
    )

    def read(source: str, fleet: str, since_s: float, end_s: float | None = None) -> Record:
        return until(mixed, FIRST_S + 5 * HOUR_S)

    assert turn(FIRST_S, read=read).outcome == Ending.PROMOTED
    assert turn(FIRST_S + 5 * HOUR_S, play=dearer_later, read_since=read).outcome == Ending.ROLLED_BACK


def test_after_a_week_the_day_before_the_change_still_shows_the_error_of_the_replay(
    turn: Callable[..., Turn], tmp_path: Path, recorded: Record
) -> None:
    """The replay costs 4 % too little all along: no loss, and a loss without the day before the change."""
    turn(FIRST_S)
    asked: list[tuple[float, float | None]] = []
    now_s = FIRST_S + 15 * DAY_S
    shift_s = now_s - (START + HOURS * HOUR_S)
    (minutes,) = recorded.stretches
    shifted = tuple(replace(one, load=replace(one.load, end_s=one.end_s + shift_s)) for one in minutes)

    def read(source: str, fleet: str, since_s: float, end_s: float | None = None) -> Record:
        asked.append((since_s, end_s))
        return replace(recorded, stretches=(shifted,)) if end_s is None else until(recorded, end_s)

    tuner = Tuner(FLEET, "ledger", ModelsWriter(tmp_path), DAY_0, True, now_s, read_since=read)
    found = tuner._learner(tuner._since(FIRST_S, now_s - 7 * DAY_S))
    assert asked == [(now_s - 7 * DAY_S, None), (FIRST_S - DAY_S, FIRST_S)]
    play: Callable[..., Floats] = lambda loop, config, span, seed: (span.rent + span.penalty) / 1.04  # noqa: E731
    result = loss_of(found, DAY_0, now_s - 7 * DAY_S, play=play, changed_s=FIRST_S)
    assert result.bias == pytest.approx(1.04)
    assert result.hours == 8


def test_records_with_other_groups_are_not_joined_and_earlier_limits_are_kept(recorded: Record) -> None:
    before = replace(recorded, limits=replace(recorded.limits, cooldown_out_s=7.0))
    both = joined(before, recorded)
    assert both.stretches[0][0].under.limits == before.limits
    assert both.stretches[1] == recorded.stretches[0]
    other = replace(recorded, fleet=replace(recorded.fleet, groups=recorded.fleet.groups[:1]))
    assert joined(other, recorded) is recorded


def test_after_a_turn_out_of_time_a_day_is_watched(turn: Callable[..., Turn], tmp_path: Path) -> None:
    turn(FIRST_S)
    asked: list[float] = []

    def read(source: str, fleet: str, since_s: float, end_s: float | None = None) -> Record:
        asked.append(since_s)
        raise NoRecord("fleet", fleet, "none")

    now_s = FIRST_S + 6 * DAY_S
    tuner = Tuner(FLEET, "ledger", ModelsWriter(tmp_path), DAY_0, True, now_s, read_since=read)
    assert tuner.out_of_time(120.0).outcome == Ending.BUDGET
    assert tuner.turn().did == WATCHED
    assert asked == [now_s - DAY_S]


def test_a_rollback_in_the_future_of_a_clock_that_was_set_back_rests_nothing() -> None:
    lines: list[dict[str, Any]] = [{"event": ROLLED_BACK, "model": "", "at": moment_text(START)}]
    assert rests_until(lines, START + HOUR_S) == pytest.approx(START + REST_S)
    assert rests_until(lines, START - 400 * DAY_S) == 0.0


def test_a_proposal_counts_since_its_approval() -> None:
    at = [moment_text(START + k * DAY_S) for k in range(5)]
    lines: list[dict[str, Any]] = [
        {"event": ON_PROBATION, "model": "a.json", "at": at[0]},
        {"event": PROBATION_ENDED, "model": "a.json", "at": at[1]},
        {"event": PROMOTED, "model": "b.json", "at": at[4]},
    ]
    assert changed_at(lines) == pytest.approx(START + 4 * DAY_S)


def test_a_change_counts_since_the_rule_of_day_0_decided_last() -> None:
    first, back, again = (moment_text(START + k * DAY_S) for k in range(3))
    lines: list[dict[str, Any]] = [
        {"event": PROMOTED, "model": "a.json", "at": first},
        {"event": PROMOTED, "model": "b.json", "at": back},
    ]
    assert changed_at(lines) == pytest.approx(START)
    ended = {"event": ROLLED_BACK, "model": "", "at": back}
    assert changed_at([*lines, ended, {"event": PROMOTED, "model": "c.json", "at": again}]) == START + 2 * DAY_S
