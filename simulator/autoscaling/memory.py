"""The memory of one copy of the simulated world: records of fixed layout, and how compiled code reaches them.

A copy's rows are small and contiguous, so that a batch of hundreds stays in the processor's cache. Only `waits`,
and for closed-loop or backfilled traces `side`, `ring` and `pending`, have a row as long as the trace: at most 64
bytes per job and copy in all.

Compiled code reaches them from a copy's row of scalars alone, which holds their addresses: handing a function one
pointer instead of some twenty arrays is what makes its call cheap. Nothing here checks a bound: `packing` sizes every
table for the most that the simulated world can hold.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from simulator.compilation import borrowing, fields

Records = NDArray[Any]
"""A structured array."""
Record = Any
"""One record of a structured array; numba alone knows its fields."""
Copy = Any
"""A record of COPIES: all that a compiled function needs to reach the whole of one world."""

GONE, BOOTING, READY, DRAINING = 0, 1, 2, 3
"""States of a VM's slot."""

COMPAT_ROWS = (
    *("offset_clock", "arrivals_by_minute", "chain_loss", "interrupted_to_tail", "free_last_step", "low_percentile"),
    *("single_ram_slot", "recent_minus_vms", "single_limit", "blank_first_observation"),
)
OBSERVED_ROWS = COMPAT_ROWS[5:]

SETTINGS = np.dtype(
    [
        *fields("f8", "step_s"),
        *fields("i8", "step_ms waiting_price_micro"),
        *fields("f8", "cooldown_s sample_interval_s"),
        *fields("i8", "samples_needed"),
        *fields("f8", "idle_cpu base_ram_gb"),
        *fields("i8", "max_steps max_cores dispatch removal_choice removal_mode cooldown_scope cpu_sampling billing"),
        *fields("i8", "backfill cancel_booting bill_from_ready"),
        *fields("f8", "reclaim_notice_s"),
        *fields("i8", "integral_penalty"),
        *fields("f8", "start_latency_s clock_offset_s"),
        *fields("i8", "starts_late published one_limit_cores"),
        *fields("i8", " ".join(COMPAT_ROWS)),
    ],
    align=True,
)
"""The configuration; enumerations are positions in their definition.

starts_late: whether a job may run later than it is given its cores. published: whether obs-7 is changed by a row of
compat; one_limit_cores: what row 11 divides by. The last fields are the rows of
`simulator.autoscaling.configuration` that the kernel looks at; the others are in what it is given.
"""

KINDS = np.dtype(
    [
        *fields("i8", "cores"),
        *fields("f8", "ram_gb speed reclaims_per_hour"),
        *fields("i8", "price_micro limit minimum initial by_size boots_at boots"),
    ],
    align=True,
)
"""One VM type. by_size: in row i, the type at position i when types with more cores come first.

boots_at, boots: the address and count of the quantiles of its boot times.
"""

BOOTS = np.dtype([("seconds", "f8")], align=True)
"""One quantile of a boot time."""

TRACES = np.dtype(
    [
        *fields("i8", "jobs_at fixed_at stages_at released_at jobs fixed stages closed_loop"),
        *fields("f8", "serial_fraction"),
    ],
    align=True,
)
"""The addresses and counts of a trace's records, and whether stages release one another."""

JOBS = np.dtype(
    [
        *fields("f8", "arrival_s service_s ram_gb submitted_core_s"),
        *fields("i8", "job_id"),
        *fields("f8", "pause_s"),
        *fields("i4", "width stage"),
    ],
    align=True,
)
"""One job. An open trace's jobs are in the order of the queue (arrival, id), a closed loop's in the trace's order.

submitted_core_s: work of the job that is submitted at this position, which is another one where two stages have jobs
of one arrival.
"""

STAGES = np.dtype([("jobs", "i8"), ("released_first", "i8"), ("released", "i8")], align=True)
"""A stage of a closed loop: its jobs, and which entries of `released_at` its end releases."""

PER_COPY = (
    *("counts", "vms", "meters", "ready", "booting", "free", "running", "starting", "side", "ring", "pending"),
    *("stage_left", "waits"),
)
"""Tables of `Worlds` with a row for each copy, besides `copies`."""
_OF_ALL = ("settings", "kinds", "traces", "jobs", "waiting_log", "gathered", "cpu_shares", "ram_shares")
ADDRESSES = tuple(f"{name}_at" for name in (*_OF_ALL, *PER_COPY))
"""Fields of COPIES that hold addresses."""

