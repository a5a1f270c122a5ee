"""What a scorer sees does not depend on how many types there are or in which order, and is always a number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.announcements import Announcement, rows_of
from domain.observations.autoscaling_scorer import (
    ANNOUNCED,
    ANNOUNCED_NAMES,
    CANDIDATE_FEATURES,
    CANDIDATES,
    CAUTION,
    MEMORY,
    OVERDUE_GRACE_S,
    STATE_FEATURES,
    STATES,
    announced_core_s,
    fold_announcements,
    gain_unit,
    judge,
    kept_to_rule,
    lead_of,
    observe_candidates,
    observe_state,
    remember,
)

PER_TYPE = ("cores", "prices", "ready", "booting", "idle", "minimum", "limits", "cooling_out_s", "cooling_in_s")
PER_TYPE += ("boot_low_s", "boot_high_s")


@st.composite
def sights(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Fleets of 1 to 12 types."""
    kinds = draw(st.integers(1, 12))

    def column(low: int, high: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(low, high), min_size=kinds, max_size=kinds)), dtype=np.int64)

    cores, ready = column(1, 96), column(0, 50)
    low = column(0, 500).astype(float)
    return {
        "cores": cores,
        "prices": cores * (0.02 + column(0, 9) / 100.0),
        "ready": ready,
        "booting": column(0, 9),
        "idle": np.minimum(column(0, 50), ready),
        "minimum": column(0, 1),
        "limits": column(0, 200),
        "cooling_out_s": 60.0 * column(0, 9),
        "cooling_in_s": 60.0 * column(0, 9),
        "boot_low_s": low,
        "boot_high_s": low * 1.5,
    }


def state(
    fleet: dict[str, np.ndarray], memory: np.ndarray, waiting: int, announced: np.ndarray | None = None
) -> np.ndarray:
    out = np.full(STATES, np.nan)
    given = {name: fleet[name] for name in PER_TYPE}
    rest = {"oldest_wait_s": 90.0 * (waiting > 0), "horizon_s": 300.0, "cooldown_s": 300.0, "waiting_price": 0.036}
    cores = float((fleet["ready"] * fleet["cores"]).sum())
    observe_state(
        memory,
        float(waiting),
        70.0 * waiting,
        **given,
        **rest,
        free_cores=0.25 * cores,
        busy_cores=0.75 * cores,
        announced=np.zeros(ANNOUNCED) if announced is None else announced,
        out=out,
    )
    return out


def candidates(fleet: dict[str, np.ndarray], targets: np.ndarray, waiting_core_s: float) -> np.ndarray:
    out = np.full((len(targets), CANDIDATES), np.nan)
    names = ("cores", "prices", "booting", "idle", "limits")
    given = {name: fleet[name] for name in names} | {"requested": fleet["ready"] + fleet["booting"]}
    cores = float((fleet["ready"] * fleet["cores"]).sum())
    rest = {"free_cores": 0.25 * cores, "busy_cores": 0.75 * cores, "waiting_price": 0.036}
    rest["announced_core_s"] = 35.0 * len(targets)
    observe_candidates(targets, len(targets), waiting_core_s, 300.0, **given, **rest, out=out)
    return out


def targets_of(fleet: dict[str, np.ndarray], seed: int) -> np.ndarray:
    requested = fleet["ready"] + fleet["booting"]
    changes = np.random.default_rng(seed).integers(-3, 6, size=(5, requested.size))
    return np.maximum(requested + changes, 0)


@given(sights(), st.integers(0, 10_000), st.integers(0, 99), st.randoms(use_true_random=False))
def test_the_order_of_the_types_changes_nothing(
    fleet: dict[str, np.ndarray], waiting: int, seed: int, random: object
) -> None:
    order = list(range(fleet["cores"].size))
    random.shuffle(order)  # type: ignore[attr-defined]
    other = {name: column[order] for name, column in fleet.items()}
    memory, targets = np.linspace(0.0, 5.0, MEMORY), targets_of(fleet, seed)
    np.testing.assert_allclose(state(fleet, memory, waiting), state(other, memory, waiting), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        candidates(fleet, targets, 70.0 * waiting),
        candidates(other, targets[:, order], 70.0 * waiting),
        rtol=1e-9,
        atol=1e-9,
    )


