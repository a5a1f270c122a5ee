"""The VMs of one copy: requested, booting, ready, draining, gone, their random draws, and their cost."""

from __future__ import annotations

import math

import numpy as np

from domain.units import HOUR_MS, HOUR_S
from simulator.autoscaling.configuration import BOOT, RECLAIM, Billing
from simulator.autoscaling.memory import (
    BOOTING,
    DRAINING,
    GONE,
    READY,
    Copy,
    boot_at,
    booting_at,
    booting_slot,
    count_at,
    free_slot_at,
    kind_at,
    meter_at,
    ready_at,
    ready_slot,
    settings_of,
    vm_at,
    whole,
)
from simulator.compilation import borrowing

# Philox-4x64-10 of Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3 (2011), as numpy seeds
# and reads it: key (seed, stream and kind), one counter block per four draws, counted from 1. The numbers are those
# of `simulator.autoscaling.twin_world`.
_M0, _M1 = np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157)
_W0, _W1 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBB67AE8584CAA73B)
_LOW = np.uint64(0xFFFFFFFF)
_32, _11 = np.uint64(32), np.uint64(11)


@borrowing
def _high(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return the upper 64 bits of a product."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _32, b & _LOW, b >> _32
    middle = a_high * b_low + ((a_low * b_low) >> _32)
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _32) + (other >> _32)


