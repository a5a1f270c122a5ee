"""The whole-fleet targets that are compared: few, distinct, allowed; the rule's own and no change are among them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from domain.rules.autoscaling import (
    MOST_CANDIDATES,
    PREPARED_SHARE,
    PREPARING_SHARES,
    candidate_targets,
    cheapest_split,
    fill,
    queue_rule_multi,
)


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Fleets of 1 to 12 types, some of them cooling down."""
    kinds = draw(st.integers(1, 12))

    def column(low: int, high: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(low, high), min_size=kinds, max_size=kinds)), dtype=np.int64)

    cores, limits = column(1, 96), column(0, 200)
    ready, booting = np.minimum(column(0, 200), limits), column(0, 20)
    requested = ready + booting
    floor = np.minimum(column(0, 2), limits)
    idle = np.minimum(column(0, 200), ready)
    cooling_out, cooling_in = column(0, 1) == 1, column(0, 1) == 1
    return {
        "cores": cores,
        "prices": cores * (1.0 + column(0, 10) / 10.0) * 0.04,
        "requested": requested,
        "booting": booting,
        "idle_long": np.minimum(idle, column(0, 200)),
        "idle": idle,
        "minimum": np.where(cooling_in, np.maximum(requested, floor), floor),
        "maximum": np.where(cooling_out, np.minimum(requested, limits), limits),
    }


def found(
    fleet: dict[str, np.ndarray],
    waiting_core_s: float,
    free: float = 0.0,
    busy: float = 0.0,
    announced_core_s: float = 0.0,
) -> np.ndarray:
    out = np.zeros((MOST_CANDIDATES, fleet["cores"].size), dtype=np.int64)
    cover = {"free_cores": free, "busy_cores": busy, "announced_core_s": announced_core_s}
    count = candidate_targets(waiting_core_s, 300.0, **fleet, **cover, out=out)
    return out[:count]


@given(fleets(), st.sampled_from([0.0, 50.0, 4e3, 1e6]), st.integers(0, 50), st.integers(0, 50))
def test_the_first_is_the_rule_s_own_and_to_change_nothing_is_among_them(
    fleet: dict[str, np.ndarray], waiting_core_s: float, free: int, busy: int
) -> None:
    rows = found(fleet, waiting_core_s, free, busy)
    names = ("cores", "requested", "booting", "idle_long", "minimum", "maximum")
    rule = queue_rule_multi(waiting_core_s, 300.0, *(fleet[name] for name in names), float(free), float(busy))
    assert (rows[0] == rule).all()
    assert (rows == fleet["requested"]).all(axis=1).any()


@given(fleets(), st.sampled_from([0.0, 50.0, 4e3, 1e6]), st.integers(0, 50))
def test_all_are_distinct_and_what_may_not_change_does_not(
    fleet: dict[str, np.ndarray], waiting_core_s: float, free: int
) -> None:
    rows = found(fleet, waiting_core_s, free)
    assert len(np.unique(rows, axis=0)) == len(rows) <= MOST_CANDIDATES
    assert (rows <= np.maximum(fleet["maximum"], fleet["requested"])).all()
    assert (rows >= np.minimum(fleet["minimum"], fleet["requested"])).all()
    if waiting_core_s > 0.0:
        assert (rows >= fleet["requested"]).all()
    else:
        assert (rows <= fleet["requested"]).all()


def set_of(rows: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(row) for row in rows.tolist()}


@given(fleets(), st.sampled_from([0.0, 4e3, 1e6]), st.randoms(use_true_random=False))
def test_the_order_of_the_types_changes_no_candidate_where_no_two_types_are_alike(
    fleet: dict[str, np.ndarray], waiting_core_s: float, random: object
) -> None:
    kinds = fleet["cores"].size
    fleet["cores"] = np.arange(1, kinds + 1) * 3 + 1
    fleet["prices"] = fleet["cores"] * 0.04 * (1.0 + np.arange(kinds) / 100.0)
    order = list(range(kinds))
    random.shuffle(order)  # type: ignore[attr-defined]
    other = {name: column[order] for name, column in fleet.items()}
    assert set_of(found(fleet, waiting_core_s)[:, order]) == set_of(found(other, waiting_core_s))


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_the_cheapest_split_takes_the_lowest_price_per_core_and_covers_the_rest_for_the_least() -> None:
    cores, none, room = column(2, 8), column(0, 0), column(10, 10)
    assert cheapest_split(18.0, cores, np.array([0.2, 0.6]), none, room).tolist() == [1, 2]
    assert cheapest_split(18.0, cores, np.array([0.1, 0.6]), none, room).tolist() == [9, 0]
    assert cheapest_split(7.0, cores, np.array([0.2, 0.6]), none, room).tolist() == [0, 1]
    assert cheapest_split(100.0, cores, np.array([0.2, 0.6]), none, column(1, 2)).tolist() == [1, 2]
    assert cheapest_split(0.0, cores, np.array([0.2, 0.6]), none, room).tolist() == [0, 0]


