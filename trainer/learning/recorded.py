"""What a ledger recorded of a fleet: read here alone, as a stream of minutes and of the decisions beside them.

Made of the minutes are traces of jobs and a world. A trace covers a window of the recording. It ends early where the
fleet changes or the clock is set; what is missing within it is listed as gaps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.minutes import (
    CLOCK_SET,
    CLOUD,
    JobLengths,
    MinuteContext,
    RecordedMinute,
    newest_minute,
    read_minutes,
)
from agent.autoscaling.state import FleetStore
from agent.rails.base import RailLimits
from domain.decisions import Decision
from domain.errors import BadInput
from domain.fleet import Fleet, VmType
from domain.samples import NEWEST_JOBS
from domain.snapshot import Terms
from domain.units import DAY_S, HOUR_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import CooldownScope, SimulationConfig
from trainer.learning.jobs import Floats, arrivals_in, lengths_at, shares_of
from trainer.learning.ledgers import LedgerRows, check_known, none_in_span, reading

REPEATED_S = 120.0
"""A minute that ends so little before the last one was decided twice; further back the clock was set."""

QUANTILES = 11
LEAST_BOOTS = 20
"""Fewer boots of a group than these are no distribution."""

LEAST_FINISHED = 0.5
"""Where fewer of the jobs of a window are known to have finished, they say nothing of their order."""

WORK_TOLERANCE = 0.02
LEAST_JOBS = 200
LEAST_KNOWN = 0.95
"""Lengths are corrected by the work done where they miss it by more than the tolerance; below so many jobs in a window,
or where busy cores are known in a smaller share of minutes, the work says too little."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The recording of one fleet; `minutes` may be iterated several times and reads the ledger anew each time.

    fleet, context: the newest ones. source: of the ledger, without a password.
    """

    fleet: Fleet
    minutes: Iterable[RecordedMinute]
    context: MinuteContext
    source: str = ""


@dataclass(frozen=True, slots=True)
class WindowTrace:
    """A window of a recording as a trace of jobs on one core each.

    start: epoch seconds of the trace's second 0. duration_s: of the window. gaps_s: stretches without a count of jobs,
    (from, until) on the trace's clock; jobs that were counted when it returned are spread over the gap. boots: seconds
    per VM, by group; None where a part was not measured. policy: the one that decided most minutes, policies: all.
    cost: dollars, rent + waiting. initial: VMs at the start. interrupted, refused: by group. busy_core_s: work
    done; lost_core_s: work lost. has_quantiles: whether all lengths come from quantiles, else some are means.
    work_scale: by what the reported lengths were multiplied to give the work done, 1.0 where they agree. context:
    fleet, limits and prices.
    """

    trace: Trace
    start: float
    duration_s: float
    gaps_s: tuple[tuple[float, float], ...]
    boots: tuple[tuple[float, ...], ...] | None
    policy: str
    policies: tuple[str, ...]
    rent: float
    waiting_cost: float
    initial: tuple[int, ...]
    interrupted: tuple[int, ...]
    refused: tuple[int, ...]
    busy_core_s: float
    lost_core_s: float
    has_quantiles: bool
    work_scale: float
    context: MinuteContext

    @property
    def cost(self) -> float:
        """Dollars as recorded: rent of what was requested or draining, and the price of waiting."""
        return self.rent + self.waiting_cost

    @property
    def fleet(self) -> Fleet:
        """The fleet of the window."""
        return self.context.fleet


# Reading


def read_recorded(source: str, fleet: str, since: float | None = None, until: float | None = None) -> Recording:
    """Return the recording of a fleet with since <= end of a minute < until (epoch seconds).

    source: a SQLite file, or the URL of a ledger. BadInput for a fleet that the ledger does not know, or without a
    minute in the span; LedgerUnavailable when the ledger cannot be read.
    """
    with reading(source) as ledger:
        place = ledger.place
        check_known("fleet", fleet, FleetStore(ledger).fleets(), ledger, "fleet")
        newest = newest_minute(ledger.database, fleet, since, until)
    if newest is None:
        raise none_in_span("fleet", fleet, place, "minute")
    minutes = LedgerRows(source, lambda ledger: read_minutes(ledger.database, fleet, since, until))
    return Recording(newest.context.fleet, minutes, newest.context, place)


def read_decisions(
    source: str, fleet: str, since: float | None = None, until: float | None = None
) -> Iterator[tuple[DecisionInputs, Decision]]:
    """Yield the inputs and decisions of a fleet with since <= at < until, as long as they are kept, in their order.

    Raises as `read_recorded` does, but for a span without any.
    """
    with reading(source) as ledger:
        check_known("fleet", fleet, FleetStore(ledger).fleets(), ledger, "fleet")
        yield from FleetStore(ledger).inputs(fleet, since, until)


def fleets_of(source: str) -> tuple[str, ...]:
    """Return the fleets that a ledger knows, by name."""
    with reading(source) as ledger:
        return FleetStore(ledger).fleets()


def newest_end(source: str, fleet: str) -> float | None:
    """Return the end of the newest minute of a fleet, epoch seconds; None before the first."""
    with reading(source) as ledger:
        minute = newest_minute(ledger.database, fleet)
    return None if minute is None else minute.end_s


class MinuteOrder(Enum):
    """How a minute follows the one before it in a record: in time, as one that was decided twice, or apart from it."""

    IN_TIME, TWICE, APART = range(3)


def follows(before_s: float, end_s: float, *, clock_set: bool) -> MinuteOrder:
    """Return how a minute that ends at `end_s` follows one that ends at `before_s`, epoch seconds.

    Two agents that take turns may decide the same minute, or one a little back; where the clock was set, or a minute
    lies further back, nothing is known of the time between.
    """
    if clock_set or end_s < before_s - REPEATED_S:
        return MinuteOrder.APART
    return MinuteOrder.IN_TIME if end_s > before_s else MinuteOrder.TWICE


def shape_of(fleet: Fleet) -> tuple[object, ...]:
    """Return what makes minutes of a fleet comparable: the keys of its groups, types with their prices, and limits."""
    return tuple((group.key, group.vm_type, group.minimum, group.maximum) for group in fleet.groups)


# Windows


class _Window:
    """Gathers the minutes of one window."""

    def __init__(self, start: float, context: MinuteContext) -> None:
        groups, self.prices = len(context.fleet.groups), context.fleet.prices_per_hour
        self.start, self.end, self.context = start, start, context
        self.entries: list[tuple[float, float, int, JobLengths | None]] = []
        self.gaps: list[list[float]] = []
        self.boots: list[list[float]] = [[] for _ in range(groups)]
        self.are_boots_known = True
        self.policies: Counter[str] = Counter()
        self.rent = self.waiting_cost = self.lost_core_s = self.busy_core_s = 0.0
        self.interrupted, self.refused = [0] * groups, [0] * groups
        self.vm_hours = [0.0] * groups
        self.initial: tuple[int, ...] = ()
        self.under_way = 0.0
        self.minutes = self.busy_known = self.finished = 0
        self.backlog: list[float] = []
        self.reports: list[tuple[int, JobLengths]] = []
        self.finishes: list[tuple[float, int]] = []

    def gap(self, since: float, until: float) -> None:
        """Note that jobs were not counted."""
        if self.gaps and self.gaps[-1][1] >= since:
            self.gaps[-1][1] = until
        else:
            self.gaps.append([since, until])

    def add(self, minute: RecordedMinute, blind_until: float) -> None:
        """Take in a minute; blind_until: until when VMs could not be seen, so that no boot that began before counts."""
        start = minute.end_s - MINUTE_S
        if start > self.end:
            self.gap(self.end, start)
        self.minutes += 1
        self.policies[minute.policy] += 1
        if minute.submitted is None:
            self.gap(start, minute.end_s)
        else:
            since = start
            if self.gaps and self.gaps[-1][1] == start:
                since = self.gaps[-1][0]
            self.entries.append((since, minute.end_s, minute.submitted, minute.lengths))
            self.backlog.append((minute.waiting or 0.0) + 0.5 * (minute.running or 0))
            if len(self.entries) == 1:
                self.under_way = max((minute.waiting or 0.0) + (minute.running or 0) - minute.submitted, 0.0)
        self._add_money(minute)
        if minute.finished:
            self.finished += minute.finished
            self.finishes.append((minute.end_s, minute.finished))
        if minute.lengths is not None:
            self.reports.append((self.finished, minute.lengths))
        self.add_events(minute, blind_until)
        self.end = minute.end_s

    def add_events(self, minute: RecordedMinute, blind_until: float) -> None:
        """Take in what happened in a minute, of one that was decided twice as well."""
        start, groups = minute.end_s - MINUTE_S, len(self.boots)
        if minute.boots is None:
            self.are_boots_known = False
        for boot in minute.boots or ():
            if boot.group < groups and start - boot.seconds >= blind_until:
                self.boots[boot.group].append(boot.seconds)
        for counts, found in ((self.interrupted, minute.interrupted), (self.refused, minute.refused)):
            for group, count in found.items():
                if group < groups:
                    counts[group] += count
        self.lost_core_s += minute.lost_core_s

    def _add_money(self, minute: RecordedMinute) -> None:
        if not minute.requested:
            return
        self.initial = self.initial or minute.requested
        for k, (size, leaving, price) in enumerate(zip(minute.requested, minute.draining, self.prices, strict=False)):
            hours = (size + leaving) * (MINUTE_S / HOUR_S)
            self.vm_hours[k] += hours
            self.rent += hours * price
        terms = minute.context.terms
        if terms is not None and minute.waiting is not None:
            self.waiting_cost += minute.waiting * terms.waiting_price_per_hour * MINUTE_S / HOUR_S
        if None not in minute.busy_cores:
            self.busy_known += 1
            self.busy_core_s += sum(cores or 0.0 for cores in minute.busy_cores) * MINUTE_S

    @property
    def first_length(self) -> JobLengths | None:
        """The first length known in it, else the work of the busy cores over the jobs that finished."""
        found = next((lengths for *_, lengths in self.entries if lengths is not None), None)
        if found is None and self.finished > 0 and self.busy_core_s > 0.0:
            return JobLengths(self.busy_core_s / self.finished)
        return found

    @property
    def last_reported(self) -> JobLengths | None:
        """The last length that was reported in it, None where none was."""
        return next((lengths for *_, lengths in reversed(self.entries) if lengths is not None), None)

    def traced(self, name: str, length: JobLengths) -> WindowTrace:
        """Return the window as a trace; length: of the jobs before the first known length."""
        arrivals, lengths, has_quantiles = self._jobs(length)
        scale = self._work_scale(lengths)
        return WindowTrace(
            trace=make_trace(name, arrivals, lengths * scale),
            start=self.start,
            duration_s=self.end - self.start,
            gaps_s=tuple((since - self.start, until - self.start) for since, until in self.gaps),
            boots=tuple(map(tuple, self.boots)) if self.are_boots_known else None,
            policy=self.policies.most_common(1)[0][0] if self.policies else "",
            policies=tuple(sorted(self.policies)),
            rent=self.rent,
            waiting_cost=self.waiting_cost,
            initial=self.initial,
            interrupted=tuple(self.interrupted),
            refused=tuple(self.refused),
            busy_core_s=self.busy_core_s,
            lost_core_s=self.lost_core_s,
            has_quantiles=has_quantiles,
            work_scale=scale,
            context=self.context,
        )

    def _jobs(self, length: JobLengths) -> tuple[Floats, Floats, bool]:
        """Return arrivals on the trace's clock and lengths of all jobs, and whether all lengths are of quantiles."""
        with_jobs, known = [], []
        for since, until, count, lengths in self.entries:
            length = lengths or length
            if count > 0:
                with_jobs.append((max(since, self.start) - self.start, until - self.start, count))
                known.append(length)
        if not with_jobs:
            return np.empty(0), np.empty(0), True
        since_s, until_s, counts = np.array(with_jobs, dtype=np.float64).T
        arrivals, of = arrivals_in(since_s, until_s, counts.astype(np.int64))
        found = self._as_finished(of.size)
        if found is None:
            found = lengths_at(known, of, shares_of(of.size))
        return arrivals, found, all(one.quantiles is not None for one in known)

    def _as_finished(self, jobs: int) -> Floats | None:
        """Return the lengths of so many jobs in the order of their submission, by when jobs finished.

        A report is of jobs that finished, so that it is late for those that come: a long job shows in it when it has
        run. Each job that finished in a minute is given a length of the report about it, which says when it began; jobs
        begin in the order of their submission. None where no quantiles, or few finishes, are known.
        """
        reports = [(so_far, one) for so_far, one in self.reports if one.quantiles is not None]
        if self.finished < max(LEAST_FINISHED * jobs, 1.0) or not reports:
            return None
        ends, counts = np.array(self.finishes, dtype=np.float64).T
        numbers, known = counts.astype(np.int64), [one for _, one in reports]
        done = np.array([so_far for so_far, _ in reports])
        # A report is about the jobs that finished last: half of them later, these are in its midst.
        about = np.searchsorted(done, np.cumsum(counts) - 0.5 * counts + NEWEST_JOBS / 2)
        of = np.repeat(np.arange(numbers.size), numbers)
        shares = shares_of(of.size)
        lengths = lengths_at(known, np.minimum(about, done.size - 1)[of], shares)
        begun = lengths[np.argsort(ends[of] - lengths, kind="stable")][round(self.under_way) :][:jobs]
        rest = jobs - begun.size
        return np.concatenate([begun, lengths_at(known[-1:], np.zeros(rest, np.int64), shares_of(rest))])

    def _work_scale(self, lengths: Floats) -> float:
        missing = sum(until - since for since, until in self.gaps)
        enough = lengths.size >= LEAST_JOBS and self.busy_known >= LEAST_KNOWN * self.minutes
        if not enough or missing > (1.0 - LEAST_KNOWN) * (self.end - self.start):
            return 1.0
        more = (self.backlog[-1] - self.backlog[0]) * float(lengths.mean())
        scale = (self.busy_core_s - self.lost_core_s + more) / float(lengths.sum())
        return scale if scale > 0.0 and abs(scale - 1.0) > WORK_TOLERANCE else 1.0


