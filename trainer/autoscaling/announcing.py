"""Announcements of a trace's work: true ones, one per burst of arrivals, some of them then late, wrong or missing."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from domain.units import MINUTE_S
from domain.workload import Trace

Floats = NDArray[np.float64]

PAUSE_S = 60.0
"""Arrivals that lie no further apart belong to one burst."""
LONGEST_BURST_S = 600.0
"""A burst that goes on for longer is announced in pieces of this length."""
LATE_MIN = (5.0, 20.0)
"""By how much work may come later than announced, minutes."""
WRONG = (0.3, 3.0)
"""The factors between which a wrong number of jobs lies."""


def bursts(trace: Trace) -> Floats:
    """Return the true announcements of a trace, rows of `domain.announcements.rows_of`, one per burst of arrivals."""
    times, work = trace.arrival_s, trace.service_s * np.maximum(trace.width, 1)
    burst = np.concatenate([[0], np.cumsum(np.diff(times) > PAUSE_S)])
    begun = times[np.searchsorted(burst, burst)]
    piece = np.floor((times - begun) / LONGEST_BURST_S)
    fresh = np.flatnonzero(np.concatenate([[True], (np.diff(burst) > 0) | (np.diff(piece) > 0)]))
    last = np.append(fresh[1:], times.size) - 1
    jobs = (last - fresh + 1).astype(np.float64)
    return np.column_stack([times[fresh], jobs, np.add.reduceat(work, fresh) / jobs, times[last] - times[fresh]])


def announced(
    trace: Trace,
    rng: np.random.Generator,
    missing: float = 0.0,
    late: float = 0.0,
    wrong: float = 0.0,
    cancelled: float = 0.0,
) -> Floats:
    """Return what is announced of a trace: rows of `domain.announcements.rows_of`, in seconds of the trace.

    missing, late, wrong: shares of the bursts that nobody announces, that come 5 to 20 minutes later than announced,
    and whose number of jobs is announced as 0.3 to 3 times the true one. cancelled: announcements of work that never
    comes, as a share of the bursts.
    """
    true = bursts(trace)
    fate = rng.random(len(true))
    hasty = (fate >= missing) & (fate < missing + late)
    off = (fate >= missing + late) & (fate < missing + late + wrong)
    rows = true.copy()
    rows[:, 0] -= hasty * MINUTE_S * rng.uniform(*LATE_MIN, size=len(true))
    factor = np.exp(rng.uniform(math.log(WRONG[0]), math.log(WRONG[1]), size=len(true)))
    rows[:, 1] = np.where(off, np.maximum(np.rint(rows[:, 1] * factor), 1.0), rows[:, 1])
    never = true[rng.random(len(true)) < cancelled]
    never[:, 0] = rng.uniform(0.0, max(float(trace.arrival_s.max()), 1.0), size=len(never))
    found: Floats = np.concatenate([rows[fate >= missing], never])
    return found


def announced_in_part(trace: Trace, seed: int, share: float) -> Floats | None:
    """Return announcements as a lesson has them: None in most, else true ones or damaged ones, half and half.

    seed: of the lesson. share: of lessons that have announcements.
    """
    rng = np.random.default_rng([seed, 78])
    if rng.random() >= share:
        return None
    if rng.random() < 0.5:
        return announced(trace, rng)
    missing, late, wrong = rng.uniform(0.2, 0.8) * rng.dirichlet([1.0, 1.0, 1.0])
    return announced(trace, rng, missing, late, wrong, 0.2 * rng.random() if rng.random() < 0.5 else 0.0)
