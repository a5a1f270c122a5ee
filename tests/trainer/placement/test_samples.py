"""A vector is valued on orders that every vector meets alike, and that no test ever sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.placement.instance import Release
from domain.rules.placement.policies import BF, LIFETIME, Policy
from simulator.placement import engine, instances
from trainer.kit.jobs import Pool, Workers
from trainer.placement.swarm import (
    FIRST,
    FIRST_SELECTION,
    NOMINAL,
    SELECTED_ON,
    SELECTION,
    Floats,
    Plan,
    Samples,
    Valuation,
    first,
    value_of,
)

SMALL = instances.small(3)


def points() -> Floats:
    return first(Plan(population=6, seed=4))


def test_draws_are_disjoint_and_leave_the_test_shuffles_alone() -> None:
    """Shuffles 0 to 9,999 are never sampled; those of the last choice are of no draw."""
    samples = Samples(sequences=24)
    drawn = [k for draw in range(50) for k in samples.shuffles(draw)]
    chosen = samples.shuffles(SELECTION)
    assert len(set(drawn) | set(chosen)) == 50 * 24 + SELECTED_ON
    assert min(drawn) == FIRST == 10_000
    assert min(chosen) == FIRST_SELECTION
    assert samples.seen(11, 5) == [*range(10_000, 10_072), *chosen]
    assert Samples(orders=NOMINAL).seen(11, 5) == []


def test_a_value_is_the_mean_and_the_price_of_the_range() -> None:
    """§3, with rejected containers at a thousand hosts each."""
    assert value_of(np.array([10.0, 14.0]), 0.3) == pytest.approx(12.0 + 0.3 * 4.0)
    tight = replace(SMALL, hosts=(replace(SMALL.hosts[0], count=9),))
    policy = first(Plan())[:1]
    played = engine.play(tight, Policy("p", "tiers17a", tuple(policy[0].tolist())))
    assert played.rejected > 0
    (value,) = Valuation([tight], "tiers17a", Samples(orders=NOMINAL))(policy, 0)
    assert value == played.hosts + 1000.0 * played.rejected


def test_values_are_those_of_single_plays() -> None:
    """Over the shuffles of the draw; several instances count alike."""
    samples, other = Samples(sequences=5, rho=0.5), instances.small(4)
    values = Valuation([SMALL, other], "tiers17a", samples)(points(), 2)
    for point, value in zip(points(), values, strict=True):
        policy = Policy("p", "tiers17a", tuple(point.tolist()))
        own = []
        for instance in (SMALL, other):
            hosts = [engine.play(instances.shuffled(instance, k), policy).hosts for k in samples.shuffles(2)]
            own.append(np.mean(hosts) + 0.5 * np.ptp(hosts))
        assert value == pytest.approx(np.mean(own), abs=1e-12)


def test_any_number_of_workers_gives_the_same_values() -> None:
    """B8: bit for bit, and every vector of an iteration meets the same samples."""
    here, apart = (Valuation([SMALL], "tiers17a", Samples(sequences=6)) for _ in range(2))
    with Pool(apart.value, Workers(2)) as pool:
        np.testing.assert_array_equal(here(points(), 0), apart(points(), 0, pool.run))
        np.testing.assert_array_equal(here(points()[::-1], 0)[::-1], apart(points(), 0, pool.run))
    assert here.played == apart.played == 72


def test_filled_samples_begin_where_best_fit_stopped() -> None:
    """A vector that is best fit opens what best fit opens on the whole; the snapshot holds the first half or more."""
    samples = Samples(sequences=4, filled=0.5)
    valuation = Valuation([SMALL], "linear14", samples)
    cpu = np.array([-1.0, *[0.0] * 13])
    (costs,) = valuation.costs(cpu, 0)
    policy = Policy("p", "linear14", tuple(cpu.tolist()))
    for k, cost in zip([10_002, 10_003], costs[:2], strict=True):
        assert cost == engine.play(instances.shuffled(SMALL, k), policy).hosts
    for k, cost in zip([10_000, 10_001], costs[2:], strict=True):
        share = float(np.random.default_rng((k, 1)).uniform(0.5, 0.9))
        begun = instances.taken_over(instances.shuffled(SMALL, k), share)
        assert len(begun.requests) == 30 - round(share * 30)
        assert cost == engine.play(begun, policy).hosts


def test_a_snapshot_continues_exactly() -> None:
    """The policy that filled the hosts goes on as if it had never stopped, on a pool of one size."""
    for share in (0.0, 0.3, 0.7, 1.0):
        begun = instances.taken_over(SMALL, share, BF)
        assert engine.play(begun, BF).hosts == engine.play(SMALL, BF).hosts
    with pytest.raises(BadInput, match="without releases"):
        instances.taken_over(instances.churn(1), 0.5)
    with pytest.raises(BadInput, match="share from 0 to 1"):
        instances.taken_over(SMALL, 1.5)
    assert len(instances.snapshot(219).requests) == 900


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sequences": 0}, "sequences"),
        ({"rho": -0.1}, "rho"),
        ({"rho": float("nan")}, "rho"),
        ({"orders": "sorted"}, "orders"),
        ({"filled": 1.1}, "filled"),
    ],
)
def test_samples_that_make_no_sense_are_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        Samples(**changes)
    assert refused.value.field == field


def test_where_containers_end_a_point_costs_its_host_hours_in_per_cent_of_best_fit() -> None:
    made = instances.instance_of("alibaba-openb:0+600@8", "0.5")
    last = made.requests[-1].at_s
    hours = [
        engine.play(made, policy, measured_from_s=0.3 * last, until_s=last).host_hours for policy in (BF, LIFETIME)
    ]
    valuation = Valuation([made], LIFETIME.family, Samples(sequences=24))
    value = valuation(np.array([LIFETIME.theta]), 0)
    assert value.tolist() == [pytest.approx(100.0 * hours[1] / hours[0])]
    assert valuation.played == 1, "its own order alone"


def test_instances_without_requests_or_without_time_are_refused() -> None:
    empty = instances.taken_over(SMALL, 1.0)
    with pytest.raises(BadInput, match="nothing to learn from"):
        Valuation([empty], "tiers17a", Samples())
    at_once = replace(SMALL, releases=(Release(SMALL.requests[0].name, 0, 5.0),))
    with pytest.raises(BadInput, match="come at once"):
        Valuation([at_once], "tiers17a", Samples())
