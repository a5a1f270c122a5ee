"""Thresholds are found by halving, on shared runs, with a second look before the last halvings."""

import pytest

from domain.errors import BadInput
from simulator.admission import rule_of
from tests.trainer.admission.made_runs import made
from trainer.admission.fronts import Metric, rows_of
from trainer.admission.table import (
    TUNING_SEED,
    Cell,
    Runs,
    Store,
    comparison_seeds,
    configuration_of,
    run_cells,
    tuning_seeds,
)
from trainer.admission.tuning import bisect, scale_of, tune


@pytest.mark.parametrize("edge", [0, 1, 499, 500, 1998, 1999])
def test_halving_finds_the_last_place_that_keeps_the_promise(edge: int) -> None:
    looks: list[tuple[int, int]] = []

    def keeps(place: int, runs: int) -> bool:
        looks.append((place, runs))
        return place <= edge

    place, runs = bisect(keeps, 2000, 40)
    assert place == edge
    assert runs == 80
    assert len(looks) < 20
    assert {r for _, r in looks[-3:]} == {80}


def test_nothing_keeps_it_or_everything_does() -> None:
    assert bisect(lambda place, runs: False, 100, 40) == (None, 40)
    assert bisect(lambda place, runs: True, 100, 40) == (100, 40)


def test_an_end_that_changes_its_mind_with_more_runs_moves_outward() -> None:
    # 40 runs take 700 for kept; 80 runs know that 500 is the last.
    assert bisect(lambda place, runs: place <= (700 if runs == 40 else 500), 2000, 40) == (500, 80)
    assert bisect(lambda place, runs: place <= (500 if runs == 40 else 700), 2000, 40) == (700, 80)
    assert bisect(lambda place, runs: runs == 40 and place <= 5, 2000, 40) == (None, 80)


@pytest.mark.parametrize(
    ("policy", "first", "last", "steps"),
    [
        ("zeroth", "zeroth:6000", "zeroth:20000", 280),
        ("second", "second:40", "second:0", 2000),
        ("second:{},marginal=1", "second:40,marginal=1", "second:0,marginal=1", 2000),
        ("second:limit={},kappa=1", "second:limit=6000,kappa=1", "second:limit=20000,kappa=1", 280),
    ],
)
def test_scales_run_from_strict_to_permissive(policy: str, first: str, last: str, steps: int) -> None:
    scale = scale_of(policy, "K")
    assert (scale.text(0), scale.text(scale.last), scale.last) == (first, last, steps)
    rule_of(scale.text(scale.last // 2))


def test_risks_are_tried_in_the_logarithm() -> None:
    scale = scale_of("sgamma:{}", "K", (1e-6, 1e-2))
    assert (scale.text(0), scale.text(20), scale.text(scale.last)) == ("sgamma:1e-06", "sgamma:1e-05", "sgamma:0.01")


@pytest.mark.parametrize(("policy", "bracket"), [("third", None), ("zeroth:14000", None), ("second", (4.0, 1.0))])
def test_what_cannot_be_tuned_is_refused(policy: str, bracket: tuple[float, float] | None) -> None:
    with pytest.raises(BadInput):
        scale_of(policy, "K", bracket)


@pytest.mark.exhaustive
def test_the_answer_keeps_the_promise_on_real_runs_and_the_next_threshold_does_not(small: str) -> None:
    store = Store(None, configuration_of([small], 2190.0))
    scale = scale_of("zeroth", small)

    def play(cell: Cell, seeds: range) -> Runs:
        assert min(seeds) >= TUNING_SEED
        return run_cells(store, [cell], seeds)[cell]

    def rate(policy: str, runs: int) -> float:
        rows = rows_of(play(Cell(small, policy, hours=2190.0), tuning_seeds(runs))).mean(axis=0)
        return float(rows[1] / rows[2])

    start = Cell(small, scale.text(0), hours=2190.0)
    average = tune(start, scale, 0.02, play, wanted="average", runs=20, final_runs=30)
    assert average.policy is not None
    assert average.result is not None
    assert average.result.runs == 40
    assert rate(average.policy, 40) <= 0.02
    place = next(p for p in range(scale.last + 1) if scale.text(p) == average.policy)
    assert rate(scale.text(place + 1), 40) > 0.02
    safe = tune(start, scale, 0.02, play, runs=20, final_runs=30)
    assert safe.policy is not None
    assert safe.upper <= 0.02
    assert float(safe.policy.partition(":")[2]) <= float(average.policy.partition(":")[2])


def test_the_final_runs_make_a_threshold_stricter_until_it_keeps_the_promise() -> None:
    scale = scale_of("zeroth", "K")

    def play(cell: Cell, seeds: range) -> Runs:
        # With many runs the cluster turns out to fail from 15,000 on, with few from 17,000 on.
        edge = 15_000 if len(seeds) > 100 else 17_000
        failing = float(cell.policy.partition(":")[2]) >= edge
        return made([0.5] * len(seeds), [[50 if failing else 0]] * len(seeds), first=seeds[0])

    found = tune(Cell("K", "zeroth:1"), scale, 1e-3, play, runs=40, final_runs=500)
    assert found.policy == "zeroth:14950"
    assert found.tried[-1] == ("zeroth:14950", 500, True)


def test_a_promise_that_nothing_keeps_is_answered_with_no_threshold() -> None:
    found = tune(
        Cell("K", "zeroth:1"),
        scale_of("zeroth", "K"),
        1e-3,
        lambda cell, seeds: made([0.5] * len(seeds), [[50]] * len(seeds), first=seeds[0]),
        metric=Metric.POOLED,
    )
    assert found.policy is None


def test_tuning_and_comparison_have_no_seed_in_common() -> None:
    assert not set(tuning_seeds(100_000)) & set(comparison_seeds(100_000))
    with pytest.raises(BadInput, match="runs"):
        comparison_seeds(100_001)
