"""What the loop of one fleet saw at each decision and did, and the jobs that this was: the input of a round.

It comes from the inputs of the decisions, as far as these are kept: a replay begins with the jobs that wait and run at
the end of a minute, and what is recorded for longer (`trainer.learning.recorded`, which reads both) holds means of the
minute. That has the jobs that finished and their work, from which the jobs are rebuilt (`trainer.learning.jobs`), and
the boots. The cost of a minute is defined as the simulator's: rent of the VMs there, those that boot or drain included,
and the price of the jobs that wait at its end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.minutes import CLOCK_SET, RecordedMinute
from agent.rails.base import RailLimits
from domain.decisions import Mode
from domain.errors import BadInput
from domain.fleet import Fleet
from domain.snapshot import Terms
from domain.units import DAY_S, HOUR_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.world_file import preset
from trainer.learning.jobs import Floats, Ints, Jobs, arrivals_in, rebuilt
from trainer.learning.ledgers import NoRecord
from trainer.learning.recorded import (
    MinuteOrder,
    follows,
    measured_world,
    newest_end,
    read_decisions,
    read_recorded,
    shape_of,
)
from trainer.learning.replay import Lived, RecordedBoot

LONGEST_FILLED_S = 600.0
"""A gap up to this length is bridged: the counters of the queue say what came in it. A longer one parts stretches."""

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Minute:
    """The load of a minute.

    Its end, jobs submitted in it, core-seconds of a job as last reported; busy cores, and jobs finished so far.
    ended, work_core_s: the jobs that finished in it and their work, None where the job source did not report them.
    """

    end_s: float
    submitted: int
    job_core_s: float | None
    busy_cores: float = 0.0
    finished: int = 0
    ended: int | None = None
    work_core_s: float | None = None


def mean_job_core_s(minutes: Sequence[Minute]) -> float | None:
    """Return the core-seconds of a job as work over jobs finished, None where nothing finished."""
    # A count that falls is that of a new episode of the job source.
    finished = sum(max(after.finished - before.finished, 0) for before, after in pairwise(minutes))
    work = sum(minute.busy_cores for minute in minutes[1:]) * MINUTE_S
    return work / finished if finished > 0 and work > 0.0 else None


@dataclass(frozen=True, slots=True)
class DecidedMinute:
    """One minute of a fleet, at the end of which a decision was made.

    load: its jobs and busy cores. waiting, running: jobs at its end. requested, booting, draining: VMs per group then.
    rent, penalty: dollars. policy: what decided at its end. acted: the decision could change the fleet. clock_set:
    whether the clock was set since the minute before. boots: of the VMs that first reported in it. under: the
    settings and controls of its decision.
    """

    load: Minute
    waiting: int
    running: int
    requested: Counts
    booting: Counts
    draining: Counts
    rent: float
    penalty: float
    policy: str
    acted: bool
    clock_set: bool = False
    boots: tuple[RecordedBoot, ...] = ()
    under: Lived = field(default_factory=Lived)

    @property
    def end_s(self) -> float:
        """Its end, epoch seconds."""
        return self.load.end_s

    @property
    def cost(self) -> float:
        """Dollars."""
        return self.rent + self.penalty


@dataclass(frozen=True, slots=True)
class Record:
    """What was recorded of a fleet, in the order of time.

    fleet, limits, terms: as they were in the newest minute. lag_s: from a minute's end to its decision, the median.
    stretches: minutes without a long gap between them, and with the same groups as the newest one. left_out: minutes
    that cannot be used, by the reason. boots: quantiles of boot times in seconds per group, as measured or as the
    settings have them; none where only decisions are known.
    """

    fleet: Fleet
    limits: RailLimits
    terms: Terms | None
    lag_s: float
    stretches: tuple[tuple[DecidedMinute, ...], ...]
    left_out: dict[str, int]
    boots: tuple[tuple[float, ...], ...] = ()

    @property
    def minutes(self) -> tuple[DecidedMinute, ...]:
        """The minutes of all stretches."""
        return tuple(minute for stretch in self.stretches for minute in stretch)

    @property
    def cost(self) -> float:
        """Dollars of all minutes."""
        return sum(minute.cost for minute in self.minutes)

    @property
    def without_idle(self) -> Record:
        """The same without the recorded idle times."""
        stretches = tuple(
            tuple(replace(one, under=replace(one.under, idle_s=None)) for one in stretch) for stretch in self.stretches
        )
        return replace(self, stretches=stretches)

    @property
    def policies(self) -> Counter[str]:
        """How many minutes each policy decided."""
        return Counter(minute.policy for minute in self.minutes)

    @property
    def sizes_known(self) -> bool:
        """Whether the job source reported the work of its jobs."""
        return any(minute.load.job_core_s for minute in self.minutes)

    @property
    def job_core_s(self) -> float | None:
        """Core-seconds of a job, the first that is known; None where nothing is."""
        loads = [minute.load for minute in self.minutes]
        return next((one.job_core_s for one in loads if one.job_core_s), None) or mean_job_core_s(loads)


NO_SNAPSHOT, NO_QUEUE, OBSERVED, OTHER_GROUPS = (
    "the fleet could not be read",
    "the queue was not known",
    "the agent only observed",
    "the fleet had other groups",
)


Known = Mapping[tuple[int, float], RecordedMinute]
"""Recorded minutes by the epoch of the leader and their end."""


def read_record(source: str, fleet: str, days: float) -> Record:
    """Return what a ledger (a SQLite file or a URL) recorded of a fleet in its last days, up to the newest decision.

    Raises LedgerUnavailable for no ledger, BadInput for a fleet that it does not know, or where no minute can be used.
    """
    newest = newest_end(source, fleet)
    return _read(source, fleet, None if newest is None else newest - days * DAY_S)


def read_record_since(source: str, fleet: str, since_s: float, until_s: float | None = None) -> Record:
    """Return what a ledger recorded of a fleet since a moment, and before another; raises as `read_record` does."""
    return _read(source, fleet, since_s, until_s)


def _read(source: str, fleet: str, since: float | None, until: float | None = None) -> Record:
    recorded = read_recorded(source, fleet, since, until)
    # Of what was decided without anything worth knowing here, nothing is held.
    known = {
        (one.epoch, one.end_s): one for one in recorded.minutes if CLOCK_SET in one.absent or one.finished or one.boots
    }
    found = record_of(fleet, (inputs for inputs, _ in read_decisions(source, fleet, since, until)), known)
    if shape_of(found.fleet) != shape_of(recorded.fleet):
        return found
    return replace(found, boots=measured_world(recorded, preset("live-like")).config.boot_quantiles_s)


def record_of(fleet: str, inputs: Iterable[DecisionInputs], known: Known | None = None) -> Record:
    """Return what was recorded, from the inputs of a fleet's decisions in the order in which they were made.

    known: what was recorded of their minutes beside the inputs. Raises BadInput for nothing.
    """
    left_out: Counter[str] = Counter()
    kept: list[tuple[Fleet, DecidedMinute]] = []
    lags_s: list[float] = []
    last: DecisionInputs | None = None
    for one in inputs:
        why = _unusable(one)
        if why:
            left_out[why] += 1
            continue
        last = one
        minute = _minute(one, known or {})
        lags_s.append(one.now - minute.end_s)
        kept.append((one.fleet, minute))
    if last is None:
        why = "; ".join(f"{reason} in {count} minutes" for reason, count in left_out.items()) or "there is no decision"
        raise NoRecord("fleet", fleet, f"none of its recorded minutes can be replayed: {why}")
    now = shape_of(last.fleet)
    minutes = [minute for of, minute in kept if shape_of(of) == now]
    if len(minutes) < len(kept):
        left_out[OTHER_GROUPS] += len(kept) - len(minutes)
    assert last.snapshot is not None
    # The newest limits are in the record once.
    minutes = [
        replace(one, under=replace(one.under, limits=None)) if one.under.limits == last.limits else one
        for one in minutes
    ]
    stretches = _stretches(minutes)
    return Record(last.fleet, last.limits, last.snapshot.terms, median(lags_s), stretches, dict(left_out))


def _unusable(inputs: DecisionInputs) -> str:
    if inputs.snapshot is None:
        return NO_SNAPSHOT
    if inputs.snapshot.queue is None:
        return NO_QUEUE
    return OBSERVED if inputs.mode is Mode.OBSERVE else ""


def _minute(inputs: DecisionInputs, known: Known) -> DecidedMinute:
    snapshot = inputs.snapshot
    assert snapshot is not None
    assert snapshot.queue is not None
    queue, groups, terms = snapshot.queue, snapshot.groups, snapshot.terms
    prices = [group.vm_type.price_per_hour for group in inputs.fleet.groups]
    there = [group.requested + group.draining for group in groups]
    busy = sum(group.busy_cores or 0.0 for group in groups)
    done = queue.submitted - queue.waiting - queue.running
    more = known.get((inputs.epoch, float(round(snapshot.bin_end))))
    ended, work_core_s = (None, None) if more is None else (more.finished, more.finished_core_s)
    return DecidedMinute(
        load=Minute(snapshot.bin_end, queue.submitted_recent, queue.job_core_s, busy, done, ended, work_core_s),
        waiting=queue.waiting,
        running=queue.running,
        requested=snapshot.requested,
        booting=snapshot.booting,
        draining=tuple(group.draining for group in groups),
        rent=sum(n * price for n, price in zip(there, prices, strict=True)) * MINUTE_S / HOUR_S,
        penalty=queue.waiting * (terms.waiting_price_per_hour if terms else 0.0) * MINUTE_S / HOUR_S,
        policy=inputs.policy,
        acted=inputs.mode is Mode.ACT and inputs.leader,
        clock_set=more is not None and CLOCK_SET in more.absent,
        boots=() if more is None else _boots(more),
        under=Lived(None, terms.idle_s if terms else None, inputs.limits, inputs.controls, inputs.windows),
    )


def _boots(minute: RecordedMinute) -> tuple[RecordedBoot, ...]:
    """Return the boots of a minute; a VM was ready half an interval of reports before its first one, in the mean."""
    half_s, reported_s = minute.context.sample_interval_s / 2.0, minute.end_s - MINUTE_S / 2.0
    return tuple(
        RecordedBoot(one.group, reported_s - one.seconds, max(one.seconds - half_s, 0.0)) for one in minute.boots or ()
    )


def _counted(minutes: Sequence[DecidedMinute], job_core_s: float) -> tuple[Floats, Ints, Floats]:
    """Return of consecutive minutes their ends, the jobs that came, and their mean length as known at the end.

    Of the first minute the jobs that are there at its end. job_core_s: of a job until the job source has reported one.
    """
    first = minutes[0]
    came = [first.running + first.waiting]
    # In a gap the counters go on: what came in it is spread over it.
    came += [
        _came(before, after) if after.end_s - before.end_s > 1.5 * MINUTE_S else after.load.submitted
        for before, after in pairwise(minutes)
    ]
    length, means = job_core_s, []
    for minute in minutes:
        length = minute.load.job_core_s or length
        means.append(length)
    return np.array([one.end_s for one in minutes]), np.array(came, dtype=np.int64), np.array(means)


def jobs_of(stretch: Sequence[DecidedMinute]) -> Jobs | None:
    """Return the jobs of a stretch, None where the work of finished jobs is not recorded."""
    if not any(minute.load.work_core_s for minute in stretch):
        return None
    ends_s, came, means = _counted(stretch, mean_job_core_s([one.load for one in stretch]) or MINUTE_S)
    ended, work = [0], [0.0]
    for before, after in pairwise(stretch):
        counted, work_core_s = after.load.ended or 0, after.load.work_core_s
        # In a gap jobs finish of which only the counters of the queue know.
        grown = after.load.finished - before.load.finished if after.end_s - before.end_s > 1.5 * MINUTE_S else 0
        ended.append(max(counted, grown))
        work.append(math.nan if work_core_s is None or grown > counted else work_core_s)
    waiting, running = np.array([(one.waiting, one.running) for one in stretch], dtype=np.int64).T
    return rebuilt(ends_s, came, waiting, running, np.array(ended, dtype=np.int64), np.array(work), means)


def _stretches(minutes: Sequence[DecidedMinute]) -> tuple[tuple[DecidedMinute, ...], ...]:
    """Part the minutes at long gaps, and where the clock was set; a stretch of one minute is none."""
    found: list[list[DecidedMinute]] = []
    for minute in minutes:
        before_s = found[-1][-1].end_s if found else minute.end_s - MINUTE_S
        place = follows(before_s, minute.end_s, clock_set=minute.clock_set)
        if place is MinuteOrder.TWICE:
            continue
        if found and place is MinuteOrder.IN_TIME and minute.end_s - before_s <= LONGEST_FILLED_S + MINUTE_S:
            found[-1].append(minute)
        else:
            found.append([minute])
    return tuple(tuple(stretch) for stretch in found if len(stretch) > 1)


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A part of a stretch as an episode: it begins at the end of its first minute, and lasts `lead + steps` minutes.

    trace: jobs with times from there on, those that waited or ran at its begin at 0. first: the minute it begins with.
    rent, penalty, booting, busy_cores, requested: recorded figures of each step, shape (steps,); the cost of a
    minute that is absent is that of the one before it. policies: what decided at the begin of each step. finished: jobs
    done in it. lead: minutes at the begin that are played and do not count, so that what counts begins in the state
    that they lead to. marks: windows in it, by name, first step and the step after the last; none: it is one itself.
    lived: the settings and controls of each step's decision, the lead included. boots: as recorded. is_work_recorded:
    whether the jobs are rebuilt from the work of finished jobs.
    """

    name: str
    trace: Trace
    first: DecidedMinute
    rent: NDArray[np.float64]
    penalty: NDArray[np.float64]
    booting: NDArray[np.float64]
    requested: NDArray[np.int64]
    busy_cores: NDArray[np.float64]
    policies: tuple[str, ...]
    finished: int
    lead: int = 0
    marks: tuple[tuple[str, int, int], ...] = ()
    lived: tuple[Lived, ...] = ()
    boots: tuple[RecordedBoot, ...] = ()
    is_work_recorded: bool = False

    @property
    def steps(self) -> int:
        """Minutes that count."""
        return int(self.rent.size)

    @property
    def start_s(self) -> float:
        """The begin of what counts, epoch seconds."""
        return self.first.end_s + self.lead * MINUTE_S

    @property
    def cost(self) -> float:
        """Record dollars."""
        return float(self.rent.sum() + self.penalty.sum())

    @property
    def without_idle(self) -> Span:
        """The same with the idle time of the loop that replays it."""
        return replace(self, lived=tuple(replace(one, idle_s=None) for one in self.lived))