COPIES = np.dtype(
    [
        *fields("i8", " ".join(ADDRESSES)),
        *fields("i8", "kinds traces vm_slots running_mask side_size"),
        *fields("f8", "now next_boot next_reading next_reclaim next_start next_rare"),
        *fields("u8", "seed"),
        *fields("i8", "steps trace jobs closed_loop keyed timed over head submitted submitted_before next_fixed"),
        *fields("i8", "waiting uncounted executing finished ready booting free_slots free_cores busy_cores"),
        *fields("i8", "ready_cores next_number next_place running_head running sequence starting_head starting"),
        *fields("i8", "side_head side_end pending_head pending_end rate_micro"),
        *fields("f8", "queued_core_s finished_core_s executed_core_s lost_core_s busy_core_s ready_core_s"),
        *fields("f8", "waiting_job_s"),
        *fields("i8", "interruptions reclaimed removal_draws burst_open"),
        *fields("f8", "burst_since"),
        *fields("i8", "bursts bursts_answered"),
        *fields("f8", "burst_wait_s"),
        *fields("i8", "rent_dollars rent_units penalty_dollars penalty_units step_rent step_penalty"),
        *fields("f8", "allocated"),
        *fields("i8", "peak_cores"),
    ],
    align=True,
)
"""The scalars of a copy, with the addresses of its other records (`memory`).

next_rare: the earlier of next_reclaim and next_start. keyed: whether a job's place in the queue may be another than its
submitted position says. timed: jobs that come at a time of their own, 0 where they are handed over (compat row 2).
head: submitted position of the first job that has never left the queue. running_head, running: the ring `running`;
starting_head, starting: the ring `starting`. waiting: jobs in the queue; those that count as waiting are `uncounted`
fewer, which is the jobs that compat row 6 forgets less those that have their cores and do not run yet.
side_head, side_end: the jobs in `side`. pending_head, pending_end: released jobs that have not arrived yet.
rate_micro: price of all VMs in millionths of a dollar per hour. Totals of rent and penalty are whole dollars and units
(`simulator.autoscaling.configuration`) of a dollar begun. Bursts: as in
`simulator.autoscaling.twin_world`.
"""

COUNTS = np.dtype(
    [
        *fields("i8", "present ready booting requests made"),
        *fields("f8", "added_at removed_at"),
        *fields("i8", "cooling_out cooling_in step_added step_removed step_refused added removed refused"),
    ],
    align=True,
)
"""The counts of one VM type; cooling_out, cooling_in: whether a change was barred when the step began."""

VMS = np.dtype(
    [
        *fields("f8", "used_ram_gb ready_at idle_since"),
        *fields("i4", "number free cores starting jobs"),
        *fields("i2", "kind state"),
    ],
    align=True,
)
"""The fields of a VM that every event uses. free: cores that no job has. starting: cores of jobs that do not run yet.
jobs: those that run. ready_at: while it boots, when it will be ready."""

METERS = np.dtype(
    [
        *fields("f8", "requested_at"),
        *fields("i8", "billed_ms"),
        *fields("f8", "busy_core_s step_busy_core_s counted_to notice_at taken_at freed_at cpu_readings ram_readings"),
        *fields("i8", "readings"),
    ],
    align=True,
)
"""The fields of a VM that only some settings use.

Its bill, its CPU over time, when a spot VM is noticed and taken back, and when a job last ended on it.
"""

RUNNING = np.dtype(
    [*fields("f8", "end start waited remaining"), *fields("i4", "position sequence count slot")], align=True
)
"""Jobs that started together on one VM and end together: `count` successive one-core jobs, or one job of any width.

waited: seconds in the queue, -1 where it is start minus arrival. remaining: seconds of service left at the start.
"""

STARTING = np.dtype(
    [*fields("f8", "time since waited remaining"), *fields("i4", "position sequence slot unseen")], align=True
)
"""A job that has its cores and runs from `time` on; the rest as in RUNNING and SIDE."""

SIDE = np.dtype(
    [("since", "f8"), ("waited", "f8"), ("remaining", "f8"), ("position", "i4"), ("unseen", "i4")], align=True
)
"""A waiting job that left the queue's order once: interrupted, or passed over by backfill (position -1: taken).

since: when it began to wait again; with compat row 6 its place in the queue. unseen: whether it counts as waiting no
more.
"""

TIMED_JOBS = np.dtype([("time", "f8"), ("job", "i4")])
"""A job of a closed loop with its arrival: submitted (`ring`) or to come (`pending`)."""

SLOTS = np.dtype([("slot", "i2")])
INDICES = np.dtype([("index", "i4")])
WAITS = np.dtype([("seconds", "f8")])
LOGS = np.dtype([("value", "f4")])
SHARES = np.dtype([("share", "f8")])


class Worlds(NamedTuple):
    """All tables: B copies over shared traces, with N types, V slots for VMs and R running entries each.

    shared: what nothing but the addresses in `copies` and `traces` refers to.
    """

    copies: Records  # (B,)
    counts: Records  # (B, N)
    vms: Records  # (B, V)
    meters: Records  # (B, V)
    ready: Records  # (B, V)
    booting: Records  # (B, V)
    free: Records  # (B, V)
    running: Records  # (B, R), R a power of two
    starting: Records  # (B, R)
    side: Records  # (B, S)
    ring: Records  # (B, J), closed loops only
    pending: Records  # (B, J), closed loops only
    stage_left: Records  # (B, stages)
    waits: Records  # (B, J): seconds in the queue, in order of finishing
    traces: Records
    shared: tuple[Records, ...]


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