def test_an_empty_queue_offers_the_idle_vms_of_each_type_and_to_drain_down_to_the_minimum() -> None:
    fleet = {
        "cores": column(2, 8),
        "prices": np.array([0.1, 0.4]),
        "requested": column(3, 2),
        "booting": column(0, 0),
        "idle_long": column(0, 0),
        "idle": column(1, 1),
        "minimum": column(1, 0),
        "maximum": column(9, 9),
    }
    assert set_of(found(fleet, 0.0)) == {(3, 2), (2, 2), (1, 2), (3, 1), (3, 0), (1, 0)}


@given(
    fleets(),
    st.sampled_from([0.0, 50.0, 4e3, 1e6]),
    st.sampled_from([30.0, 4e3, 1e6]),
    st.integers(0, 50),
)
def test_announced_work_adds_what_prepares_for_it_and_the_rule_counts_a_part_of_it(
    fleet: dict[str, np.ndarray], waiting_core_s: float, announced_core_s: float, free: int
) -> None:
    plain, rows = found(fleet, waiting_core_s, free), found(fleet, waiting_core_s, free, 0.0, announced_core_s)
    assert len(np.unique(rows, axis=0)) == len(rows) <= MOST_CANDIDATES
    assert set_of(plain) <= set_of(rows), "what there is without announcements stays"
    for row in set_of(rows) - set_of(plain):
        assert (row >= fleet["requested"]).all(), "nothing is given back to prepare"
        assert (row <= np.maximum(fleet["maximum"], fleet["requested"])).all()
    names = ("cores", "requested", "booting", "idle_long", "minimum", "maximum")
    for share in (PREPARED_SHARE, *PREPARING_SHARES):
        work = waiting_core_s + share * announced_core_s
        prepared = queue_rule_multi(work, 300.0, *(fleet[name] for name in names), float(free))
        assert tuple(prepared) in set_of(rows), "every candidate there can be finds room"
        if share == PREPARED_SHARE:
            assert (rows[0] == prepared).all()


def test_an_idle_fleet_is_offered_what_covers_the_announced_work() -> None:
    fleet = {
        "cores": column(2, 8),
        "prices": np.array([0.1, 0.5]),
        "requested": column(1, 0),
        "booting": column(0, 0),
        "idle_long": column(1, 0),
        "idle": column(1, 0),
        "minimum": column(1, 0),
        "maximum": column(9, 9),
    }
    rows = set_of(found(fleet, 0.0, 2.0, 0.0, 5_000.0))
    assert set_of(found(fleet, 0.0, 2.0)) == {(1, 0)}
    assert rows == {(1, 0), (1, 1), (3, 0), (3, 1), (5, 1), (5, 0)}


@given(fleets(), st.integers(-5, 40_000))
def test_a_need_is_filled_as_if_by_one_vm_after_another(fleet: dict[str, np.ndarray], need: int) -> None:
    cores, maximum, found = fleet["cores"], fleet["maximum"], fleet["requested"].copy()
    fill(float(need), cores, found, maximum)
    expected, left = fleet["requested"].copy(), need
    while left > 0 and (expected < maximum).any():
        roomy = [k for k in range(cores.size) if expected[k] < maximum[k]]
        fitting = [k for k in roomy if cores[k] <= left]
        best = max(fitting, key=lambda k: cores[k]) if fitting else min(roomy, key=lambda k: cores[k])
        expected[best] += 1
        left -= cores[best]
    assert found.tolist() == expected.tolist()


@given(fleets(), st.integers(0, 100))
def test_a_need_beyond_all_room_takes_every_type_to_its_maximum(fleet: dict[str, np.ndarray], more: int) -> None:
    cores, maximum, requested = fleet["cores"], fleet["maximum"], fleet["requested"]
    full = np.maximum(requested, maximum)
    need = float((full - requested) @ cores + more)
    assert cheapest_split(need, cores, fleet["prices"], requested, maximum).tolist() == full.tolist()
    filled = requested.copy()
    fill(need, cores, filled, maximum)
    assert filled.tolist() == full.tolist()
