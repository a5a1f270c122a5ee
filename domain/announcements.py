"""Known coming work: so many jobs, about so long, at about this time, within so many minutes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from domain.errors import BadInput
from domain.units import DAY_S


@dataclass(frozen=True, slots=True)
class Announcement:
    """Work that is expected.

    at: when its first job comes, in seconds of the clock that decisions are made by: of the epoch in the agent, of the
    trace in the simulator. jobs: how many. job_core_s: mean core-seconds of one. over_s: seconds over which they come,
    evenly; 0 for all at once. Raises BadInput, which names the field.
    """

    at: float
    jobs: int
    job_core_s: float
    over_s: float = 0.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.at):
            raise BadInput("at of an announcement", self.at, "give seconds")
        if self.jobs < 1:
            raise BadInput("jobs of an announcement", self.jobs, "give 1 or more")
        if not (math.isfinite(self.job_core_s) and self.job_core_s > 0.0):
            raise BadInput("job_core_s of an announcement", self.job_core_s, "give core-seconds above 0")
        if not (math.isfinite(self.over_s) and self.over_s >= 0.0):
            raise BadInput("over_s of an announcement", self.over_s, "give seconds, 0 or more")

    @property
    def core_s(self) -> float:
        """Core-seconds in all."""
        return self.jobs * self.job_core_s


def rows_of(announcements: Iterable[Announcement]) -> list[list[float]]:
    """Return announcements as `domain.observations.autoscaling_scorer` takes them, as lists or an array of (A, 4).

    One row each: at, jobs, job_core_s, over_s.
    """
    return [[one.at, float(one.jobs), one.job_core_s, one.over_s] for one in announcements]


WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_FIRST_WEEKDAY = 3
"""The epoch began on a Thursday."""


@dataclass(frozen=True, slots=True)
class Recurring:
    """Work that comes at a time of day, in UTC.

    at_s: seconds after midnight. weekdays: of WEEKDAYS, empty for every day. The others are those of `Announcement`.
    """

    at_s: float
    jobs: int
    job_core_s: float
    over_s: float = 0.0
    weekdays: tuple[str, ...] = ()

    def between(self, after: float, until: float) -> Iterator[Announcement]:
        """Yield what it announces for the time after `after` and until `until`, epoch seconds, in order."""
        for day in range(math.floor((after - self.at_s) / DAY_S) + 1, math.floor((until - self.at_s) / DAY_S) + 1):
            if not self.weekdays or WEEKDAYS[(day + _FIRST_WEEKDAY) % len(WEEKDAYS)] in self.weekdays:
                yield Announcement(day * DAY_S + self.at_s, self.jobs, self.job_core_s, self.over_s)
