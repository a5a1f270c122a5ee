"""How the published simulator differs from the exact one: sixteen switches (autoscaler specification §8)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput

CLOCK_OFFSET_STEPS = 0.1
START_LATENCY_S = 60.0
CHAIN_LOSS_S = 0.59
RENT_FACTOR = 0.00028 * 3600.0
CORE_MIPS = 10_000.0
LOW_PERCENTILE = 0.9
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Compat:
    """One switch per row of the table, in its order; all off is the exact simulator.

    1 offset_clock: steps end a tenth of a step late, and an event at a step's very end belongs to the next step.
    2 arrivals_by_minute: a job that arrives in minute d is handed over at the start of step d; those of minute 0 at the
    reset, if the clock is offset, else in step 1. Released jobs keep their own time.
    3 start_latency: a job runs 60 s after it was given a core; until then it waits and its core is not busy.
    4 chain_loss: 0.59 s more for a job on a VM where another has just ended.
    5 rounded_price: a second costs 0.00028 of the hourly price.
    6 interrupted_to_tail: a job whose run was interrupted goes to the queue's tail and never counts as waiting again;
    one that had its core and had not begun keeps its place.
    7 free_last_step: the step in which the last job ends costs nothing.
    8 low_percentile: "p90" is the 0.9th percentile, the least value of up to 110 VMs.
    9 single_ram_slot: of the VMs' RAM only the last one is known, the others count as 0.
    10 recent_minus_vms: wait_recent is divided by the jobs submitted so far less the VMs ever made; 0 where that is not
    positive.
    11 single_limit: allocated_ratio is divided by one limit for every type, the largest. (The published program takes
    3000 where none is given, which makes the entry nearly 0.)
    12 blank_first_observation: the observation before step 1 is all zeros.
    13 truncated_service: a job is a whole number of instructions, at least one, at 10,000 a step's unit of time.
    14 next_fit: placement goes on where the last job was placed, whatever `dispatch` says.
    15 lone_initial_ignored: an initial fleet given as one number for all types is ignored: one VM of each.
    16 minute_steps: the step is 60 s, the unit of rows 2 and 13; another length is refused.
    """

    offset_clock: bool = False
    arrivals_by_minute: bool = False
    start_latency: bool = False
    chain_loss: bool = False
    rounded_price: bool = False
    interrupted_to_tail: bool = False
    free_last_step: bool = False
    low_percentile: bool = False
    single_ram_slot: bool = False
    recent_minus_vms: bool = False
    single_limit: bool = False
    blank_first_observation: bool = False
    truncated_service: bool = False
    next_fit: bool = False
    lone_initial_ignored: bool = False
    minute_steps: bool = False


ROWS: tuple[str, ...] = tuple(row.name for row in fields(Compat))
"""Names of the switches; row r of the table is `ROWS[r - 1]`."""
EXACT = Compat()
COMPAT = Compat(**dict.fromkeys(ROWS, True))


def compat_rows(*rows: int) -> Compat:
    """Return a setting with only these rows of the table (1 to 16) switched on; BadInput for a row there is not."""
    for row in rows:
        if not 1 <= row <= len(ROWS):
            raise BadInput("compat row", row, f"give a row in 1..{len(ROWS)}")
    return Compat(**{ROWS[row - 1]: True for row in rows})


def truncated_service_s(service_s: float, step_s: float) -> float:
    """Return the service time of row 13: whole instructions on a core, in a clock sped up by the step's length."""
    return max(math.trunc(service_s * CORE_MIPS / step_s), 1) / CORE_MIPS * step_s


def published_observation(
    compat: Compat,
    seven: NDArray[np.float32],
    cpu: NDArray[np.float64],
    ram: NDArray[np.float64],
    allocated_ratio: float,
    waiting_recent: int,
    submitted: int,
    vms_made: int,
) -> NDArray[np.float32]:
    """Return obs-7 as the published simulator shows it: rows 8 to 11 applied to `seven`, every entry in 0..1.

    cpu, ram: use of the ready VMs in request order. allocated_ratio: ready cores over those of row 11. waiting_recent:
    jobs of this step that wait. submitted: jobs submitted in the episode. vms_made: VMs in the episode, the first ones
    included.
    """
    shown = seven.copy()
    percentile = _lowest if compat.low_percentile else _ninetieth
    if compat.single_ram_slot and ram.size:
        ram = np.append(ram[-1:], np.zeros(ram.size - 1))
        shown[3] = ram.sum() / ram.size
    if compat.low_percentile or compat.single_ram_slot:
        shown[2], shown[4] = percentile(cpu), percentile(ram)
    if compat.recent_minus_vms:
        counted = submitted - vms_made
        shown[6] = waiting_recent / counted if counted > 0 else 0.0
    if compat.single_limit:
        shown[0] = allocated_ratio
    clipped: NDArray[np.float32] = np.clip(shown, 0.0, 1.0).astype(np.float32)
    return clipped


def _lowest(values: NDArray[np.float64]) -> float:
    """Return the 0.9th percentile at rank 0.009 (n + 1), counted from 1."""
    if values.size == 0:
        return 0.0
    in_order = np.sort(values)
    rank = LOW_PERCENTILE / 100.0 * (values.size + 1)
    if rank < 1.0:
        return float(in_order[0])
    below = int(rank)
    above = min(below + 1, values.size)
    return float(in_order[below - 1] + (rank - below) * (in_order[above - 1] - in_order[below - 1]))


def _ninetieth(values: NDArray[np.float64]) -> float:
    return float(np.percentile(values, 90.0)) if values.size else 0.0
