"""Folds one group over one minute: warm, booting, overdue, silent, idle and removable VMs, and their readings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from actuators.activities import IN_A_ROW
from agent.autoscaling.refusals import refused_by_aws
from agent.autoscaling.snapshot.series import ABSENT_ROW, VM_COLUMNS, BinFold, SeriesStore
from agent.autoscaling.stalls import STUCK_S
from agent.rails.state import Cooldown, LoopState
from domain.decisions import Direction, Reason, VmRefusal
from domain.fleet import Group
from domain.observed import GroupObserved, Lifecycle
from domain.samples import VmMetric
from domain.snapshot import GroupSnapshot

if TYPE_CHECKING:
    from agent.autoscaling.snapshot.aggregate import AggregationSettings

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MAX_REMOVABLE = 50
"""Candidates listed per group: far more than one decision may remove."""

LAST_WORDS_S = 300.0
"""A VM that is gone has lost what it reported not longer ago than this: AWS shows a terminated one for minutes."""

ATTACHED_AFTER_S = 120.0
"""A VM that was launched so long before the last look that did not show it was attached later, not booted."""

_LEAVING = frozenset((Lifecycle.DRAINING, Lifecycle.TERMINATING))
_CPU = VM_COLUMNS.index(VmMetric.CPU_PERCENT)
_RAM = VM_COLUMNS.index(VmMetric.RAM_PERCENT)
_BUSY = VM_COLUMNS.index(VmMetric.BUSY_CORES)
_WORK = VM_COLUMNS.index(VmMetric.WORK_CORE_SECONDS)
_NO_ROWS = (ABSENT_ROW,) * len(VM_COLUMNS)


@dataclass(frozen=True, slots=True)
class GroupFold:
    """A group's snapshot and the values that the fleet's figures need.

    cpu, ram: 0..1 of each VM with enough samples, any order. cpu_warmed_up: of those older than the warm-up.
    expected: warm VMs that should have reported enough; reporting: those that did. unheard: VMs in service that
    should have reported by now and never did. busy_at_end, victim_busy_at_end: busy cores at the last reading of the
    minute, of all warm VMs and of the first removable one. boots_s: from launch to the first report, of the VMs that
    first reported since the last fold. lost_core_s: work under way on VMs that are gone without having been drained, as
    they reported it last. busy_over_minute: busy cores, where a VM that came in the minute counts for its part of it;
    None as in the snapshot. failing_at: when the newest of three or more VMs in a row left that never reported, None
    where fewer did. stuck: VMs that were busy for `STUCK_S` while the work under way on them stayed the same.
    """

    snapshot: GroupSnapshot
    cpu: Floats
    cpu_warmed_up: Floats
    ram: Floats
    expected: int
    reporting: int
    unheard: int
    busy_at_end: float
    victim_busy_at_end: float
    newest_sample_at: float
    boots_s: Floats
    lost_core_s: float
    busy_over_minute: float | None
    stuck: tuple[str, ...]
    failing_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Vms:
    """The group's VMs as parallel arrays; `rows` is of shape (VMs, metrics)."""

    names: list[str]
    rows: Ints
    pending: Mask
    in_service: Mask
    draining: Mask
    healthy: Mask
    launched: Floats


