"""The tuner of the queue rule: what it proposes, and every piece of evidence without which it proposes nothing."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from agent.rehearsal.virtual_time import START
from domain.rules.autoscaling import RuleSetting
from domain.units import HOUR_S, MINUTE_S
from simulator.autoscaling.configuration import SimulationConfig
from tests.trainer.learning.recording import FLEET, WORLD, batches, loop_of, made
from trainer.learning import self_tuning
from trainer.learning.minutes import Record, Span, record_of
from trainer.learning.replay import Loop
from trainer.learning.self_tuning import Costs, by_hour, choose, decided_by, loss_of, missing, tune, under
from trainer.learning.subject import Learner

Floats = NDArray[np.float64]
NOW, BETTER = RuleSetting(300.0, 0.0), RuleSetting(600.0, 0.0)
RECORDED = RuleSetting(150.0, 120.0)


def costs_of(saved: Callable[[Floats], Floats], days: float = 3.0, boots_gain: float = 0.05) -> Costs:
    """A dollar an hour under every setting; BETTER saves a share of each hour by its number among the last days'."""

    def costs(setting: RuleSetting, of_days: float, seed: int, boots: float) -> Floats:
        hours = np.arange(round((days - of_days) * 24), round(days * 24), dtype=np.float64)
        share = saved(hours) if boots == 1.0 else np.full(hours.size, boots_gain)
        hourly = 1.0 - share if setting == BETTER else np.ones(hours.size)
        return np.repeat(hourly / 60.0, 60)

    return costs


def test_a_setting_that_is_cheaper_in_every_hour_is_chosen_with_its_dollars() -> None:
    found = choose(NOW, 3.0, costs_of(lambda hours: np.full(hours.size, 0.05)))
    assert found.setting == BETTER
    assert found.gain == pytest.approx(0.05)
    assert found.low == pytest.approx(0.05)
    assert found.dollars_a_month == pytest.approx(0.05 * 730.0)
    assert found.hours == 72
    assert "horizon 300 -> 600 s" in found.why


@pytest.mark.parametrize(
    ("saved", "reason"),
    [
        (lambda hours: np.full(hours.size, 0.029), "3%"),
        (lambda hours: np.where(np.isin(hours, (10, 60)), 1.5, 0.0) - 0.0001, "of the resamples"),
        (lambda hours: np.where(hours < 48, -0.01, 0.3), "earlier part"),
        (lambda hours: np.where(hours < 48, 0.3, -0.01), "latest part"),
    ],
)
def test_without_one_piece_of_evidence_nothing_is_chosen(saved: Callable[[Floats], Floats], reason: str) -> None:
    # What is searched on one day finds the setting in any case: the newest days are alike here.
    costs, whole = costs_of(lambda hours: np.full(hours.size, 0.05)), costs_of(saved)

    def mixed(setting: RuleSetting, days: float, seed: int, boots: float) -> Floats:
        return (whole if days == 3.5 else costs)(setting, min(days, 3.0), seed, boots)

    found = choose(NOW, 3.5, mixed)
    assert found.setting is None
    assert reason in found.why
    assert found.why.count(";") == 0


def test_a_setting_that_costs_more_where_boots_take_longer_is_not_chosen() -> None:
    found = choose(NOW, 3.0, costs_of(lambda hours: np.full(hours.size, 0.05), boots_gain=-0.01))
    assert found.setting is None
    assert "boots" in found.why


def test_a_horizon_changes_by_a_factor_of_four_at_most() -> None:
    tried: set[RuleSetting] = set()

    def costs(setting: RuleSetting, days: float, seed: int, boots: float) -> Floats:
        tried.add(setting)
        return np.full(1440, 1.0 / setting.horizon_s)

    found = choose(NOW, 1.0, costs)
    assert found.setting is not None
    assert found.setting.horizon_s == 1200.0
    assert {one.horizon_s for one in tried} >= {75.0, 1200.0}
    assert all(75.0 <= one.horizon_s <= 1200.0 and 0.0 <= one.idle_s <= 300.0 for one in tried)
    assert found.tried == len(tried)


def test_of_settings_that_cost_the_same_the_nearest_is_chosen() -> None:
    def costs(setting: RuleSetting, days: float, seed: int, boots: float) -> Floats:
        return np.full(1440, 1.0 if setting.horizon_s <= 300.0 else 0.9 - 1e-6 * setting.horizon_s)

    found = choose(NOW, 1.0, costs)
    assert found.setting == RuleSetting(424.0, 0.0)


def test_where_the_present_setting_is_the_cheapest_nothing_is_chosen() -> None:
    found = choose(NOW, 1.0, lambda setting, *_: np.full(1440, 1.0 + abs(setting.horizon_s - 300.0)))
    assert found.setting is None
    assert "present" in found.why


