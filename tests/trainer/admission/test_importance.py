"""Importance sampling over runs: its formulas, its weights, its estimates, and what it is worth."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import BadInput
from simulator.admission import PRESETS, draw_run
from trainer.admission.campaign import runs_of
from trainer.admission.cells import Cell
from trainer.admission.importance import (
    Scheme,
    badness,
    best_chances,
    best_worth,
    buckets_of,
    draw_weighted,
    effective_size,
    failed_share,
    redraws_for,
    scheme_of,
    weighted_mean,
)

PUBLISHED = Scheme((1.0, 2.0), (0.9, 0.08, 0.02), (0.6, 0.5, 0.0))


def test_the_worked_example_has_its_chances_and_weights() -> None:
    assert PUBLISHED.drawn == pytest.approx((0.36, 0.256, 0.384))
    assert PUBLISHED.weights == pytest.approx((2.5, 0.3125, 0.0520833333))


chances = st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5)


@given(chances, st.data())
def test_the_chances_of_all_buckets_add_up_to_one(raw: list[float], data: st.DataObject) -> None:
    p = tuple(x / sum(raw) for x in raw)
    r = (*data.draw(st.lists(st.floats(0.0, 0.95), min_size=len(p) - 1, max_size=len(p) - 1)), 0.0)
    scheme = Scheme(tuple(range(len(p) - 1)), p, r)
    assert sum(scheme.drawn) == pytest.approx(1.0)
    assert sum(q * w for q, w in zip(scheme.drawn, scheme.weights, strict=True)) == pytest.approx(1.0)


@given(chances, st.data())
def test_redraws_give_the_chances_that_were_asked_for(raw: list[float], data: st.DataObject) -> None:
    p = tuple(x / sum(raw) for x in raw)
    squares = data.draw(st.lists(st.floats(0.0, 10.0), min_size=len(p), max_size=len(p)))
    q = best_chances(p, squares)
    assert Scheme(tuple(range(len(p) - 1)), p, redraws_for(p, q)).drawn == pytest.approx(q)


def test_chances_follow_the_root_of_the_mean_square_but_never_vanish() -> None:
    assert best_chances((0.5, 0.5), (1.0, 9.0)) == pytest.approx((0.25, 0.75))
    assert best_chances((0.9, 0.1), (0.0, 1.0)) == pytest.approx((0.09, 0.91))
    assert best_chances((0.9, 0.1), (0.0, 0.0)) == (0.9, 0.1)


def test_a_bucket_cannot_be_drawn_more_often_than_it_is_reached() -> None:
    with pytest.raises(BadInput, match="bucket 0 is reached"):
        redraws_for((0.5, 0.5), (0.7, 0.3))


@pytest.mark.parametrize(
    ("cuts", "p", "r"),
    [((1.0,), (0.5, 0.6), (0.1, 0.0)), ((1.0,), (0.5, 0.5), (0.1, 0.2)), ((), (0.5, 0.5), (0.1, 0.0))],
)
def test_a_scheme_that_is_none_is_refused(cuts: tuple[float, ...], p: tuple[float, ...], r: tuple[float, ...]) -> None:
    with pytest.raises(BadInput):
        Scheme(cuts, p, r)


def normal_badness(seed: int) -> float:
    return float(np.random.default_rng(seed).normal())


def test_weighted_draws_have_the_law_that_the_formulas_say() -> None:
    values = np.array([normal_badness(seed) for seed in range(4000)])
    scheme = replace(PUBLISHED, cuts=tuple(np.quantile(values, (0.9, 0.98))))
    drawn = list(draw_weighted(scheme, 4000, 100_000, normal_badness, np.random.default_rng(1)))
    share = np.bincount([one.bucket for one in drawn], minlength=3) / 4000
    # The cuts come from 4,000 draws themselves.
    assert share == pytest.approx(scheme.drawn, abs=0.04)
    assert all(buckets_of(np.array([normal_badness(o.seed)]), scheme.cuts)[0] == o.bucket for o in drawn[:200])


def test_the_weighted_estimate_is_unbiased_and_closer_where_failures_are_bad_runs() -> None:
    cuts = tuple(float(x) for x in (1.2815515655, 2.0537489106))

    def failure(seed: int) -> float:
        return max(0.0, normal_badness(seed) - 1.0) ** 2

    # E[(Z - 1)+^2] = 2 Q(1) - q(1), with the normal tail Q and density q.
    exact = 2 * 0.15865525393145707 - 0.24197072451914337
    p = (0.9, 0.08, 0.02)
    pilot = list(range(3000))
    place = buckets_of(np.array([normal_badness(s) for s in pilot]), cuts)
    squares = [float(np.mean([failure(s) ** 2 for s, b in zip(pilot, place, strict=True) if b == k])) for k in range(3)]
    scheme = Scheme(cuts, p, redraws_for(p, best_chances(p, squares)))
    drawn = list(draw_weighted(scheme, 3000, 200_000, normal_badness, np.random.default_rng(2)))
    values, weights = np.array([failure(o.seed) for o in drawn]), np.array([o.weight for o in drawn])
    found = weighted_mean(values, weights)
    plain = weighted_mean(np.array([failure(s) for s in range(3000)]), np.ones(3000))
    assert abs(found.value - exact) < 4 * found.error
    assert found.error < 0.6 * plain.error
    assert abs(weights.mean() - 1.0) < 4 * weights.std() / np.sqrt(3000)
    worth = best_worth(p, scheme.drawn, squares, exact)
    assert worth == pytest.approx((plain.error / found.error) ** 2, rel=0.35)


def test_effective_size_is_that_of_kish() -> None:
    assert effective_size(np.ones(50)) == 50.0
    assert effective_size(np.array([1.0, 0.0, 0.0])) == 1.0


def test_badness_needs_the_drawn_deployments_alone_and_grows_with_them() -> None:
    run = draw_run(PRESETS["H"], 5, hours=2920.0)
    grown = replace(run, arrivals=run.arrivals.copy())
    grown.arrivals["theta"] *= 1.5
    assert badness(run) == badness(draw_run(PRESETS["H"], 5, hours=2920.0))
    assert 0.0 < badness(run) < badness(grown)
    assert badness(replace(run, arrivals=run.arrivals[:0])) == 0.0


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_two_thousand_weighted_runs_agree_with_as_many_plain_ones(small: str) -> None:
    from simulator.admission import cluster_of

    cell = Cell(small, "zeroth:330", hours=4380.0)
    cluster = cluster_of(small)

    def badness_of(seed: int) -> float:
        return badness(draw_run(cluster, seed, hours=cell.hours))

    values = np.array([badness_of(seed) for seed in range(1_000_000, 1_006_000)])
    plainly = scheme_of(values)
    pilot = np.arange(1_000_000, 1_002_000)
    shares = failed_share(runs_of(cell, pilot.tolist()))
    place = buckets_of(values[:2000], plainly.cuts)
    scheme = scheme_of(values, [float((shares[place == k] ** 2).mean()) for k in range(3)])
    drawn = list(draw_weighted(scheme, 2000, 10_000_000, badness_of, np.random.default_rng(3)))
    runs = runs_of(cell, [o.seed for o in drawn])
    weights = np.array([o.weight for o in drawn])
    plain = runs_of(cell, list(range(2000)))
    assert abs(weights.mean() - 1.0) < 3 * weights.std() / np.sqrt(2000)
    for ours, theirs in (
        (runs.utilisation, plain.utilisation),
        (runs.failures.sum(axis=1), plain.failures.sum(axis=1)),
        (runs.requests.sum(axis=1), plain.requests.sum(axis=1)),
    ):
        weighted, reference = weighted_mean(ours, weights), weighted_mean(theirs, np.ones(2000))
        assert abs(weighted.value - reference.value) < 3 * np.hypot(weighted.error, reference.error)
