"""The orders of a policy to one copy and their acceptance: limits, minimum, cool-downs, masks (§4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.configuration import REMOVAL, CooldownScope, RemovalChoice, RemovalMode
from simulator.autoscaling.fleet import cancel_boot, draw, request, withdraw
from simulator.autoscaling.jobs import evict, work_lost
from simulator.autoscaling.memory import Copy, Records, count_at, kind_at, ready_slot, settings_of, vm_at
from simulator.compilation import borrowing

_PER_TYPE = list(CooldownScope).index(CooldownScope.PER_TYPE)
_PER_DIRECTION = list(CooldownScope).index(CooldownScope.PER_DIRECTION)
_NEWEST = list(RemovalChoice).index(RemovalChoice.NEWEST)
_LEAST_WORK_LOST = list(RemovalChoice).index(RemovalChoice.LEAST_WORK_LOST)
_DRAIN = list(RemovalMode).index(RemovalMode.DRAIN)
_CHANGES = np.array(MULTI_CHANGES, dtype=np.int64)
CHANGES = len(MULTI_CHANGES)


@borrowing
def cooldown_left(copy: Copy, kind: int, out: bool) -> float:
    """Return the seconds until a type may be changed again in a direction (out: more VMs)."""
    settings, count = settings_of(copy), count_at(copy, kind)
    if settings.cooldown_scope == _PER_DIRECTION:
        last = count.added_at if out else count.removed_at
    elif settings.cooldown_scope == _PER_TYPE:
        last = max(count.added_at, count.removed_at)
    else:
        last = -np.inf
        for other in range(copy.kinds):
            last = max(last, count_at(copy, other).added_at, count_at(copy, other).removed_at)
    return float(max(last + settings.cooldown_s - copy.now, 0.0))


@borrowing
def _may_add(copy: Copy, kind: int) -> bool:
    return bool(count_at(copy, kind).present < kind_at(copy, kind).limit)


@borrowing
def _may_remove(copy: Copy, kind: int) -> bool:
    count = count_at(copy, kind)
    booting = count.booting if settings_of(copy).cancel_booting else 0
    return bool(count.ready + booting > kind_at(copy, kind).minimum)


@borrowing
def victim(copy: Copy, kind: int, really: bool) -> int:
    """Return the slot of the ready VM of a type that goes next, -1 for none; a real random choice uses up its draw."""
    choice = settings_of(copy).removal_choice
    candidates = count_at(copy, kind).ready
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
        slot = ready_slot(copy, place)
        if vm_at(copy, slot).kind != kind:
            continue
        if choice == _LEAST_WORK_LOST:
            lost = work_lost(copy, slot)
            if chosen < 0 or lost < least:
                chosen, least = slot, lost
        elif skip > 0:
            skip -= 1
        else:
            return slot
    return chosen


@borrowing
def _remove(copy: Copy, kind: int) -> None:
    settings, count = settings_of(copy), count_at(copy, kind)
    if settings.cancel_booting and count.booting > 0:
        cancel_boot(copy, kind)
        return
    slot = victim(copy, kind, True)
    withdraw(copy, slot)
    if settings.removal_mode != _DRAIN:
        evict(copy, slot)


@borrowing
def begin_orders(copy: Copy) -> None:
    """Note which types are cooling down as the step begins, and forget the last step's outcome."""
    cooling = settings_of(copy).cooldown_s > 0
    for kind in range(copy.kinds):
        count = count_at(copy, kind)
        count.step_added = count.step_removed = count.step_refused = 0
        if cooling:
            count.cooling_out = cooldown_left(copy, kind, True) > 0
            count.cooling_in = cooldown_left(copy, kind, False) > 0


@borrowing
def carry_out(copy: Copy, kind: int, change: int) -> None:
    """Add or remove VMs of a type one by one; each is accepted or refused on its own."""
    count = count_at(copy, kind)
    for _ in range(abs(change)):
        if change > 0 and not count.cooling_out and _may_add(copy, kind):
            request(copy, kind)
            count.step_added += 1
            count.added += 1
            count.added_at = copy.now
        elif change < 0 and not count.cooling_in and _may_remove(copy, kind):
            _remove(copy, kind)
            count.step_removed += 1
            count.removed += 1
            count.removed_at = copy.now
        else:
            count.step_refused += 1
            count.refused += 1


@borrowing
def carry_out_index(copy: Copy, action: int) -> None:
    """Carry out an act-7 index: 0 nothing, 2k + 1 add one VM of type k, 2k + 2 remove one."""
    if action > 0:
        carry_out(copy, (action - 1) // 2, 1 if action % 2 == 1 else -1)


@borrowing
def carry_out_changes(copy: Copy, indices: NDArray[np.int64], row: int) -> None:
    """Carry out a row of changes, as indices into MULTI_CHANGES: removals first, larger types first in both."""
    kinds = copy.kinds
    for sign in (-1, 1):
        for place in range(kinds):
            kind = kind_at(copy, place).by_size
            change = _CHANGES[indices[row, kind]]
            if change * sign > 0:
                carry_out(copy, kind, change)


@borrowing
def write_mask(copy: Copy, multi: bool, out: NDArray[np.bool_], row: int) -> None:
    """Write a row of `out`: which actions would have an effect now, 1 + 2N of them, or 7N for changes per type."""
    cooling = settings_of(copy).cooldown_s > 0
    out[row, 0] = True
    for kind in range(copy.kinds):
        add = _may_add(copy, kind) and not (cooling and cooldown_left(copy, kind, True) > 0)
        remove = _may_remove(copy, kind) and not (cooling and cooldown_left(copy, kind, False) > 0)
        if not multi:
            out[row, 2 * kind + 1] = add
            out[row, 2 * kind + 2] = remove
            continue
        for index in range(CHANGES):
            change = _CHANGES[index]
            out[row, CHANGES * kind + index] = change == 0 or (add if change > 0 else remove)


@borrowing
def write_masks(copies: Records, multi: bool, out: NDArray[np.bool_]) -> None:
    """Write the mask of every copy, one per row."""
    for b in range(copies.shape[0]):
        write_mask(copies[b], multi, out, b)