def windows(recorded: Recording, window_s: float = DAY_S) -> Iterator[_Window]:
    """Yield the windows of a recording, one after the other, each with its minutes gathered."""
    window: _Window | None = None
    began = blind_until = last_end = 0.0
    for minute in recorded.minutes:
        start = minute.end_s - MINUTE_S
        place = follows(last_end, minute.end_s, clock_set=CLOCK_SET in minute.absent)
        if window is not None and place is MinuteOrder.TWICE:
            window.add_events(minute, blind_until)
            continue
        changed = window is not None and shape_of(minute.context.fleet) != shape_of(window.context.fleet)
        if window is None or changed or place is MinuteOrder.APART:
            if window is not None:
                yield window
            window, began = None, start
            blind_until = start if place is MinuteOrder.APART else blind_until
        elif start > last_end:
            blind_until = start
        if {CLOUD, "cpu"} & set(minute.absent):
            blind_until = minute.end_s
        begin = began + (start - began) // window_s * window_s
        if window is not None and begin > window.start:
            yield window
            window = None
        if window is None:
            window = _Window(begin, minute.context)
        window.add(minute, blind_until)
        last_end = minute.end_s
    if window is not None:
        yield window


def traced(
    recorded: Recording, window_s: float = DAY_S, on_window: Callable[[float], None] = lambda end_s: None
) -> Iterator[WindowTrace]:
    """Yield one trace per window of `window_s` seconds with jobs of a known length, in the order of time.

    A window ends early where the groups change or the clock is set. Jobs before the first known length take that one;
    where none is ever reported it is the work of the busy cores over the jobs that finished. on_window: called with the
    end of each window that was read, epoch seconds.
    """
    if not window_s >= MINUTE_S:
        raise BadInput("window_s", window_s, "give at least a minute")
    carried: JobLengths | None = None
    began, number = None, -1
    early: list[_Window] = []
    for window in windows(recorded, window_s):
        on_window(window.end)
        began = window.start if began is None else began
        early.append(window)
        known = carried or window.first_length
        if known is None:
            continue
        for each in early:
            # A part of a day, after a change of the fleet or of the clock, counts as the next one.
            number = max(number + 1, int((each.start - began) // window_s))
            # Before the first length of a window the last one before it holds, where lengths are reported at all.
            before = carried if carried and each.last_reported else each.first_length
            if any(count for _, _, count, _ in each.entries):
                yield each.traced(f"{recorded.fleet.name} {_word(window_s)} {number}", before or known)
            carried = each.last_reported or carried
        early.clear()


def _word(window_s: float) -> str:
    return "day" if window_s == DAY_S else "window"


# The world


@dataclass(frozen=True, slots=True)
class MeasuredWorld:
    """A world as recorded, and for each of its parts a sentence that says what it rests on."""

    config: SimulationConfig
    notes: tuple[str, ...]


LEDGER_COUNTS = "the ledger's values, in brackets, are used"


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Facts of a fleet that a ledger records, so that a world file or the settings do not decide them.

    types, maximum, minimum: by group. waiting_price_per_hour: dollars for an hour that a job waits. cooldown_s: after a
    growth.
    """

    types: tuple[VmType, ...]
    maximum: tuple[int, ...]
    minimum: tuple[int, ...]
    waiting_price_per_hour: float | None
    cooldown_s: float

    @classmethod
    def of_fleet(cls, fleet: Fleet, limits: RailLimits, terms: Terms | None) -> FleetFacts:
        """Return the facts of a fleet as a ledger or the settings have it."""
        types, maximum, minimum = zip(*((one.vm_type, one.maximum, one.minimum) for one in fleet.groups), strict=True)
        waiting = None if terms is None else terms.waiting_price_per_hour
        return cls(types, maximum, minimum, waiting, limits.cooldown_out_s)

    @classmethod
    def of_world(cls, world: SimulationConfig) -> FleetFacts:
        """Return the facts as a world has them."""
        return cls(world.types, world.limits, world.minimum, world.waiting_price_per_hour, world.cooldown_s)

    def unlike(self, ledger: FleetFacts) -> str:
        """Return the facts that differ from those of the ledger, these in brackets; "" where none does."""
        pairs: list[tuple[str, float, float, str]] = []
        if len(self.types) != len(ledger.types):
            pairs.append(("VM types", len(self.types), len(ledger.types), ""))
        else:
            for k, (ours, theirs) in enumerate(zip(self.types, ledger.types, strict=True)):
                name = ours.name if ours.name == theirs.name else f"{ours.name} (in the ledger {theirs.name})"
                pairs += [
                    (f"cores of {name}", ours.cores, theirs.cores, ""),
                    (f"price of {name}", ours.price_per_hour, theirs.price_per_hour, " $ an hour"),
                    (f"most VMs of {name}", self.maximum[k], ledger.maximum[k], ""),
                    (f"fewest VMs of {name}", self.minimum[k], ledger.minimum[k], ""),
                ]
        if self.waiting_price_per_hour is not None and ledger.waiting_price_per_hour is not None:
            prices = self.waiting_price_per_hour, ledger.waiting_price_per_hour
            pairs.append(("price of waiting", *prices, " $ an hour"))
        pairs.append(("cool-down", self.cooldown_s, ledger.cooldown_s, " s"))
        return ", ".join(
            f"{what} {ours:g}{unit} ({theirs:g}{unit})"
            for what, ours, theirs, unit in pairs
            if not math.isclose(ours, theirs, rel_tol=1e-6)
        )


def fitted_world(world: SimulationConfig, fleet: Fleet, limits: RailLimits, terms: Terms | None) -> SimulationConfig:
    """Return the world with the types, limits, minimum, prices and cool-down of a fleet, starting from its minimum.

    The rest between changes is one of the fleet's limits: policies without them meet it as the world's cool-down. What
    the world says by type (speed, boots, reclaims) holds for the fleet's types in their order, where there are as many
    of them.
    """
    minimum = tuple(group.minimum for group in fleet.groups)
    same = len(world.types) == len(fleet.groups)
    return replace(
        world,
        types=tuple(group.vm_type for group in fleet.groups),
        limits=tuple(group.maximum for group in fleet.groups),
        minimum=minimum,
        initial=minimum,
        speed=world.speed if same else (),
        boot_lows_s=world.boot_lows_s if same else (),
        boot_highs_s=world.boot_highs_s if same else (),
        boot_quantiles_s=world.boot_quantiles_s if same else (),
        reclaims_per_hour=world.reclaims_per_hour if same else (),
        cooldown_s=limits.cooldown_out_s,
        waiting_price_per_hour=world.waiting_price_per_hour if terms is None else terms.waiting_price_per_hour,
    )


def measured_world(
    recorded: Recording, base: SimulationConfig, on_window: Callable[[float], None] = lambda end_s: None
) -> MeasuredWorld:
    """Return the simulated world of a recording's newest fleet; what was not recorded is as in `base`.

    Types, prices, limits, minimum and cool-down are those of the settings. Boot times are quantiles of the measured
    ones, less half of the interval at which VMs report; reclaims are spot notices over the hours of VMs.
    """
    groups, context, shape = recorded.fleet.groups, recorded.context, shape_of(recorded.fleet)
    boots: list[list[float]] = [[] for _ in groups]
    interrupted, hours = np.zeros(len(groups)), np.zeros(len(groups))
    for window in windows(recorded):
        on_window(window.end)
        if shape_of(window.context.fleet) == shape:
            interrupted += window.interrupted
            hours += window.vm_hours
            for found, more in zip(boots, window.boots, strict=True):
                found += more
    limits, terms = context.limits, context.terms
    world = fitted_world(base, recorded.fleet, limits, terms)
    points, notes = _boot_points(recorded, boots, world)
    reclaims = tuple(float(n / h) if n else 0.0 for n, h in zip(interrupted, hours, strict=True))
    world = replace(
        world,
        boot_lows_s=(),
        boot_highs_s=(),
        boot_quantiles_s=points,
        cooldown_scope=CooldownScope.PER_DIRECTION,
        sample_interval_s=context.sample_interval_s,
        reclaims_per_hour=reclaims if any(reclaims) else (),
        # What was recorded is the mean over the minute, not the queue at its end.
        integral_penalty=True,
    )
    notes.append("VM types, prices, limits and minimum: as the settings had them at the end.")
    notes.append(f"Cool-down: {limits.cooldown_out_s:g} s after a growth, as set.")
    if limits.cooldown_in_s != limits.cooldown_out_s:
        notes.append(f"Assumed: the same after a shrinkage, for which {limits.cooldown_in_s:g} s are set.")
    if terms is None:
        notes.append(f"Assumed: the price of waiting, {world.waiting_price_per_hour:g} $ an hour, was not recorded.")
    else:
        notes.append(f"Price of waiting: {terms.waiting_price_per_hour:g} $ an hour, as set.")
    lost = int(interrupted.sum())
    notes.append(f"Spot: {lost} notices in {hours.sum():,.0f} hours of VMs.")
    notes.append("Assumed: removal, placement, billing and the measurement of CPU, and that jobs take one core each.")
    return MeasuredWorld(world, tuple(notes))


def _boot_points(
    recorded: Recording, boots: Sequence[Sequence[float]], world: SimulationConfig
) -> tuple[tuple[tuple[float, ...], ...], list[str]]:
    terms, half_s = recorded.context.terms, recorded.context.sample_interval_s / 2.0
    pooled = [seconds for found in boots for seconds in found]
    points, notes = [], []
    for k, (group, found) in enumerate(zip(recorded.fleet.groups, boots, strict=True)):
        measured = found if len(found) >= LEAST_BOOTS else pooled
        of = f"{len(found)} boots" if measured is found else f"all groups, {len(pooled)} boots: it has {len(found)}"
        if len(measured) >= LEAST_BOOTS:
            at = np.linspace(0.0, 1.0, QUANTILES)
            values = np.maximum(np.quantile(np.array(measured), at) - half_s, 0.0)
            points.append(tuple(round(float(value), 1) for value in values))
            notes.append(
                f"Boot times of {group.key}: measured, of {of}, from the launch by AWS to the first report less "
                f"{half_s:g} s, half the interval of reports; median {points[-1][QUANTILES // 2]:g} s."
            )
        elif terms is not None:
            points.append((terms.boot_low_s[k], terms.boot_high_s[k]))
            notes.append(f"Assumed: boot times of {group.key} are those of the settings; it has {len(found)} boots.")
        else:
            points.append(world.boot_points_s[k])
            notes.append(f"Assumed: boot times of {group.key} are the usual ones; it has {len(found)} boots.")
    return tuple(points), notes
