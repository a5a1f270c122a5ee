"""The front holds what nothing dominates, and its measures are those of the specification."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as number_arrays

from domain.errors import BadInput
from domain.rules.placement.instance import Application, HostType, Instance, Request
from domain.rules.placement.policies import BF, WF
from simulator.placement import engine, instances
from trainer.kit.jobs import Pool, Workers
from trainer.placement import pareto
from trainer.placement.pareto import Measurement, Points
from trainer.placement.swarm import Plan, Samples

TABLES = number_arrays(np.float64, st.tuples(st.integers(1, 12), st.just(3)), elements=st.integers(0, 4).map(float))


def measured(values: object, rejected: object = None) -> Points:
    table = np.array(values, dtype=np.float64)
    five = np.hstack([table, np.zeros((len(table), 5 - table.shape[1]))])
    lost = np.zeros(len(table)) if rejected is None else np.array(rejected, dtype=np.float64)
    return Points(np.arange(len(table))[:, None].astype(np.float64), five, np.zeros_like(five), lost)


@given(TABLES)
def test_what_stays_is_dominated_by_nothing_and_what_goes_by_something(values: np.ndarray) -> None:
    gone = pareto.dominated(values, np.zeros(len(values)))
    assert not gone.all()
    for k, value in enumerate(values):
        above = [(other <= value).all() and (other < value).any() for other in values]
        twin = any((values[j] == value).all() for j in range(k))
        assert gone[k] == (any(above) or twin)


def test_rejections_come_before_every_objective() -> None:
    """Constraint-domination: fewer rejected containers win, whatever they cost."""
    found = pareto.archived(measured([[1, 1, 1], [9, 9, 9], [2, 2, 2]], [1, 0, 1]))
    assert found.points[:, 0].tolist() == [1.0]


@given(TABLES)
def test_the_volume_is_that_of_a_grid(values: np.ndarray) -> None:
    """With whole numbers, the share of cells of a box of five that some point dominates."""
    cells = np.stack(np.meshgrid(*[np.arange(5)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    covered = (values[None, :, :] <= cells[:, None, :]).all(axis=2).any(axis=1)
    assert pareto.hypervolume(values, (5.0, 5.0, 5.0)) == pytest.approx(covered.mean(), abs=1e-12)


def test_points_beyond_the_reference_count_for_nothing() -> None:
    assert pareto.hypervolume(np.array([[1.0, 5.0, 1.0]]), (5.0, 5.0, 5.0)) == 0.0


def test_a_full_archive_loses_its_most_crowded_points() -> None:
    """The ends of each objective stay, and of three that stand close the one in the middle goes."""
    line = [[0.0, 10.0, 0.0], [4.0, 6.0, 0.0], [5.0, 5.0, 0.0], [5.5, 4.5, 0.0], [10.0, 0.0, 0.0]]
    assert pareto.archived(measured(line), 4).points[:, 0].tolist() == [0.0, 1.0, 3.0, 4.0]
    assert np.isinf(pareto.crowding(np.array(line))[[0, 4]]).all()


def test_measures_are_those_of_the_specification() -> None:
    """Two hosts of 16 cores: 12 and 8 in use; a is on both, twice on the first."""
    hosts = (HostType("h", (16, 64, 100)),)
    apps = (Application("a", (4, 8, 1)), Application("b", (4, 8, 1), 1), Application("c", (12, 1, 1)))
    made = Instance("i", hosts, apps, (Request("r0", "a", 4), Request("r1", "b", 2)))
    arrays = engine.arrays_of(made)
    outcome = engine.play(made, BF)
    values = pareto.measures(made, outcome, arrays)
    # BF: four of a fill host 0, then b on 1 and 2, since its limit is 1.
    assert outcome.host.tolist() == [0, 0, 0, 0, 1, 2]
    assert values == pytest.approx((3.0, np.std([1.0, 0.25, 0.25]), 1.0, 0.0))
    narrow = Instance("i", hosts, apps, (Request("r0", "c", 2), Request("r1", "a", 5)))
    stranded = pareto.measures(narrow, engine.play(narrow, BF), engine.arrays_of(narrow))
    # Hosts 0 and 1 have 12 of c and 4 of a each, host 2 has three of a: 4 cores free, too few for 8c16g.
    assert stranded == pytest.approx((3.0, np.std([1.0, 1.0, 0.75]), 0.6, 1.0))


@pytest.mark.parametrize("name", ["BF", "WF"])
def test_reference_points_of_the_specification(name: str) -> None:
    """§8, on L219 and ten shuffles: hosts, imbalance and concentration."""
    l219 = instances.large(219)
    wanted = {"BF": (286.4, 0.241, 0.248), "WF": (277.9, 0.092, 0.191)}[name]
    arrays = engine.arrays_of(l219)
    rows = []
    for k in range(10):
        outcome = engine.play(l219, {"BF": BF, "WF": WF}[name], instances.shuffle_order(3000, k), arrays=arrays)
        rows.append(pareto.measures(l219, outcome, arrays)[:3])
    assert np.mean(rows, axis=0) == pytest.approx(wanted, abs=0.06)
    assert np.mean(rows, axis=0)[1:] == pytest.approx(wanted[1:], abs=6e-4)


def test_a_front_is_found_and_is_the_same_for_any_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small instance: none of its policies dominates another, and it covers more than best and worst fit."""
    # Small instances are far from their bound in most orders.
    monkeypatch.setattr(pareto, "WORST", (2.0, 0.6, 0.9))
    made, plan = instances.small(3), Plan(population=8, iterations=8)
    fronts = []
    for workers in (1, 2):
        measurement = Measurement(made, plan.family, Samples(sequences=4))
        with Pool(measurement.rows, Workers(workers)) as pool:
            front = pareto.search_front(plan, partial(measurement.points, run=pool.run))
        fronts.append(front)
    np.testing.assert_array_equal(fronts[0].points, fronts[1].points)
    np.testing.assert_array_equal(fronts[0].values, fronts[1].values)
    assert not pareto.dominated(front.values[:, :3], front.rejected).any()
    fixed = {policy.name: measurement.policies([policy], -1) for policy in (BF, WF)}
    data = pareto.front_data(front, fixed, measurement, plan)
    assert data["hypervolume"] > data["hypervolume_fixed"] > 0.0
    values = np.array([one["values"] for one in data["front"]])
    assert values[:, 0].tolist() == sorted(values[:, 0].tolist())
    near = values[values[:, 0] <= values[:, 0].min() + 2.0]
    assert values[data["chosen"]["point"], 1] == near[:, 1].min()
    assert pareto.front_picture(data).startswith("<svg")


def test_an_instance_with_releases_has_no_front() -> None:
    with pytest.raises(BadInput, match="its orders cannot be shuffled"):
        Measurement(instances.churn(1), "tiers17a", Samples())
