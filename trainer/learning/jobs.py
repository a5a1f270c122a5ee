"""The jobs of recorded minutes: when they came, and how long they were.

A ledger knows counts, not jobs. Those of a minute are spread evenly over it, and their lengths over what was reported
of lengths: quantiles, else a mean. The same record always gives the same jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.minutes import JobLengths

LEAST_LENGTH_S = 1e-3
TOGETHER = 20
"""Jobs whose total is kept, at least: of fewer the quantiles say too little to spread them about their mean."""
GOLDEN = 0.6180339887498949
_SHARES = np.array([0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
_TAIL = 0.01 / 0.09

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def arrivals_in(since_s: Floats, until_s: Floats, counts: Ints) -> tuple[Floats, Ints]:
    """Return when the jobs of each span came, evenly over it, and the number of its span for each job."""
    of = np.repeat(np.arange(counts.size), counts)
    within = np.arange(of.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return since_s[of] + (within + 0.5) / counts[of] * (until_s - since_s)[of], of


def shares_of(count: int) -> Floats:
    """Return shares in 0..1, without repetition, so that any stretch of them is spread evenly."""
    found: Floats = np.modf(0.5 + GOLDEN * np.arange(count))[0]
    return found


def lengths_at(known: Sequence[JobLengths], of: Ints, shares: Floats) -> Floats:
    """Return the length of each job (seconds on a core): at its share of the distribution numbered `of`.

    Between quantiles the logarithm is linear, and so it is beyond the outermost. The mean counts where there are none:
    it may be that of other jobs, such as all since the job source began.
    """
    logs = np.log(_points(known))
    steps = logs[:, 1:] - logs[:, :-1]
    place = np.clip(np.searchsorted(_SHARES, shares, side="right") - 1, 0, _SHARES.size - 2)
    part = (shares - _SHARES[place]) / np.diff(_SHARES)[place]
    # As reported to the last digit where there is but one length.
    single = np.array([one.quantiles is None for one in known])[of]
    means = np.array([max(one.mean, LEAST_LENGTH_S) for one in known])[of]
    return np.where(single, means, np.exp(logs[of, place] + part * steps[of, place]))


def lengths_about(means: Floats, known: Sequence[JobLengths | None], counts: Ints) -> Floats:
    """Return the length of each job (seconds on a core), about the mean of its minute, as far apart as quantiles say.

    means, counts: by minute. known: what was reported of the jobs of a minute, None where nothing was: then all have
    the mean. Minutes are taken together until they have TOGETHER jobs; the total of these jobs is that of the means.
    """
    of = np.repeat(np.arange(counts.size), counts)
    spread = [one is not None and one.quantiles is not None for one in known]
    if not of.size or not any(spread):
        return means[of]
    given = [
        one if one is not None and is_known else JobLengths(1.0) for one, is_known in zip(known, spread, strict=True)
    ]
    places: dict[JobLengths, int] = {}
    number = np.array([places.setdefault(one, len(places)) for one in given])
    which = list(places)
    lengths = means[of] * lengths_at(which, number[of], shares_of(of.size)) / _means_of(which)[number[of]]
    block = _together(counts)[of]
    total, drawn = (np.bincount(block, one) for one in (means[of], lengths))
    found: Floats = lengths * (total / drawn)[block]
    return found


def _together(counts: Ints) -> Ints:
    """Return a number for each minute, the same for those whose jobs are taken together; a batch stays alone."""
    found, number, jobs = [], 0, 0
    for count in counts.tolist():
        if jobs >= TOGETHER or (jobs and count >= TOGETHER):
            number, jobs = number + 1, 0
        found.append(number)
        jobs += count
    return np.array(found, dtype=np.int64)


def _means_of(known: Sequence[JobLengths]) -> Floats:
    """Return the mean of each distribution, as `lengths_at` has it between its quantiles."""
    points = _points(known)
    low, high = points[:, :-1], points[:, 1:]
    ratio = np.log(high / low)
    flat = np.abs(ratio) < 1e-9
    # The mean of what runs from low to high with a linear logarithm.
    each = np.where(flat, low, (high - low) / np.where(flat, 1.0, ratio))
    found: Floats = each @ np.diff(_SHARES)
    return found


def _points(known: Sequence[JobLengths]) -> Floats:
    """Return the lengths at _SHARES of each distribution."""
    rows = []
    for one in known:
        if one.quantiles is None:
            rows.append((max(one.mean, LEAST_LENGTH_S),) * _SHARES.size)
            continue
        p10, p50, p90, p99 = (max(value, LEAST_LENGTH_S) for value in one.quantiles)
        rows.append((p10 * (p10 / p50) ** 0.25, p10, p50, p90, p99, p99 * (p99 / p90) ** _TAIL))
    return np.array(rows)
