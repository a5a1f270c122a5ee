"""What one copy of the simulated world consists of in memory: records of fixed layout, one row of each per copy.

A copy's rows are small and stand together, so that a batch of hundreds stays in the processor's cache. Only `waits`,
and for closed-loop or backfilled traces `side`, `ring` and `pending`, have a row as long as the trace: at most 64
bytes per job and copy in all.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
        ("step_s", "f8"),
        ("step_ms", "i8"),
        ("waiting_price_micro", "i8"),
        ("cooldown_s", "f8"),
        ("sample_interval_s", "f8"),
        ("samples_needed", "i8"),
        ("idle_cpu", "f8"),
        ("base_ram_gb", "f8"),
        ("max_steps", "i8"),
        ("max_cores", "i8"),
        ("dispatch", "i8"),
        ("removal_choice", "i8"),
        ("removal_mode", "i8"),
        ("cooldown_scope", "i8"),
        ("cpu_sampling", "i8"),
        ("billing", "i8"),
        ("backfill", "i8"),
        ("cancel_booting", "i8"),
        ("bill_from_ready", "i8"),
        ("reclaim_notice_s", "f8"),
        ("integral_penalty", "i8"),
        ("start_latency_s", "f8"),
        ("clock_offset_s", "f8"),
        ("starts_late", "i8"),
        ("published", "i8"),
        ("one_limit_cores", "i8"),
        *((row, "i8") for row in COMPAT_ROWS),
    ],
    align=True,
)
"""The configuration; enumerations are positions in their definition.

