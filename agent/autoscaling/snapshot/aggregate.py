"""Folds a minute of readings and the cloud's view into a fleet's coverage-checked snapshot and observations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import structlog

from agent.autoscaling.minutes import Boot, JobLengths, MinuteMeasurements
from agent.autoscaling.policies.registry import VM_INPUTS
from agent.autoscaling.refusals import refused_by_aws
from agent.autoscaling.snapshot.group_fold import GroupFold, GroupInputs, GroupRoster, Seats, fold_groups
from agent.autoscaling.snapshot.series import ABSENT_ROW, NEVER, QUEUE_COLUMNS, VM_COLUMNS, BinFold, SeriesStore
from agent.models.card import SCORER_MEMORY
from agent.rails.base import RailLimits
from agent.rails.capacity_memory import with_failing
from agent.rails.state import LoopState, Memory
from collectors.intake import Claims
from domain.errors import BadInput
from domain.fleet import Fleet, Group
from domain.observations.autoscaling import Floats, Vector, next_removal_share, obs7, obs_v2, waiting_recent_fifo
from domain.observed import GroupObserved, Observed
from domain.rules.queue_rule import IDLE_S, JOB_CORE_S
from domain.samples import JOB_QUANTILES, QueueMetric, VmMetric
from domain.snapshot import NO_REPORTS_S, QueueSnapshot, Signal, SignalSnapshot, Snapshot, Terms

log = structlog.get_logger(__name__)

BIN_S = 60.0
MIN_SAMPLE_SHARE = 0.5
"""A VM with less than this share of the samples due in a minute is left out (autoscaler specification §13: 3 of 6)."""

FRESH_BUSY_S = 60.0
MEAN_DECIMALS = 7
_BUSY = VM_COLUMNS.index(VmMetric.BUSY_CORES)
EPISODE_GAP_S = 600.0
"""A new episode begins when nothing has waited or run for so long at the minimum fleet, or after a gap as long."""


@dataclass(frozen=True, slots=True)
class SubmittedJobs:
    """Jobs submitted: the counter's last reading (None: never read), since the episode began, in the last minute."""

    seen: float | None
    in_episode: float
    recent: float
    late: bool


def growth(
    readings: Sequence[tuple[float, float]],
    before: tuple[float, float] | None,
    claims: Claims | None = None,
    metric: QueueMetric = QueueMetric.SUBMITTED_TOTAL,
) -> float:
    """Return the growth of a counter over its readings (time, value), from `before` (None: from its first reading).

    A reading below the one before means that the counter restarted at zero (autoscaler specification §14), where
    `Claims.restarted` says that it can have done so; else counting goes on from that reading.
    """
    claims, grown = claims or Claims(), 0.0
    for at, reading in readings:
        if before is not None:
            was_at, was = before
            if reading >= was:
                grown += reading - was
            elif claims.restarted(was, reading, at - was_at, metric):
                grown += reading
        before = at, reading
    return grown


def submitted_from_counter(
    readings: Sequence[tuple[float, float]], start: float, state: LoopState, in_episode: float, claims: Claims
) -> SubmittedJobs:
    """Count from the job source's own counter: (time, value) pairs up to the end of the minute that began at `start`.

    A counter that was never read counts in full: the job source began with this agent, or its past is unknown. Where
    that, or the jobs submitted since an earlier start of the agent, exceed the claim limits of the source, counting
    begins with this reading.
    """
    since = start if state.last_bin_end is None else state.last_bin_end
    new = [reading for reading in readings if reading[0] > since]
    inside = [reading for reading in readings if reading[0] > start]
    earlier = [reading for reading in readings if reading[0] <= start]
    seen = state.submitted_seen
    # Earlier readings of this process were compared with their predecessors on arrival.
    if (
        new
        and len(new) == len(readings)
        and new[0][1] - (seen or 0.0) > claims.growth(0.0 if seen is None else readings[-1][0] - since)
    ):
        seen = new[0][1]
    before = None if seen is None else (since, seen)
    # Another agent has counted further than the last reading here, while this one was cut off from the ledger.
    is_behind = bool(earlier) and seen is not None and since <= start and earlier[-1][1] < seen
    before_minute = earlier[-1] if earlier and not is_behind else before
    if seen is None:
        in_episode += readings[-1][1]
    else:
        in_episode += growth(new, before, claims)
    return SubmittedJobs(readings[-1][1], in_episode, growth(inside, before_minute, claims), late=not inside)


