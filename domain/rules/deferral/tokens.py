"""What a learned policy of deferral sees: a token for each job, and a window of the last steps (§3, §4.1).

The one definition of both, for the agent and for the trainer. Row 0 of a matrix is the empty token, of no job, which is
always there. All numbers are float32 in [-5, 5].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.deferral.choosing import Floats, Group, View, knapsack_values
from domain.rules.deferral.jobs import W1, Ints

TOKENS_VERSION = "deferral-tokens-1"
MOST_TOKENS = 128
"""Jobs with a token of their own; the largest state of the base scenario has 72."""
MOST_RUNNING = 16
"""Tokens that running jobs share once there are too many jobs."""
WINDOW = 24
"""Steps that the auxiliary predictor looks back on, the present one included."""
WORTH = 8.0
"""Core-steps for each core that a score of 1 stands for."""
NUMBER_FEATURES = (
    *("cores/8", "duration/6", "revenue/48", "to_earliest/24", "to_latest/24", "late/6", "remaining/6"),
    *("is_running", "is_current", "is_future"),
    *("capacity/cref", "free/cref", "ending/cref", "wanted/cref"),
)
TOKEN_FEATURES = (*NUMBER_FEATURES, "hour_sin", "hour_cos", "weekday_sin", "weekday_cos")
WINDOW_FEATURES = (
    *("capacity/cref", "free/cref", "waiting/32", "mean_cores/8", "mean_duration/6", "cores_started/cref"),
    *("jobs_started/32", "violation/cref", "hour_sin", "hour_cos", "valid"),
)
THETA = -1.0
"""No confidence is lower; jobs that score less wait on purpose (§2)."""
CORES, STEPS, REVENUE, DAY, WAITING = 8.0, 6.0, 48.0, 24.0, 32.0
LIMIT = 5.0
RUNNING, CURRENT, FUTURE = 7, 8, 9
"""Columns of the kinds of jobs."""

Rows = NDArray[np.float32]


class Tokens(NamedTuple):
    """A state as a matrix. The rows after the first are in the order of submission, which means nothing to a set."""

    matrix: Rows
    """[M, 18], `TOKEN_FEATURES` by column."""
    mask: NDArray[np.bool_]
    """[M]: whether the row counts. Rows are added to make the matrices of several states alike, see `stacked`."""
    job: Ints
    """[M]: the position in `View.cur` that the row stands for, -1 for the others."""
    dropped: int
    """Jobs of `View.cur` without a row."""


def tokens(view: View, cref: float, most: int = MOST_TOKENS) -> Tokens:
    """Return what a learned policy sees of the jobs in a step.

    cref: mean capacity in training, cores. most: jobs with a row. Beyond it running jobs share at most 16 rows by the
    steps that they still run, then come the jobs that may start, those worth most for their cores first, then the
    others, the earliest first; jobs left out are counted.
    """
    running, current, future = view.his, view.cur, view.fut
    kept: Ints = np.arange(current.size)
    if running.size + current.size + future.size > most:
        running = _shared(running, min(MOST_RUNNING, most))
        worth = (current.revenue - W1 * (view.step - current.earliest)) / current.cores
        kept = np.sort(np.argsort(-worth, kind="stable")[: most - running.size])
        current = current.take(kept)
        soonest = np.argsort(future.earliest, kind="stable")[: most - running.size - current.size]
        future = future.take(np.sort(soonest))
    counts = running.size, current.size, future.size
    jobs = [np.concatenate(columns) for columns in zip(running, current, future, strict=True)]
    _, cores, duration, earliest, latest, submitted, remaining = jobs
    matrix = np.zeros((1 + sum(counts), len(TOKEN_FEATURES)), dtype=np.float32)
    own, ends = matrix[1:], np.cumsum(counts)
    own[:, 0], own[:, 1], own[:, 2] = cores / CORES, duration / STEPS, cores * duration / REVENUE
    own[:, 3], own[:, 4] = (earliest - view.step) / DAY, (latest - view.step) / DAY
    own[:, 5] = np.maximum(view.step - earliest, 0) / STEPS
    own[: ends[0], 6] = remaining[: ends[0]] / STEPS
    # What a running job's window was, and how long it waited, is past.
    own[: ends[0], 3:6] = 0.0
    own[: ends[0], RUNNING] = own[ends[0] : ends[1], CURRENT] = own[ends[1] :, FUTURE] = 1.0
    ending = int(view.his.cores[view.his.remaining <= 1].sum())
    free = view.free
    matrix[:, 10:14] = np.array([view.capacity, free, ending, int(view.cur.cores.sum())]) / cref
    matrix[:, 14:16] = _turn(view.hour, 24.0)
    matrix[:, 16:18] = _turn(view.weekday, 7.0)
    np.clip(matrix, -LIMIT, LIMIT, out=matrix)
    job = np.full(len(matrix), -1, dtype=np.int64)
    job[1 + ends[0] : 1 + ends[1]] = kept
    order = 1 + np.argsort(submitted, kind="stable")
    matrix[1:], job[1:] = matrix[order], job[order]
    return Tokens(matrix, np.ones(len(matrix), dtype=np.bool_), job, view.cur.size - current.size)


def window(view: View, cref: float) -> Rows:
    """Return the last 24 steps, [24, 11], the present one last, `WINDOW_FEATURES` by column.

    What starts in the present step is not known and counts as 0. Steps before the first one are rows of zeros.
    """
    history, known = view.history, min(view.history.capacity.size, WINDOW - 1)
    current, free = view.cur, view.free
    rows = np.zeros((WINDOW, len(WINDOW_FEATURES)), dtype=np.float32)
    past = rows[WINDOW - 1 - known : WINDOW - 1]
    scales = (cref, cref, WAITING, CORES, STEPS, cref, WAITING, cref)
    for k, (column, scale) in enumerate(zip(history, scales, strict=True)):
        past[:, k] = column[column.size - known :] / scale
    rows[-1, :5] = view.capacity / cref, free / cref, current.size / WAITING, *means_of(current, CORES, STEPS)
    rows[-1, 7] = max(0, -free) / cref
    hours = (view.hour - np.arange(known, -1, -1)) % 24
    rows[WINDOW - 1 - known :, 8:10] = np.stack(_turn(hours, 24.0), axis=-1)
    rows[WINDOW - 1 - known :, 10] = 1.0
    return np.clip(rows, -LIMIT, LIMIT)


def means_of(jobs: Group, cores: float = 1.0, steps: float = 1.0) -> tuple[float, float]:
    """Return the mean cores and the mean duration of jobs in units of `cores` and `steps`, 0 where there are none."""
    if not jobs.size:
        return 0.0, 0.0
    return float(jobs.cores.mean()) / cores, float(jobs.duration.mean()) / steps


def stacked(states: Sequence[Tokens], rows: int | None = None) -> tuple[Rows, NDArray[np.bool_]]:
    """Return the matrices [B, M, 18] and masks [B, M] of several states, with rows that do not count added."""
    most = max(len(state.matrix) for state in states) if rows is None else rows
    matrices = np.zeros((len(states), most, len(TOKEN_FEATURES)), dtype=np.float32)
    masks = np.zeros((len(states), most), dtype=np.bool_)
    for k, state in enumerate(states):
        matrices[k, : len(state.matrix)] = state.matrix
        masks[k, : len(state.matrix)] = state.mask
    return matrices, masks


def scores_of(view: View, state: Tokens, answers: NDArray[np.floating]) -> Floats:
    """Return a score for each job of `view.cur`, [K], from the answers to the rows of its tokens, in their order.

    Answers beyond those rows do not count. A job without a row is scored by the per-step knapsack, in the same units.
    """
    scores = fallback_scores(view) if state.dropped else np.zeros(view.cur.size)
    mine = state.job >= 0
    scores[state.job[mine]] = answers[: mine.size][mine]
    return scores


def fallback_scores(view: View) -> Floats:
    """Return what the per-step knapsack finds each job of `view.cur` worth, for each of its cores, as scores."""
    return knapsack_values(view) / (WORTH * view.cur.cores)


def values_of(scores: Floats, cores: Ints) -> Floats:
    """Return the core-steps that scores stand for: the values for the decoding by knapsack (§10.5)."""
    return WORTH * scores * cores


def with_waiting(scores: Floats, worth: Floats) -> Floats:
    """Return scores for a decoding with the threshold `THETA`: a job whose start is worth nothing now waits, [K]."""
    return np.where(worth > 0.0, np.maximum(scores, THETA), 2.0 * THETA)


def _shared(jobs: Group, most: int) -> Group:
    """Return running jobs with the same remaining steps as one job each; the longest ones together beyond `most`."""
    if not jobs.size:
        return jobs
    remaining = np.unique(jobs.remaining)
    place = np.minimum(np.searchsorted(remaining, jobs.remaining), most - 1)
    count = int(place.max()) + 1
    first = np.array([int(np.flatnonzero(place == k)[0]) for k in range(count)])
    cores = np.bincount(place, weights=jobs.cores, minlength=count).astype(np.int64)
    return jobs.take(first)._replace(cores=cores)


def _turn(value: int | NDArray[np.int64], of: float) -> tuple[Floats, Floats]:
    angle = 2.0 * np.pi * np.asarray(value) / of
    return np.sin(angle), np.cos(angle)
