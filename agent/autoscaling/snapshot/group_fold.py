"""Folds groups over one minute: warm, booting, overdue, silent, idle and removable VMs, and their readings."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actuators.activities import IN_A_ROW
from agent.autoscaling.snapshot.series import ABSENT_ROW, NEVER, VM_COLUMNS, BinFold, SeriesStore
from agent.autoscaling.stalls import STUCK_S
from agent.rails.state import Cooldown
from domain.decisions import Direction, Reason, VmRefusal
from domain.fleet import Group
from domain.observed import GroupObserved, Instance, Lifecycle
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

    cpu, ram: 0..1 of each VM with enough samples, any order. cpu_warmed_up: of those older than the warm-up. expected:
    warm VMs that should have reported enough; reporting: those that did. unheard: VMs in service that should have
    reported by now and never did. busy_at_end, victim_busy_at_end: busy cores at the last reading of the minute, of all
    warm VMs and of the first removable one. busy_now, busy_now_at: of each VM the busy cores that it reported last, and
    when. boots_s: from launch to the first report, of the VMs that first reported since the last fold. lost_core_s:
    work under way on VMs that are gone without having been drained, as they reported it last. busy_over_minute: busy
    cores, where a VM that came in the minute counts for its part of it; None as in the snapshot. failing_at: when the
    newest of three or more VMs in a row left that never reported, None where fewer did. stuck: VMs that were busy for
    `STUCK_S` while the work under way on them stayed the same.
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
    busy_now: Floats
    busy_now_at: Floats
    stuck: tuple[str, ...]
    failing_at: float | None = None


@dataclass(frozen=True, slots=True)
class GroupInputs:
    """The input of one group's fold.

    ours: VMs that the agent protects. refused: VMs that AWS refused to terminate not long ago. excused: VMs with a spot
    notice. retained: VMs that another decision needs where they are. reports: whether VMs are due to report. Where they
    are not, a VM is warm from its service on, and none of them may be removed: each may be at work.
    """

    fleet: str
    group: Group
    observed: GroupObserved
    roster: GroupRoster
    settings: AggregationSettings
    cooldowns: tuple[Cooldown, ...]
    ours: Set[str]
    refused: Set[str]
    excused: Set[str]
    retained: Set[str]
    reports: bool


@dataclass(frozen=True, slots=True)
class _Vms:
    """The VMs of all groups as parallel arrays, group after group; `rows` is of shape (VMs, metrics).

    bounds: where each group begins, and the number of VMs. kept: VMs that may not go, for a reason in `may_not_go` of
    their group. retained: VMs that stay for another decision. lost_core_s: by group.
    """

    names: list[str]
    bounds: Ints
    seats: Ints
    rows: Ints
    pending: Mask
    in_service: Mask
    draining: Mask
    healthy: Mask
    launched: Floats
    kept: Mask
    retained: Mask
    may_not_go: list[dict[str, Reason]]
    lost_core_s: list[float]


def fold_groups(
    asked: Sequence[GroupInputs], seats: Seats, store: SeriesStore, fold: BinFold, now: float
) -> list[GroupFold]:
    """Fold groups, all of them in one pass over their VMs; the terms are those of `GroupSnapshot`.

    A VM has reported when any of its series holds a reading up to the end of the minute. One that first did so within
    this minute is warm, and is left out of the means when it has too few samples, but is not silent and lowers no
    coverage: it could not have had more. Idle means that every reading of busy cores in the minute and the latest one
    are zero. A VM that may not go is left out of those that may be removed, and of those idle for long.
    """
    if not asked:
        return []
    vms = _vms(asked, store, now)
    sizes = np.diff(vms.bounds)
    limits = [one.settings.limits for one in asked]
    reports = np.repeat([one.reports for one in asked], sizes)
    newest_goes = np.repeat([one.settings.removes_newest for one in asked], sizes)
    drains = np.repeat([one.observed.drain_hook is not None for one in asked], sizes)
    min_samples = np.repeat([one.settings.min_samples for one in asked], sizes)
    idle_s = np.repeat([one.settings.idle_s for one in asked], sizes)
    warm_up_s = np.repeat([one.settings.warm_up_s for one in asked], sizes)
    interval_s = np.repeat([one.settings.sample_interval_s for one in asked], sizes)
    min_lifetime_s = np.repeat([one.min_lifetime_s for one in limits], sizes)
    boot_deadline_s = np.repeat([one.boot_deadline_s for one in limits], sizes)

    seats.look(vms.seats, vms.pending, vms.draining)
    since = seats.since(vms.seats, vms.launched)
    age = now - since
    cold = np.isnan(seats.warm_since(vms.seats))
    warm_since = _warm_since(vms, seats, store, fold.end)
    reported = ~np.isnan(warm_since)
    unheard = vms.in_service & ~reported & ~reports
    warm_since[unheard] = fold.end
    seats.warmed(vms.seats[unheard], warm_since[unheard])
    booted = cold & reported & seats.booted(vms.seats, vms.launched)
    warm = vms.in_service & ~np.isnan(warm_since)
    newly = warm & (warm_since > fold.start)

    cpu_counts, cpu = fold.at(vms.rows[:, _CPU])
    ram_counts, ram = fold.at(vms.rows[:, _RAM])
    busy_counts, busy = fold.at(vms.rows[:, _BUSY])
    both = np.concatenate([vms.rows[:, _BUSY], vms.rows[:, _WORK]])
    busy_at_end, work_at_end = np.split(store.latest(both, fold.end)[1], 2)
    (busy_now_at, _), (busy_now, work_now) = (np.split(found, 2) for found in store.latest(both, now))
    reporting = warm & (cpu_counts >= min_samples)
    silent = warm & ~reporting & ~newly & reports

    known = busy_counts > 0
    idle = known & (busy == 0.0) & (busy_now == 0.0)
    idle_since = seats.idle_since(vms.seats, known & ~idle, idle, fold.start)
    idle_long = warm & (fold.end - idle_since >= idle_s)
    refused = idle_long & vms.kept & (age >= min_lifetime_s)
    idle_long &= ~vms.kept
    places = [slice(*bounds) for bounds in pairwise(vms.bounds.tolist())]
    for part, one in zip(places, asked, strict=True):
        if one.settings.removes_newest:
            idle_long[part] = _before_one_at_work(idle_long[part], warm[part], since[part], vms.names[part])

    stuck_since = seats.stuck_since(vms.seats, known & (busy > 0.0) & (busy_now > 0.0), work_at_end, fold.start)
    stuck = warm & (fold.end - stuck_since >= STUCK_S)

    present = vms.in_service | vms.pending
    unwarmed = present & ~warm
    late = unwarmed & (now - seats.boot_since(vms.seats, since) > boot_deadline_s)
    mature = warm & (age >= min_lifetime_s)
    allowed = mature & vms.healthy & ~silent & ~vms.kept & ~vms.retained & reports
    loss = np.where(idle, -1.0, np.where(np.isnan(work_now), np.inf, work_now))
    loss[newest_goes] = 0.0
    # After a restart of the agent no report is old, but a VM launched so long ago has warmed up.
    warmed_up = (fold.end - warm_since >= warm_up_s) | (age >= warm_up_s + boot_deadline_s)
    # The first report is half an interval late in the mean.
    share = np.clip((fold.end - warm_since + 0.5 * interval_s) / (fold.end - fold.start), 0.0, 1.0)
    ram_usable, measured = reporting & (ram_counts >= min_samples), warm & known & ~silent

    counts = _counts(
        vms.bounds,
        {
            "present": present,
            "in_service": vms.in_service,
            "warm": warm,
            "booting": unwarmed & ~late,
            "late": late,
            "silent": silent,
            "unhealthy": present & ~vms.healthy,
            "idle": warm & idle,
            "idle_long": idle_long,
            "mature": mature,
            "expected": warm & (reporting | ~newly) & reports,
            "reporting": reporting,
            "unheard": late & vms.in_service,
            "unmeasured": warm & ~known & ~silent,
            "measured": measured,
            "booted": booted,
        },
    )
    cpu_of, warmed_up_of = _parts(vms, reporting, cpu / 100.0), _parts(vms, reporting & warmed_up, cpu / 100.0)
    ram_of, boots_of = _parts(vms, ram_usable, ram / 100.0), _parts(vms, booted, np.maximum(warm_since - since, 0.0))
    busy_at_end_of, busy_of = _parts(vms, warm & known, busy_at_end), _parts(vms, measured, busy)
    busy_over_of = _parts(vms, measured, busy * share)
    refused_of, stuck_of = _places(vms, refused), _places(vms, stuck)
    victims_of = [_first_to_go(vms.names, found, loss, since) for found in _places(vms, allowed & (drains | idle))]
    newest_of = _newest(vms, store)

    folds = []
    for k, one in enumerate(asked):
        observed, roster, key = one.observed, one.roster, one.group.key
        if counts["booted"][k]:
            roster.ended_in_a_row = 0
        missing = roster.missing_since(observed.desired - counts["present"][k], now)
        missing_late = sum(now - at > limits[k].boot_deadline_s for at in missing)
        exists, units, victims = counts["warm"][k] > 0, observed.capacity, victims_of[k]
        unknown = counts["unmeasured"][k] > 0 or (exists and not counts["measured"][k])
        snapshot = GroupSnapshot(
            key=key,
            requested=observed.desired,
            in_service=counts["in_service"][k],
            warm=counts["warm"][k],
            booting=counts["booting"][k] + len(missing) - missing_late,
            overdue=counts["late"][k] + missing_late,
            draining=sum(instance.lifecycle in _LEAVING for instance in observed.instances),
            silent=counts["silent"][k],
            unhealthy=counts["unhealthy"][k],
            idle_long=counts["idle_long"][k],
            mature=counts["mature"][k],
            minimum=observed.minimum,
            maximum=observed.maximum,
            suspended=observed.suspended,
            zones=observed.zones,
            refreshing=observed.refreshing,
            removable=tuple(vms.names[vm] for vm in victims),
            cpu_mean=_mean(cpu_of[k], exists),
            ram_mean=_mean(ram_of[k], exists),
            busy_cores=None if unknown else float(busy_of[k].sum()),
            cooldown_out_s=_cooling(one.cooldowns, key, Direction.OUT, now),
            cooldown_in_s=_cooling(one.cooldowns, key, Direction.IN, now),
            idle=counts["idle"][k],
            requested_units=units.desired if units.desired != observed.desired else None,
            weight=units.weight,
            refused=tuple(VmRefusal(vms.names[vm], vms.may_not_go[k][vms.names[vm]]) for vm in refused_of[k]),
        )
        folds.append(
            GroupFold(
                snapshot=snapshot,
                cpu=cpu_of[k],
                cpu_warmed_up=warmed_up_of[k],
                ram=ram_of[k],
                expected=counts["expected"][k],
                reporting=counts["reporting"][k],
                unheard=counts["unheard"][k],
                busy_at_end=float(busy_at_end_of[k].sum()),
                victim_busy_at_end=float(np.nan_to_num(busy_at_end[victims[0]])) if victims else 0.0,
                newest_sample_at=newest_of[k],
                boots_s=boots_of[k],
                lost_core_s=vms.lost_core_s[k],
                failing_at=roster.ended_at if roster.ended_in_a_row >= IN_A_ROW else None,
                stuck=tuple(vms.names[vm] for vm in stuck_of[k]),
                busy_over_minute=None if unknown else float(busy_over_of[k].sum()),
                busy_now=busy_now[places[k]],
                busy_now_at=busy_now_at[places[k]],
            )
        )
    return folds


def _vms(asked: Sequence[GroupInputs], store: SeriesStore, now: float) -> _Vms:
    """Return the VMs of these groups, each in its seat, and take the seats of VMs that left."""
    instances: list[Instance] = []
    seats: list[int] = []
    rows: list[Sequence[int]] = []
    kept: list[bool] = []
    retained: list[bool] = []
    lost_core_s: list[float] = []
    may_not_go: list[dict[str, Reason]] = []
    bounds = [0]
    for one in asked:
        found = one.observed.instances
        names = [instance.vm for instance in found]
        rows_of = store.vm_rows(one.fleet, one.group.key)
        lost_core_s.append(_lost_core_s(one.roster.gone(names), rows_of, store, now))
        leaving = [instance.vm for instance in found if instance.lifecycle in _LEAVING]
        one.roster.note_ended(names, leaving, one.excused, one.observed.desired, now)
        seats += one.roster.seat(names, now)
        rows += [rows_of.get(name, _NO_ROWS) for name in names]
        stay = _may_not_go(one)
        kept += [name in stay for name in names]
        retained += [name in one.retained for name in names]
        may_not_go.append(stay)
        instances += found
        bounds.append(len(instances))
    states = [instance.lifecycle for instance in instances]
    return _Vms(
        names=[instance.vm for instance in instances],
        bounds=np.array(bounds, dtype=np.int64),
        seats=np.array(seats, dtype=np.int64),
        rows=np.array(rows, dtype=np.int64).reshape(-1, len(VM_COLUMNS)),
        pending=np.array([state is Lifecycle.PENDING for state in states], dtype=np.bool_),
        in_service=np.array([state is Lifecycle.IN_SERVICE for state in states], dtype=np.bool_),
        draining=np.array([state is Lifecycle.DRAINING for state in states], dtype=np.bool_),
        healthy=np.array([instance.healthy for instance in instances], dtype=np.bool_),
        launched=np.array([math.nan if i.launched_at is None else i.launched_at for i in instances], dtype=np.float64),
        kept=np.array(kept, dtype=np.bool_),
        retained=np.array(retained, dtype=np.bool_),
        may_not_go=may_not_go,
        lost_core_s=lost_core_s,
    )


def _may_not_go(one: GroupInputs) -> dict[str, Reason]:
    """Return the VMs that may not go and why: protected by another party, or refused by AWS not long ago."""
    foreign = (each.vm for each in one.observed.instances if each.protected and each.vm not in one.ours)
    return dict.fromkeys(foreign, Reason.PROTECTED) | dict.fromkeys(one.refused, Reason.REMOVAL_REFUSED)


def _lost_core_s(gone: Sequence[str], rows_of: Mapping[str, Sequence[int]], store: SeriesStore, now: float) -> float:
    """Return the work that these VMs reported last to have under way, where that report is not old."""
    if not gone:
        return 0.0
    rows = np.array([rows_of[vm][_WORK] for vm in gone if vm in rows_of], dtype=np.int64)
    at, work = store.latest(rows, now)
    return float(work[now - at <= LAST_WORDS_S].sum())


def _warm_since(vms: _Vms, seats: Seats, store: SeriesStore, end: float) -> Floats:
    """Return when each VM first reported, nan where it had not by `end`; only VMs not yet warm are read."""
    warm_since = seats.warm_since(vms.seats)
    cold = np.flatnonzero(np.isnan(warm_since))
    if cold.size:
        first = store.first(vms.rows[cold].ravel()).reshape(-1, len(VM_COLUMNS)).min(axis=1)
        reported = first <= end
        seats.warmed(vms.seats[cold[reported]], first[reported])
        warm_since[cold[reported]] = first[reported]
    return warm_since


def _counts(bounds: Ints, masks: Mapping[str, Mask]) -> dict[str, list[int]]:
    """Return by name how many VMs of each group are in a mask."""
    upto = np.zeros((len(masks), bounds[-1] + 1), dtype=np.int64)
    np.cumsum(np.array(list(masks.values())), axis=1, out=upto[:, 1:])
    return dict(zip(masks, np.diff(upto[:, bounds]).tolist(), strict=True))


def _parts(vms: _Vms, mask: Mask, values: Floats) -> list[Floats]:
    """Return by group the values of its VMs in a mask."""
    held = values[mask]
    return [held[start:end] for start, end in pairwise(np.searchsorted(np.flatnonzero(mask), vms.bounds).tolist())]


def _places(vms: _Vms, mask: Mask) -> list[list[int]]:
    """Return by group the places of its VMs in a mask, in order."""
    held = np.flatnonzero(mask)
    places = held.tolist()
    return [places[start:end] for start, end in pairwise(np.searchsorted(held, vms.bounds).tolist())]


def _newest(vms: _Vms, store: SeriesStore) -> list[float]:
    """Return by group the time of the newest reading of its VMs, -inf where there is none."""
    newest = np.full(vms.bounds.size - 1, NEVER)
    filled = np.flatnonzero(np.diff(vms.bounds))
    if filled.size:
        # A group without VMs begins where the next one does, so two neighbours of `filled` bound the VMs of the first.
        newest[filled] = np.maximum.reduceat(store.newest_of(vms.rows).max(axis=1), vms.bounds[filled])
    return newest.tolist()


def _first_to_go(names: list[str], candidates: list[int], loss: Floats, since: Floats) -> list[int]:
    """Return which of a group's VMs that may be removed go first: those of the least loss, at most `MAX_REMOVABLE`.

    Idle ones come first; busy ones only where a drain hook lets them finish, by least executed work. A silent one is
    not removable: it may be busy, and a drain without reports ends with the hook's time, not with the job. Ties go to
    the newest, then to the highest id. The agent's own scale-in protection does not count: it does not stop a
    termination by id.
    """
    if len(candidates) > MAX_REMOVABLE:
        held = np.array(candidates)
        last = held[np.lexsort((-since[held], loss[held]))[MAX_REMOVABLE - 1]]
        tied = (loss[held] == loss[last]) & (since[held] >= since[last])
        candidates = held[(loss[held] < loss[last]) | tied].tolist()
    by_name = sorted(candidates, key=names.__getitem__, reverse=True)
    return sorted(by_name, key=lambda vm: (loss[vm], -since[vm]))[:MAX_REMOVABLE]


def _before_one_at_work(idle: Mask, warm: Mask, since: Floats, names: list[str]) -> Mask:
    """Return which of the idle VMs go, the newest first, before one goes that is not idle."""
    newest_first = sorted(np.flatnonzero(warm).tolist(), key=lambda vm: (since[vm], names[vm]), reverse=True)
    reached = np.zeros_like(idle)
    for vm in takewhile(lambda vm: idle[vm], newest_first):
        reached[vm] = True
    return reached


def _mean(shares: Floats, exists: bool) -> float | None:
    """Return the mean of VMs' shares: 0 where there is no VM, None where there are VMs and none of them reported."""
    if shares.size:
        return min(float(shares.mean()), 1.0)
    return None if exists else 0.0