@given(sights(), st.integers(0, 100_000), st.integers(0, 99))
def test_every_feature_is_a_moderate_number(fleet: dict[str, np.ndarray], waiting: int, seed: int) -> None:
    seen = state(fleet, np.zeros(MEMORY), waiting)
    assert np.isfinite(seen).all()
    assert np.abs(seen).max() < 12.0
    assert np.abs(candidates(fleet, targets_of(fleet, seed), 70.0 * waiting)).max() < 30.0


def test_a_type_without_any_vm_and_with_no_limit_adds_nothing() -> None:
    def column(*values: float) -> np.ndarray:
        return np.array(values)

    one = {name: column(2.0) for name in PER_TYPE} | {"cores": column(4), "limits": column(10)}
    two = {name: np.append(values, 0) for name, values in one.items()} | {
        "cores": column(4, 96),
        "limits": column(10, 0),
    }
    two["prices"] = np.append(one["prices"], 9.0)
    memory = np.zeros(MEMORY)
    assert np.array_equal(state(one, memory, 7), state(two, memory, 7))


def test_the_memory_counts_minutes_without_arrivals_and_minutes_idle_above_the_minimum() -> None:
    memory = np.zeros(MEMORY)
    for _ in range(3):
        remember(memory, 0.0, 0.0, 0.0, 4.0, 2.0)
    assert memory[-2:].tolist() == [3.0, 3.0]
    remember(memory, 5.0, 600.0, 5.0, 4.0, 2.0)
    assert memory[-2:].tolist() == [0.0, 0.0]
    for _ in range(5000):
        remember(memory, 5.0, 600.0, 5.0, 0.0, 2.0)
    np.testing.assert_allclose(memory[:-2].reshape(-1, 3), [[600.0, 5.0, 1.0]] * 5, rtol=1e-4)


def test_names_are_distinct_and_counted() -> None:
    assert len(set(STATE_FEATURES)) == STATES
    assert len(set(CANDIDATE_FEATURES)) == CANDIDATES


@given(sights(), st.integers(0, 10_000), st.integers(0, 99))
def test_plain_lists_give_the_same_numbers_as_arrays(fleet: dict[str, np.ndarray], waiting: int, seed: int) -> None:
    targets, requested = targets_of(fleet, seed), fleet["ready"] + fleet["booting"]
    cores = float((fleet["ready"] * fleet["cores"]).sum())
    rest = {"free_cores": 0.25 * cores, "busy_cores": 0.75 * cores, "waiting_price": 0.036}
    names = ("cores", "prices", "booting", "idle", "limits")
    lists = {name: fleet[name].tolist() for name in names} | {"requested": requested.tolist()}
    out = [[0.0] * CANDIDATES for _ in targets]
    coming = {"announced_core_s": 35.0 * len(targets)}
    observe_candidates(targets.tolist(), len(out), 70.0 * waiting, 300.0, **lists, **rest, **coming, out=out)
    np.testing.assert_array_equal(np.array(out), candidates(fleet, targets, 70.0 * waiting))
    seen = [0.0] * STATES
    times = {"oldest_wait_s": 90.0 * (waiting > 0), "horizon_s": 300.0, "cooldown_s": 300.0}
    whole = {name: fleet[name].tolist() for name in PER_TYPE}
    announced = [0.0] * ANNOUNCED
    observe_state(
        [0.0] * MEMORY, float(waiting), 70.0 * waiting, **whole, **times, **rest, announced=announced, out=seen
    )
    np.testing.assert_array_equal(np.array(seen), state(fleet, np.zeros(MEMORY), waiting))


