"""The jobs of recorded minutes: when they came, when they began and ended, and how long they were.

A ledger knows counts, not jobs. Those of a minute are spread evenly over it. `rebuilt` finds their lengths by the work
of the jobs that finished in each minute; without it they have the mean that was reported when they came. `lengths_at`
gives lengths of a reported distribution. The same record always gives the same jobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.minutes import JobLengths
from domain.units import MINUTE_S

LEAST_LENGTH_S = 1e-3
NEAR_S = 1.25 * MINUTE_S
"""Times that differ by no more are the same: begins and ends are known to a minute."""
LEFT_AFTER = 5
"""Minutes in a row with more jobs than the job source counts as running, after which the surplus has left."""
MOST_TOTALS = 50_000
"""Numbers of jobs, times submissions, that are looked at for one minute; beyond, only the submissions that fit best."""
YOUNGEST_S = 10.0
"""The age of a job that ends in the minute in which it began, at least."""
GOLDEN = 0.6180339887498949
_SHARES = np.array([0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
_TAIL = 0.01 / 0.09

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Ended = tuple[int, int, float]


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


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """Jobs on one core each in the order of their submission, shape (J,): epoch seconds, and core-seconds of each.

    started_s, ended_s: inf for a job that had not begun, or not ended, in the last minute.
    """

    submitted_s: Floats
    core_s: Floats
    started_s: Floats
    ended_s: Floats

    def between(self, begin_s: float, end_s: float) -> tuple[Floats, Floats]:
        """Return arrivals (seconds since the begin) and lengths of the jobs of a span, those there at its begin at 0.

        A job that ran at the begin has what was left of it.
        """
        there = (self.submitted_s <= begin_s) & (self.ended_s > begin_s)
        came = (self.submitted_s > begin_s) & (self.submitted_s <= end_s)
        left = self.core_s - np.clip(begin_s - self.started_s, 0.0, None)
        arrivals = np.concatenate([np.zeros(int(there.sum())), self.submitted_s[came] - begin_s])
        lengths = np.concatenate([np.clip(left[there], 1.0, None), self.core_s[came]])
        return arrivals, np.clip(lengths, LEAST_LENGTH_S, None)


def rebuilt(
    ends_s: Floats, submitted: Ints, waiting: Ints, running: Ints, finished: Ints, work_core_s: Floats, means_s: Floats
) -> Jobs:
    """Return the jobs of consecutive minutes, by minute: shape (M,); those there at the end of the first one included.

    ends_s: epoch seconds of their ends. submitted: of the first one, the jobs that wait or run at its end. waiting,
    running: at the end of each. finished: jobs, and work_core_s their work, nan where that is unknown. means_s: the
    mean length as reported, which jobs have whose end is not known.

    Jobs begin in the order of their submission, when they leave the queue. The jobs of a minute are a submission, and
    are taken to be alike. Jobs that finish belong to submissions of which others have just finished after the same
    time, or to the one or two submissions whose ages explain the work, the oldest jobs first. Jobs may leave without
    being counted as finished: where fewer run for LEFT_AFTER minutes, the oldest have left.
    """
    minutes = ends_s.size
    of = np.repeat(np.arange(minutes), submitted)
    begins_s = np.concatenate([ends_s[:1], ends_s[:-1]])
    arrivals_s, _ = arrivals_in(begins_s, ends_s, submitted)
    core_s, started_s, ended_s = (np.full(of.size, value) for value in (math.nan, math.inf, math.inf))
    begun = np.clip(submitted + np.concatenate([[0], waiting[:-1]]) - waiting, 0, None)
    begun[0] = running[0]
    under_way: dict[int, list[int]] = {}
    alike: dict[int, float] = {}
    surplus: list[int] = []
    following = 0
    for minute in range(minutes):
        middle_s = (begins_s[minute] + ends_s[minute]) / 2.0
        until = min(following + int(begun[minute]), of.size)
        for job in range(following, until):
            # A job that has waited begins at any time of the minute.
            started_s[job] = arrivals_s[job] if of[job] == minute else middle_s
            under_way.setdefault(int(of[job]), []).append(job)
        following = until
        there = sum(map(len, under_way.values()))
        if minute == 0 or not there:
            continue
        ages = {came: np.maximum(middle_s - started_s[jobs], YOUNGEST_S) for came, jobs in under_way.items()}
        count, ended = min(int(finished[minute]), there), []
        if count > 0:
            work = float(work_core_s[minute]) * (count / finished[minute])
            # A begin before the record is not known: such jobs are at least as old as jobs that finish.
            if 0 in ages and work > 0.0:
                ages[0] = np.maximum(ages[0], work / count)
            ended = _ended(ages, alike, count, work)
            alike |= {came: length for came, _, length in ended}
        surplus = [*surplus[1 - LEFT_AFTER :], there - sum(number for _, number, _ in ended) - int(running[minute])]
        if len(surplus) == LEFT_AFTER and (left := min(surplus)) > 0:
            surplus = [each - left for each in surplus]
            ended += _left(ages, ended, left)
        for came, number, length in ended:
            jobs = under_way[came]
            done = np.array(jobs[:number])
            # Of jobs that ran at the begin of the record only the rest is known.
            core_s[done] = np.where(done < running[0], middle_s - ends_s[0], length)
            ended_s[done] = ends_s[minute]
            del jobs[:number]
            if not jobs:
                del under_way[came]
    expected = np.array([alike.get(came, 0.0) for came in of.tolist()])
    expected = np.where(expected > 0.0, expected, means_s[of])
    # A job that still runs is longer than it has run.
    ran = np.where(np.isfinite(started_s), ends_s[-1] - started_s + NEAR_S, 0.0)
    return Jobs(arrivals_s, np.where(np.isnan(core_s), np.maximum(expected, ran), core_s), started_s, ended_s)


def _ended(ages: Mapping[int, Floats], alike: Mapping[int, float], count: int, work: float) -> list[_Ended]:
    """Return of which submissions jobs ended.

    ages: of the jobs that run, by submission, the oldest first. alike: the length of those that ended before. count,
    work: jobs that ended, and their core-seconds, nan where these are unknown.
    """
    if math.isnan(work):
        oldest = sorted(ages, key=lambda came: -float(ages[came][0]))
        return [(came, number, float(ages[came][:number].mean())) for came, number in _first(oldest, ages, count)]
    due = {came: alike[came] - float(own[0]) for came, own in ages.items() if came in alike}
    due = {came: left_s for came, left_s in due.items() if abs(left_s) <= NEAR_S}
    taken = _first(sorted(due, key=lambda came: due[came]), ages, count)
    rest = count - sum(number for _, number in taken)
    left = work - sum(number * alike[came] for came, number in taken)
    if taken and rest == 0 and abs(left) <= NEAR_S * count:
        return [(came, number, alike[came] + left / count) for came, number in taken]
    if taken and rest and left > 0.0:
        others = _explained({came: own for came, own in ages.items() if came not in due}, rest, left)
        if others:
            return [(came, number, alike[came]) for came, number in taken] + others
    nearest = _first(sorted(ages, key=lambda came: abs(float(ages[came][0]) - work / count)), ages, count)
    return _explained(ages, count, work) or _with_work(nearest, ages, work)


def _first(order: Sequence[int], ages: Mapping[int, Floats], count: int) -> list[tuple[int, int]]:
    """Return `count` jobs of submissions in this order: (submission, jobs)."""
    taken = []
    for came in order:
        number = min(ages[came].size, count)
        if number:
            taken.append((came, number))
            count -= number
    return taken


def _explained(ages: Mapping[int, Floats], count: int, work: float) -> list[_Ended]:
    """Return the submission, or the two, whose oldest jobs explain the work of `count` jobs; else nothing.

    Of several the one with the least surprise: seconds apart per job over NEAR_S, the submissions, and half for each of
    which some jobs still run.
    """
    came = list(ages)
    if len(came) * count > MOST_TOTALS:
        nearest = sorted(came, key=lambda one: abs(float(ages[one][0]) - work / count))
        came = sorted(nearest[: max(MOST_TOTALS // count, 2)])
    sizes = np.array([ages[one].size for one in came])
    # The total age of the oldest jobs of each submission, by their number.
    totals = np.full((len(came), count + 1), np.inf)
    for place, one in enumerate(came):
        total = np.concatenate([[0.0], np.cumsum(ages[one][:count])])
        totals[place, : total.size] = total
    numbers, best, found = np.arange(count + 1), math.inf, None
    with np.errstate(invalid="ignore"):
        for place in range(len(came)):
            both = totals[place][None, :] + totals[place:, ::-1]
            both[0, :-1] = np.inf
            off = np.abs(both - work) / count
            off[off > NEAR_S] = np.inf
            used = (numbers[None, :] > 0).astype(np.float64) + (numbers[None, ::-1] > 0)
            open_ = (numbers > 0) & (numbers < sizes[place])
            others = (numbers[::-1] > 0) & (numbers[None, ::-1] < sizes[place:, None])
            surprise = off / NEAR_S + used + 0.5 * (open_[None, :] + others.astype(np.float64))
            at = int(np.argmin(surprise))
            if surprise.flat[at] < best:
                best, (other, number) = surprise.flat[at], divmod(at, count + 1)
                found = [(came[place], number), (came[place + other], count - number)]
    return [] if found is None else _with_work([one for one in found if one[1]], ages, work)


def _left(ages: Mapping[int, Floats], ended: Sequence[_Ended], count: int) -> list[_Ended]:
    """Return the oldest jobs that have not ended, at most `count`, with their ages as lengths."""
    gone = dict.fromkeys(ages, 0) | {came: 0 for came, *_ in ended}
    for came, number, _ in ended:
        gone[came] += number
    there = {came: own[gone[came] :] for came, own in ages.items() if own.size > gone[came]}
    taken = _first(sorted(there, key=lambda came: -float(there[came][0])), there, count)
    return [(came, number, float(there[came][:number].mean())) for came, number in taken]


def _with_work(taken: Sequence[tuple[int, int]], ages: Mapping[int, Floats], work: float) -> list[_Ended]:
    """Return (submission, jobs, length): their mean ages, shifted by the same seconds so that the sum is the work."""
    means = [float(ages[came][:number].mean()) for came, number in taken]
    total = sum(number * mean for (_, number), mean in zip(taken, means, strict=True))
    shift = (work - total) / max(sum(number for _, number in taken), 1)
    return [
        (came, number, max(mean + shift, LEAST_LENGTH_S)) for (came, number), mean in zip(taken, means, strict=True)
    ]


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