@borrowing
def settings_of(copy: Copy) -> Record:
    """Return the configuration's scalars."""
    return record_at(copy.settings_at, 0, SETTINGS)


@borrowing
def kind_at(copy: Copy, kind: int) -> Record:
    """Return what never changes of a VM type."""
    return record_at(copy.kinds_at, kind, KINDS)


@borrowing
def boot_at(kind: Record, place: int) -> Record:
    """Return a quantile (`seconds`) of the boot times of a VM type, the shortest first."""
    return record_at(kind.boots_at, place, BOOTS)


@borrowing
def count_at(copy: Copy, kind: int) -> Record:
    """Return the counts of a VM type."""
    return record_at(copy.counts_at, kind, COUNTS)


@borrowing
def trace_at(copy: Copy, index: int) -> Record:
    """Return the row of a trace."""
    return record_at(copy.traces_at, index, TRACES)


@borrowing
def job_at(copy: Copy, index: int) -> Record:
    """Return a job of the copy's trace."""
    return record_at(copy.jobs_at, index, JOBS)


@borrowing
def stage_at(copy: Copy, stage: int) -> Record:
    """Return a stage of the copy's closed loop."""
    return record_at(trace_at(copy, copy.trace).stages_at, stage, STAGES)


@borrowing
def stage_left_at(copy: Copy, stage: int) -> Record:
    """Return (`index`) how many jobs of a stage have not finished."""
    return record_at(copy.stage_left_at, stage, INDICES)


@borrowing
def fixed_at(copy: Copy, place: int) -> Record:
    """Return (`index`) the job of a closed loop that is the place-th to arrive at a time of its own."""
    return record_at(trace_at(copy, copy.trace).fixed_at, place, INDICES)


@borrowing
def released_at(copy: Copy, place: int) -> Record:
    """Return (`index`) a job that a stage's end releases; see STAGES."""
    return record_at(trace_at(copy, copy.trace).released_at, place, INDICES)


@borrowing
def vm_at(copy: Copy, slot: int) -> Record:
    """Return the VM of a slot."""
    return record_at(copy.vms_at, slot, VMS)


@borrowing
def meter_at(copy: Copy, slot: int) -> Record:
    """Return the meters of the VM of a slot."""
    return record_at(copy.meters_at, slot, METERS)


@borrowing
def ready_at(copy: Copy, place: int) -> Record:
    """Return the entry (`slot`) of a ready VM, in request order."""
    return record_at(copy.ready_at, place, SLOTS)


@borrowing
def ready_slot(copy: Copy, place: int) -> int:
    """Return the slot of a ready VM."""
    slot: int = whole(ready_at(copy, place).slot)
    return slot


@borrowing
def booting_at(copy: Copy, place: int) -> Record:
    """Return the entry (`slot`) of a booting VM."""
    return record_at(copy.booting_at, place, SLOTS)


@borrowing
def booting_slot(copy: Copy, place: int) -> int:
    """Return the slot of a booting VM."""
    slot: int = whole(booting_at(copy, place).slot)
    return slot


@borrowing
def free_slot_at(copy: Copy, place: int) -> Record:
    """Return an entry (`slot`) of the stack of slots without a VM."""
    return record_at(copy.free_at, place, SLOTS)


@borrowing
def running_at(copy: Copy, place: int) -> Record:
    """Return the place-th entry of running jobs in order of their end; one place more than there are is free."""
    return record_at(copy.running_at, (copy.running_head + place) & copy.running_mask, RUNNING)


@borrowing
def starting_at(copy: Copy, place: int) -> Record:
    """Return the place-th entry of jobs that are to run, in order of when; one place more than there are is free."""
    return record_at(copy.starting_at, (copy.starting_head + place) & copy.running_mask, STARTING)


@borrowing
def gathered_at(copy: Copy, place: int) -> Record:
    """Return an entry (`index`) of scratch space for places among the running jobs."""
    return record_at(copy.gathered_at, place, INDICES)


@borrowing
def side_at(copy: Copy, entry: int) -> Record:
    """Return a waiting job that once left the queue's order."""
    return record_at(copy.side_at, entry, SIDE)


@borrowing
def ring_at(copy: Copy, position: int) -> Record:
    """Return the job of a closed loop submitted at a position, with its arrival."""
    return record_at(copy.ring_at, position, TIMED_JOBS)


@borrowing
def pending_at(copy: Copy, place: int) -> Record:
    """Return a released job that has not arrived yet."""
    return record_at(copy.pending_at, place, TIMED_JOBS)


@borrowing
def wait_at(copy: Copy, finished: int) -> Record:
    """Return the time in the queue (`seconds`) of the finished-th job to end."""
    return record_at(copy.waits_at, finished, WAITS)


@borrowing
def share_at(shares: int, place: int) -> Record:
    """Return an entry (`share`) of scratch space at an address."""
    return record_at(shares, place, SHARES)


@borrowing
def waiting_log_at(copy: Copy, waiting: int) -> Record:
    """Return the entry waiting_log of obs-v2 (`value`) for a number of waiting jobs."""
    return record_at(copy.waiting_log_at, waiting, LOGS)
