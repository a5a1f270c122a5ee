"""Reaches the records of a copy from its row of scalars alone, which holds their addresses.

Handing a compiled function one pointer instead of some twenty arrays is what makes its call cheap. Nothing here checks
a bound: `packing` sizes every table for the most that the simulated world can hold, and says why.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from simulator.autoscaling.compiled import compiled
from simulator.autoscaling.layout import (
    COUNTS,
    INDICES,
    JOBS,
    KINDS,
    LOGS,
    METERS,
    RUNNING,
    SETTINGS,
    SHARES,
    SIDE,
    SLOTS,
    STAGES,
    STARTING,
    TIMED_JOBS,
    TRACES,
    VMS,
    WAITS,
    Copy,
    Record,
)


def _record_at(typingctx: Any, address: Any, index: Any, layout: Any) -> Any:
    """Type and generate: the record of a layout at an address, `index` records further on."""
    record = layout.dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start, offset, _ = args
        word = context.get_value_type(types.int64)
        size = context.get_constant(types.int64, record.size)
        place = builder.add(builder.bitcast(start, word), builder.mul(offset, size))
        return builder.inttoptr(place, context.get_value_type(record))

    return record(types.int64, types.int64, layout), generate


record_at: Any = intrinsic(_record_at)
whole: Any = np.int64
"""Widens a narrow field, so that functions are compiled for one width of integer only."""


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Return where an array begins; it must be kept alive as long as the address is used."""
    return int(array.ctypes.data)


@compiled
def settings_of(copy: Copy) -> Record:
    """Return the configuration's scalars."""
    return record_at(copy.settings_at, 0, SETTINGS)


@compiled
def kind_at(copy: Copy, kind: int) -> Record:
    """Return what never changes of a VM type."""
    return record_at(copy.kinds_at, kind, KINDS)


@compiled
def count_at(copy: Copy, kind: int) -> Record:
    """Return the counts of a VM type."""
    return record_at(copy.counts_at, kind, COUNTS)


@compiled
def trace_at(copy: Copy, index: int) -> Record:
    """Return where a trace stands."""
    return record_at(copy.traces_at, index, TRACES)


@compiled
def job_at(copy: Copy, index: int) -> Record:
    """Return a job of the copy's trace."""
    return record_at(copy.jobs_at, index, JOBS)


@compiled
def stage_at(copy: Copy, stage: int) -> Record:
    """Return a stage of the copy's closed loop."""
    return record_at(trace_at(copy, copy.trace).stages_at, stage, STAGES)


@compiled
def stage_left_at(copy: Copy, stage: int) -> Record:
    """Return (`index`) how many jobs of a stage have not finished."""
    return record_at(copy.stage_left_at, stage, INDICES)


@compiled
def fixed_at(copy: Copy, place: int) -> Record:
    """Return (`index`) the job of a closed loop that is the place-th to arrive at a time of its own."""
    return record_at(trace_at(copy, copy.trace).fixed_at, place, INDICES)


@compiled
def released_at(copy: Copy, place: int) -> Record:
    """Return (`index`) a job that a stage's end releases; see STAGES."""
    return record_at(trace_at(copy, copy.trace).released_at, place, INDICES)


@compiled
def vm_at(copy: Copy, slot: int) -> Record:
    """Return the VM of a slot."""
    return record_at(copy.vms_at, slot, VMS)


@compiled
def meter_at(copy: Copy, slot: int) -> Record:
    """Return the meters of the VM of a slot."""
    return record_at(copy.meters_at, slot, METERS)


@compiled
def ready_at(copy: Copy, place: int) -> Record:
    """Return the entry (`slot`) of a ready VM, in request order."""
    return record_at(copy.ready_at, place, SLOTS)


@compiled
def ready_slot(copy: Copy, place: int) -> int:
    """Return the slot of a ready VM."""
    slot: int = whole(ready_at(copy, place).slot)
    return slot


@compiled
def booting_at(copy: Copy, place: int) -> Record:
    """Return the entry (`slot`) of a booting VM."""
    return record_at(copy.booting_at, place, SLOTS)


@compiled
def booting_slot(copy: Copy, place: int) -> int:
    """Return the slot of a booting VM."""
    slot: int = whole(booting_at(copy, place).slot)
    return slot


@compiled
def free_slot_at(copy: Copy, place: int) -> Record:
    """Return an entry (`slot`) of the stack of slots without a VM."""
    return record_at(copy.free_at, place, SLOTS)


@compiled
def running_at(copy: Copy, place: int) -> Record:
    """Return the place-th entry of running jobs in order of their end; one place more than there are is free."""
    return record_at(copy.running_at, (copy.running_head + place) & copy.running_mask, RUNNING)


@compiled
def starting_at(copy: Copy, place: int) -> Record:
    """Return the place-th entry of jobs that are to run, in order of when; one place more than there are is free."""
    return record_at(copy.starting_at, (copy.starting_head + place) & copy.running_mask, STARTING)


@compiled
def gathered_at(copy: Copy, place: int) -> Record:
    """Return an entry (`index`) of scratch space for places among the running jobs."""
    return record_at(copy.gathered_at, place, INDICES)


@compiled
def side_at(copy: Copy, entry: int) -> Record:
    """Return a waiting job that once left the queue's order."""
    return record_at(copy.side_at, entry, SIDE)


@compiled
def ring_at(copy: Copy, position: int) -> Record:
    """Return the job of a closed loop submitted at a position, with its arrival."""
    return record_at(copy.ring_at, position, TIMED_JOBS)


@compiled
def pending_at(copy: Copy, place: int) -> Record:
    """Return a released job that has not arrived yet."""
    return record_at(copy.pending_at, place, TIMED_JOBS)


@compiled
def wait_at(copy: Copy, finished: int) -> Record:
    """Return the time in the queue (`seconds`) of the finished-th job to end."""
    return record_at(copy.waits_at, finished, WAITS)


@compiled
def share_at(shares: int, place: int) -> Record:
    """Return an entry (`share`) of scratch space at an address."""
    return record_at(shares, place, SHARES)


@compiled
def waiting_log_at(copy: Copy, waiting: int) -> Record:
    """Return the entry waiting_log of obs-v2 (`value`) for a number of waiting jobs."""
    return record_at(copy.waiting_log_at, waiting, LOGS)