def fold_group(
    group: Group,
    fleet: str,
    observed: GroupObserved,
    store: SeriesStore,
    roster: GroupRoster,
    fold: BinFold,
    state: LoopState,
    settings: AggregationSettings,
    now: float,
    *,
    reports: bool = True,
) -> GroupFold:
    """Fold one group; the terms are those of `GroupSnapshot`.

    A VM has reported when any of its series holds a reading up to the end of the minute. One that first did so within
    this minute is warm, and is left out of the means when it has too few samples, but is not silent and lowers no
    coverage: it could not have had more. Idle means that every reading of busy cores in the minute and the latest one
    are zero. A VM that may not go is left out of those that may be removed, and of those idle for long.

    reports: whether VMs are due to report. Where they are not, a VM is warm from its service on, and none of them may
    be removed: each may be at work.
    """
    vms = _vms(fleet, group, observed, store)
    lost_core_s = _lost_core_s(roster.gone(vms.names), store, fleet, group.key, now)
    leaving = [one.vm for one in observed.instances if one.lifecycle in _LEAVING]
    excused = state.interrupted.keys() | state.seen_interruptions.keys()
    roster.note_ended(vms.names, leaving, excused, observed.desired, now)
    seats = roster.seat(vms.names, now)
    roster.look(seats, vms.pending, vms.draining)
    since = roster.since(seats, vms.launched)
    age = now - since

    cold = np.isnan(roster.warm_since(seats))
    warm_since = _warm_since(vms, seats, store, roster, fold.end)
    reported = ~np.isnan(warm_since)
    if not reports:
        unheard = vms.in_service & ~reported
        warm_since[unheard] = fold.end
        roster.warmed(seats[unheard], warm_since[unheard])
    booted = cold & reported & roster.booted(seats, vms.launched)
    warm = vms.in_service & ~np.isnan(warm_since)
    newly = warm & (warm_since > fold.start)

    cpu_counts, cpu = fold.at(vms.rows[:, _CPU])
    ram_counts, ram = fold.at(vms.rows[:, _RAM])
    busy_counts, busy = fold.at(vms.rows[:, _BUSY])
    _, busy_at_end = store.latest(vms.rows[:, _BUSY], fold.end)
    _, busy_now = store.latest(vms.rows[:, _BUSY], now)
    reporting = warm & (cpu_counts >= settings.min_samples)
    silent = warm & ~reporting & ~newly & reports

    known = busy_counts > 0
    idle = known & (busy == 0.0) & (busy_now == 0.0)
    idle_since = roster.idle_since(seats, known & ~idle, idle, fold.start)
    may_not_go = _may_not_go(observed, state, now)
    kept = np.array([vm in may_not_go for vm in vms.names], dtype=np.bool_)
    idle_long = warm & (fold.end - idle_since >= settings.idle_s)
    refused = idle_long & kept & (age >= settings.limits.min_lifetime_s)
    idle_long &= ~kept
    if settings.removes_newest:
        idle_long = _before_one_at_work(idle_long, warm, since, vms.names)

    _, work = store.latest(vms.rows[:, _WORK], fold.end)
    stuck_since = roster.stuck_since(seats, known & (busy > 0.0) & (busy_now > 0.0), work, fold.start)
    stuck = warm & (fold.end - stuck_since >= STUCK_S)

    unwarmed = (vms.in_service | vms.pending) & ~warm
    late = unwarmed & (now - roster.boot_since(seats, since) > settings.limits.boot_deadline_s)
    if booted.any():
        roster.ended_in_a_row = 0
    missing_for = now - roster.missing_since(observed.desired - int((vms.in_service | vms.pending).sum()), now)
    missing_late = int((missing_for > settings.limits.boot_deadline_s).sum())

    mature = warm & (age >= settings.limits.min_lifetime_s)
    allowed, drains = mature & vms.healthy & ~silent & ~kept & reports, observed.drain_hook is not None
    victims = _removable(vms, store, allowed, idle, since, drains, settings.removes_newest, now)
    # After a restart of the agent no report is old, but a VM launched so long ago has warmed up.
    warmed_up = (fold.end - warm_since >= settings.warm_up_s) | (
        age >= settings.warm_up_s + settings.limits.boot_deadline_s
    )
    # The first report is half an interval late in the mean.
    part = np.clip((fold.end - warm_since + 0.5 * settings.sample_interval_s) / (fold.end - fold.start), 0.0, 1.0)
    ram_usable, units = reporting & (ram_counts >= settings.min_samples), observed.capacity
    snapshot = GroupSnapshot(
        key=group.key,
        requested=observed.desired,
        in_service=int(vms.in_service.sum()),
        warm=int(warm.sum()),
        booting=int((unwarmed & ~late).sum()) + missing_for.size - missing_late,
        overdue=int(late.sum()) + missing_late,
        draining=sum(i.lifecycle in (Lifecycle.DRAINING, Lifecycle.TERMINATING) for i in observed.instances),
        silent=int(silent.sum()),
        unhealthy=int(((vms.in_service | vms.pending) & ~vms.healthy).sum()),
        idle_long=int(idle_long.sum()),
        mature=int(mature.sum()),
        minimum=observed.minimum,
        maximum=observed.maximum,
        suspended=observed.suspended,
        zones=observed.zones,
        refreshing=observed.refreshing,
        removable=tuple(vms.names[victim] for victim in victims),
        cpu_mean=_mean(cpu[reporting] / 100.0, bool(warm.any())),
        ram_mean=_mean(ram[ram_usable] / 100.0, bool(warm.any())),
        busy_cores=_busy_cores(busy, warm & known & ~silent, warm & ~known & ~silent, bool(warm.any())),
        cooldown_out_s=_cooling(state.cooldowns, group.key, Direction.OUT, now),
        cooldown_in_s=_cooling(state.cooldowns, group.key, Direction.IN, now),
        idle=int((warm & idle).sum()),
        requested_units=units.desired if units.desired != observed.desired else None,
        weight=units.weight,
        refused=tuple(VmRefusal(vms.names[k], may_not_go[vms.names[k]]) for k in np.flatnonzero(refused)),
    )
    return GroupFold(
        snapshot=snapshot,
        cpu=cpu[reporting] / 100.0,
        cpu_warmed_up=cpu[reporting & warmed_up] / 100.0,
        ram=ram[ram_usable] / 100.0,
        expected=int((warm & (reporting | ~newly) & reports).sum()),
        reporting=int(reporting.sum()),
        unheard=int((late & vms.in_service).sum()),
        busy_at_end=float(busy_at_end[warm & known].sum()),
        victim_busy_at_end=float(np.nan_to_num(busy_at_end[victims[0]])) if victims else 0.0,
        newest_sample_at=store.newest(vms.rows),
        boots_s=np.maximum(warm_since[booted] - since[booted], 0.0),
        lost_core_s=lost_core_s,
        failing_at=roster.ended_at if roster.ended_in_a_row >= IN_A_ROW else None,
        stuck=tuple(vms.names[position] for position in np.flatnonzero(stuck)),
        busy_over_minute=None if snapshot.busy_cores is None else float((busy * part)[warm & known & ~silent].sum()),
    )


