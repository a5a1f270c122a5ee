"""What a learned policy of deferral sees (specification §3, §4.1)."""

from __future__ import annotations

import numpy as np

from domain.rules.deferral.choosing import Group, History, View, knapsack_values
from domain.rules.deferral.tokens import (
    MOST_RUNNING,
    MOST_TOKENS,
    THETA,
    TOKEN_FEATURES,
    WINDOW,
    WINDOW_FEATURES,
    WORTH,
    scores_of,
    stacked,
    tokens,
    values_of,
    window,
    with_waiting,
)
from simulator.deferral.scenarios import episode
from simulator.deferral.world import World


def group(*rows: tuple[int, int, int, int, int, int]) -> Group:
    """Cores, duration, earliest, latest, submitted, remaining of each job; numbered from 0."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    return Group(np.arange(len(table)), *table.T)


def history(steps: int) -> History:
    whole = [np.arange(1, steps + 1) + 100 * k for k in range(6)]
    return History(whole[0], whole[1], whole[2], np.full(steps, 4.0), np.full(steps, 3.0), *whole[3:])


def view(cur: Group, fut: Group, his: Group, *, capacity: int = 20, step: int = 10) -> View:
    return View(step, 6, 2, capacity, cur, fut, his, history(step))


NONE = group()


def test_each_feature_of_a_job_is_where_its_name_says() -> None:
    seen = tokens(view(group((4, 3, 8, 12, 5, 3)), group((2, 6, 13, 37, 9, 6)), group((8, 5, 1, 7, 0, 1))), cref=10.0)
    rows = [dict(zip(TOKEN_FEATURES, row.tolist(), strict=True)) for row in seen.matrix]
    ready = rows[int(np.flatnonzero(seen.job == 0)[0])]
    running, later = (next(row for row in rows if row[kind] == 1.0) for kind in ("is_running", "is_future"))
    assert ready["cores/8"] == 0.5
    assert ready["duration/6"] == 0.5
    assert ready["revenue/48"] == 0.25
    np.testing.assert_allclose([ready["to_earliest/24"], ready["to_latest/24"]], [-2 / 24, 2 / 24], rtol=1e-6)
    np.testing.assert_allclose([ready["late/6"], later["to_earliest/24"]], [2 / 6, 3 / 24], rtol=1e-6)
    np.testing.assert_allclose(running["remaining/6"], 1 / 6, rtol=1e-6)
    shared = [ready[name] for name in ("capacity/cref", "free/cref", "ending/cref", "wanted/cref")]
    np.testing.assert_allclose(shared, [2.0, 1.2, 0.8, 0.4], rtol=1e-6)
    np.testing.assert_allclose([ready["hour_sin"], ready["hour_cos"]], [1.0, 0.0], atol=1e-6)


def test_the_empty_token_is_there_without_a_job_and_knows_the_step() -> None:
    seen = tokens(view(NONE, NONE, NONE), cref=10.0)
    assert seen.matrix.shape == (1, len(TOKEN_FEATURES))
    assert seen.job.tolist() == [-1]
    assert seen.matrix[0, 10] == 2.0
    assert not seen.matrix[0, :10].any()


def test_every_number_is_clipped() -> None:
    huge = group((10**6, 10**6, 0, 10**9, 0, 10**6))
    seen = tokens(view(huge, NONE, huge, capacity=10**6), cref=1.0)
    assert np.abs(seen.matrix).max() == 5.0


def test_more_jobs_than_tokens_keep_all_that_run_then_the_most_worth_then_the_earliest() -> None:
    running = group(*[(1, 30, 0, 5, 0, 1 + k % 25) for k in range(50)])
    ready = group(*[(1 + k % 3, 1 + k % 6, 9, 30, 5, 1) for k in range(300)])
    later = group(*[(1, 1, 11 + k, 60, 5, 1) for k in range(40)])
    now = view(ready, later, running)
    seen = tokens(now, cref=20.0)
    assert len(seen.matrix) == 1 + MOST_TOKENS
    kinds = seen.matrix[:, 7:10].sum(axis=0)
    assert kinds.tolist() == [MOST_RUNNING, MOST_TOKENS - MOST_RUNNING, 0]
    # All cores that run are in some token.
    np.testing.assert_allclose(8.0 * seen.matrix[seen.matrix[:, 7] == 1.0, 0].sum(), 50.0)
    assert seen.dropped == 300 - (MOST_TOKENS - MOST_RUNNING)
    kept = seen.job[seen.job >= 0]
    worth = (ready.revenue - 2.0) / ready.cores
    assert worth[kept].min() >= np.delete(worth, kept).max()


def test_a_job_without_a_token_is_scored_by_the_knapsack_in_the_same_units() -> None:
    ready = group(*[(1 + k % 3, 1 + k % 6, 9, 30, 5, 1) for k in range(300)])
    now = view(ready, NONE, NONE)
    seen = tokens(now, cref=20.0)
    scores = scores_of(now, seen, np.full(len(seen.matrix), 0.125))
    without = np.setdiff1d(np.arange(300), seen.job)
    assert without.size == seen.dropped > 0
    np.testing.assert_allclose(values_of(scores, ready.cores)[without], knapsack_values(now)[without])
    np.testing.assert_allclose(
        values_of(scores, ready.cores)[seen.job[1:]], (0.125 * WORTH * ready.cores)[seen.job[1:]]
    )


def test_a_job_worth_nothing_is_below_the_threshold_and_no_other_one_is() -> None:
    made = with_waiting(np.array([0.9, -0.9, -3.0, 0.2]), np.array([0.0, 0.1, 0.1, -0.1]))
    assert (made >= THETA).tolist() == [False, True, True, False]


def test_a_window_has_the_present_step_last_and_zeros_before_the_first() -> None:
    rows = window(view(group((4, 3, 8, 12, 5, 3), (2, 1, 8, 12, 5, 1)), NONE, group((8, 5, 1, 7, 0, 2))), cref=10.0)
    assert rows.shape == (WINDOW, len(WINDOW_FEATURES))
    assert rows[:, 10].tolist() == [0.0] * 13 + [1.0] * 11
    assert not rows[:13].any()
    np.testing.assert_allclose(rows[13:23, 0], np.arange(1, 11) / 10.0)
    np.testing.assert_allclose(rows[-1, :5], [2.0, 1.2, 2 / 32, 3 / 8, 2 / 6], rtol=1e-6)


def test_states_of_several_worlds_are_stacked_with_rows_that_do_not_count() -> None:
    worlds = [World(episode("valley", seed)) for seed in (0, 1)]
    states = [tokens(world.view(), 26.0) for world in worlds]
    matrices, masks = stacked(states)
    assert masks.sum(axis=1).tolist() == [len(state.matrix) for state in states]
    assert not matrices[~masks].any()
