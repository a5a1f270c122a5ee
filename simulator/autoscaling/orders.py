"""What a policy may ask of one copy and what of it is accepted: limits, minimum, cool-downs, masks (§4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.fleet import cancel_boot, depart, drain, leave_ready, request
from simulator.autoscaling.jobs import count_busy, interrupt_all, work_lost
from simulator.autoscaling.layout import READY_LIST, Worlds
from simulator.autoscaling.philox import draw
from simulator.reference.actions import MULTI_CHANGES
from simulator.reference.configuration import CooldownScope, CpuSampling, RemovalChoice, RemovalMode
from simulator.reference.streams import REMOVAL

_PER_TYPE = list(CooldownScope).index(CooldownScope.PER_TYPE)
_PER_DIRECTION = list(CooldownScope).index(CooldownScope.PER_DIRECTION)
_NEWEST = list(RemovalChoice).index(RemovalChoice.NEWEST)
_LEAST_WORK_LOST = list(RemovalChoice).index(RemovalChoice.LEAST_WORK_LOST)
_DRAIN = list(RemovalMode).index(RemovalMode.DRAIN)
_AVERAGE = list(CpuSampling).index(CpuSampling.AVERAGE)
_CHANGES = np.array(MULTI_CHANGES, dtype=np.int64)
CHANGES = len(MULTI_CHANGES)


@compiled
def cooldown_left(w: Worlds, b: int, kind: int, out: bool) -> float:
    """Return the seconds until a type may be changed again in a direction (out: more VMs)."""
    settings, count = w.settings[0], w.counts[b, kind]
    if settings.cooldown_scope == _PER_DIRECTION:
        last = count.added_at if out else count.removed_at
    elif settings.cooldown_scope == _PER_TYPE:
        last = max(count.added_at, count.removed_at)
    else:
        last = -np.inf
        for other in range(w.kinds.shape[0]):
            last = max(last, w.counts[b, other].added_at, w.counts[b, other].removed_at)
    return float(max(last + settings.cooldown_s - w.copies[b].now, 0.0))


@compiled
def _may_add(w: Worlds, b: int, kind: int) -> bool:
    return bool(w.counts[b, kind].present < w.kinds[kind].limit)


@compiled
def _may_remove(w: Worlds, b: int, kind: int) -> bool:
    count = w.counts[b, kind]
    booting = count.booting if w.settings[0].cancel_booting else 0
    return bool(count.ready + booting > w.kinds[kind].minimum)


@compiled
def victim(w: Worlds, b: int, kind: int, really: bool) -> int:
    """Return the slot of the ready VM of a type that goes next, -1 for none; a real random choice uses up its draw."""
    copy, slots, choice = w.copies[b], w.slots[b, READY_LIST], w.settings[0].removal_choice
    candidates = w.counts[b, kind].ready
    if candidates == 0:
        return -1
    skip = 0
    if choice != _NEWEST and choice != _LEAST_WORK_LOST:
        share = draw(copy.seed, REMOVAL, 0, copy.removal_draws)
        skip = candidates - 1 - int(share * candidates)
        if really:
            copy.removal_draws += 1
    chosen, least = -1, np.inf
    for place in range(copy.ready - 1, -1, -1):
        slot = slots[place]
        if w.vms[b, slot].kind != kind:
            continue
        if choice == _LEAST_WORK_LOST:
            lost = work_lost(w, b, slot)
            if chosen < 0 or lost < least:
                chosen, least = slot, lost
        elif skip > 0:
            skip -= 1
        else:
            return int(slot)
    return int(chosen)


@compiled
def _remove(w: Worlds, b: int, kind: int) -> None:
    settings, count = w.settings[0], w.counts[b, kind]
    if settings.cancel_booting and count.booting > 0:
        cancel_boot(w, b, kind)
        return
    slot = victim(w, b, kind, True)
    leave_ready(w, b, slot)
    if settings.cpu_sampling == _AVERAGE:
        count_busy(w, b, slot)
    if settings.removal_mode == _DRAIN and w.vms[b, slot].jobs > 0:
        drain(w, b, slot)
        return
    interrupt_all(w, b, slot)
    depart(w, b, slot)


@compiled
def begin_orders(w: Worlds, b: int) -> None:
    """Note which types are cooling down as the step begins, and forget the last step's outcome."""
    cooling = w.settings[0].cooldown_s > 0
    for kind in range(w.kinds.shape[0]):
        count = w.counts[b, kind]
        count.step_added = count.step_removed = count.step_refused = 0
        count.cooling_out = cooling and cooldown_left(w, b, kind, True) > 0
        count.cooling_in = cooling and cooldown_left(w, b, kind, False) > 0


@compiled
def carry_out(w: Worlds, b: int, kind: int, change: int) -> None:
    """Add or remove VMs of a type one by one; each is accepted or refused on its own."""
    copy, count = w.copies[b], w.counts[b, kind]
    for _ in range(abs(change)):
        if change > 0 and not count.cooling_out and _may_add(w, b, kind):
            request(w, b, kind)
            count.step_added += 1
            count.added_at = copy.now
        elif change < 0 and not count.cooling_in and _may_remove(w, b, kind):
            _remove(w, b, kind)
            count.step_removed += 1
            count.removed_at = copy.now
        else:
            count.step_refused += 1


@compiled
def carry_out_index(w: Worlds, b: int, action: int) -> None:
    """Carry out an act-7 index: 0 nothing, 2k + 1 add one VM of type k, 2k + 2 remove one."""
    if action > 0:
        carry_out(w, b, (action - 1) // 2, 1 if action % 2 == 1 else -1)


@compiled
def carry_out_changes(w: Worlds, b: int, indices: NDArray[np.int64]) -> None:
    """Carry out a change per type, given by index into MULTI_CHANGES: removals first, larger types first in both."""
    kinds = w.kinds.shape[0]
    for sign in (-1, 1):
        for place in range(kinds):
            kind = w.kinds[place].by_size
            change = _CHANGES[indices[kind]]
            if change * sign > 0:
                carry_out(w, b, kind, change)


@compiled
def write_masks(w: Worlds, multi: bool, out: NDArray[np.bool_]) -> None:
    """Write per copy which actions would have an effect now: shape (B, 1 + 2N), or (B, 7N) for changes per type."""
    kinds = w.kinds.shape[0]
    cooling = w.settings[0].cooldown_s > 0
    for b in range(w.copies.shape[0]):
        out[b, 0] = True
        for kind in range(kinds):
            add = _may_add(w, b, kind) and not (cooling and cooldown_left(w, b, kind, True) > 0)
            remove = _may_remove(w, b, kind) and not (cooling and cooldown_left(w, b, kind, False) > 0)
            if not multi:
                out[b, 2 * kind + 1] = add
                out[b, 2 * kind + 2] = remove
                continue
            for index in range(CHANGES):
                change = _CHANGES[index]
                out[b, CHANGES * kind + index] = change == 0 or (add if change > 0 else remove)
