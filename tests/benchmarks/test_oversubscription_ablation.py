"""The forms of the ablation play as the simulator does, and are made safe by the smallest offset."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.oversubscription_ablation import MEASURES, OBSERVED, BySubscriber, greedy, safe_offset
from domain.rules.oversubscription.request_rule import NEUTRAL, RequestRule
from simulator.oversubscription.scenario import scenario_of
from simulator.oversubscription.weekly import Assessor
from trainer.oversubscription.rule_training import DAY, Played

Floats = NDArray[np.float64]
SCENARIO = scenario_of("azure_like")
WEEK = SCENARIO.week("s0")


def point_of(seed: int) -> Floats:
    draws = np.random.default_rng(seed)
    base = draws.uniform(0.4, 1.0, SCENARIO.subscribers)
    return np.concatenate([base, draws.normal(0.0, 0.1, DAY), draws.normal(0.0, 0.3, OBSERVED)])


@pytest.mark.exhaustive
def test_the_form_by_hours_plays_as_a_policy_of_the_simulator_with_the_same_observation() -> None:
    point, levels, hour = point_of(1), np.array(SCENARIO.actions), iter(range(SCENARIO.hours))
    rule = RequestRule(point[: SCENARIO.subscribers], np.zeros(0), point[-DAY - OBSERVED : -OBSERVED], NEUTRAL)
    wanted = rule.wanted(np.arange(SCENARIO.hours))

    def policy(local: NDArray[np.float32]) -> Floats:
        need = wanted[next(hour)] + local[0, :, :OBSERVED] @ point[-OBSERVED:]
        rates: Floats = levels[np.minimum(np.searchsorted(levels, need), len(levels) - 1)]
        return rates[None]

    stage = BySubscriber(SCENARIO, [WEEK], "warm", request=False)
    played, expected = stage.play(point, [0], 0.05), greedy(policy, SCENARIO, WEEK, "warm", 0.05)
    for name in (*MEASURES, "risk"):
        assert getattr(played, name) == pytest.approx(getattr(expected, name), abs=1e-9)
    assert 0.0 < played.cores[0] < 0.6


@pytest.mark.exhaustive
def test_constant_rates_are_played_alike_by_hours_and_by_requests_and_an_observation_is_taken_for_each() -> None:
    rates = np.array(SCENARIO.actions)[np.arange(SCENARIO.subscribers) % 2 + 3]
    point = np.concatenate([rates, np.zeros(DAY + OBSERVED)])
    exact = Assessor(SCENARIO, WEEK).assess(rates)
    forms = [BySubscriber(SCENARIO, [WEEK], "cold", request=request) for request in (False, True)]
    for form in forms:
        played = form.play(point, [0])
        assert played.risk[0] == pytest.approx(exact.c_hot_r, abs=1e-11)
        assert (played.cores[0], played.machines[0]) == (exact.placement.s_cores, exact.placement.peak_machines)
    by_hour, by_request = (form.play(point_of(1), [0]) for form in forms)
    assert by_hour.cores[0] != by_request.cores[0]


@pytest.mark.parametrize(("needed", "offset"), [(0.0, 0.0), (0.13, 0.14), (2.0, 0.8)])
def test_a_form_is_made_safe_by_the_smallest_offset_that_passes_on_all_weeks(needed: float, offset: float) -> None:
    def play(at: int, given: float) -> Played:
        return Played(*np.full((len(Played.__slots__), 1), 0.05 if at == 3 and given < needed else 0.02))

    assert safe_offset(play, 4, 0.95) == offset


def test_a_form_whose_weeks_pass_one_by_one_is_raised_until_their_mean_does() -> None:
    assert (
        safe_offset(
            lambda at, given: Played(*np.full((len(Played.__slots__), 1), 0.044 if given < 0.03 else 0.025)), 4, 0.95
        )
        == 0.04
    )
