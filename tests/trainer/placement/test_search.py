"""Every method of the search obeys one plan, resumes bit for bit and finds what there is to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.placement.policies import Policy, box
from trainer.placement import swarm
from trainer.placement.swarm import SELECTION, Floats, History, Plan, Step

TARGET = np.linspace(-0.6, 0.7, 17)


def bowl(points: Floats, draw: int) -> Floats:
    """A smooth valley whose floor moves a little with the samples."""
    return ((points - TARGET - 0.01 * draw) ** 2).sum(axis=1)


class Asked:
    """An objective that remembers what it was asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.points: list[Floats] = []

    def __call__(self, points: Floats, draw: int) -> Floats:
        self.calls.append((len(points), draw))
        self.points.append(points.copy())
        return bowl(points, draw)


def collected(steps: list[Step]) -> Callable[[Step, History], None]:
    """Keeps each step that a search reports."""
    return lambda step, _: steps.append(step)


METHODS = sorted(swarm.METHODS)
SHORT = Plan(population=8, iterations=12, refresh=5, patience=50)


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_compared_at_equal_calls(method: str) -> None:
    """A population an iteration, as many again at each refresh, and the finalists at the end: the same for all."""
    asked = Asked()
    found = swarm.search(replace(SHORT, method=method), asked)
    populations = [(8, 0)] * 5 + [(8, 1)] * 6 + [(8, 2)] * 3
    assert asked.calls == [*populations, (6, SELECTION)]
    assert found.evaluations == 8 * 14 + 6


@pytest.mark.parametrize("method", METHODS)
def test_all_points_lie_in_the_box_and_all_begin_alike(method: str) -> None:
    """BF, WF and RESERVE of the family first, the rest uniform."""
    asked = Asked()
    swarm.search(replace(SHORT, method=method), asked)
    low, high = box("tiers17a")
    assert all((points >= low).all() and (points <= high).all() for points in asked.points)
    np.testing.assert_array_equal(asked.points[0], swarm.first(SHORT))
    np.testing.assert_array_equal(asked.points[0][:3], list(swarm.named_starts("tiers17a").values()))


@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_search_goes_on_bit_for_bit(method: str) -> None:
    """From the values after any iteration, through arrays of a checkpoint, without asking for one of them again."""
    plan = replace(SHORT, method=method)
    states: list[dict[str, object]] = []
    whole = swarm.search(plan, bowl, on_step=lambda _, history: states.append(history.as_state()))
    assert len(states) == 12
    for at in (0, 4, 5, 10):
        asked, steps = Asked(), list[Step]()
        history = History.of_state(states[at])
        known = len(history.values)
        resumed = swarm.search(plan, asked, history=history, on_step=collected(steps))
        np.testing.assert_array_equal(resumed.theta, whole.theta)
        assert [step.value for step in resumed.steps] == [step.value for step in whole.steps]
        assert (resumed.value, resumed.evaluations) == (whole.value, whole.evaluations)
        assert len(asked.calls) == len(history.values) - known
        assert [step.iteration for step in steps] == list(range(at + 1, 12))


@pytest.mark.parametrize(("method", "value"), [("pso", 0.2), ("cmaes", 0.01), ("cross-entropy", 0.2), ("random", 4.0)])
def test_each_method_gets_down_the_valley(method: str, value: float) -> None:
    """From a best of about 5 in the first population."""
    plan = Plan(method=method, iterations=60, refresh=100, patience=60)
    found = swarm.search(plan, lambda points, _: bowl(points, 0))
    assert found.steps[0].value > 3.0
    assert found.value < value
    assert [step.value for step in found.steps] == sorted((step.value for step in found.steps), reverse=True)