starts_late: whether a job may run later than it is given its cores. published: whether obs-7 is changed by a row of
compat; one_limit_cores: what row 11 divides by. The last fields are the rows of
`simulator.autoscaling.reference.compat` that the kernel looks at; the others are in what it is given.
"""

KINDS = np.dtype(
    [
        ("cores", "i8"),
        ("ram_gb", "f8"),
        ("speed", "f8"),
        ("boot_low_s", "f8"),
        ("boot_high_s", "f8"),
        ("reclaims_per_hour", "f8"),
        ("price_micro", "i8"),
        ("limit", "i8"),
        ("minimum", "i8"),
        ("initial", "i8"),
        ("by_size", "i8"),
    ],
    align=True,
)
"""One VM type. by_size: in row i, the type at position i when types with more cores come first."""

TRACES = np.dtype(
    [
        ("jobs_at", "i8"),
        ("fixed_at", "i8"),
        ("stages_at", "i8"),
        ("released_at", "i8"),
        ("jobs", "i8"),
        ("fixed", "i8"),
        ("stages", "i8"),
        ("closed_loop", "i8"),
        ("serial_fraction", "f8"),
    ],
    align=True,
)
"""Where the records of a trace begin, how many they are, and whether stages release one another."""

JOBS = np.dtype(
    [
        ("arrival_s", "f8"),
        ("service_s", "f8"),
        ("ram_gb", "f8"),
        ("submitted_core_s", "f8"),
        ("job_id", "i8"),
        ("pause_s", "f8"),
        ("width", "i4"),
        ("stage", "i4"),
    ],
    align=True,
)
"""One job. An open trace's jobs stand in the order of the queue (arrival, id), a closed loop's in the trace's order.

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
        *((name, "i8") for name in ADDRESSES),
        ("kinds", "i8"),
        ("traces", "i8"),
        ("vm_slots", "i8"),
        ("running_mask", "i8"),
        ("side_size", "i8"),
        ("now", "f8"),
        ("next_boot", "f8"),
        ("next_reading", "f8"),
        ("next_reclaim", "f8"),
        ("next_start", "f8"),
        ("next_rare", "f8"),
        ("seed", "u8"),
        ("steps", "i8"),
        ("trace", "i8"),
        ("jobs", "i8"),
        ("closed_loop", "i8"),
        ("keyed", "i8"),
        ("timed", "i8"),
        ("over", "i8"),
        ("head", "i8"),
        ("submitted", "i8"),
        ("submitted_before", "i8"),
        ("next_fixed", "i8"),
        ("waiting", "i8"),
        ("uncounted", "i8"),
        ("executing", "i8"),
        ("finished", "i8"),
        ("ready", "i8"),
        ("booting", "i8"),
        ("free_slots", "i8"),
        ("free_cores", "i8"),
        ("busy_cores", "i8"),
        ("ready_cores", "i8"),
        ("next_number", "i8"),
        ("next_place", "i8"),
        ("running_head", "i8"),
        ("running", "i8"),
        ("sequence", "i8"),
        ("starting_head", "i8"),
        ("starting", "i8"),
        ("side_head", "i8"),
        ("side_end", "i8"),
        ("pending_head", "i8"),
        ("pending_end", "i8"),
        ("rate_micro", "i8"),
        ("queued_core_s", "f8"),
        ("finished_core_s", "f8"),
        ("executed_core_s", "f8"),
        ("lost_core_s", "f8"),
        ("busy_core_s", "f8"),
        ("ready_core_s", "f8"),
        ("waiting_job_s", "f8"),
        ("interruptions", "i8"),
        ("reclaimed", "i8"),
        ("removal_draws", "i8"),
        ("burst_open", "i8"),
        ("burst_since", "f8"),
        ("bursts", "i8"),
        ("bursts_answered", "i8"),
        ("burst_wait_s", "f8"),
        ("rent_dollars", "i8"),
        ("rent_units", "i8"),
        ("penalty_dollars", "i8"),
        ("penalty_units", "i8"),
        ("step_rent", "i8"),
        ("step_penalty", "i8"),
        ("allocated", "f8"),
        ("peak_cores", "i8"),
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
(`simulator.autoscaling.reference.accounting`) of a dollar begun. Bursts: as in
`simulator.autoscaling.reference.bursts`.
"""

COUNTS = np.dtype(
    [
        ("present", "i8"),
        ("ready", "i8"),
        ("booting", "i8"),
        ("requests", "i8"),
        ("made", "i8"),
        ("added_at", "f8"),
        ("removed_at", "f8"),
        ("cooling_out", "i8"),
        ("cooling_in", "i8"),
        ("step_added", "i8"),
        ("step_removed", "i8"),
        ("step_refused", "i8"),
        ("added", "i8"),
        ("removed", "i8"),
        ("refused", "i8"),
    ],
    align=True,
)
"""The counts of one VM type; cooling_out, cooling_in: whether a change was barred when the step began."""

VMS = np.dtype(
    [
        ("used_ram_gb", "f8"),
        ("ready_at", "f8"),
        ("idle_since", "f8"),
        ("number", "i4"),
        ("free", "i4"),
        ("cores", "i4"),
        ("starting", "i4"),
        ("jobs", "i4"),
        ("kind", "i2"),
        ("state", "i2"),
    ],
    align=True,
)
"""What every event of a VM touches. free: cores that no job has. starting: cores of jobs that do not run yet. jobs:
those that run. ready_at: while it boots, when it will be ready."""

METERS = np.dtype(
    [
        ("requested_at", "f8"),
        ("billed_ms", "i8"),
        ("busy_core_s", "f8"),
        ("step_busy_core_s", "f8"),
        ("counted_to", "f8"),
        ("notice_at", "f8"),
        ("taken_at", "f8"),
        ("freed_at", "f8"),
        ("cpu_readings", "f8"),
        ("ram_readings", "f8"),
        ("readings", "i8"),
    ],
    align=True,
)
"""What only some settings need of a VM.

Its bill, its CPU over time, when a spot VM is noticed and taken back, and when a job last ended on it.
"""

RUNNING = np.dtype(
    [
        ("end", "f8"),
        ("start", "f8"),
        ("waited", "f8"),
        ("remaining", "f8"),
        ("position", "i4"),
        ("sequence", "i4"),
        ("count", "i4"),
        ("slot", "i4"),
    ],
    align=True,
)
"""Jobs that started together on one VM and end together: `count` successive one-core jobs, or one job of any width.

waited: seconds in the queue, -1 where it is start minus arrival. remaining: seconds of service left at the start.
"""

STARTING = np.dtype(
    [
        ("time", "f8"),
        ("since", "f8"),
        ("waited", "f8"),
        ("remaining", "f8"),
        ("position", "i4"),
        ("sequence", "i4"),
        ("slot", "i4"),
        ("unseen", "i4"),
    ],
    align=True,
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
