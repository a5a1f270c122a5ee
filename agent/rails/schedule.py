"""Rail 5: windows of time in which a fleet has a smallest or largest number of VMs of its own.

A window is planned by a cron expression with a length, or once with a beginning and an end, both by the clock of a time
zone. What is open follows from the time alone, so that a restart within a window changes nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from agent.rails.base import Power, RailContext, Word, rail, replaced, utc
from agent.rails.permissions import active_pin, pause_of
from domain.announcements import WEEKDAYS
from domain.controls import Controls, Pause, PauseScope, Window
from domain.decisions import Direction, Proposal, Reason
from domain.fleet import vms
from domain.units import DAY_S, MINUTE_S

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger

AHEAD_S: Final = 7 * DAY_S
"""A window that opens later than this is not shown yet."""
LONGEST_SHIFT: Final = timedelta(hours=3)
"""More than any clock is moved by at once."""
_FIELDS: Final = 5
_LOOKED_AT: Final = 60
_ANY_TIME: Final = datetime.fromisoformat("2026-01-01T00:00")
_SUNDAYS: Final = (0, 7)


@dataclass(frozen=True, slots=True)
class WindowSetting:
    """A window as it is set: either `cron` and `minutes`, or `begins` and `ends`, local times without an offset.

    cron: five fields, the days of the week counted from Sunday = 0. minutes: length by the clock. zone: of all times.
    minimum, maximum: VMs of the whole fleet. policy: that decides while it is open. pause: the direction it holds.
    """

    name: str
    cron: str = ""
    minutes: float = 0.0
    begins: str = ""
    ends: str = ""
    zone: str = "UTC"
    minimum: int | None = None
    maximum: int | None = None
    policy: str = ""
    pause: PauseScope | None = None

    def at(self, now: float) -> Window | None:
        """Return the window that is open at `now`, epoch seconds, else the next one, None where there is no further."""
        zone = ZoneInfo(self.zone)
        for begins, ends in self._times(now, zone):
            start, end = moment(begins, zone), moment(ends, zone)
            if now < end and start < end:
                values = (self.minimum, self.maximum, self.policy, self.pause)
                return Window(self.name, start, end, self.zone, not self.cron, *values)
        return None

    def _times(self, now: float, zone: ZoneInfo) -> Iterator[tuple[datetime, datetime]]:
        """Yield beginnings and ends by the clock, from the first that may not be over."""
        if not self.cron:
            yield datetime.fromisoformat(self.begins), datetime.fromisoformat(self.ends)
            return
        length = timedelta(minutes=self.minutes)
        here = datetime.fromtimestamp(now, zone).replace(tzinfo=None)
        for begins in starts(self.cron, here - length - LONGEST_SHIFT):
            yield begins, begins + length


def starts(cron: str, after: datetime) -> Iterator[datetime]:
    """Yield the times by the clock that a cron expression names, from `after` on, both without a zone.

    The calendar is counted without a zone, so that each of them comes once, whatever the clock does that day.
    """
    trigger = _trigger(cron)
    at = after.replace(tzinfo=UTC)
    while (found := trigger.get_next_fire_time(None, at)) is not None:
        yield found.replace(tzinfo=None)
        at = found + timedelta(seconds=1)


def moment(local: datetime, zone: ZoneInfo) -> float:
    """Return a time by the clock of a zone as epoch seconds.

    A time that the clock repeats is its first one; one that it skips is the moment at which the clock is set forward.
    """
    first, second = (local.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if first <= second:
        return first
    # Skipped: read with the offset of before it lies behind the change, with that of afterwards in front of it.
    low, high, before = int(second), int(first), datetime.fromtimestamp(second, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return float(high)


@lru_cache(maxsize=1024)
def _trigger(cron: str) -> CronTrigger:
    from apscheduler.triggers.cron import CronTrigger

    minute, hour, day, month, weekday = cron.split()
    return CronTrigger(
        minute=minute, hour=hour, day=day, month=month, day_of_week=_weekdays(weekday), second=0, timezone=UTC
    )


def cron_fault(cron: str) -> str | None:
    """Return what is wrong with a cron expression, None for one that can be used."""
    fields = cron.split()
    if len(fields) != _FIELDS:
        return "it has not five fields: minute, hour, day of the month, month, day of the week"
    if fields[2] != "*" and fields[4] != "*":
        return "cron joins a day of the month and a day of the week by or: describe two windows"
    try:
        first = next(starts(cron, _ANY_TIME), None)
    except (ValueError, TypeError) as error:
        return str(error)
    return "it names no date that exists" if first is None else None


def shortest_gap_minutes(cron: str) -> float:
    """Return how long a window may be without beginning again while it is open, as far as the next openings show."""
    times = list(itertools.islice(starts(cron, _ANY_TIME), _LOOKED_AT))
    return min(((b - a).total_seconds() / MINUTE_S for a, b in itertools.pairwise(times)), default=math.inf)


def _weekdays(field: str) -> str:
    """Return the days of the week with their names: cron counts from Sunday = 0, the scheduler from Monday = 0."""
    if field == "*":
        return field
    return ",".join(name for part in field.lower().split(",") for name in _weekdays_of(part))


def _weekdays_of(part: str) -> list[str]:
    span, _, step = part.partition("/")
    low, _, high = span.partition("-")
    if span == "*":
        first, last = 0, 6
    else:
        first = _weekday(low)
        last = _weekday(high) if high else 6 if step else first
        if last < first and last in _SUNDAYS:
            last = 7
    if last < first or (step and (not step.isdigit() or int(step) < 1)):
        raise ValueError(f"{part} is not a range of days of the week")
    # From Sunday on, as cron counts.
    return [WEEKDAYS[(day + 6) % 7] for day in range(first, last + 1, int(step or 1))]


def _weekday(text: str) -> int:
    if text in WEEKDAYS:
        return (WEEKDAYS.index(text) + 1) % 7
    if not text.isdigit() or int(text) > 7:
        raise ValueError(f"{text} is not a day of the week")
    return int(text)


def windows_at(planned: Sequence[WindowSetting], now: float) -> tuple[Window, ...]:
    """Return of each planned window the one that is open, or else the next within a week, in the order of `ranked`."""
    found = [window for one in planned if (window := one.at(now)) is not None and window.start <= now + AHEAD_S]
    return tuple(ranked(found))


def ranked(windows: Iterable[Window]) -> list[Window]:
    """Return windows with those first that count before others: those of one time only, then the latest to begin.

    Each limit, pause and policy is that of the first open window which has one. Of two that begin together the first by
    name counts.
    """
    return sorted(windows, key=lambda one: (not one.once, -one.start, one.name))


def opened(windows: Iterable[Window], now: float) -> list[Window]:
    """Return the windows that are open at `now`, the one first that counts before the others."""
    return [one for one in ranked(windows) if one.start <= now < one.end]


def policy_at(windows: Iterable[Window], now: float) -> str:
    """Return the policy of the windows that are open, "" where none names one."""
    return next((one.policy for one in opened(windows, now) if one.policy), "")


def with_pauses(controls: Controls, windows: Iterable[Window], now: float) -> Controls:
    """Return the controls with the pause of the windows that are open, which holds wherever an operator's does."""
    for one in opened(windows, now):
        if one.pause is not None:
            pause = Pause(one.pause, "the schedule", f"window {one.name}", one.start, one.end)
            return replace(controls, pauses=(*controls.pauses, pause))
    return controls