@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 10))
def test_a_gain_is_counted_in_what_the_cover_costs_in_25_minutes(cores: float, need: float, price: float) -> None:
    unit = gain_unit(cores, need, price)
    assert unit > 0.0
    assert unit == pytest.approx(max(price, 1e-6) * max(cores, need, 1.0) * 25.0 / 60.0)


@st.composite
def announcements(draw: st.DrawFn) -> np.ndarray:
    """Announcements from an hour before to an hour after second 7,200."""
    one = st.builds(
        Announcement,
        at=st.integers(3_600, 10_800).map(float),
        jobs=st.integers(1, 500),
        job_core_s=st.integers(1, 900).map(float),
        over_s=st.integers(0, 1_800).map(float),
    )
    return np.array(rows_of(draw(st.lists(one, max_size=6)))).reshape(-1, 4)


def folded(rows: np.ndarray, now_s: float = 7_200.0, since_min: float = 12.0, given: float = 1.0) -> np.ndarray:
    out = np.full(ANNOUNCED, np.nan)
    fold_announcements(rows, given, now_s, since_min, out)
    return out


@given(announcements(), st.randoms(use_true_random=False))
def test_the_order_of_announcements_changes_nothing_nor_do_plain_lists(rows: np.ndarray, random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    np.testing.assert_allclose(folded(rows), folded(rows[order]), rtol=1e-12)
    plain = [0.0] * ANNOUNCED
    fold_announcements(rows.tolist(), 1.0, 7_200.0, 12.0, plain)
    assert plain == folded(rows).tolist()


@given(announcements(), announcements())
def test_work_of_two_lists_adds_up_and_the_nearer_one_is_next(rows: np.ndarray, more: np.ndarray) -> None:
    one, two, both = folded(rows), folded(more), folded(np.concatenate([rows, more]))
    np.testing.assert_allclose(both[:4], one[:4] + two[:4], rtol=1e-9)
    assert both[4] == max(one[4], two[4])


@given(announcements(), st.integers(7_000, 9_000), st.integers(1, 900), st.integers(1, 900))
def test_work_of_two_windows_side_by_side_is_that_of_both(rows: np.ndarray, begin: int, one: int, two: int) -> None:
    parts = announced_core_s(rows, begin, begin + one) + announced_core_s(rows, begin + one, begin + one + two)
    np.testing.assert_allclose(parts, announced_core_s(rows, begin, begin + one + two), rtol=1e-9, atol=1e-6)


@given(announcements())
def test_in_the_end_every_announced_core_second_was_due_once(rows: np.ndarray) -> None:
    np.testing.assert_allclose(announced_core_s(rows, 0.0, 1e6), (rows[:, 1] * rows[:, 2]).sum())


@given(sights(), announcements(), st.integers(0, 1_000))
def test_announced_features_are_moderate_and_nothing_announced_is_zeros(
    fleet: dict[str, np.ndarray], rows: np.ndarray, since_min: int
) -> None:
    seen = state(fleet, np.zeros(MEMORY), 3, folded(rows, since_min=float(since_min)))[-ANNOUNCED:]
    assert np.isfinite(seen).all()
    assert (seen >= 0.0).all()
    assert seen.max() < 12.0
    assert not folded(rows[:0], given=0.0).any()
    assert not state(fleet, np.zeros(MEMORY), 3, np.zeros(ANNOUNCED))[-ANNOUNCED:].any()


def seen_of(rows: np.ndarray, now_s: float, since_min: float = 0.0) -> dict[str, float]:
    return dict(zip(ANNOUNCED_NAMES, folded(rows, now_s, since_min).tolist(), strict=True))


def test_a_batch_comes_nearer_and_counts_no_more_once_its_time_is_there() -> None:
    rows = np.array(rows_of([Announcement(at=3_600.0, jobs=10, job_core_s=60.0)]))
    far = seen_of(rows, 0.0)
    assert (far["announced_40"], far["announced_next"], far["announcements_given"]) == (0.0, 0.0, 1.0)
    half, near = seen_of(rows, 2_400.0), seen_of(rows, 3_540.0)
    assert (half["announced_5"], half["announced_15"], half["announced_40"]) == (0.0, 0.0, 600.0)
    assert (near["announced_5"], near["announced_15"], near["announced_40"]) == (600.0, 600.0, 600.0)
    assert 0.0 < half["announced_next"] < near["announced_next"] < 1.0
    there = seen_of(rows, 3_600.0)
    assert [there[name] for name in ANNOUNCED_NAMES[:-1]] == [0.0] * (ANNOUNCED - 1)


def test_jobs_that_come_over_some_time_are_counted_by_what_is_still_due() -> None:
    rows = np.array(rows_of([Announcement(at=600.0, jobs=10, job_core_s=60.0, over_s=1_200.0)]))
    assert seen_of(rows, 300.0)["announced_15"] == 300.0
    assert seen_of(rows, 1_200.0)["announced_40"] == 300.0
    assert seen_of(rows, 1_200.0)["announced_next"] == 1.0
    assert seen_of(rows, 1_800.0)["announced_next"] == 0.0


def test_what_did_not_come_is_overdue_for_the_grace_and_an_arrival_since_ends_that() -> None:
    rows = np.array(rows_of([Announcement(at=3_600.0, jobs=10, job_core_s=60.0)]))
    assert seen_of(rows, 3_900.0, since_min=30.0)["announced_overdue"] == 600.0
    assert seen_of(rows, 3_600.0 + OVERDUE_GRACE_S - 1.0, since_min=90.0)["announced_overdue"] == 600.0
    assert seen_of(rows, 3_600.0 + OVERDUE_GRACE_S, since_min=90.0)["announced_overdue"] == 0.0
    assert seen_of(rows, 3_900.0, since_min=5.0)["announced_overdue"] == 0.0, "something came with it"


def test_the_guard_waits_for_announced_work_only() -> None:
    memory, announced = np.zeros(MEMORY), np.zeros(ANNOUNCED)
    memory[-1] = 8.0
    assert kept_to_rule(memory, 8.0, announced)
    assert not kept_to_rule(memory, 9.0, announced)
    for place, holds in ((1, False), (2, True), (3, False)):
        announced[:] = 0.0
        announced[place] = 1.0
        assert kept_to_rule(memory, 8.0, announced) is holds


def test_a_fleet_prepares_as_long_before_as_its_larger_types_boot() -> None:
    cores, limits = np.array([2, 8]), np.array([4, 9])
    low, high = np.array([40.0, 120.0]), np.array([80.0, 160.0])
    assert lead_of(cores, limits, low, high, 60.0) == 30.0 + (8 * 60.0 + 72 * 140.0) / 80


def test_a_score_is_the_mean_lead_over_the_rule_less_what_the_voters_disagree_by() -> None:
    votes = [[1.0, 2.0], [3.0, 4.0], [5.0, 0.0]]
    out = [9.0] * 3
    judge(votes, 3, out)
    # The second leads with every voter by 2; the third by 4 and by -2, which is 1 on average and 3 apart.
    assert out == pytest.approx([0.0, 2.0, 1.0 - 3.0 * CAUTION])


@given(st.integers(1, 9), st.integers(1, 32), st.integers(0, 99), st.floats(-50.0, 50.0))
def test_what_a_voter_adds_to_every_candidate_changes_no_score(
    voters: int, count: int, seed: int, added: float
) -> None:
    votes = np.random.default_rng(seed).normal(size=(count, voters))
    plain, shifted = np.zeros(count), np.zeros(count)
    judge(votes, count, plain)
    judge(votes + added * np.arange(voters), count, shifted)
    np.testing.assert_allclose(plain, shifted, atol=1e-5)
    assert plain[0] == 0.0