def submitted_from_depth(
    depth_before: float | None, depth: float, state: LoopState, in_episode: float
) -> SubmittedJobs:
    """Count from the queue's depth alone: a lower bound, without jobs that began and ended within the minute."""
    recent = 0.0 if depth_before is None else max(0.0, depth - depth_before)
    return SubmittedJobs(state.submitted_seen, max(in_episode + recent, depth), recent, late=True)


def queue_snapshot(
    store: SeriesStore, fleet: str, latest: Latest, start: float, end: float, state: LoopState, in_episode: float
) -> tuple[QueueSnapshot | None, SubmittedJobs]:
    """Return the queue at `end` and the jobs submitted; no queue without a reading of both waiting and running.

    latest: of the queue, up to `end`. in_episode: jobs of the current episode before this minute.
    """

    def series(metric: QueueMetric, until: float) -> list[tuple[float, float]]:
        return store.readings(store.queue_row(fleet, metric), until)

    def last(metric: QueueMetric, after: float) -> float | None:
        at, value = latest[metric]
        return value if at > after else None

    def before(metric: QueueMetric, after: float) -> float | None:
        found = series(metric, start)
        return found[-1][1] if found and found[-1][0] > after else None

    waiting, running = last(QueueMetric.WAITING, start), last(QueueMetric.RUNNING, start)
    if waiting is None or running is None:
        return None, SubmittedJobs(state.submitted_seen, in_episode, 0.0, late=True)
    counter = series(QueueMetric.SUBMITTED_TOTAL, end)
    if counter:
        submitted = submitted_from_counter(counter, start, state, in_episode, store.claims(fleet))
    else:
        since = start - (end - start)
        waited, ran = before(QueueMetric.WAITING, since), before(QueueMetric.RUNNING, since)
        depth_before = None if waited is None or ran is None else waited + ran
        submitted = submitted_from_depth(depth_before, waiting + running, state, in_episode)
    snapshot = QueueSnapshot(
        waiting=round(waiting),
        running=round(running),
        submitted=round(submitted.in_episode),
        submitted_recent=round(submitted.recent),
        oldest_wait_s=last(QueueMetric.OLDEST_WAIT_SECONDS, start),
        job_core_s=last(QueueMetric.JOB_CORE_SECONDS, NEVER),
        submitted_is_late=submitted.late,
    )
    return snapshot, submitted


def begins_episode(
    state: LoopState, start: float, end: float, busy: bool, at_minimum: bool, gap_s: float = EPISODE_GAP_S
) -> bool:
    """Return whether (start, end] belongs to a new episode; `busy`: whether a job waited or ran in it."""
    if _after_gap(state, end, gap_s):
        return True
    if state.last_busy_at is None or not at_minimum:
        return False
    return (start if busy else end) - state.last_busy_at >= gap_s


def _after_gap(state: LoopState, end: float, gap_s: float) -> bool:
    return state.last_bin_end is not None and end - state.last_bin_end > gap_s


def memory_in_new_episode(memory: Memory, state: LoopState, end: float, gap_s: float) -> Memory:
    """Return a policy's memory at the start of an episode that ends the minute `end`: nothing after a gap.

    After an idle stretch the memory of a scorer stays, because its training plays idle minutes like all others; that of
    a network for batches is empty, because its training begins each batch with none.
    """
    if _after_gap(state, end, gap_s):
        return {}
    scorers = {key.partition(".")[0] for key in memory if key.endswith(f".{SCORER_MEMORY}")}
    return {key: value for key, value in memory.items() if key.partition(".")[0] in scorers}