@dataclass(frozen=True, slots=True)
class _Range:
    """The limits in force: each with the window that it is of."""

    minimum: int = 0
    maximum: int | None = None
    of_minimum: Window | None = None
    of_maximum: Window | None = None


def _range(context: RailContext) -> _Range:
    """Return what the open windows admit; where two contradict each other, the limit of the first counts."""
    found = _Range()
    for one in opened(context.windows, context.now):
        if found.of_minimum is None and one.minimum is not None:
            lowest = one.minimum if found.maximum is None else min(one.minimum, found.maximum)
            found = replace(found, minimum=lowest, of_minimum=one)
        if found.of_maximum is None and one.maximum is not None:
            found = replace(found, maximum=max(one.maximum, found.minimum), of_maximum=one)
    return found


def scheduled(sizes: Sequence[int], context: RailContext) -> tuple[int, ...]:
    """Return sizes with the total that the open windows admit, as far as the groups' own bounds do.

    VMs are added to the group with the cheapest core. They are taken first from increases, then from what is there, off
    the group with the dearest core. Pinned groups stay as they are.
    """
    from agent.rails.limits import bounds_of  # Settings read this module, without numpy.

    found, after = _range(context), list(sizes)
    pin = active_pin(context)
    free = [k for k, group in enumerate(context.fleet.groups) if pin is None or group.key not in pin.desired]
    cheapest = sorted(free, key=lambda k: (_core_price(context, k), k))
    lacking = found.minimum - sum(after)
    for k in cheapest if lacking > 0 else ():
        more = min(lacking, max(0, bounds_of(context, k)[1] - after[k]))
        after[k], lacking = after[k] + more, lacking - more
    excess = 0 if found.maximum is None else sum(after) - found.maximum
    for increases in (True, False):
        for k in reversed(cheapest) if excess > 0 else ():
            least = bounds_of(context, k)[0]
            if increases:
                least = max(least, context.snapshot.requested[k])
            fewer = min(excess, max(0, after[k] - least))
            after[k], excess = after[k] - fewer, excess - fewer
    return tuple(after)