def test_both_boot_seeds_are_averaged() -> None:
    def costs(setting: RuleSetting, days: float, seed: int, boots: float) -> Floats:
        share = (0.2, -0.2)[seed] if setting == BETTER else 0.0
        return np.full(round(days * 1440), 1.0 - share)

    assert choose(NOW, 2.0, costs).setting is None


# On a record.


@pytest.fixture(scope="module")
def recorded() -> Record:
    """A day and an hour with a batch every half an hour."""
    hours = 25.0
    return record_of(FLEET, [inputs for inputs, _ in made(hours, trace=batches(hours, jobs=20))])


@pytest.fixture(scope="module")
def learner(recorded: Record) -> Learner:
    loop = replace(loop_of(), idle_s=120.0, lag_s=recorded.lag_s)
    return Learner(recorded, WORLD, "live-like", 0.0, loop)


def cheaper(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
    """A replay that costs what was recorded, and a tenth less with a longer horizon."""
    assert loop.terms is not None
    return (span.rent + span.penalty) * (0.9 if loop.terms.horizon_s > 150.0 else 1.0)


def test_a_day_of_record_is_replayed_and_a_setting_found(learner: Learner) -> None:
    found = tune(learner, RECORDED, play=cheaper)
    assert found.setting == RuleSetting(212.0, 120.0)
    assert found.gain == pytest.approx(0.1, abs=0.001)
    assert abs(found.off) < self_tuning.USED_WITHIN
    assert found.may_be_used


def test_where_the_replay_is_far_from_the_record_nothing_is_tuned(learner: Learner) -> None:
    half = replace(learner, config=learner.config.boots_scaled(3.0))
    found = tune(half, RECORDED, play=cheaper)
    assert found.setting is None
    assert "replay of the record" in found.why


def test_a_replay_between_both_bounds_may_be_proposed_and_not_used(
    learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_tuning, "USED_WITHIN", -1.0)
    found = tune(learner, RECORDED, play=cheaper)
    assert found.setting is not None
    assert not found.may_be_used


def test_with_too_many_jobs_to_replay_nothing_is_tuned(learner: Learner) -> None:
    ticks = iter(range(0, 10_000, 100))
    found = tune(learner, RECORDED, play=cheaper, cpu_clock=lambda: float(next(ticks)))
    assert found.setting is None
    assert "processor" in found.why


@pytest.mark.parametrize(
    ("minutes", "reason"), [(slice(0, 1439), "24.0 h are recorded"), (slice(0, None), "")], ids=["short", "enough"]
)
def test_a_day_is_needed(recorded: Record, minutes: slice, reason: str) -> None:
    part = replace(recorded, stretches=(recorded.stretches[0][minutes],))
    assert (reason in missing(part)) if reason else missing(part) == ""


def test_busy_hours_jobs_and_the_queue_rule_are_needed(recorded: Record) -> None:
    minutes = recorded.stretches[0]
    quiet = tuple(one if k < 6 * 60 else replace(one, waiting=0, running=0) for k, one in enumerate(minutes))
    assert "h with jobs" in missing(replace(recorded, stretches=(quiet,)))
    few = tuple(replace(one, load=replace(one.load, submitted=0)) for one in minutes)
    assert "jobs are recorded" in missing(replace(recorded, stretches=(few,)))
    other = (*minutes[:-1], replace(minutes[-1], policy="threshold:high=0.75"))
    assert "threshold" in missing(replace(recorded, stretches=(other,)))


def test_a_span_is_played_under_the_setting_and_not_under_the_recorded_one(learner: Learner) -> None:
    plays = self_tuning._Plays(learner, cheaper)
    (span,) = plays.spans(1.0)
    loop, own = under(learner, span, BETTER)
    assert set(own.policies) == {"queue-rule:horizon_s=600,job_core_s=120,single=False"}
    assert loop.idle_s == 0.0
    assert {one.idle_s for one in own.lived} == {None}
    assert decided_by(span, RECORDED)
    assert not decided_by(span, BETTER)


def test_hours_are_sums_and_a_rest_is_part_of_the_last_one() -> None:
    assert by_hour(np.ones(150)).tolist() == [60.0, 90.0]
    assert by_hour(np.ones(30)).tolist() == [30.0]


def test_a_setting_that_costs_half_as_much_again_is_a_loss_and_its_equal_is_none(learner: Learner) -> None:
    since_s = START + 8 * HOUR_S

    def as_recorded(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
        return span.rent + span.penalty

    def less_later(loop: Loop, config: SimulationConfig, span: Span, seed: int) -> Floats:
        later = span.start_s + np.arange(span.steps) * MINUTE_S >= since_s
        return (span.rent + span.penalty) / np.where(later, 1.5, 1.0)

    assert not loss_of(learner, RECORDED, since_s, play=as_recorded).is_loss
    found = loss_of(learner, RECORDED, since_s, play=less_later)
    assert found.is_loss
    assert found.hours == 17