@dataclass(frozen=True, slots=True)
class AggregationSettings:
    """The parameters of one fleet's fold.

    sample_interval_s: how often a VM reports. grace_s: a minute is closed so long after its end; one value for every
    fleet of a store. idle_s: a VM without a busy core for so long is idle for long. warm_up_s: a VM has warmed up so
    long after its first report. limits: coverage, boot deadline, minimum lifetime and cool-down lengths are the
    rails' own. needed: the inputs whose absence makes a minute stale ("cpu", "ram", "queue"); with none of VM_INPUTS
    VMs need not report while none has for a day. submitted_late: the count of submitted jobs comes from
    CloudWatch, minutes after the jobs. removes_newest: the cloud takes a group's newest VM
    whichever is named, so that an idle one behind a newer one at work does not count as idle for long. job_core_s:
    core-seconds of a job for obs-v2 until the job source has reported one. episode_gap_s: an idle stretch at the
    minimum fleet, or a gap, so long ends a live episode. terms: passed on to the policies as they are. signals:
    the fleet's own, by name.
    """

    limits: RailLimits = field(default_factory=RailLimits)
    sample_interval_s: float = 10.0
    grace_s: float = 5.0
    idle_s: float = IDLE_S
    warm_up_s: float = 300.0
    needed: tuple[str, ...] = ("cpu", "queue")
    submitted_late: bool = False
    removes_newest: bool = False
    job_core_s: float = JOB_CORE_S
    episode_gap_s: float = EPISODE_GAP_S
    terms: Terms | None = None
    signals: tuple[Signal, ...] = ()

    @property
    def min_samples(self) -> int:
        """Fewest samples of a VM in a minute that count."""
        return max(1, math.ceil(MIN_SAMPLE_SHARE * BIN_S / self.sample_interval_s))

    def bin_end(self, now: float) -> float:
        """Return the end of the last minute that is closed at `now`."""
        return math.floor((now - self.grace_s) / BIN_S) * BIN_S


@dataclass(frozen=True, slots=True)
class FoldedMinute:
    """A fleet's minute: its snapshot, the loop state after it, and what was measured for learning.

    stuck: by group key, the VMs that were busy for long without a change of the work under way on them.
    """

    snapshot: Snapshot
    state: LoopState
    measured: MinuteMeasurements
    stuck: Mapping[str, tuple[str, ...]]


Latest = Mapping[QueueMetric, Sequence[float]]
"""Time and value of the newest reading of each metric of a queue; -inf and nan where there is none."""
FleetInputs = tuple[Fleet, Observed, LoopState, AggregationSettings]
"""The input of a fleet's fold in addition to its readings: see `Aggregator.snapshot`."""