def _may_not_go(observed: GroupObserved, state: LoopState, now: float) -> dict[str, Reason]:
    """Return the VMs that may not go and why: protected by another party, or refused by AWS not long ago."""
    ours, refused = frozenset(state.protected), refused_by_aws(state, now)
    foreign = (one.vm for one in observed.instances if one.protected and one.vm not in ours)
    return dict.fromkeys(foreign, Reason.PROTECTED) | dict.fromkeys(refused, Reason.REMOVAL_REFUSED)


def _lost_core_s(gone: Sequence[str], store: SeriesStore, fleet: str, group: str, now: float) -> float:
    """Return the work that these VMs reported last to have under way, where that report is not old."""
    if not gone:
        return 0.0
    rows_of = store.vm_rows(fleet, group)
    rows = np.array([rows_of[vm][_WORK] for vm in gone if vm in rows_of], dtype=np.int64)
    at, work = store.latest(rows, now)
    return float(work[now - at <= LAST_WORDS_S].sum())


def _vms(fleet: str, group: Group, observed: GroupObserved, store: SeriesStore) -> _Vms:
    instances = observed.instances
    names = [instance.vm for instance in instances]
    rows_of = store.vm_rows(fleet, group.key).get
    states = [instance.lifecycle for instance in instances]
    return _Vms(
        names=names,
        rows=np.array([rows_of(name, _NO_ROWS) for name in names], dtype=np.int64).reshape(-1, len(VM_COLUMNS)),
        pending=np.array([state is Lifecycle.PENDING for state in states], dtype=np.bool_),
        in_service=np.array([state is Lifecycle.IN_SERVICE for state in states], dtype=np.bool_),
        draining=np.array([state is Lifecycle.DRAINING for state in states], dtype=np.bool_),
        healthy=np.array([instance.healthy for instance in instances], dtype=np.bool_),
        launched=np.array([math.nan if i.launched_at is None else i.launched_at for i in instances], dtype=np.float64),
    )


