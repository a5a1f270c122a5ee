"""Which waiting job starts on which VM (autoscaler specification §2.3)."""

from __future__ import annotations

from domain.workload import WHOLE_VM
from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.jobs import start_aside, start_head
from simulator.autoscaling.layout import READY_LIST, Worlds
from simulator.autoscaling.waiting import arrived_at, job_at, set_aside, side_is_next
from simulator.reference.configuration import Dispatch

_FIRST_FIT, _BEST_FIT = list(Dispatch).index(Dispatch.FIRST_FIT), list(Dispatch).index(Dispatch.BEST_FIT)
_ANY_WIDTH = 1 << 62
_TAKEN = -1


@compiled
def _choose(w: Worlds, b: int, width: int, scan_from: int) -> int:
    """Return the place among the ready VMs of the one for a job, -1 for none; see the reference's choose_machine."""
    copy, slots, order = w.copies[b], w.slots[b, READY_LIST], w.settings[0].dispatch
    start = scan_from if order == _FIRST_FIT else 0
    chosen, fewest = -1, _ANY_WIDTH
    for place in range(start, copy.ready):
        vm = w.vms[b, slots[place]]
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
def dispatch(w: Worlds, b: int) -> None:
    """Start waiting jobs in their order, and note whether some are left without a core: a burst."""
    copy = w.copies[b]
    if copy.waiting > 0 and copy.free_cores > 0:
        if w.settings[0].backfill:
            _dispatch_with_backfill(w, b)
        else:
            _dispatch_in_order(w, b)
    if copy.waiting == 0:
        copy.burst_open = 0
    elif not copy.burst_open:
        copy.burst_open = 1
        copy.burst_since = copy.now
        copy.bursts += 1


@compiled
def _dispatch_in_order(w: Worlds, b: int) -> None:
    """Start waiting jobs in order of (arrival, id) until the first of them fits nowhere."""
    copy, settings = w.copies[b], w.settings[0]
    scan_from, widest_tried = 0, _ANY_WIDTH
    while copy.waiting > 0 and copy.free_cores > 0:
        aside = side_is_next(w, b, copy.side_head)
        width = w.jobs[job_at(w, b, w.side[b, copy.side_head].position if aside else copy.head)].width
        if width == WHOLE_VM or width < widest_tried:
            scan_from = 0
        widest_tried = _ANY_WIDTH if width == WHOLE_VM else width
        place = _choose(w, b, width, scan_from)
        if place < 0:
            return
        slot = w.slots[b, READY_LIST, place]
        vm = w.vms[b, slot]
        copy.next_place = vm.number
        if aside:
            start_aside(w, b, slot, copy.side_head)
            copy.side_head += 1
            if copy.side_head == copy.side_end:
                copy.side_head = copy.side_end = 0
        else:
            # Whatever the order, one-core jobs fill the VM that took the first of them.
            start_head(w, b, slot, vm.free if copy.side_head == copy.side_end else 1)
        if settings.dispatch == _FIRST_FIT:
            scan_from = place


@compiled
def _dispatch_with_backfill(w: Worlds, b: int) -> None:
    """Start waiting jobs in order of (arrival, id), passing over those that fit nowhere."""
    copy = w.copies[b]
    entry, passed = copy.side_head, 0
    while copy.waiting > passed and copy.free_cores > 0:
        aside = side_is_next(w, b, entry)
        position = w.side[b, entry].position if aside else copy.head
        job = w.jobs[job_at(w, b, position)]
        place = _choose(w, b, job.width, 0)
        if place >= 0:
            slot = w.slots[b, READY_LIST, place]
            copy.next_place = w.vms[b, slot].number
            if aside:
                start_aside(w, b, slot, entry)
                w.side[b, entry].position = _TAKEN
                entry += 1
            else:
                start_head(w, b, slot, 1)
            continue
        passed += 1
        if not aside:
            copy.head += 1
            set_aside(w, b, entry, position, arrived_at(w, b, position), 0.0, job.service_s)
        entry += 1
    _close_gaps(w, b)


@compiled
def _close_gaps(w: Worlds, b: int) -> None:
    """Drop the entries of `side` whose jobs have started."""
    copy, side = w.copies[b], w.side[b]
    kept = 0
    for entry in range(copy.side_head, copy.side_end):
        if side[entry].position != _TAKEN:
            if kept != entry:
                side[kept] = side[entry]
            kept += 1
    copy.side_head, copy.side_end = 0, kept