class Aggregator:
    """Folds the store of readings with a roster of VMs per fleet and group; called by one thread, the loop's."""

    def __init__(self, store: SeriesStore, retained: Callable[[str], Set[str]] = lambda fleet: frozenset()) -> None:
        self._store, self._retained = store, retained
        self._seats = Seats()
        self._rosters: dict[tuple[str, str], GroupRoster] = {}
        self._shown: dict[tuple[str, str], tuple[str, ...]] = {}
        self._reported: dict[tuple[str, str], tuple[float, tuple[str, ...], Floats, Floats]] = {}
        self._busy: dict[str, tuple[float, Mapping[str, float | None]]] = {}
        self._done: dict[str, int] = {}
        self._measured: dict[str, tuple[float, MinuteMeasurements]] = {}

    def snapshot(
        self, fleet: Fleet, observed: Observed, state: LoopState, settings: AggregationSettings, now: float
    ) -> FoldedMinute:
        """Return the fleet's last closed minute (60 (n-1), 60 n].

        The state's stale_bins, submitted_seen, submitted_in_episode, last_busy_at and last_bin_end are brought up to
        the minute; when a new live episode begins the policies' memory is cleared too. Asked twice for one minute it
        counts nothing twice. BadInput when a group of the fleet is not among the observed ones.
        """
        (found,) = self.snapshots([(fleet, observed, state, settings)], now)
        if isinstance(found, Exception):
            raise found
        return found

    def snapshots(self, asked: Sequence[FleetInputs], now: float) -> list[FoldedMinute | Exception]:
        """Return `snapshot` of each of these fleets, or its error; the groups of all are folded in one pass."""
        if not asked:
            return []
        try:
            end = asked[0][3].bin_end(now)
            fold = self._store.close_bin(end - BIN_S, end, now)
        except Exception as error:
            return [error] * len(asked)
        inputs: dict[int, list[GroupInputs]] = {}
        found: dict[int, FoldedMinute | Exception] = {}
        for k, one in enumerate(asked):
            try:
                inputs[k] = self._inputs(*one, end, now)
            except Exception as error:
                found[k] = error
        seats, rosters = self._seats.memory(), {place: one.memory() for place, one in self._rosters.items()}
        try:
            groups = [group for of_fleet in inputs.values() for group in of_fleet]
            folds = iter(fold_groups(groups, self._seats, self._store, fold, now))
            latest = self._latest([one[0].name for one in asked], end)
        except Exception as error:
            # One fleet's input is wrong: the others have their minute, from the memory before it.
            self._seats.restore(seats)
            for place, before in rosters.items():
                self._rosters[place].restore(before)
            return [error] if len(asked) == 1 else [each for one in asked for each in self.snapshots([one], now)]
        for k, of_fleet in inputs.items():
            fleet, _, state, settings = asked[k]
            try:
                of_groups = tuple(islice(folds, len(of_fleet)))
                found[k] = self._folded(fleet, state, settings, of_groups, latest[k], fold, now)
            except Exception as error:
                found[k] = error
        return [found[k] for k in range(len(asked))]

    def _latest(self, fleets: Sequence[str], until: float) -> list[Latest]:
        """Return the newest readings of each fleet's queue."""
        rows = np.array([self._store.queue_rows(fleet) for fleet in fleets])
        at, value = self._store.latest(rows.ravel(), until)
        pairs = np.stack([at, value], axis=1).reshape(*rows.shape, 2).tolist()
        return [dict(zip(QUEUE_COLUMNS, of_fleet, strict=True)) for of_fleet in pairs]

    def _inputs(
        self, fleet: Fleet, observed: Observed, state: LoopState, settings: AggregationSettings, end: float, now: float
    ) -> list[GroupInputs]:
        """Return the inputs of the groups of a fleet, after a note of the VMs that they show."""
        self.show(fleet, observed, end)
        reports = self._due_to_report(fleet, state, settings, end)
        ours, refused = frozenset(state.protected), refused_by_aws(state, now)
        excused = state.interrupted.keys() | state.seen_interruptions.keys()
        retained = self._held_for_others(fleet, observed)
        return [
            GroupInputs(
                fleet.name,
                group,
                _observed_group(fleet, group.name, observed),
                self._rosters.setdefault((fleet.name, group.key), GroupRoster(self._seats)),
                settings,
                state.cooldowns,
                ours,
                refused,
                excused,
                retained,
                reports,
            )
            for group in fleet.groups
        ]

    def _held_for_others(self, fleet: Fleet, observed: Observed) -> Set[str]:
        """Return the VMs that another decision needs; all where it cannot be asked: the fleet may still grow."""
        found = self._needed(fleet.name)
        if found is not None:
            return found
        groups = [_observed_group(fleet, group.name, observed) for group in fleet.groups]
        return frozenset(one.vm for group in groups for one in group.instances)

    def is_retained(self, fleet: str, vm: str) -> bool:
        """Return whether another decision needs a VM where it is now, or cannot be asked."""
        found = self._needed(fleet)
        return found is None or vm in found

    def _needed(self, fleet: str) -> Set[str] | None:
        try:
            return self._retained(fleet)
        except Exception:
            log.exception("retained_vms_unknown", fleet=fleet)
            return None

    def _folded(
        self,
        fleet: Fleet,
        state: LoopState,
        settings: AggregationSettings,
        folds: tuple[GroupFold, ...],
        latest: Latest,
        fold: BinFold,
        now: float,
    ) -> FoldedMinute:
        """Return a fleet's minute from its groups'."""
        start, end = fold.start, fold.end
        for group, each in zip(fleet.groups, folds, strict=True):
            if each.failing_at is not None:
                marks = with_failing(state.capacity, group.vm_type.name, each.failing_at, now, settings.limits)
                state = replace(state, capacity=marks)
        queue, state = self._queue(fleet, folds, latest, state, start, end, settings.episode_gap_s)
        if queue is not None and settings.submitted_late:
            queue = replace(queue, submitted_is_late=True)
        snapshot = self._fold_fleet(fleet, folds, queue, settings, end, now)
        if settings.signals:
            signals = self._fold_signals(fleet.name, settings.signals, fold)
            gone = tuple(one.signal.input_name for one in signals if one.value is None)
            snapshot = replace(snapshot, signals=signals, absent=(*snapshot.absent, *gone))
        then, measured = self._measured.get(fleet.name, (None, MinuteMeasurements()))
        if then != end:
            measured = self._measure(fleet.name, folds, fold, queue, latest, settings.sample_interval_s)
            self._measured[fleet.name] = end, measured
        stale = bool(set(settings.needed) & set(snapshot.absent)) or snapshot.coverage < settings.limits.min_coverage
        if state.last_bin_end != end:
            newest = max(fold.newest_sample_at for fold in folds)
            state = replace(
                state,
                stale_bins=state.stale_bins + 1 if stale else 0,
                last_bin_end=end,
                vm_reported_at=newest if math.isfinite(newest) else state.vm_reported_at,
            )
        for each in folds:
            place = fleet.name, each.snapshot.key
            # Copies: the fold's are parts of the arrays of all fleets.
            self._reported[place] = now, self._shown[place], each.busy_now_at.copy(), each.busy_now.copy()
        stuck = {each.snapshot.key: each.stuck for each in folds}
        if state.stale_bins:
            snapshot = replace(snapshot, stale_bins=state.stale_bins)
        return FoldedMinute(snapshot, state, measured, stuck)

    def show(self, fleet: Fleet, observed: Observed, end: float) -> None:
        """Take note of the VMs in each group that was read, held ones included, at the end of a minute.

        Their reports count, so that the busy ones are protected and keep their hooks also while nothing is decided.
        """
        for group in fleet.groups:
            seen = observed.groups.get(group.name) or observed.held.get(group.name)
            if seen is not None:
                vms = self._shown[fleet.name, group.key] = tuple(instance.vm for instance in seen.instances)
                self._store.show(fleet.name, group.key, vms, max(group.maximum, seen.maximum), end)

    def leave(self, fleets: Set[str], now: float) -> None:
        """Forget fleets that other agents lead: when one of them is measured again, memory of it would be old."""
        self._store.leave(fleets, now)
        for place in [place for place in self._rosters if place[0] in fleets]:
            self._rosters.pop(place).leave()
        self._shown = {place: vms for place, vms in self._shown.items() if place[0] not in fleets}
        self._reported = {place: one for place, one in self._reported.items() if place[0] not in fleets}
        self._busy = {name: one for name, one in self._busy.items() if name not in fleets}
        self._done = {name: one for name, one in self._done.items() if name not in fleets}
        self._measured = {name: one for name, one in self._measured.items() if name not in fleets}

    def _due_to_report(self, fleet: Fleet, state: LoopState, settings: AggregationSettings, end: float) -> bool:
        """Return whether the fleet's VMs are due to report: the policy needs it, or one of them did within a day."""
        if not VM_INPUTS.isdisjoint(settings.needed):
            return True
        if state.vm_reported_at is not None and end - state.vm_reported_at <= NO_REPORTS_S:
            return True
        vms = [of for group in fleet.groups for of in self._store.vm_rows(fleet.name, group.key).values()]
        return end - self._store.newest(np.array(vms, dtype=np.int64).ravel()) <= NO_REPORTS_S

    def _fold_signals(self, fleet: str, signals: Sequence[Signal], fold: BinFold) -> tuple[SignalSnapshot, ...]:
        rows = np.array([self._store.signal_row(fleet, signal.name) for signal in signals], dtype=np.int64)
        counts, means = fold.at(rows)
        at, newest = self._store.latest(rows, fold.end)
        fresh = fold.end - at <= np.array([signal.max_age_s for signal in signals])
        values = np.where(counts > 0, means, np.where(fresh, newest, np.nan)).tolist()
        return tuple(
            SignalSnapshot(signal, value if math.isfinite(value) else None)
            for signal, value in zip(signals, values, strict=True)
        )

    def _measure(
        self,
        fleet: str,
        folds: tuple[GroupFold, ...],
        fold: BinFold,
        queue: QueueSnapshot | None,
        latest: Latest,
        interval_s: float,
    ) -> MinuteMeasurements:
        def grown(metric: QueueMetric) -> float | None:
            counter = self._store.readings(self._store.queue_row(fleet, metric), fold.end)
            inside = [reading for reading in counter if reading[0] > fold.start]
            before = next((reading for reading in reversed(counter) if reading[0] <= fold.start), None)
            return growth(inside, before, self._store.claims(fleet), metric) if inside else None

        counted, finished = grown(QueueMetric.FINISHED_TOTAL), None
        if queue is not None:
            # Without a counter: what was submitted and neither waits nor runs. It falls where an episode begins.
            done = queue.submitted - queue.waiting - queue.running
            finished = max(done - self._done.get(fleet, done), 0)
            self._done[fleet] = done
        counts, means = fold.at(np.array([self._store.queue_row(fleet, QueueMetric.WAITING)], dtype=np.int64))
        lengths = [latest[metric][1] for metric in _LENGTHS if latest[metric][0] > NEVER]
        return MinuteMeasurements(
            finished=finished if counted is None else round(counted),
            finished_core_s=grown(QueueMetric.FINISHED_CORE_SECONDS_TOTAL),
            waiting=float(means[0]) if counts[0] else None,
            lengths=JobLengths(*lengths) if _are_lengths(lengths) else None,
            boots=tuple(Boot(k, seconds) for k, each in enumerate(folds) for seconds in each.boots_s.tolist()),
            lost_core_s=sum(each.lost_core_s for each in folds),
            sample_interval_s=interval_s,
            busy_cores=tuple(each.busy_over_minute for each in folds),
        )

    def vms(self, fleet: Fleet) -> Mapping[str, tuple[str, ...]]:
        """Return per group key the VMs that the cloud showed in the last minute; callable from any thread."""
        return {group.key: self._shown.get((fleet.name, group.key), ()) for group in fleet.groups}

    def clock_stepped(self, step_s: float) -> None:
        """Shift the times of VMs by `step_s`, a step of the wall clock."""
        self._seats.clock_stepped(step_s)
        for roster in self._rosters.values():
            roster.clock_stepped(step_s)

    def busy_cores(self, fleet: Fleet, now: float) -> Mapping[str, float | None]:
        """Return per VM its busy cores as last reported, None when that is older than a minute or was never.

        Asked twice at one moment it gives the same answer, so that whom a tick protects is whom it wrote down.
        """
        asked_at, found_then = self._busy.get(fleet.name, (None, {}))
        if asked_at == now:
            return found_then
        found: dict[str, float | None] = {}
        for group in fleet.groups:
            place = fleet.name, group.key
            vms = self._shown.get(place, ())
            folded = self._reported.get(place)
            if folded is not None and folded[0] == now and folded[1] is vms:
                _, _, at, busy = folded
            else:
                rows_of = self._store.vm_rows(*place)
                rows = np.array([rows_of[vm][_BUSY] if vm in rows_of else ABSENT_ROW for vm in vms], dtype=np.int64)
                at, busy = self._store.latest(rows, now)
            found.update(
                (vm, self._believed(fleet.name, group, vm, then, cores, now))
                for vm, then, cores in zip(vms, at.tolist(), busy.tolist(), strict=True)
            )
        self._busy[fleet.name] = (now, found)
        return found

    def busy_cores_of(self, fleet: Fleet, group: str, vm: str, now: float) -> float | None:
        """Return one VM's busy cores as last reported until now; None when that is older than a minute or was never."""
        rows = self._store.vm_rows(fleet.name, group).get(vm)
        if rows is None:
            return None
        at, busy = self._store.latest(np.array([rows[_BUSY]], dtype=np.int64), now)
        described = fleet.groups[fleet.index(group)]
        return self._believed(fleet.name, described, vm, float(at[0]), float(busy[0]), now)

    def _believed(self, fleet: str, group: Group, vm: str, at: float, cores: float, now: float) -> float | None:
        """Return the busy cores of a reading, or all of a newer one that was refused as too high: that VM works."""
        refused_at = self._store.too_high_at(fleet, group.key, vm)
        if refused_at > at and refused_at <= now and now - refused_at <= FRESH_BUSY_S:
            return float(group.vm_type.cores)
        return cores if now - at <= FRESH_BUSY_S else None

    def _queue(
        self,
        fleet: Fleet,
        folds: tuple[GroupFold, ...],
        latest: Latest,
        state: LoopState,
        start: float,
        end: float,
        gap_s: float,
    ) -> tuple[QueueSnapshot | None, LoopState]:
        """Return the queue over the minute and the state with the episode's counters brought up to it."""
        groups = [fold.snapshot for fold in folds]
        at_minimum = all(
            seen.requested <= max(group.minimum, seen.minimum) for seen, group in zip(groups, fleet.groups, strict=True)
        )
        episode = state.submitted_in_episode
        queue, submitted = queue_snapshot(self._store, fleet.name, latest, start, end, state, episode)
        busy = queue is not None and queue.waiting + queue.running > 0
        if queue is None:
            busy = any((group.busy_cores or 0.0) > 0.0 for group in groups)
        if state.last_bin_end != end and begins_episode(state, start, end, busy, at_minimum, gap_s):
            queue, submitted = queue_snapshot(self._store, fleet.name, latest, start, end, state, 0.0)
            shadows = {n: memory_in_new_episode(one, state, end, gap_s) for n, one in state.shadow_memories.items()}
            state = replace(
                state,
                memory=memory_in_new_episode(state.memory, state, end, gap_s),
                shadow_memories={name: memory for name, memory in shadows.items() if memory},
            )
        return queue, replace(
            state,
            submitted_seen=submitted.seen,
            submitted_in_episode=submitted.in_episode,
            last_busy_at=end if busy else state.last_busy_at,
        )

    def _fold_fleet(
        self,
        fleet: Fleet,
        folds: tuple[GroupFold, ...],
        queue: QueueSnapshot | None,
        settings: AggregationSettings,
        end: float,
        now: float,
    ) -> Snapshot:
        groups = tuple(fold.snapshot for fold in folds)
        cpu = np.concatenate([fold.cpu for fold in folds])
        warmed_up = np.concatenate([fold.cpu_warmed_up for fold in folds])
        ram = np.concatenate([fold.ram for fold in folds])
        exists = any(group.warm for group in groups) or any(fold.unheard for fold in folds)
        cpu_known, ram_known = cpu.size > 0 or not exists, ram.size > 0 or not exists
        allocated = sum(group.warm * cores for group, cores in zip(groups, fleet.cores, strict=True))
        waiting = queue.waiting if queue else 0
        recent = queue.submitted_recent if queue else 0
        seven = obs7(
            allocated,
            fleet.max_cores,
            cpu,
            ram,
            waiting,
            queue.submitted if queue else 0,
            waiting_recent_fifo(waiting, recent),
            recent,
        )
        due, reported = _due(folds), sum(fold.reporting for fold in folds)
        queue_rows = np.array(self._store.queue_rows(fleet.name))
        queue_at, vm_at = self._store.newest(queue_rows), max(fold.newest_sample_at for fold in folds)
        complete = cpu_known and ram_known and queue is not None
        absent = [name for name, known in (("cpu", cpu_known), ("ram", ram_known), ("queue", queue)) if not known]
        # The vector holds 32 bits, which are seven decimals: rounded, 0.8 reads (and compares) as 0.8.
        cpu_mean, cpu_p90, ram_mean, ram_p90 = (round(float(value), MEAN_DECIMALS) for value in seven[1:5])
        return Snapshot(
            fleet=fleet.name,
            bin_end=end,
            taken_at=now,
            groups=groups,
            queue=queue,
            coverage=reported / due if due else 1.0,
            age_s=_age(max(vm_at, queue_at), now),
            absent=tuple(absent),
            cpu_mean=cpu_mean if cpu_known else None,
            cpu_mean_warmed_up=_warmed_up_mean(warmed_up),
            cpu_p90=cpu_p90 if cpu_known else None,
            ram_mean=ram_mean if ram_known else None,
            ram_p90=ram_p90 if ram_known else None,
            obs7=tuple(seven.tolist()) if complete else None,
            obs_v2=_extended(fleet, folds, queue, settings, seven) if complete and queue else None,
            due=due,
            reported=reported,
            vm_age_s=_age(vm_at, now),
            queue_age_s=_age(queue_at, now),
            terms=settings.terms,
        )


