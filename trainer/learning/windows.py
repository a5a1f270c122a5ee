"""Cuts what was recorded into windows: the first to learn on, the next to choose on, the latest held out for judging.

Time decides, not chance: a policy is used on days that come after those it learnt from. Two fifths are held out, as in
fine-tuning (`trainer.autoscaling.lessons.LEFT_OUT`): a gain of a few per cent needs about as many days to be sure
of as to be learnt. They are those of the gate, and choose nothing: the form of the rule, the use of new weights and the
challenger are chosen on the later two fifths of the earlier windows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import TypeVar

from domain.errors import TrimtabError
from domain.units import DAY_S, HOUR_S, MINUTE_S
from trainer.autoscaling.lessons import DAYS, LEAST_WINDOWS, LEFT_OUT, WINDOWS
from trainer.learning.jobs import Jobs
from trainer.learning.minutes import DecidedMinute, Record, Span, jobs_of, span_of

NEEDED = 2 * LEAST_WINDOWS + 2
"""Windows of which two fifths are LEAST_WINDOWS, and three fifths no fewer."""


class TooLittle(TrimtabError):
    """Too little is recorded to learn from; the message says how much is missing."""


LEAD_S = HOUR_S / 2
"""How long before a window its replay begins: boots, cool-downs and the queue are then those of the fleet."""
LEAST_JOBS = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows in the order of time, and their length.

    earlier: those to learn on, and after them those to choose on. replayed: all of them, each with LEAD_S before it
    where so much is recorded. stretches: everything that is recorded, hours without jobs too, with the windows as their
    marks. A replay of less begins in a state that is not quite the fleet's.
    """

    window_s: float
    earlier: tuple[Span, ...]
    held_out: tuple[Span, ...]
    replayed: tuple[Span, ...]
    stretches: tuple[Span, ...]

    @property
    def choosing(self) -> tuple[Span, ...]:
        """The later ones of the earlier windows, which choose and on which nothing is fitted."""
        return self.earlier[len(self.earlier) - _later(len(self.earlier)) :]

    def with_lead(self, spans: Sequence[Span]) -> list[Span]:
        """Return these windows as they are replayed."""
        names = {span.name for span in spans}
        return [span for span in self.replayed if span.name in names]


def parts_of(count: int) -> tuple[int, int, int]:
    """Return of how many windows a fleet learns, on how many it chooses, and how many judge."""
    held_out = _later(count)
    choosing = _later(count - held_out)
    return count - held_out - choosing, choosing, held_out


def _later(count: int) -> int:
    return max(round(LEFT_OUT * count), 1)