def test_the_best_are_valued_anew_on_fresh_samples() -> None:
    """A point that was lucky once loses its place: the values on the first samples are of no use later."""
    lucky = swarm.first(SHORT)[5]

    def luck(points: Floats, draw: int) -> Floats:
        values = bowl(points, 0)
        at_lucky = np.abs(points - lucky).sum(axis=1) < 1e-12
        return np.where(at_lucky & (draw == 0), -100.0, values)

    for method in METHODS:
        found = swarm.search(replace(SHORT, method=method), luck)
        assert found.steps[4].value == -100.0
        assert found.steps[5].value > 0.0


def test_a_search_without_gain_ends_by_its_patience() -> None:
    """And a refresh is no gain."""
    found = swarm.search(
        Plan(population=4, iterations=60, patience=7), lambda points, draw: np.full(len(points), -draw)
    )
    assert len(found.steps) == 8


def test_a_narrow_swarm_is_spread_again() -> None:
    """Where all stand on one point, the worst fifth is drawn anew; the best stays."""
    plan = replace(SHORT, population=10)
    own = swarm.Swarm(plan)
    own.tell(own.ask(0), np.arange(10.0))
    own._x = np.tile(TARGET, (10, 1))
    own.points, own._v = own._x.copy(), np.zeros((10, 17))
    moved = own.ask(3)
    assert [k for k in range(10) if not np.array_equal(moved[k], TARGET)] == [8, 9]
    assert np.isinf(own.values[8:]).all()
    assert own.values[0] == 0.0


def test_a_swarm_moves_as_published() -> None:
    """V <- w v + c1 xi1 (own - x) + c2 xi2 (best - x), bounded by 1; at the wall the coordinate stops."""
    plan = replace(SHORT, iterations=11)
    own = swarm.Swarm(plan)
    x = own.ask(0)
    own.tell(x, bowl(x, 0))
    best = x[int(np.argmin(bowl(x, 0)))]
    v = own._v.copy()
    moved = own.ask(1)
    for k in range(8):
        xi = swarm.generator(plan, 1, k).random((2, 17))
        speed = np.clip(0.9 * v[k] + 1.6 * xi[1] * (best - x[k]), -1.0, 1.0)
        np.testing.assert_allclose(moved[k], np.clip(x[k] + speed, -1.0, 1.0), atol=1e-15)
        np.testing.assert_array_equal(own._v[k] == 0.0, np.abs(x[k] + speed) > 1.0)


def test_values_that_are_no_numbers_lose() -> None:
    """Whatever made them: the answer has a number, and CMA-ES goes on."""

    def sick(points: Floats, draw: int) -> Floats:
        values = bowl(points, draw)
        return np.where(points[:, 0] > 0.0, np.nan, values)

    for method in METHODS:
        found = swarm.search(replace(SHORT, method=method), sick)
        assert np.isfinite(found.value)
        assert found.theta[0] <= 0.0


@pytest.mark.parametrize(
    "family", ["linear14", "potential17", "tiers17", "tiers17a", "tiers18a", "tiers17+potential17"]
)
def test_named_policies_are_vectors_of_their_family(family: str) -> None:
    """Each is one that a policy can be made of."""
    starts = swarm.named_starts(family)
    assert {"BF", "WF"} <= set(starts)
    for name, vector in starts.items():
        assert Policy(name, family, tuple(vector.tolist())).family == family


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"method": "annealing"}, "method"),
        ({"population": 3}, "population"),
        ({"iterations": 0}, "iterations"),
        ({"refresh": 0}, "refresh"),
        ({"family": "bf"}, "family"),
        ({"family": "tiers99"}, "family"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(changes: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        replace(SHORT, **changes)
    assert refused.value.field == field


def test_steps_report_where_the_search_is() -> None:
    """Number of the iteration, best value, mean and width of the points."""
    steps: list[Step] = []
    swarm.search(SHORT, bowl, on_step=collected(steps))
    assert [step.iteration for step in steps] == list(range(12))
    assert all(step.value <= step.mean and 0.0 < step.width <= 1.0 for step in steps)
