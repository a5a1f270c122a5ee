"""Hot hours are laid on the decisions that bring them about (oversubscription specification §12.1, §12.3)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from domain.rules.oversubscription.usage import Moments
from simulator.oversubscription.batch import OversubscriptionSimulation
from simulator.oversubscription.scenario import scenario_of
from simulator.oversubscription.weekly import Placement
from tests.trainer.oversubscription.small import staggered_pair
from trainer.oversubscription.c2marl import answered_for, load_of, saved_by, slopes

Floats = np.ndarray


def played(name: str, rate: float | list[float], start: str = "cold") -> tuple[Placement, Moments]:
    scenario = scenario_of(name) if name != "staggered" else staggered_pair(sd=0.3)
    simulation = OversubscriptionSimulation(scenario, "s0", start=start, cost="analytic")
    simulation.reset()
    rates, over = np.broadcast_to(rate, scenario.subscribers).copy(), False
    while not over:
        over = simulation.step_rates(rates)[3]
    return simulation.placement(), simulation.batch.model.moments


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_what_is_saved_is_what_the_week_saves(start: str) -> None:
    placed, _ = played("azure_like", 0.6, start)
    week = placed.week
    assert saved_by(placed).sum() == pytest.approx(0.4 * week.requested_cores)
    rows = week.arrival[week.warm :] == 7
    first = week.cores[week.warm :][rows & (week.subscriber[week.warm :] == 2)].sum()
    assert saved_by(placed)[7, 2] == pytest.approx(0.4 * first)


def test_what_is_held_is_the_cores_of_the_vms_there() -> None:
    placed, _ = played("internal_like", 0.5)
    week = placed.week
    at = 60
    there = (week.arrival <= at) & (week.departure > at) & (placed.machine >= 0)
    assert load_of(placed, week.cores)[:, :, at].sum() == pytest.approx(week.cores[there].sum())
    own = there & (placed.machine == 3) & (week.subscriber == 1)
    assert load_of(placed, week.cores)[3, 1, at] == pytest.approx(week.cores[own].sum())


def test_all_vms_of_a_cold_cluster_answer_for_nothing_together_and_each_for_its_share() -> None:
    own = answered_for(*played("internal_like", 0.42))
    assert own.sum() == pytest.approx(0.0, abs=1e-6 * np.abs(own).sum())
    assert np.abs(own).sum() > 1.0


def test_a_subscriber_that_uses_more_of_what_it_reserves_answers_for_the_hot_hours() -> None:
    # By night the first one idles while the second is busy; both have the same rate, so the blame follows the clock.
    even = answered_for(*played("staggered", [0.4, 0.4])).sum(axis=0)
    uneven = answered_for(*played("staggered", [0.3, 0.6])).sum(axis=0)
    assert uneven[0] > even[0]
    assert uneven[0] > 0.0 > uneven[1]


def test_slopes_are_the_derivative_of_a_machines_chance_by_its_load() -> None:
    placed, moments = played("internal_like", 0.42)
    of_day = np.arange(120) % 24
    mean = np.einsum("knt,nt->kt", load_of(placed, placed.week.cores), moments.mean[:, of_day])
    variance = np.einsum("knt,nt->kt", load_of(placed, placed.week.cores**2), moments.variance[:, of_day])

    def chance(factor: float) -> Floats:
        found: Floats = ndtr((factor * mean - placed.scenario.threshold) / np.sqrt(np.maximum(factor * variance, 1e-9)))
        return found

    found, step = slopes(placed, moments), 1e-5
    wanted = (chance(1.0 + step) - chance(1.0 - step)) / (2.0 * step)
    cool = mean < placed.scenario.threshold
    assert wanted[cool].max() > 0.1
    assert found[cool] == pytest.approx(wanted[cool], rel=1e-3, abs=1e-7)


def test_a_machine_that_is_surely_hot_still_tells_whose_load_to_take_away() -> None:
    placed, moments = played("internal_like", 0.2)
    hot = np.einsum("knt,nt->kt", load_of(placed, placed.week.cores), moments.mean[:, np.arange(120) % 24]) > 70.0
    assert hot.any()
    assert slopes(placed, moments)[hot].min() > 1.0


def test_without_hot_hours_no_subscriber_answers() -> None:
    assert np.abs(answered_for(*played("internal_like", 1.0))).max() < 1e-6