_LENGTHS = (QueueMetric.JOB_CORE_SECONDS, *JOB_QUANTILES.values())


def _are_lengths(values: Sequence[float]) -> bool:
    """Return whether these are a mean and quantiles: all of them, above zero, and in order."""
    return (
        len(values) == len(_LENGTHS) and values[0] > 0.0 and values[1] > 0.0 and list(values[1:]) == sorted(values[1:])
    )


def _observed_group(fleet: Fleet, name: str, observed: Observed) -> GroupObserved:
    group = observed.groups.get(name)
    if group is None:
        raise BadInput(f"fleet {fleet.name}: group", name, "it was not read this minute: leave the fleet as it is")
    return group


def _warmed_up_mean(warmed_up: Floats) -> float | None:
    return round(min(float(warmed_up.mean()), 1.0), MEAN_DECIMALS) if warmed_up.size else None


def _age(newest: float, now: float) -> float | None:
    return max(0.0, now - newest) if math.isfinite(newest) else None


def _due(folds: tuple[GroupFold, ...]) -> int:
    """Return how many VMs should have reported in the minute.

    A VM in service past its boot deadline that never reported is due like a silent one, so that a restart of ours,
    which forgets which ones had reported, does not make a half-silent fleet look whole.
    """
    return sum(fold.expected + fold.unheard for fold in folds)