def _warm_since(vms: _Vms, seats: Ints, store: SeriesStore, roster: GroupRoster, end: float) -> Floats:
    """Return when each VM first reported, nan where it had not by `end`; only VMs not yet warm are read."""
    warm_since = roster.warm_since(seats)
    cold = np.flatnonzero(np.isnan(warm_since))
    if cold.size:
        first = store.first(vms.rows[cold].ravel()).reshape(-1, len(VM_COLUMNS)).min(axis=1)
        reported = first <= end
        roster.warmed(seats[cold[reported]], first[reported])
        warm_since[cold[reported]] = first[reported]
    return warm_since


def _removable(
    vms: _Vms,
    store: SeriesStore,
    allowed: Mask,
    idle: Mask,
    since: Floats,
    drains: bool,
    removes_newest: bool,
    now: float,
) -> list[int]:
    """Return positions of VMs that may be removed, the least loss first, or the newest where the cloud takes that one.

    Idle ones come first; busy ones only where a drain hook lets them finish, by least executed work. A silent one is
    not removable: it may be busy, and a drain without reports ends with the hook's time, not with the job. Ties go to
    the newest, then to the highest id. The agent's own scale-in protection does not count: it does not stop a
    termination by id.
    """
    candidates = np.flatnonzero(allowed if drains else allowed & idle)
    if not candidates.size:
        return []
    _, work = store.latest(vms.rows[candidates, _WORK], now)
    work = np.where(idle[candidates], -1.0, np.where(np.isnan(work), np.inf, work))
    if removes_newest:
        work = np.zeros_like(work)
    if candidates.size > MAX_REMOVABLE:
        last = np.lexsort((-since[candidates], work))[MAX_REMOVABLE - 1]
        tied = (work == work[last]) & (since[candidates] >= since[candidates[last]])
        within = (work < work[last]) | tied
        candidates, work = candidates[within], work[within]
    loss = dict(zip(candidates.tolist(), work.tolist(), strict=True))
    by_name = sorted(loss, key=lambda position: vms.names[position], reverse=True)
    return sorted(by_name, key=lambda position: (loss[position], -since[position]))[:MAX_REMOVABLE]


def _before_one_at_work(idle: Mask, warm: Mask, since: Floats, names: list[str]) -> Mask:
    """Return which of the idle VMs go, the newest first, before one goes that is not idle."""
    newest_first = sorted(np.flatnonzero(warm).tolist(), key=lambda vm: (since[vm], names[vm]), reverse=True)
    reached = np.zeros_like(idle)
    for vm in itertools.takewhile(lambda vm: idle[vm], newest_first):
        reached[vm] = True
    return reached


def _mean(shares: Floats, exists: bool) -> float | None:
    """Return the mean of VMs' shares: 0 where there is no VM, None where there are VMs and none of them reported."""
    if shares.size:
        return min(float(shares.mean()), 1.0)
    return None if exists else 0.0


def _busy_cores(busy: Floats, known: Mask, unknown: Mask, exists: bool) -> float | None:
    """Return the busy cores of the VMs that are not silent; None when one does not report them, or all are silent."""
    if unknown.any() or (exists and not known.any()):
        return None
    return float(busy[known].sum())


def _cooling(cooldowns: tuple[Cooldown, ...], key: str, direction: Direction, now: float) -> float:
    left = [c.remaining_s(now) for c in cooldowns if c.group == key and c.direction is direction]
    return max(left, default=0.0)


_FIRST_SEATS = 16