def span_of(
    name: str, minutes: Sequence[DecidedMinute], job_core_s: float, lead_s: float = 0.0, jobs: Jobs | None = None
) -> Span:
    """Return minutes of one stretch as an episode.

    job_core_s: of a job until the job source has reported one. lead_s: see `Span.lead`. jobs: of their stretch,
    else of the minutes alone. Where the work of finished jobs is not recorded each has the mean length known when it
    came, and jobs that ran at the begin are half done. Raises BadInput for fewer than two minutes.
    """
    if len(minutes) < 2:
        raise BadInput("minutes", len(minutes), "give two or more: the first one is where an episode begins")
    first = minutes[0]
    rows: list[tuple[float, float, int, float]] = []
    requested: list[Counts] = []
    policies: list[str] = []
    lived: list[Lived] = []
    finished = 0
    for before, minute in pairwise(minutes):
        if before.end_s >= first.end_s + lead_s:
            finished += max(minute.load.finished - before.load.finished, 0)
        steps = max(round((minute.end_s - before.end_s) / MINUTE_S), 1)
        for at in range(steps):
            seen = minute if at == steps - 1 else before
            rows.append((seen.rent, seen.penalty, sum(seen.booting), seen.load.busy_cores))
            requested.append(seen.requested)
            policies.append(before.policy)
            lived.append(replace(before.under, job_core_s=before.load.job_core_s))
    jobs = jobs or jobs_of(minutes)
    if jobs is None:
        ends_s, came, means = _counted(minutes, job_core_s)
        begins_s = np.concatenate([ends_s[:1], ends_s[:-1]])
        arrivals, of = arrivals_in(begins_s - first.end_s, ends_s - first.end_s, came)
        services = means[of]
        services[: first.running] /= 2.0
    else:
        arrivals, services = jobs.between(first.end_s, minutes[-1].end_s)
    lead = round(lead_s / MINUTE_S)
    columns = np.array(rows, dtype=np.float64).T[:, lead:]
    return Span(
        name,
        make_trace(name, arrivals, services),
        first,
        rent=columns[0],
        penalty=columns[1],
        booting=columns[2],
        requested=np.array(requested[lead:], dtype=np.int64),
        busy_cores=columns[3],
        policies=tuple(policies),
        finished=finished,
        lead=lead,
        lived=tuple(lived),
        boots=tuple(boot for minute in minutes for boot in minute.boots),
        is_work_recorded=jobs is not None,
    )


def _came(before: DecidedMinute, after: DecidedMinute) -> int:
    """Return the jobs that came between two minutes, by the counters; those of the last minute where these fell."""

    def submitted(minute: DecidedMinute) -> int:
        return minute.load.finished + minute.waiting + minute.running

    return max(submitted(after) - submitted(before), after.load.submitted)
