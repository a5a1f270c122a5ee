"""The VMs of one copy: requested, booting, ready, draining, gone, and what each of these costs."""

from __future__ import annotations

import math

import numpy as np

from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.layout import (
    BOOTING,
    BOOTING_LIST,
    DRAINING,
    FREE_LIST,
    GONE,
    READY,
    READY_LIST,
    Worlds,
)
from simulator.autoscaling.philox import draw
from simulator.reference.configuration import Billing
from simulator.reference.streams import BOOT

_HOUR_MS = 3_600_000
_MINIMUM_CHARGE_MS = 60_000
_BY_STEP, _BY_SECOND = list(Billing).index(Billing.STEP), list(Billing).index(Billing.EXACT)


@compiled
def count_busy(w: Worlds, b: int, slot: int) -> None:
    """Bring the integral of a VM's busy cores up to now."""
    now, vm, meter = w.copies[b].now, w.vms[b, slot], w.meters[b, slot]
    meter.busy_core_s += (vm.cores - vm.free) * (now - meter.counted_to)
    meter.counted_to = now


@compiled
def new_vm(w: Worlds, b: int, kind: int) -> int:
    """Take a slot for a VM requested now and return it; the caller boots it or makes it ready."""
    copy, of_kind = w.copies[b], w.kinds[kind]
    copy.free_slots -= 1
    slot = w.slots[b, FREE_LIST, copy.free_slots]
    vm, meter = w.vms[b, slot], w.meters[b, slot]
    vm.number, vm.kind, vm.cores = copy.next_number, kind, of_kind.cores
    vm.free, vm.jobs, vm.state = 0, 0, BOOTING
    vm.used_ram_gb = 0.0
    meter.requested_at, meter.billed_ms = copy.now, 0
    meter.busy_core_s = meter.step_busy_core_s = meter.counted_to = 0.0
    meter.cpu_readings = meter.ram_readings = 0.0
    meter.readings = 0
    copy.next_number += 1
    copy.rate_micro += of_kind.price_micro
    w.counts[b, kind].present += 1
    return int(slot)


@compiled
def request(w: Worlds, b: int, kind: int) -> None:
    """Request a VM of a type; it is ready after a boot time drawn now (§2.4, §2.5)."""
    copy, count, of_kind = w.copies[b], w.counts[b, kind], w.kinds[kind]
    slot = new_vm(w, b, kind)
    share = draw(copy.seed, BOOT, kind, count.requests)
    count.requests += 1
    low, high = of_kind.boot_low_s, of_kind.boot_high_s
    ready_at = copy.now + low + (high - low) * share
    w.vms[b, slot].ready_at = ready_at
    w.slots[b, BOOTING_LIST, copy.booting] = slot
    copy.booting += 1
    count.booting += 1
    copy.next_boot = min(copy.next_boot, ready_at)


@compiled
def make_ready(w: Worlds, b: int, slot: int) -> None:
    """Let a VM take jobs from now on."""
    copy, vm, meter, settings = w.copies[b], w.vms[b, slot], w.meters[b, slot], w.settings[0]
    vm.state = READY
    vm.ready_at = vm.idle_since = meter.counted_to = copy.now
    vm.free = vm.cores
    vm.used_ram_gb = settings.base_ram_gb
    slots = w.slots[b, READY_LIST]
    place = copy.ready
    while place > 0 and w.vms[b, slots[place - 1]].number > vm.number:
        slots[place] = slots[place - 1]
        place -= 1
    slots[place] = slot
    copy.ready += 1
    w.counts[b, vm.kind].ready += 1
    copy.free_cores += vm.cores
    copy.ready_cores += vm.cores
    if copy.burst_open and copy.burst_since < math.inf:
        copy.bursts_answered += 1
        copy.burst_wait_s += copy.now - copy.burst_since
        copy.burst_since = math.inf


@compiled
def _leave_boot(w: Worlds, b: int, place: int) -> int:
    """Take an entry out of the list of booting VMs and return its slot."""
    copy = w.copies[b]
    slots = w.slots[b, BOOTING_LIST]
    slot = slots[place]
    copy.booting -= 1
    slots[place] = slots[copy.booting]
    w.counts[b, w.vms[b, slot].kind].booting -= 1
    copy.next_boot = math.inf
    for other in range(copy.booting):
        copy.next_boot = min(copy.next_boot, w.vms[b, slots[other]].ready_at)
    return int(slot)


@compiled
def end_boots(w: Worlds, b: int) -> None:
    """Make every VM ready whose boot ends now."""
    copy = w.copies[b]
    while copy.next_boot == copy.now:
        place = 0
        while w.vms[b, w.slots[b, BOOTING_LIST, place]].ready_at != copy.now:
            place += 1
        make_ready(w, b, _leave_boot(w, b, place))


@compiled
def cancel_boot(w: Worlds, b: int, kind: int) -> None:
    """Take back the newest booting VM of a type."""
    newest = -1
    for place in range(w.copies[b].booting):
        vm = w.vms[b, w.slots[b, BOOTING_LIST, place]]
        if vm.kind == kind and (newest < 0 or vm.number > w.vms[b, w.slots[b, BOOTING_LIST, newest]].number):
            newest = place
    depart(w, b, _leave_boot(w, b, newest))


@compiled
def leave_ready(w: Worlds, b: int, slot: int) -> None:
    """Take a VM out of the ready ones, with its cores; what runs on it is the caller's to settle."""
    copy, vm = w.copies[b], w.vms[b, slot]
    slots = w.slots[b, READY_LIST]
    copy.ready -= 1
    place = 0
    while slots[place] != slot:
        place += 1
    while place < copy.ready:
        slots[place] = slots[place + 1]
        place += 1
    w.counts[b, vm.kind].ready -= 1
    copy.ready_cores -= vm.cores
    copy.free_cores -= vm.free


@compiled
def drain(w: Worlds, b: int, slot: int) -> None:
    """Let a VM that is no longer among the ready ones leave when its last job ends."""
    vm = w.vms[b, slot]
    vm.state = DRAINING
    w.copies[b].busy_cores -= vm.cores - vm.free


@compiled
def depart(w: Worlds, b: int, slot: int) -> None:
    """Give a VM back, paying what it owes up to now."""
    copy, vm, settings = w.copies[b], w.vms[b, slot], w.settings[0]
    if settings.billing != _BY_STEP:
        copy.step_rent += owed(w, b, slot)
    vm.state = GONE
    copy.rate_micro -= w.kinds[vm.kind].price_micro
    w.counts[b, vm.kind].present -= 1
    w.slots[b, FREE_LIST, copy.free_slots] = slot
    copy.free_slots += 1


@compiled
def owed(w: Worlds, b: int, slot: int) -> int:
    """Bring a VM's bill up to now, by seconds or by hours begun, and return what that adds, in units (§5)."""
    settings, vm, meter = w.settings[0], w.vms[b, slot], w.meters[b, slot]
    since = vm.ready_at if settings.bill_from_ready else meter.requested_at
    until = w.copies[b].now
    if until < since:
        return 0
    owed_ms = np.int64(np.rint((until - since) * 1000))
    if settings.billing == _BY_SECOND:
        owed_ms = max(owed_ms, _MINIMUM_CHARGE_MS)
    else:
        owed_ms = max(-(-owed_ms // _HOUR_MS), 1) * _HOUR_MS
    added_ms = max(owed_ms - meter.billed_ms, 0)
    meter.billed_ms += added_ms
    return int(w.kinds[vm.kind].price_micro * added_ms)