class GroupRoster:
    """One group's VMs, each in a seat of parallel arrays; a VM that the cloud no longer shows loses its seat.

    It is held in memory: after a restart it is rebuilt from the cloud's launch times and from the VMs' reports.
    Times are seconds since the epoch, nan where unknown. ended_in_a_row: VMs that left without ever having reported,
    since one last did; ended_at: when the newest of them was found.
    """

    def __init__(self) -> None:
        self.ended_in_a_row, self.ended_at = 0, 0.0
        self._ended: list[float] = []
        self._desired = 0
        self._boot_since = np.full(_FIRST_SEATS, np.nan)
        self._over = np.zeros(_FIRST_SEATS, dtype=np.bool_)
        self._seats: dict[str, int] = {}
        self._free: list[int] = []
        self._first_seen = np.full(_FIRST_SEATS, np.nan)
        self._warm_since = np.full(_FIRST_SEATS, np.nan)
        self._idle_since = np.full(_FIRST_SEATS, np.nan)
        self._stuck_since = np.full(_FIRST_SEATS, np.nan)
        self._work = np.full(_FIRST_SEATS, np.nan)
        self._missing_since: list[float] = []
        self._arrived = 0
        self._not_before = np.full(_FIRST_SEATS, np.nan)
        self._was_pending = np.zeros(_FIRST_SEATS, dtype=np.bool_)
        self._drains = np.zeros(_FIRST_SEATS, dtype=np.bool_)
        self._seated_at: float | None = None

    def seat(self, vms: Sequence[str], now: float) -> Ints:
        """Return the seats of these VMs; new ones are first seen now, those not named lose theirs."""
        before, self._seated_at = self._seated_at, now
        seats = [self._seats.get(vm, -1) for vm in vms]
        self._arrived = seats.count(-1)
        for position, seat in enumerate(seats):
            if seat < 0:
                seats[position] = self._take_seat(vms[position], now, math.nan if before is None else before)
        if len(self._seats) > len(seats):
            for vm in self._seats.keys() - set(vms):
                self._free.append(self._seats.pop(vm))
        return np.array(seats, dtype=np.int64)

    def _take_seat(self, vm: str, now: float, not_before: float) -> int:
        known = self._seats.get(vm)
        if known is not None:
            return known
        if not self._free and len(self._seats) == self._first_seen.size:
            more = np.full(self._first_seen.size, np.nan)
            self._first_seen = np.concatenate([self._first_seen, more])
            self._warm_since = np.concatenate([self._warm_since, more])
            self._idle_since = np.concatenate([self._idle_since, more])
            self._boot_since = np.concatenate([self._boot_since, more])
            self._over = np.concatenate([self._over, np.zeros(more.size, dtype=np.bool_)])
            self._stuck_since = np.concatenate([self._stuck_since, more])
            self._work = np.concatenate([self._work, more])
            self._not_before = np.concatenate([self._not_before, more])
            self._was_pending = np.concatenate([self._was_pending, np.zeros(more.size, dtype=np.bool_)])
            self._drains = np.concatenate([self._drains, np.zeros(more.size, dtype=np.bool_)])
        seat = self._free.pop() if self._free else len(self._seats)
        self._seats[vm] = seat
        self._first_seen[seat], self._warm_since[seat], self._idle_since[seat] = now, np.nan, np.nan
        self._not_before[seat] = not_before
        self._was_pending[seat] = self._drains[seat] = self._over[seat] = False
        self._boot_since[seat] = self._ended.pop(0) if self._ended and not math.isnan(not_before) else np.nan
        self._stuck_since[seat] = self._work[seat] = np.nan
        return seat

    def note_ended(
        self, vms: Sequence[str], leaving: Collection[str], excused: Collection[str], desired: int, now: float
    ) -> None:
        """Count VMs that left, or are leaving, without ever having reported; called before `seat`.

        Not those that were there at the first look, for they may have reported before, those `excused` (taken by a spot
        interruption), and as many as the group desires fewer. AWS starts another in place of each: that one takes over
        the begin of its boot, so that VMs which are replaced before they are overdue count as overdue as well.
        """
        gone = (self._seats.keys() - set(vms)) | (self._seats.keys() & set(leaving))
        shrunk, self._desired = max(0, self._desired - desired), desired
        ended = []
        for vm in gone:
            seat = self._seats[vm]
            if not self._over[seat] and math.isnan(self._warm_since[seat]) and not math.isnan(self._not_before[seat]):
                self._over[seat] = True
                if vm not in excused:
                    ended.append(float(self._boot_since[seat]))
        ended = sorted(ended)[: max(0, len(ended) - shrunk)]
        if ended:
            self.ended_in_a_row, self.ended_at = self.ended_in_a_row + len(ended), now
            self._ended = sorted([*self._ended, *ended])

    def boot_since(self, seats: Ints, since: Floats) -> Floats:
        """Return since when each VM boots, or the first of those before it that ended and that it is in place of."""
        self._boot_since[seats] = np.fmin(self._boot_since[seats], since)
        return self._boot_since[seats]

    def gone(self, vms: Collection[str]) -> list[str]:
        """Return the VMs in seats that are not among these and were not being drained at the last look."""
        present = set(vms)
        return [vm for vm, seat in self._seats.items() if vm not in present and not self._drains[seat]]

    def look(self, seats: Ints, pending: Mask, draining: Mask) -> None:
        """Record which VMs have not come into service yet, and which are being drained."""
        self._was_pending[seats] |= pending
        self._drains[seats] = draining

    def booted(self, seats: Ints, launched: Floats) -> Mask:
        """Return whose boot was watched from its launch on.

        One that was in service when this process first looked may have reported for days before.
        """
        not_before = self._not_before[seats]
        came = ~np.isnan(not_before) & (launched >= not_before - ATTACHED_AFTER_S)
        return np.asarray(~np.isnan(launched) & (came | self._was_pending[seats]), dtype=np.bool_)

    def since(self, seats: Ints, launched: Floats) -> Floats:
        """Return since when each VM exists: the cloud's launch time, within the bounds of what was observed.

        launched: the cloud's launch times, nan where unknown (first seen counts then). A VM is no younger than when it
        was first seen, and one that was absent at an earlier call no older than that call: the cloud's clock and
        the agent's may differ, and a VM just requested must not count as overdue because a clock was set.
        """
        first_seen = self._first_seen[seats]
        known = np.fmin(np.fmax(launched, self._not_before[seats]), first_seen)
        return np.where(np.isnan(launched), first_seen, known)

    def clock_stepped(self, step_s: float) -> None:
        """Shift all times by a step of the wall clock."""
        for times in (
            self._first_seen,
            self._warm_since,
            self._idle_since,
            self._not_before,
            self._boot_since,
            self._stuck_since,
        ):
            times += step_s
        self._ended, self.ended_at = [since + step_s for since in self._ended], self.ended_at + step_s
        self._missing_since = [since + step_s for since in self._missing_since]
        if self._seated_at is not None:
            self._seated_at += step_s

    def warm_since(self, seats: Ints) -> Floats:
        """Return when each VM first reported, nan while it has not."""
        return self._warm_since[seats]

    def warmed(self, seats: Ints, at: Floats) -> None:
        """Record when these VMs first reported."""
        self._warm_since[seats] = at

    def idle_since(self, seats: Ints, busy: Mask, idle: Mask, start: float) -> Floats:
        """Record which VMs were busy and which idle over the bin from `start`; return since when each is idle.

        A VM that is neither has unknown busy cores: it does not count as idle, and its idle time starts again when it
        reports again.
        """
        since = self._idle_since[seats]
        since = np.where(idle & ~busy, np.where(np.isnan(since), start, np.minimum(since, start)), np.nan)
        self._idle_since[seats] = since
        return since

    def stuck_since(self, seats: Ints, busy: Mask, work: Floats, start: float) -> Floats:
        """Record the work under way on each VM; return since when each is busy while that stays the same."""
        since = self._stuck_since[seats]
        same = busy & (work == self._work[seats])
        since = np.where(same, np.where(np.isnan(since), start, since), np.nan)
        self._stuck_since[seats], self._work[seats] = since, work
        return since

    def missing_since(self, missing: int, now: float) -> Floats:
        """Record the number of VMs that the group requests and lacks; return since when each of them is missing.

        Those missing longest are assumed to have arrived with the last `seat`.
        """
        still = self._missing_since[self._arrived :]
        still = still[-missing:] if missing > 0 else []
        self._arrived = 0
        self._ended = self._ended[: max(0, missing)]
        new = (self._ended + [now] * missing)[: missing - len(still)] if missing > len(still) else []
        self._missing_since = sorted([*(min(since, now) for since in still), *new])
        return np.array(self._missing_since, dtype=np.float64)
