"""Starts of known jobs as a mixed-integer program: over a forecast (§10.2), or over the real capacity (§1.2).

Equal jobs are one kind. A whole number says how many of a kind start in a step, and a charge how many cores run above
the capacity of a step: maximise worth @ x, with matrix @ x <= limit and 0 <= x <= upper. The rows of the matrix are
the steps, then the kinds that may start in several steps. Where a step has several levels of capacity, each as likely,
cores above one of them are charged its share, so that the charge is what is to be expected of the load. numpy alone:
what solves a program is elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.deferral.choosing import View
from domain.rules.deferral.jobs import W1, W2, Ints, Jobs

Floats = NDArray[np.float64]

STEPS = 10
"""Steps that a plan looks at, with the one that is decided."""
FACTOR = 0.7
"""What a start in a later step is worth of its value: jobs that are not known yet will want that room too."""
MARGIN = 0.5
"""Spreads of the forecast that a plan keeps free."""
LEVELS = 10
"""Levels of capacity, each as likely, by which a plan expects a charge."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A mixed-integer program over the starts of jobs; its columns are starts, then charges.

    worth, upper: by column. limit: by row. begins (columns + 1), rows, factors: the matrix, column by column. kind,
    step: of the columns that are starts, step from the first one of the program. members: the kind of each job.
    """

    worth: Floats
    upper: Floats
    limit: Floats
    begins: Ints
    rows: Ints
    factors: Floats
    kind: Ints
    step: Ints
    members: Ints

    @property
    def starts(self) -> int:
        """Return how many columns, the first ones, are whole numbers."""
        return int(self.kind.size)

    def starts_of(self, values: Floats) -> Ints:
        """Return the step in which each job starts, (jobs,), -1 for never; of equal jobs the first start first.

        values: (columns,) of a solution.
        """
        found = np.full(self.members.size, -1, dtype=np.int64)
        number = np.rint(values[: self.starts]).astype(np.int64)
        used = np.flatnonzero(number > 0)
        if not used.size:
            return found
        used = used[np.lexsort((self.step[used], self.kind[used]))]
        steps = np.repeat(self.step[used], number[used])
        kinds = np.repeat(self.kind[used], number[used])
        order = np.argsort(self.members, kind="stable")
        first = np.searchsorted(self.members[order], kinds)
        within = np.arange(kinds.size) - np.searchsorted(kinds, kinds)
        found[order[first + within]] = steps
        return found


def program(
    jobs: Jobs, limit: NDArray[np.floating] | Ints, *, now: int = 0, factor: float = 1.0, hard: int = 0
) -> Program:
    """Return the program of jobs over the steps from `now` on.

    limit: cores that each step has for them (steps,), or levels of them (levels, steps), the lowest first. factor: of
    the worth of starts after the first step. hard: so many first steps may not be exceeded, by their lowest level; in
    the others each core above the limit is charged W2, above a level its share of it.
    """
    levels = np.atleast_2d(np.asarray(limit, dtype=np.float64))
    room, steps = levels[0], levels.shape[1]
    earliest_start = np.maximum(np.maximum(jobs.earliest, jobs.submitted), now) - now
    latest_start = np.minimum(jobs.latest, now + steps - 1) - now
    rows = np.stack([jobs.cores, jobs.duration, jobs.earliest, earliest_start, latest_start], axis=1)
    kinds, members, count = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    cores, duration, earliest, first, last = (np.ascontiguousarray(column) for column in kinds.T.reshape(5, -1))
    kind, step = _ranges(first, np.maximum(last - first + 1, 0))
    fits = (step >= hard) | (cores[kind] <= room[step])
    kind, step = kind[fits], step[fits]
    value = cores[kind] * duration[kind] - W1 * (step + now - earliest[kind])
    value = np.where(step > 0, factor * value, value)
    several = np.bincount(kind, minlength=len(kinds)) > 1
    row_of = steps + np.cumsum(several) - 1
    # A column has a row for each step in which its jobs run, and one for its kind where that has other columns too.
    runs = np.minimum(duration[kind], steps - step)
    column, at = _ranges(np.zeros(kind.size, dtype=np.int64), runs + several[kind])
    counted = at == runs[column]
    entries = np.where(counted, row_of[kind[column]], step[column] + at)
    factors = np.where(counted, 1.0, cores[kind[column]].astype(np.float64))
    # Cores between two levels are charged for those below them, cores above the highest one in full.
    width = np.diff(levels, axis=0)[:, hard:]
    below, ahead = np.nonzero(width > 0.0)
    charged = np.concatenate([ahead + hard, np.arange(hard, steps)])
    charge = W2 * np.concatenate([(below + 1) / len(levels), np.ones(steps - hard)])
    lengths = np.concatenate([runs + several[kind], np.ones(charged.size, dtype=np.int64)])
    return Program(
        worth=np.concatenate([value, -charge]),
        upper=np.concatenate([count[kind].astype(np.float64), width[below, ahead], np.full(steps - hard, np.inf)]),
        limit=np.concatenate([room, count[several].astype(np.float64)]),
        begins=np.concatenate([[0], np.cumsum(lengths)]),
        rows=np.concatenate([entries, charged]),
        factors=np.concatenate([factors, np.full(charged.size, -1.0)]),
        kind=kind,
        step=step,
        members=members.reshape(-1),
    )


def _ranges(first: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return the numbers first_i, first_i + 1, ... of so many each, one after another: whose they are, and they."""
    owner = np.repeat(np.arange(first.size), lengths)
    offset = np.arange(owner.size) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return owner, first[owner] + offset


def middles(levels: int) -> Floats:
    """Return the quantiles (levels,) that stand for as many parts of a distribution, each as likely."""
    return np.asarray((np.arange(levels) + 0.5) / levels, dtype=np.float64)


class Rolling(NamedTuple):
    """The program of a step: jobs by their place in `cur`, then `fut`; known: their numbers."""

    program: Program
    known: Ints
    ready: int
    """So many of them, the first, may start now."""


def rolling(view: View, path: Floats, *, factor: float = FACTOR) -> Rolling:
    """Return the program of the jobs known now over this step and the next ones.

    path: capacity expected in the steps after this one, (steps - 1,), or levels of it (levels, steps - 1), the lowest
    first and each as likely. This step has the cores that are really free. Worth of later starts is multiplied by
    `factor`. Jobs that run now keep their cores.
    """
    now, his, levels = view.step, view.his, np.atleast_2d(path)
    ahead = np.arange(1, levels.shape[1] + 1)
    held = (his.cores[None, :] * (his.remaining[None, :] > ahead[:, None])).sum(axis=1)
    limit = np.concatenate([np.full((len(levels), 1), float(view.free)), levels - held], axis=1)
    soon = np.flatnonzero(view.fut.earliest < now + limit.shape[1])
    order = np.lexsort((view.cur.job, view.cur.submitted))
    cur, fut = view.cur.take(order), view.fut.take(soon)
    columns = (np.concatenate(pair) for pair in zip(cur[:6], fut[:6], strict=True))
    known, cores, duration, earliest, latest, submitted = columns
    made = program(Jobs(cores, duration, earliest, latest, submitted), limit, now=now, factor=factor, hard=1)
    return Rolling(made, known, view.cur.size)
