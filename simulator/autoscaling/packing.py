"""Turns a configuration and its traces into the flat records that the kernel reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.observations.autoscaling import WAITING_SCALE_JOBS
from domain.workload import NO_STAGE, Trace
from simulator.autoscaling.columns import JobColumns
from simulator.autoscaling.configuration import (
    RENT_FACTOR,
    Billing,
    CooldownScope,
    CpuSampling,
    Dispatch,
    RemovalChoice,
    RemovalMode,
    SimulationConfig,
    truncated_service_s,
)
from simulator.autoscaling.memory import (
    BOOTS,
    COMPAT_ROWS,
    COPIES,
    COUNTS,
    INDICES,
    JOBS,
    KINDS,
    LOGS,
    METERS,
    OBSERVED_ROWS,
    PER_COPY,
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
    Record,
    Records,
    Worlds,
    address_of,
)

SAME_NAME = (
    *("step_s", "cooldown_s", "sample_interval_s", "samples_needed", "idle_cpu"),
    *("base_ram_gb", "max_steps", "max_cores", "backfill", "cancel_booting", "bill_from_ready", "integral_penalty"),
    *("reclaim_notice_s", "start_latency_s", "clock_offset_s"),
)
ENUMERATIONS = {
    "dispatch": Dispatch,
    "removal_choice": RemovalChoice,
    "removal_mode": RemovalMode,
    "cooldown_scope": CooldownScope,
    "cpu_sampling": CpuSampling,
    "billing": Billing,
}
_LARGEST_STEP_CHARGE = 2**62


def pack(config: SimulationConfig, traces: Sequence[Trace], copies: int) -> Worlds:
    """Return the memory of `copies` copies over these traces, not reset yet.

    Raises TraceError for a job that fits no VM type, BadInput without a trace or a copy.
    """
    if not traces:
        raise BadInput("traces", traces, "give at least one trace")
    if copies < 1:
        raise BadInput("copies", copies, "give 1 or more")
    settings, boots = _settings(config), _boots(config)
    kinds = _kinds(config, boots)
    longest = max(trace.jobs for trace in traces)
    _check_charges(config, settings, kinds, longest)
    rows = np.zeros(len(traces), dtype=TRACES)
    shared: list[Records] = [settings, kinds, rows, _waiting_log(longest)]
    for row, trace in zip(rows, traces, strict=True):
        shared += _pack_trace(row, trace, config)
    closed = max((trace.jobs for trace in traces if trace.staged), default=0)
    slots, entries = max(sum(config.limits), 1), 1 << max(config.max_cores, 1).bit_length()
    # Strict first come, first served: a job starts only when none that was interrupted waits, so there are never more
    # of these than cores. Backfill, ties in a closed loop and the tail of compat row 6 may set any job aside.
    aside = longest if config.backfill or closed or config.compat.interrupted_to_tail else config.max_cores
    gathered, shares = np.zeros(entries, dtype=INDICES), np.zeros((2, slots), dtype=SHARES)
    worlds = Worlds(
        copies=np.zeros(copies, dtype=COPIES),
        counts=np.zeros((copies, len(config.types)), dtype=COUNTS),
        vms=np.zeros((copies, slots), dtype=VMS),
        meters=np.zeros((copies, slots), dtype=METERS),
        ready=np.zeros((copies, slots), dtype=SLOTS),
        booting=np.zeros((copies, slots), dtype=SLOTS),
        free=np.zeros((copies, slots), dtype=SLOTS),
        running=np.zeros((copies, entries), dtype=RUNNING),
        starting=np.zeros((copies, entries), dtype=STARTING),
        side=np.empty((copies, max(aside, 1)), dtype=SIDE),
        ring=np.empty((copies, max(closed, 1)), dtype=TIMED_JOBS),
        pending=np.empty((copies, max(closed, 1)), dtype=TIMED_JOBS),
        stage_left=np.zeros((copies, max(1, *(row["stages"] for row in rows))), dtype=INDICES),
        waits=np.empty((copies, max(longest, 1)), dtype=WAITS),
        traces=rows,
        shared=(*shared, *boots, gathered, shares),
    )
    row_of = worlds.copies
    for name in PER_COPY:
        table = getattr(worlds, name)
        row_of[f"{name}_at"] = address_of(table) + np.arange(copies) * table.strides[0]
    for name, table in zip(("settings", "kinds", "traces", "waiting_log"), shared, strict=False):
        row_of[f"{name}_at"] = address_of(table)
    row_of["gathered_at"] = address_of(gathered)
    row_of["cpu_shares_at"], row_of["ram_shares_at"] = address_of(shares[0]), address_of(shares[1])
    row_of["kinds"], row_of["traces"], row_of["vm_slots"] = len(config.types), len(traces), slots
    row_of["running_mask"], row_of["side_size"] = entries - 1, worlds.side.shape[1]
    return worlds


def _settings(config: SimulationConfig) -> Records:
    settings = np.zeros(1, dtype=SETTINGS)
    for name in SAME_NAME:
        settings[0][name] = getattr(config, name)
    for name, enumeration in ENUMERATIONS.items():
        settings[0][name] = list(enumeration).index(getattr(config, name))
    for name in COMPAT_ROWS:
        settings[0][name] = getattr(config.compat, name)
    settings[0]["dispatch"] = list(Dispatch).index(config.placement)
    settings[0]["starts_late"] = config.start_latency_s > 0 or config.compat.chain_loss
    settings[0]["published"] = any(getattr(config.compat, name) for name in OBSERVED_ROWS)
    settings[0]["one_limit_cores"] = max(config.limits) * sum(config.cores)
    settings[0]["step_ms"] = round(config.step_s * 1000)
    settings[0]["waiting_price_micro"] = round(config.waiting_price_per_hour * 1_000_000)
    return settings


def _boots(config: SimulationConfig) -> list[Records]:
    """Return the quantiles of each type's boot times; the caller keeps them alive."""
    return [np.array(points, dtype=np.float64).view(BOOTS) for points in config.boot_points_s]