def windows_of(recorded: Record) -> Windows:
    """Cut what was recorded into days where there are DAYS of them, else into WINDOWS of an hour or longer.

    A rest of half a window or more is a window too; one with fewer than two jobs teaches nothing and is left out.
    Raises TooLittle where fewer than LEAST_WINDOWS are there to learn from, or to judge by.
    """
    job_core_s = recorded.job_core_s
    if job_core_s is None:
        raise TooLittle(
            f"fleet {recorded.fleet.name}: no length of a job is recorded: let the job source report "
            "job_core_seconds, or wait until jobs have finished while VMs report busy cores"
        )
    total_s = sum(stretch[-1].end_s - stretch[0].end_s for stretch in recorded.stretches)
    window_s = DAY_S if total_s >= DAYS * DAY_S else max(total_s / WINDOWS // MINUTE_S * MINUTE_S, HOUR_S)
    found: list[Span] = []
    replayed: list[Span] = []
    whole: list[Span] = []
    for stretch in recorded.stretches:
        parts, jobs = _cut(stretch, window_s), jobs_of(stretch)
        for part in parts:
            span = _led(stretch, part, job_core_s, jobs)
            if span.trace.jobs >= LEAST_JOBS:
                found.append(span_of(span.name, part, job_core_s, jobs=jobs))
                replayed.append(span)
        if parts:
            whole.append(_marked(stretch, parts, job_core_s, jobs))
    remedy = f"record about {max(NEEDED - len(found), 1) * window_s / HOUR_S:.1f} h more with jobs"
    parts_of = split(f"fleet {recorded.fleet.name}", found, total_s, window_s, "jobs", remedy)
    return Windows(window_s, *parts_of, tuple(replayed), tuple(whole))


def split(
    subject: str, found: Sequence[T], total_s: float, window_s: float, content: str, remedy: str
) -> tuple[tuple[T, ...], tuple[T, ...]]:
    """Return the earlier windows, and the held-out ones: the latest two fifths. TooLittle where there are too few."""
    later = _later(len(found))
    if min(later, len(found) - later) < LEAST_WINDOWS:
        raise TooLittle(
            f"{subject}: {total_s / HOUR_S:.1f} h are recorded, which make {len(found)} windows of "
            f"{window_s / HOUR_S:.3g} h with {content}; {NEEDED} are needed, {LEAST_WINDOWS} of them to judge by: "
            f"{remedy}"
        )
    return tuple(found[:-later]), tuple(found[-later:])


def part_of(recorded: Record, begin_s: float, end_s: float = math.inf) -> Record:
    """Return what was recorded of the minutes that end in a span, epoch seconds, both ends included."""
    parts = (tuple(one for one in stretch if begin_s <= one.end_s <= end_s) for stretch in recorded.stretches)
    return replace(recorded, stretches=tuple(part for part in parts if len(part) > 1))


def marked_stretches(recorded: Record, job_core_s: float) -> tuple[Span, ...]:
    """Return everything that is recorded as stretches with WINDOWS windows in all, each of an hour to a day.

    Windows without jobs are among them: their rent counts too. A stretch of less than half a window is left out.
    """
    total_s = sum(stretch[-1].end_s - stretch[0].end_s for stretch in recorded.stretches)
    window_s = min(max(total_s / WINDOWS // MINUTE_S * MINUTE_S, HOUR_S), DAY_S)
    each = ((stretch, _cut(stretch, window_s)) for stretch in recorded.stretches)
    return tuple(_marked(stretch, parts, job_core_s, jobs_of(stretch)) for stretch, parts in each if parts)


def _led(
    stretch: tuple[DecidedMinute, ...], part: tuple[DecidedMinute, ...], job_core_s: float, jobs: Jobs | None
) -> Span:
    """Return a part of a stretch with its lead."""
    begin_s = part[0].end_s
    before = [minute for minute in stretch if begin_s - LEAD_S <= minute.end_s < begin_s]
    lead_s = begin_s - before[0].end_s if before else 0.0
    return span_of(_name(begin_s), (*before, *part), job_core_s, lead_s, jobs)


def _marked(
    stretch: tuple[DecidedMinute, ...],
    parts: Sequence[tuple[DecidedMinute, ...]],
    job_core_s: float,
    jobs: Jobs | None,
) -> Span:
    """Return a whole stretch with its parts as marks."""
    begin_s = stretch[0].end_s

    def step(minute: DecidedMinute) -> int:
        return round((minute.end_s - begin_s) / MINUTE_S)

    marks = tuple((_name(part[0].end_s), step(part[0]), step(part[-1])) for part in parts)
    return replace(span_of(_name(begin_s), stretch, job_core_s, jobs=jobs), marks=marks)


def _name(begin_s: float) -> str:
    return datetime.fromtimestamp(begin_s, UTC).strftime("%Y-%m-%d %H:%M")


def _cut(stretch: tuple[DecidedMinute, ...], window_s: float) -> list[tuple[DecidedMinute, ...]]:
    """Return consecutive parts of a stretch; each begins with the minute at whose end the one before it ends."""
    begun_s, last_s = stretch[0].end_s, stretch[-1].end_s
    count = max(int((last_s - begun_s) / window_s + 0.5), 1)
    ends = [begun_s + number * window_s for number in range(count)] + [max(last_s, begun_s + count * window_s)]
    parts = (tuple(minute for minute in stretch if low <= minute.end_s <= high + 1e-6) for low, high in pairwise(ends))
    return [part for part in parts if len(part) > 1 and part[-1].end_s - part[0].end_s >= 0.5 * window_s]
