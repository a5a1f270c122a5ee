"""One group over one minute: who is warm, booting, overdue, silent, idle, removable, and what the VMs measured."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.autoscaling.snapshot.fold import BinFold
from agent.autoscaling.snapshot.roster import GroupRoster
from agent.autoscaling.snapshot.series import ABSENT_ROW, VM_COLUMNS, SeriesStore
from agent.autoscaling.state import Cooldown
from agent.rails.base import RailLimits
from domain.decisions import Direction
from domain.fleet import Group
from domain.observed import GroupObserved, Lifecycle
from domain.samples import VmMetric
from domain.snapshot import GroupSnapshot

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MAX_REMOVABLE = 50
"""Candidates listed per group: far more than one decision may remove."""

_CPU = VM_COLUMNS.index(VmMetric.CPU_PERCENT)
_RAM = VM_COLUMNS.index(VmMetric.RAM_PERCENT)
_BUSY = VM_COLUMNS.index(VmMetric.BUSY_CORES)
_WORK = VM_COLUMNS.index(VmMetric.WORK_CORE_SECONDS)
_NO_ROWS = (ABSENT_ROW,) * len(VM_COLUMNS)


@dataclass(frozen=True, slots=True)
class GroupFold:
    """A group's snapshot and what the fleet's figures need of it.

    cpu, ram: 0..1 of each VM with enough samples, any order. cpu_warmed_up: of those older than the warm-up.
    expected: warm VMs that should have reported enough; reporting: those that did. unheard: VMs in service that
    should have reported by now and never did. busy_at_end, victim_busy_at_end: busy cores at the last reading of the
    minute, of all warm VMs and of the first removable one.
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


@dataclass(frozen=True, slots=True)
class _Vms:
    """The group's VMs as parallel arrays; `rows` is of shape (VMs, metrics)."""

    names: list[str]
    rows: Ints
    pending: Mask
    in_service: Mask
    healthy: Mask
    launched: Floats


def fold_group(
    group: Group,
    fleet: str,
    observed: GroupObserved,
    store: SeriesStore,
    roster: GroupRoster,
    fold: BinFold,
    cooldowns: tuple[Cooldown, ...],
    limits: RailLimits,
    min_samples: int,
    idle_s: float,
    warm_up_s: float,
    removes_newest: bool,
    now: float,
) -> GroupFold:
    """Fold one group; the terms are those of `GroupSnapshot`.

    A VM has reported when any of its series holds a reading up to the end of the minute. One that first did so within
    this minute is warm, and is left out of the means when it has too few samples, but is not silent and lowers no
    coverage: it could not have had more. Idle means that every reading of busy cores in the minute and the latest one
    are zero.
    """
    vms = _vms(fleet, group, observed, store)
    seats = roster.seat(vms.names, now)
    since = roster.since(seats, vms.launched)
    age = now - since

    warm_since = _warm_since(vms, seats, store, roster, fold.end)
    warm = vms.in_service & ~np.isnan(warm_since)
    newly = warm & (warm_since > fold.start)

    cpu_counts, cpu = fold.at(vms.rows[:, _CPU])
    ram_counts, ram = fold.at(vms.rows[:, _RAM])
    busy_counts, busy = fold.at(vms.rows[:, _BUSY])
    _, busy_at_end = store.latest(vms.rows[:, _BUSY], fold.end)
    _, busy_now = store.latest(vms.rows[:, _BUSY], now)
    reporting = warm & (cpu_counts >= min_samples)
    silent = warm & ~reporting & ~newly

    known = busy_counts > 0
    idle = known & (busy == 0.0) & (busy_now == 0.0)
    idle_since = roster.idle_since(seats, known & ~idle, idle, fold.start)
    idle_long = warm & (fold.end - idle_since >= idle_s)
    if removes_newest:
        idle_long = _before_one_at_work(idle_long, warm, since, vms.names)

    unwarmed = (vms.in_service | vms.pending) & ~warm
    late = unwarmed & (age > limits.boot_deadline_s)
    missing_for = now - roster.missing_since(observed.desired - int((vms.in_service | vms.pending).sum()), now)
    missing_late = int((missing_for > limits.boot_deadline_s).sum())

    mature = warm & (age >= limits.min_lifetime_s)
    allowed, drains = mature & vms.healthy & ~silent, observed.drain_hook is not None
    victims = _removable(vms, store, allowed, idle, since, drains, removes_newest, now)
    # After a restart of ours no report is old, but a VM launched so long ago has warmed up all the same.
    warmed_up = (fold.end - warm_since >= warm_up_s) | (age >= warm_up_s + limits.boot_deadline_s)
    ram_usable = reporting & (ram_counts >= min_samples)
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
        cooldown_out_s=_cooling(cooldowns, group.key, Direction.OUT, now),
        cooldown_in_s=_cooling(cooldowns, group.key, Direction.IN, now),
    )
    return GroupFold(
        snapshot=snapshot,
        cpu=cpu[reporting] / 100.0,
        cpu_warmed_up=cpu[reporting & warmed_up] / 100.0,
        ram=ram[ram_usable] / 100.0,
        expected=int((warm & (reporting | ~newly)).sum()),
        reporting=int(reporting.sum()),
        unheard=int((late & vms.in_service).sum()),
        busy_at_end=float(busy_at_end[warm & known].sum()),
        victim_busy_at_end=float(np.nan_to_num(busy_at_end[victims[0]])) if victims else 0.0,
        newest_sample_at=store.newest(vms.rows),
    )


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
        healthy=np.array([instance.healthy for instance in instances], dtype=np.bool_),
        launched=np.array([math.nan if i.launched_at is None else i.launched_at for i in instances], dtype=np.float64),
    )


def _warm_since(vms: _Vms, seats: Ints, store: SeriesStore, roster: GroupRoster, end: float) -> Floats:
    """Return when each VM first reported, nan where it had not by `end`; only VMs not yet warm are looked up."""
    warm_since = roster.warm_since(seats)
    cold = np.flatnonzero(np.isnan(warm_since))
    if cold.size:
        first = store.first(vms.rows[cold].ravel()).reshape(-1, len(VM_COLUMNS)).min(axis=1)
        heard = first <= end
        roster.warmed(seats[cold[heard]], first[heard])
        warm_since[cold[heard]] = first[heard]
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
    none: it may be at work, and a drain that nobody reports on ends with the hook's time, not with the job. Ties go to
    the newest, then to the highest id. Scale-in protection does not count here: it is ours, and the actuator lifts it
    from a victim.
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
    """Return the busy cores of the VMs that are not silent; None when one of them does not say, or all are silent."""
    if unknown.any() or (exists and not known.any()):
        return None
    return float(busy[known].sum())


def _cooling(cooldowns: tuple[Cooldown, ...], key: str, direction: Direction, now: float) -> float:
    left = [c.remaining_s(now) for c in cooldowns if c.group == key and c.direction is direction]
    return max(left, default=0.0)