def _core_price(context: RailContext, index: int) -> float:
    kind = context.fleet.groups[index].vm_type
    return kind.price_per_hour / kind.cores


@rail(Power.REPLACE)
def schedule(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 5: the VMs of a fleet stay within what the open windows of its schedule admit.

    Raise or lower the total. A correction that none asked for opens no direction that is held, as with the bounds.
    """
    from agent.rails.limits import scale_in_is_held

    for index, desired in enumerate(scheduled(proposal.desired, context)):
        asked, current = proposal.desired[index], context.snapshot.requested[index]
        if desired == asked:
            continue
        if desired < current and scale_in_is_held(context):
            desired = min(asked, current)
        elif desired > current and pause_of(context, Direction.OUT) is not None:
            desired = max(asked, current)
        if desired != asked:
            reason = Reason.SCHEDULED_MINIMUM if desired > asked else Reason.SCHEDULED_MAXIMUM
            yield replaced(context, index, asked, desired, reason, _sentence(context, reason))


def _sentence(context: RailContext, reason: Reason) -> str:
    found = _range(context)
    lowest = reason is Reason.SCHEDULED_MINIMUM
    window, limit = (found.of_minimum, found.minimum) if lowest else (found.of_maximum, found.maximum or 0)
    assert window is not None, "a limit is that of a window"
    what = "at least" if lowest else "at most"
    return f"window {window.name} until {utc(window.end, context.now)}: {what} {vms(limit)} in the fleet"


def window_text(window: Window) -> str:
    """Return what a window sets, such as `4 to 40 VMs, policy hold`."""
    return ", ".join(filter(None, (_limits(window), window.policy and f"policy {window.policy}", _pause(window))))


def _limits(window: Window) -> str:
    low, high = window.minimum, window.maximum
    if low is None and high is None:
        return ""
    if high is None:
        return f"at least {vms(low or 0)}"
    return f"at most {vms(high)}" if low is None else f"{low} to {high} VMs"


def _pause(window: Window) -> str:
    if window.pause is None:
        return ""
    return "paused" if window.pause is PauseScope.ALL else f"scale-{window.pause} paused"


def coming_text(window: Window, now: float) -> str:
    """Return when a window is open and what it sets, by the clock of its zone: `from 18:00 ...: 4 to 40 VMs`."""
    zone = ZoneInfo(window.zone)
    here, start, end = (datetime.fromtimestamp(at, zone) for at in (now, window.start, window.end))
    until = _clock(end, max(here, start))
    if window.start <= now:
        return f"until {until}: {window_text(window)}"
    return f"from {_clock(start, here)} to {until}: {window_text(window)}"


def _clock(at: datetime, seen_from: datetime) -> str:
    """Return a time of day, with the day of the week where it is another day, and the date from a week on."""
    days = (at.date() - seen_from.date()).days
    return at.strftime("%H:%M" if days == 0 else "%a %H:%M" if days < 7 else "%Y-%m-%d %H:%M")
