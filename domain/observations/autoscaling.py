"""obs-7 and obs-v2: the numbers an autoscaling policy sees, defined once for simulator, agent and trainer.

Formulas are those of the autoscaler specification, §3. The functions that compute are leaves: scalars and 1-D arrays
in, arrays out, no other plain function called, so that numba can compile them unchanged. All arithmetic is in 64
bits; the result is rounded to 32.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Vector = NDArray[np.float32]

OBS7_VERSION = "obs-7/1"
OBS_V2_VERSION = "obs-v2/1"

WAITING_SCALE_JOBS = 1000.0
QUEUE_SCALE_S = 3600.0
OLDEST_WAIT_SCALE_S = 3600.0


class Feature(NamedTuple):
    """One entry of an observation: its name and the range it is clipped to."""

    name: str
    low: float
    high: float


OBS7_FEATURES: tuple[Feature, ...] = (
    Feature("allocated_ratio", 0.0, 1.0),
    Feature("cpu_mean", 0.0, 1.0),
    Feature("cpu_p90", 0.0, 1.0),
    Feature("ram_mean", 0.0, 1.0),
    Feature("ram_p90", 0.0, 1.0),
    Feature("wait_global", 0.0, 1.0),
    Feature("wait_recent", 0.0, 1.0),
)
OBS7_NAMES: tuple[str, ...] = tuple(feature.name for feature in OBS7_FEATURES)


def obs_v2_features(types: int) -> tuple[Feature, ...]:
    """Return the features of obs-v2 for `types` VM types, in order: obs-7, three per type, four of the whole fleet."""
    per_type = [
        Feature(f"type{k}.{name}", 0.0, 1.0)
        for k in range(types)
        for name in ("ready_ratio", "booting_ratio", "cooldown_ratio")
    ]
    fleet = [
        Feature("waiting_log", 0.0, 2.0),
        Feature("queued_fleet_hours", 0.0, 10.0),
        Feature("oldest_wait", 0.0, 1.0),
        Feature("busy_lost_share", 0.0, 1.0),
    ]
    return (*OBS7_FEATURES, *per_type, *fleet)


def obs_v2_names(types: int) -> tuple[str, ...]:
    """Return the feature names of obs-v2 for `types` VM types, in order."""
    return tuple(feature.name for feature in obs_v2_features(types))


def schema_hash(names: Sequence[str], version: str) -> str:
    """Return the SHA-256 (hex) of a version and its feature names in order; a model and its caller must agree on it."""
    text = json.dumps(
        {"version": version, "names": list(names)}, separators=(",", ":"), ensure_ascii=True, sort_keys=True
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def waiting_recent_fifo(waiting: int, submitted_recent: int) -> int:
    """Return how many jobs of this minute still wait: under FIFO, the waiting jobs are the youngest ones."""
    return min(waiting, submitted_recent)


def obs7(
    allocated_cores: float,
    max_cores: float,
    cpu: Floats,
    ram: Floats,
    waiting: float,
    submitted: float,
    waiting_recent: float,
    submitted_recent: float,
) -> Vector:
    """Return obs-7, float32 of shape (7,), every entry in 0..1 (autoscaler specification §3).

    allocated_cores: cores of the ready VMs. max_cores: cores of the fleet at its limits. cpu, ram: use of each ready VM
    that has a measurement, 0..1, any order, may be empty. waiting: jobs submitted and not executing now. submitted:
    jobs submitted in the episode. waiting_recent, submitted_recent: the same two for jobs submitted in this minute (see
    `waiting_recent_fifo`).

    0 allocated_ratio  allocated_cores / max_cores
    1 cpu_mean         mean of cpu
    2 cpu_p90          90th percentile of cpu, linear interpolation at rank 0.9 (n - 1)
    3 ram_mean         mean of ram
    4 ram_p90          90th percentile of ram
    5 wait_global      waiting / submitted
    6 wait_recent      waiting_recent / submitted_recent

    An empty denominator or an empty array gives 0.
    """
    seven = np.zeros(7, dtype=np.float32)
    if max_cores > 0.0:
        seven[0] = min(max(allocated_cores / max_cores, 0.0), 1.0)
    if cpu.size > 0:
        in_order = np.sort(cpu)
        rank = 0.9 * (in_order.size - 1)
        below = int(rank)
        above = min(below + 1, in_order.size - 1)
        seven[1] = min(max(in_order.sum() / in_order.size, 0.0), 1.0)
        seven[2] = min(max(in_order[below] + (rank - below) * (in_order[above] - in_order[below]), 0.0), 1.0)
    if ram.size > 0:
        in_order = np.sort(ram)
        rank = 0.9 * (in_order.size - 1)
        below = int(rank)
        above = min(below + 1, in_order.size - 1)
        seven[3] = min(max(in_order.sum() / in_order.size, 0.0), 1.0)
        seven[4] = min(max(in_order[below] + (rank - below) * (in_order[above] - in_order[below]), 0.0), 1.0)
    if submitted > 0.0:
        seven[5] = min(max(waiting / submitted, 0.0), 1.0)
    if submitted_recent > 0.0:
        seven[6] = min(max(waiting_recent / submitted_recent, 0.0), 1.0)
    return seven


def next_removal_share(cores: Ints, ready: Ints, minimum: Ints, victim_busy_cores: Floats, busy_cores: float) -> float:
    """Return the share (0..1) of all busy cores that the next removal would interrupt; 0 when no VM may be removed.

    The next removal is the first one in the order in which removals are executed: the type with the most cores (ties:
    the earlier type) of which more VMs are ready than its minimum. Cool-downs are not considered, so that the number
    keeps its meaning during one. cores, ready, minimum: per type. victim_busy_cores: per type, busy cores of the VM
    that the removal rule would choose.
    """
    chosen = -1
    for k in range(cores.size):
        if ready[k] > minimum[k] and (chosen < 0 or cores[k] > cores[chosen]):
            chosen = k
    if chosen < 0 or busy_cores <= 0.0:
        return 0.0
    return float(victim_busy_cores[chosen] / busy_cores)


def obs_v2(
    seven: Vector,
    ready_counts: Ints,
    booting_counts: Ints,
    limits: Ints,
    cooldown_remaining_s: Floats,
    cooldown_length_s: float,
    waiting: float,
    queued_core_s: float,
    max_cores: float,
    oldest_wait_s: float,
    busy_lost_share: float,
) -> Vector:
    """Return obs-v2, float32 of shape (7 + 3 N + 4,) for N VM types (autoscaler specification §3).

    seven: obs-7. ready_counts, booting_counts, limits: VMs per type. cooldown_remaining_s: per type, seconds until a
    change is accepted again (the longer one where directions cool down apart). cooldown_length_s: length of a whole
    cool-down. waiting: jobs. queued_core_s: core-seconds of the waiting jobs. max_cores: cores at the limits.
    oldest_wait_s: age of the oldest waiting job, seconds. busy_lost_share: see `next_removal_share`.

    0..6            obs-7
    7 + 3 k         type k ready_ratio     ready / limit
    8 + 3 k         type k booting_ratio   booting / limit
    9 + 3 k         type k cooldown_ratio  cool-down remaining / its length
    7 + 3 N         waiting_log            log(1 + waiting) / log(1001), clipped to 2 (a million jobs)
    8 + 3 N         queued_fleet_hours     queued_core_s / (3600 max_cores), clipped to 10
    9 + 3 N         oldest_wait            oldest_wait_s / 3600, clipped to 1
    10 + 3 N        busy_lost_share        clipped to 0..1

    An empty denominator gives 0.
    """
    types = ready_counts.size
    out = np.zeros(7 + 3 * types + 4, dtype=np.float32)
    out[:7] = seven
    for k in range(types):
        if limits[k] > 0:
            out[7 + 3 * k] = min(max(ready_counts[k] / limits[k], 0.0), 1.0)
            out[8 + 3 * k] = min(max(booting_counts[k] / limits[k], 0.0), 1.0)
        if cooldown_length_s > 0.0:
            out[9 + 3 * k] = min(max(cooldown_remaining_s[k] / cooldown_length_s, 0.0), 1.0)
    fleet = 7 + 3 * types
    out[fleet] = min(np.log1p(max(waiting, 0.0)) / np.log1p(WAITING_SCALE_JOBS), 2.0)
    if max_cores > 0.0:
        out[fleet + 1] = min(max(queued_core_s / (max_cores * QUEUE_SCALE_S), 0.0), 10.0)
    out[fleet + 2] = min(max(oldest_wait_s / OLDEST_WAIT_SCALE_S, 0.0), 1.0)
    out[fleet + 3] = min(max(busy_lost_share, 0.0), 1.0)
    return out