def _cooling(cooldowns: tuple[Cooldown, ...], key: str, direction: Direction, now: float) -> float:
    left = [c.remaining_s(now) for c in cooldowns if c.group == key and c.direction is direction]
    return max(left, default=0.0)


_FIRST_SEATS = 16


class Seats:
    """The memory of the VMs of all groups in parallel arrays, by the seat that a group took for each.

    It is held in memory: after a restart it is rebuilt from the cloud's launch times and from the VMs' reports.
    Times are seconds since the epoch, nan where unknown.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._taken = 0
        self._first_seen = np.full(_FIRST_SEATS, np.nan)
        self._not_before = np.full(_FIRST_SEATS, np.nan)
        self._warm_since = np.full(_FIRST_SEATS, np.nan)
        self._idle_since = np.full(_FIRST_SEATS, np.nan)
        self._boot_since = np.full(_FIRST_SEATS, np.nan)
        self._stuck_since = np.full(_FIRST_SEATS, np.nan)
        self._work = np.full(_FIRST_SEATS, np.nan)
        self._over = np.zeros(_FIRST_SEATS, dtype=np.bool_)
        self._was_pending = np.zeros(_FIRST_SEATS, dtype=np.bool_)
        self._drains = np.zeros(_FIRST_SEATS, dtype=np.bool_)

    def memory(self) -> dict[str, Any]:
        """Return its whole state, for `restore`."""
        return {
            name: value.copy() if isinstance(value, np.ndarray | list) else value
            for name, value in self.__dict__.items()
        }

    def restore(self, before: Mapping[str, Any]) -> None:
        """Return to a state of `memory`."""
        self.__dict__.update(before)

    @property
    def size(self) -> int:
        """Seats there are, taken and free."""
        return self._first_seen.size

    def take(self, now: float, not_before: float, boot_since: float) -> int:
        """Return a seat for a VM that is first seen now; not_before: when an earlier look did not show it."""
        if not self._free and self._taken == self.size:
            self._grow()
        if self._free:
            seat = self._free.pop()
        else:
            seat, self._taken = self._taken, self._taken + 1
        self._first_seen[seat], self._not_before[seat], self._boot_since[seat] = now, not_before, boot_since
        self._warm_since[seat] = self._idle_since[seat] = self._stuck_since[seat] = self._work[seat] = np.nan
        self._over[seat] = self._was_pending[seat] = self._drains[seat] = False
        return seat

    def leave(self, seat: int) -> None:
        """Give a seat back."""
        self._free.append(seat)

    def _grow(self) -> None:
        more, none = np.full(self.size, np.nan), np.zeros(self.size, dtype=np.bool_)
        self._first_seen = np.concatenate([self._first_seen, more])
        self._not_before = np.concatenate([self._not_before, more])
        self._warm_since = np.concatenate([self._warm_since, more])
        self._idle_since = np.concatenate([self._idle_since, more])
        self._boot_since = np.concatenate([self._boot_since, more])
        self._stuck_since = np.concatenate([self._stuck_since, more])
        self._work = np.concatenate([self._work, more])
        self._over = np.concatenate([self._over, none])
        self._was_pending = np.concatenate([self._was_pending, none])
        self._drains = np.concatenate([self._drains, none])

    def drains(self, seat: int) -> bool:
        """Return whether the VM was being drained at the last look."""
        return bool(self._drains[seat])

    def ended(self, seat: int) -> float | None:
        """Record that a VM without a report is over; return since when it booted.

        None where it reported, was over before, or was there at the first look: it may have reported before.
        """
        if self._over[seat] or not math.isnan(self._warm_since[seat]) or math.isnan(self._not_before[seat]):
            return None
        self._over[seat] = True
        return float(self._boot_since[seat])

    def boot_since(self, seats: Ints, since: Floats) -> Floats:
        """Return since when each VM boots, or the first of those before it that ended and that it is in place of."""
        self._boot_since[seats] = np.fmin(self._boot_since[seats], since)
        return self._boot_since[seats]

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


class GroupRoster:
    """One group's VMs, each in a seat; a VM that the cloud no longer shows loses its seat.

    ended_in_a_row: VMs that left without ever having reported, since one last did; ended_at: when the newest of them
    was found.
    """

    def __init__(self, seats: Seats) -> None:
        self.ended_in_a_row, self.ended_at = 0, 0.0
        self._all = seats
        self._ended: list[float] = []
        self._desired = 0
        self._seats: dict[str, int] = {}
        self._missing_since: list[float] = []
        self._arrived = 0
        self._seated_at: float | None = None

    def memory(self) -> dict[str, Any]:
        """Return its whole state, for `restore`; the seats themselves are in `Seats`."""
        return self.__dict__ | {"_seats": self._seats.copy(), "_ended": self._ended.copy()}

    def restore(self, before: Mapping[str, Any]) -> None:
        """Return to a state of `memory`."""
        self.__dict__.update(before)

    def leave(self) -> None:
        """Give all seats back."""
        for seat in self._seats.values():
            self._all.leave(seat)

    def seat(self, vms: Sequence[str], now: float) -> list[int]:
        """Return the seats of these VMs; new ones are first seen now, those not named lose theirs."""
        before, self._seated_at = self._seated_at, now
        seats = [self._seats.get(vm, -1) for vm in vms]
        self._arrived = seats.count(-1)
        if self._arrived:
            seats = [
                self._take_seat(vm, now, before) if seat < 0 else seat for vm, seat in zip(vms, seats, strict=True)
            ]
        if len(self._seats) > len(seats):
            for vm in self._seats.keys() - set(vms):
                self._all.leave(self._seats.pop(vm))
        return seats

    def _take_seat(self, vm: str, now: float, before: float | None) -> int:
        known = self._seats.get(vm)
        if known is not None:
            return known
        boot_since = self._ended.pop(0) if self._ended and before is not None else math.nan
        seat = self._seats[vm] = self._all.take(now, math.nan if before is None else before, boot_since)
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
            since = self._all.ended(self._seats[vm])
            if since is not None and vm not in excused:
                ended.append(since)
        ended = sorted(ended)[: max(0, len(ended) - shrunk)]
        if ended:
            self.ended_in_a_row, self.ended_at = self.ended_in_a_row + len(ended), now
            self._ended = sorted([*self._ended, *ended])

    def gone(self, vms: Collection[str]) -> list[str]:
        """Return the VMs in seats that are not among these and were not being drained at the last look."""
        present = set(vms)
        return [vm for vm, seat in self._seats.items() if vm not in present and not self._all.drains(seat)]

    def clock_stepped(self, step_s: float) -> None:
        """Shift all times by a step of the wall clock."""
        self._ended, self.ended_at = [since + step_s for since in self._ended], self.ended_at + step_s
        self._missing_since = [since + step_s for since in self._missing_since]
        if self._seated_at is not None:
            self._seated_at += step_s

    def missing_since(self, missing: int, now: float) -> list[float]:
        """Record the number of VMs that the group requests and lacks; return since when each of them is missing.

        Those missing longest are assumed to have arrived with the last `seat`.
        """
        still = self._missing_since[self._arrived :]
        still = still[-missing:] if missing > 0 else []
        self._arrived = 0
        self._ended = self._ended[: max(0, missing)]
        new = (self._ended + [now] * missing)[: missing - len(still)] if missing > len(still) else []
        self._missing_since = sorted([*(min(since, now) for since in still), *new])
        return self._missing_since
