"""Hot hours are laid on the decisions that bring them about (oversubscription specification §12.1, §12.3)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from simulator.oversubscription.scenario import scenario_of
from simulator.oversubscription.single import OversubscriptionSimulation
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Placement
from tests.trainer.oversubscription.small import staggered_pair
from trainer.oversubscription.credit import answered_for, held, saved_by, slopes

Floats = np.ndarray


def played(name: str, rate: float | list[float], start: str = "cold") -> tuple[Placement, Floats, Floats]:
    scenario = scenario_of(name) if name != "staggered" else staggered_pair(sd=0.3)
    simulation = OversubscriptionSimulation(scenario, "s0", start=start, cost="analytic")
    simulation.reset()
    rates, chances, cluster, over = np.broadcast_to(rate, scenario.subscribers).copy(), [], [], False
    while not over:
        _, _, chance, over, _, _ = simulation.step_rates(rates)
        cluster.append(chance)
        chances.append(simulation.batch.chances[0].copy())
    return simulation.placement(), np.array(chances), np.array(cluster)


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_what_is_saved_is_what_the_week_saves(start: str) -> None:
    placed, _, _ = played("azure_like", 0.6, start)
    week = placed.week
    assert saved_by(placed).sum() == pytest.approx(0.4 * week.requested_cores)
    rows = week.arrival[week.warm :] == 7
    first = week.cores[week.warm :][rows & (week.subscriber[week.warm :] == 2)].sum()
    assert saved_by(placed)[7, 2] == pytest.approx(0.4 * first)


def test_what_is_held_is_the_cores_of_the_vms_there() -> None:
    placed, _, _ = played("internal_like", 0.5)
    week = placed.week
    at = 60
    there = (week.arrival <= at) & (week.departure > at) & (placed.machine >= 0)
    assert held(placed, week.cores, 120)[:, :, at].sum() == pytest.approx(week.cores[there].sum())
    own = there & (placed.machine == 3) & (week.subscriber == 1)
    assert held(placed, week.cores, 120)[3, 1, at] == pytest.approx(week.cores[own].sum())


def test_all_vms_of_a_cold_cluster_answer_for_nothing_together_and_each_for_its_share() -> None:
    placed, chances, cluster = played("internal_like", 0.42)
    assert cluster.sum() > 1.0
    own = answered_for(placed, chances, cluster, usage_of("gauss", placed.scenario, placed.week).moments)
    assert own.sum() == pytest.approx(0.0, abs=1e-6 * np.abs(own).sum())
    assert np.abs(own).sum() > 1.0


def test_a_subscriber_that_uses_more_of_what_it_reserves_answers_for_the_hot_hours() -> None:
    # By night the first one idles while the second is busy; both have the same rate, so the blame follows the clock.
    placed, chances, cluster = played("staggered", [0.4, 0.4])
    moments = usage_of("gauss", placed.scenario, placed.week).moments
    even = answered_for(placed, chances, cluster, moments).sum(axis=0)
    placed, chances, cluster = played("staggered", [0.3, 0.6])
    uneven = answered_for(placed, chances, cluster, moments).sum(axis=0)
    assert uneven[0] > even[0]
    assert uneven[0] > 0.0 > uneven[1]


def test_slopes_are_the_derivative_of_the_clusters_chance_by_a_machines_load() -> None:
    placed, _, _ = played("internal_like", 0.42)
    moments = usage_of("gauss", placed.scenario, placed.week).moments
    of_day = np.arange(120) % 24
    cores = held(placed, placed.week.cores, 120)
    mean = np.einsum("knt,nt->kt", cores, moments.mean[:, of_day])
    variance = np.einsum("knt,nt->kt", held(placed, placed.week.cores**2, 120), moments.variance[:, of_day])

    def chances_at(factor: Floats) -> tuple[Floats, Floats]:
        z = (placed.scenario.threshold - factor * mean) / np.sqrt(np.maximum(factor * variance, 1e-9))
        own = ndtr(-z)
        return own, 1.0 - np.prod(1.0 - own, axis=0)

    own, cluster = chances_at(np.ones((placed.opened, 1)))
    found = slopes(placed, own.T, cluster, moments)
    for machine in np.argsort(-own.max(axis=1))[:3]:
        factor = np.ones((placed.opened, 1))
        factor[machine] += 1e-5
        _, above = chances_at(factor)
        factor[machine] -= 2e-5
        _, below = chances_at(factor)
        hour = int(own[machine].argmax())
        assert found[machine, hour] == pytest.approx((above - below)[hour] / 2e-5, rel=1e-3)


def test_without_hot_hours_nobody_answers() -> None:
    placed, chances, cluster = played("internal_like", 1.0)
    own = answered_for(placed, chances, cluster, usage_of("gauss", placed.scenario, placed.week).moments)
    assert np.abs(own).max() < 1e-6