@borrowing
def draw(seed: np.uint64, stream: int, kind: int, index: int) -> float:
    """Return draw number `index` (from 0) of a stream, in [0, 1) (autoscaler specification §2.5)."""
    key0, key1 = np.uint64(seed), np.uint64((stream << 32) | kind)
    c0, c1 = np.uint64(index // 4 + 1), np.uint64(0)
    c2, c3 = np.uint64(0), np.uint64(0)
    for _ in range(10):
        high0, low0, high1, low1 = _high(_M0, c0), _M0 * c0, _high(_M1, c2), _M1 * c2
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = key0 + _W0, key1 + _W1
    lane = index % 4
    word = c0 if lane == 0 else c1 if lane == 1 else c2 if lane == 2 else c3
    return float(word >> _11) * (1.0 / 9007199254740992.0)


_MINIMUM_CHARGE_MS = 60_000
_BY_STEP, _BY_SECOND = list(Billing).index(Billing.STEP), list(Billing).index(Billing.EXACT)


@borrowing
def count_busy(copy: Copy, slot: int) -> None:
    """Bring the integral of a VM's busy cores up to now."""
    now, vm, meter = copy.now, vm_at(copy, slot), meter_at(copy, slot)
    meter.busy_core_s += (vm.cores - vm.free - vm.starting) * (now - meter.counted_to)
    meter.counted_to = now


@borrowing
def new_vm(copy: Copy, kind: int) -> int:
    """Take a slot for a VM requested now and return it; the caller boots it or makes it ready."""
    of_kind = kind_at(copy, kind)
    copy.free_slots -= 1
    slot: int = whole(free_slot_at(copy, copy.free_slots).slot)
    vm, meter = vm_at(copy, slot), meter_at(copy, slot)
    vm.number, vm.kind, vm.cores = copy.next_number, kind, of_kind.cores
    vm.free, vm.starting, vm.jobs, vm.state = 0, 0, 0, BOOTING
    vm.used_ram_gb = 0.0
    meter.requested_at, meter.billed_ms = copy.now, 0
    meter.busy_core_s = meter.step_busy_core_s = meter.counted_to = 0.0
    meter.cpu_readings = meter.ram_readings = 0.0
    meter.readings = 0
    meter.notice_at = meter.taken_at = math.inf
    meter.freed_at = -math.inf
    copy.next_number += 1
    copy.rate_micro += of_kind.price_micro
    count_at(copy, kind).present += 1
    return slot


@borrowing
def request(copy: Copy, kind: int) -> None:
    """Request a VM of a type; it is ready after a boot time drawn now (§2.4, §2.5)."""
    count, of_kind = count_at(copy, kind), kind_at(copy, kind)
    slot = new_vm(copy, kind)
    share = draw(copy.seed, BOOT, kind, count.requests)
    count.requests += 1
    place = share * (of_kind.boots - 1)
    below = min(int(place), of_kind.boots - 2)
    low, high = boot_at(of_kind, below).seconds, boot_at(of_kind, below + 1).seconds
    due = copy.now + low + (high - low) * (place - below)
    vm_at(copy, slot).ready_at = due
    booting_at(copy, copy.booting).slot = slot
    copy.booting += 1
    count.booting += 1
    copy.next_boot = min(copy.next_boot, due)


@borrowing
def make_ready(copy: Copy, slot: int) -> None:
    """Let a VM take jobs from now on."""
    vm, meter, settings = vm_at(copy, slot), meter_at(copy, slot), settings_of(copy)
    vm.state = READY
    vm.ready_at = vm.idle_since = meter.counted_to = copy.now
    vm.free = vm.cores
    vm.used_ram_gb = settings.base_ram_gb
    place = copy.ready
    while place > 0 and vm_at(copy, ready_slot(copy, place - 1)).number > vm.number:
        ready_at(copy, place).slot = ready_slot(copy, place - 1)
        place -= 1
    ready_at(copy, place).slot = slot
    copy.ready += 1
    count, of_kind = count_at(copy, vm.kind), kind_at(copy, vm.kind)
    count.ready += 1
    copy.free_cores += vm.cores
    copy.ready_cores += vm.cores
    if of_kind.reclaims_per_hour > 0:
        share = draw(copy.seed, RECLAIM, whole(vm.kind), count.made)
        meter.notice_at = copy.now - math.log1p(-share) * HOUR_S / of_kind.reclaims_per_hour
        copy.next_reclaim = min(copy.next_reclaim, meter.notice_at)
        copy.next_rare = min(copy.next_reclaim, copy.next_start)
    count.made += 1
    if copy.burst_open and copy.burst_since < math.inf:
        copy.bursts_answered += 1
        copy.burst_wait_s += copy.now - copy.burst_since
        copy.burst_since = math.inf


@borrowing
def _leave_boot(copy: Copy, place: int) -> int:
    """Take an entry out of the list of booting VMs and return its slot."""
    slot = booting_slot(copy, place)
    copy.booting -= 1
    booting_at(copy, place).slot = booting_slot(copy, copy.booting)
    count_at(copy, vm_at(copy, slot).kind).booting -= 1
    copy.next_boot = math.inf
    for other in range(copy.booting):
        copy.next_boot = min(copy.next_boot, vm_at(copy, booting_slot(copy, other)).ready_at)
    return slot


@borrowing
def end_boots(copy: Copy) -> None:
    """Make every VM ready whose boot ends now, in request order."""
    while copy.next_boot == copy.now:
        first = -1
        for place in range(copy.booting):
            vm = vm_at(copy, booting_slot(copy, place))
            if vm.ready_at == copy.now and (first < 0 or vm.number < vm_at(copy, booting_slot(copy, first)).number):
                first = place
        make_ready(copy, _leave_boot(copy, first))


@borrowing
def cancel_boot(copy: Copy, kind: int) -> None:
    """Take back the newest booting VM of a type."""
    newest = -1
    for place in range(copy.booting):
        vm = vm_at(copy, booting_slot(copy, place))
        if vm.kind == kind and (newest < 0 or vm.number > vm_at(copy, booting_slot(copy, newest)).number):
            newest = place
    depart(copy, _leave_boot(copy, newest))


@borrowing
def withdraw(copy: Copy, slot: int) -> None:
    """Give a ready VM no more jobs; it leaves when it has none, which may be now."""
    vm = vm_at(copy, slot)
    copy.ready -= 1
    place = 0
    while ready_slot(copy, place) != slot:
        place += 1
    while place < copy.ready:
        ready_at(copy, place).slot = ready_slot(copy, place + 1)
        place += 1
    count_at(copy, vm.kind).ready -= 1
    copy.ready_cores -= vm.cores
    copy.free_cores -= vm.free
    copy.busy_cores -= vm.cores - vm.free - vm.starting
    vm.state = DRAINING
    if vm.free == vm.cores:
        depart(copy, slot)


@borrowing
def depart(copy: Copy, slot: int) -> None:
    """Give a VM back, paying what it owes up to now."""
    vm, meter = vm_at(copy, slot), meter_at(copy, slot)
    if settings_of(copy).billing != _BY_STEP:
        copy.step_rent += owed(copy, slot)
    vm.state = GONE
    copy.rate_micro -= kind_at(copy, vm.kind).price_micro
    count_at(copy, vm.kind).present -= 1
    free_slot_at(copy, copy.free_slots).slot = slot
    copy.free_slots += 1
    if meter.notice_at < math.inf or meter.taken_at < math.inf:
        find_next_reclaim(copy)


@borrowing
def find_next_reclaim(copy: Copy) -> None:
    """Note when the provider next gives notice to a spot VM or takes one back."""
    copy.next_reclaim = math.inf
    for slot in range(copy.vm_slots):
        if vm_at(copy, slot).state >= READY:
            meter = meter_at(copy, slot)
            copy.next_reclaim = min(copy.next_reclaim, meter.notice_at, meter.taken_at)
    copy.next_rare = min(copy.next_reclaim, copy.next_start)


@borrowing
def owed(copy: Copy, slot: int) -> int:
    """Bring a VM's bill up to now, by seconds or by hours begun, and return what that adds, in units (§5)."""
    settings, vm, meter = settings_of(copy), vm_at(copy, slot), meter_at(copy, slot)
    since = vm.ready_at if settings.bill_from_ready else meter.requested_at
    until = copy.now
    if settings.bill_from_ready and vm.state == BOOTING:
        return 0
    owed_ms: int = whole(np.rint((until - since) * 1000))
    if settings.billing == _BY_SECOND:
        owed_ms = max(owed_ms, _MINIMUM_CHARGE_MS)
    else:
        owed_ms = max(-(-owed_ms // HOUR_MS), 1) * HOUR_MS
    added_ms = max(owed_ms - meter.billed_ms, 0)
    meter.billed_ms += added_ms
    return int(kind_at(copy, vm.kind).price_micro * added_ms)