def _extended(
    fleet: Fleet, folds: tuple[GroupFold, ...], queue: QueueSnapshot, settings: AggregationSettings, seven: Vector
) -> tuple[float, ...] | None:
    """Return obs-v2; None while jobs wait whose age is not reported.

    Of the size of a job nothing is known until the first one has finished: till then it is the expected one, so that
    the first burst of an episode is met by the policy and not by waiting.
    """
    if queue.waiting and queue.oldest_wait_s is None:
        return None
    limits, job_core_s = settings.limits, settings.job_core_s if queue.job_core_s is None else queue.job_core_s
    groups = [fold.snapshot for fold in folds]
    if any(group.busy_cores is None for group in groups):
        return None
    cores = np.array(fleet.cores, dtype=np.int64)
    warm = np.array([group.warm for group in groups], dtype=np.int64)
    lost = next_removal_share(
        cores,
        warm,
        np.array([group.minimum for group in fleet.groups], dtype=np.int64),
        np.array([fold.victim_busy_at_end for fold in folds]),
        sum(fold.busy_at_end for fold in folds),
    )
    vector = obs_v2(
        seven,
        warm,
        np.array([group.booting for group in groups], dtype=np.int64),
        np.array([group.maximum for group in fleet.groups], dtype=np.int64),
        np.array([max(group.cooldown_out_s, group.cooldown_in_s) for group in groups]),
        max(limits.cooldown_out_s, limits.cooldown_in_s),
        queue.waiting,
        queue.waiting * job_core_s,
        fleet.max_cores,
        (queue.oldest_wait_s or 0.0) if queue.waiting else 0.0,
        lost,
    )
    return tuple(vector.tolist())