def _kinds(config: SimulationConfig, boots: Sequence[Records]) -> Records:
    kinds = np.zeros(len(config.types), dtype=KINDS)
    kinds["cores"], kinds["limit"] = config.cores, config.limits
    kinds["minimum"], kinds["initial"] = config.minimum, config.initial
    kinds["ram_gb"] = [kind.memory_gb for kind in config.types]
    kinds["speed"] = config.speeds
    kinds["boots_at"], kinds["boots"] = [address_of(table) for table in boots], [table.size for table in boots]
    kinds["reclaims_per_hour"] = config.reclaims_per_hour or 0.0
    factor = RENT_FACTOR if config.compat.rounded_price else 1.0
    kinds["price_micro"] = [round(kind.price_per_hour * 1_000_000 * factor) for kind in config.types]
    kinds["by_size"] = sorted(range(len(config.types)), key=lambda k: -config.cores[k])
    return kinds


def _check_charges(config: SimulationConfig, settings: Records, kinds: Records, jobs: int) -> None:
    """Refuse a setting in which the rent or penalty of one step may not fit into 64 bits."""
    step_ms = int(settings[0]["step_ms"])
    # An hourly bill may charge an hour more for each VM, and for as many that left in the step.
    rent = sum(int(kind["limit"]) * int(kind["price_micro"]) for kind in kinds) * (step_ms + 3_600_000) * 2
    penalty = jobs * step_ms * int(settings[0]["waiting_price_micro"])
    if max(rent, penalty) > _LARGEST_STEP_CHARGE:
        raise BadInput("step_s", config.step_s, "give a shorter step, or use simulator.autoscaling.twin.Simulation")


def _waiting_log(longest: int) -> Records:
    """Return the entry waiting_log of obs-v2 for each number of waiting jobs."""
    waiting = np.arange(longest + 1, dtype=np.float64)
    logs: Records = np.minimum(np.log1p(waiting) / np.log1p(WAITING_SCALE_JOBS), 2.0).astype(np.float32).view(LOGS)
    return logs


def _pack_trace(row: Record, trace: Trace, config: SimulationConfig) -> list[Records]:
    """Fill a trace's row and return the records it points to: jobs, and for a closed loop the releases."""
    widest = max((cores for cores, limit in zip(config.cores, config.limits, strict=True) if limit > 0), default=0)
    if trace.jobs > 0 and (widest == 0 or int(trace.width.max()) > widest):
        JobColumns(trace, config)  # raises, naming the job
    everyone = np.arange(trace.jobs)
    arrival_s, service_s = _handed_over_s(trace, config), _service_s(trace, config)
    order = everyone if trace.staged else np.lexsort((everyone, trace.job_id, arrival_s))
    submitted = everyone if trace.staged else np.lexsort((everyone, trace.arrival_s))
    jobs = np.zeros(trace.jobs, dtype=JOBS)
    jobs["arrival_s"], jobs["service_s"] = arrival_s[order], service_s[order]
    for name in ("ram_gb", "width", "job_id", "stage", "pause_s"):
        jobs[name] = getattr(trace, name)[order]
    jobs["submitted_core_s"] = (np.maximum(trace.width, 1) * service_s)[submitted]
    row["jobs_at"], row["jobs"], row["closed_loop"] = address_of(jobs), trace.jobs, trace.staged
    row["serial_fraction"] = trace.serial_fraction
    return [jobs, *_pack_stages(row, trace)] if trace.staged else [jobs]


def _handed_over_s(trace: Trace, config: SimulationConfig) -> NDArray[np.float64]:
    """Return when each job comes: at its arrival, or at the start of the step of compat row 2."""
    if not config.compat.arrivals_by_minute:
        return trace.arrival_s
    minutes = [int(arrival_s // config.step_s) for arrival_s in trace.arrival_s.tolist()]
    return np.array([(d - 1) * config.step_s + config.clock_offset_s if d > 0 else 0.0 for d in minutes])


def _service_s(trace: Trace, config: SimulationConfig) -> NDArray[np.float64]:
    if not config.compat.truncated_service:
        return trace.service_s
    return np.array([truncated_service_s(service_s, config.step_s) for service_s in trace.service_s.tolist()])


def _pack_stages(row: Record, trace: Trace) -> list[Records]:
    own, held = np.flatnonzero(trace.release_after == NO_STAGE), np.flatnonzero(trace.release_after != NO_STAGE)
    fixed = _indices(own[np.lexsort((own, trace.arrival_s[own]))])
    released = _indices(held[np.lexsort((held, trace.release_after[held]))])
    stages = np.zeros(int(trace.stage.max()) + 1, dtype=STAGES)
    stages["jobs"] = np.bincount(trace.stage, minlength=stages.size)
    stages["released"] = np.bincount(trace.release_after[held], minlength=stages.size)
    stages["released_first"] = np.cumsum(stages["released"]) - stages["released"]
    row["fixed"], row["stages"] = fixed.size, stages.size
    row["fixed_at"], row["stages_at"], row["released_at"] = map(address_of, (fixed, stages, released))
    return [fixed, stages, released]


def _indices(values: NDArray[np.int64]) -> Records:
    return values.astype(np.int32).view(INDICES)
