"""Which waiting job starts on which VM (autoscaler specification §2.3)."""

from __future__ import annotations

from domain.workload import WHOLE_VM
from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.jobs import start_aside, start_head
from simulator.autoscaling.layout import Copy
from simulator.autoscaling.memory import ready_slot, settings_of, side_at, vm_at, whole
from simulator.autoscaling.queue import arrived_at, drop_started, job_of, set_aside, side_is_next
from simulator.autoscaling.reference.configuration import Dispatch

_FIRST_FIT, _BEST_FIT = list(Dispatch).index(Dispatch.FIRST_FIT), list(Dispatch).index(Dispatch.BEST_FIT)
_ANY_WIDTH = 1 << 62
_TAKEN = -1


@compiled
def _choose(copy: Copy, width: int, scan_from: int) -> int:
    """Return the place among the ready VMs of the one for a job, -1 for none; see the reference's choose_machine."""
    order = settings_of(copy).dispatch
    start = scan_from if order == _FIRST_FIT else 0
    chosen, fewest = -1, _ANY_WIDTH
    for place in range(start, copy.ready):
        vm = vm_at(copy, ready_slot(copy, place))
        if vm.free < (vm.cores if width == WHOLE_VM else width):
            continue
        if order == _FIRST_FIT:
            return place
        if order == _BEST_FIT:
            free = 0 if width == WHOLE_VM else vm.free
            if free < fewest:
                chosen, fewest = place, free
        elif vm.number >= copy.next_place:
            return place
        elif chosen < 0:
            chosen = place
    return chosen


@compiled
def dispatch(copy: Copy) -> None:
    """Start waiting jobs in their order, and note whether some are left without a core: a burst."""
    if copy.waiting > 0 and copy.free_cores > 0:
        if settings_of(copy).backfill:
            _dispatch_with_backfill(copy)
        else:
            _dispatch_in_order(copy)
    if copy.waiting == 0:
        copy.burst_open = 0
    elif not copy.burst_open:
        copy.burst_open = 1
        copy.burst_since = copy.now
        copy.bursts += 1


@compiled
def _dispatch_in_order(copy: Copy) -> None:
    """Start waiting jobs in order of (arrival, id) until the first of them fits nowhere."""
    settings = settings_of(copy)
    scan_from, widest_tried = 0, _ANY_WIDTH
    while copy.waiting > 0 and copy.free_cores > 0:
        aside = side_is_next(copy, copy.side_head)
        width = whole(job_of(copy, whole(side_at(copy, copy.side_head).position) if aside else copy.head).width)
        if width == WHOLE_VM or width < widest_tried:
            scan_from = 0
        widest_tried = _ANY_WIDTH if width == WHOLE_VM else width
        place = _choose(copy, width, scan_from)
        if place < 0:
            return
        slot = ready_slot(copy, place)
        vm = vm_at(copy, slot)
        copy.next_place = vm.number
        if aside:
            start_aside(copy, slot, copy.side_head)
            copy.side_head += 1
            if copy.side_head == copy.side_end:
                copy.side_head = copy.side_end = 0
        else:
            # Whatever the order, one-core jobs fill the VM that took the first of them.
            start_head(copy, slot, whole(vm.free) if copy.side_head == copy.side_end else 1)
        if settings.dispatch == _FIRST_FIT:
            scan_from = place


@compiled
def _dispatch_with_backfill(copy: Copy) -> None:
    """Start waiting jobs in order of (arrival, id), passing over those that fit nowhere."""
    entry, passed = copy.side_head, 0
    while copy.waiting > passed and copy.free_cores > 0:
        aside = side_is_next(copy, entry)
        position = whole(side_at(copy, entry).position) if aside else copy.head
        job = job_of(copy, position)
        place = _choose(copy, whole(job.width), 0)
        if place >= 0:
            slot = ready_slot(copy, place)
            copy.next_place = vm_at(copy, slot).number
            if aside:
                start_aside(copy, slot, entry)
                side_at(copy, entry).position = _TAKEN
                entry += 1
            else:
                start_head(copy, slot, 1)
            continue
        passed += 1
        if not aside:
            copy.head += 1
            set_aside(copy, entry, position, arrived_at(copy, position), 0.0, job.service_s, whole(0))
        entry += 1
    drop_started(copy)
