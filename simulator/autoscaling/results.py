"""Reads one copy's records into the reference simulator's own types: measures, counts and the view of the fleet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.autoscaling.episode import view_vms
from simulator.autoscaling.layout import Records, Worlds
from simulator.autoscaling.orders import cooldown_left
from simulator.autoscaling.waiting import oldest_arrival
from simulator.reference.accounting import UNITS_PER_DOLLAR, dollars
from simulator.reference.actions import Outcome
from simulator.reference.configuration import RemovalChoice, SimulationConfig
from simulator.reference.measures import Measures
from simulator.reference.view import FleetView, QueueView, StepInfo


def total_units(row: Records, name: str) -> int:
    """Return an episode total in the units of `simulator.reference.accounting`."""
    return int(row[f"{name}_dollars"]) * UNITS_PER_DOLLAR + int(row[f"{name}_units"])


def measures_of(worlds: Worlds, copy: int, config: SimulationConfig) -> Measures:
    """Return the measures of a copy's episode so far."""
    row, counts = worlds.copies[copy], worlds.counts[copy]
    steps, ready_core_s, busy_core_s = int(row["steps"]), float(row["ready_core_s"]), float(row["busy_core_s"])
    rent, penalty = total_units(row, "rent"), total_units(row, "penalty")
    answered = int(row["bursts_answered"])
    waits = worlds.waits["seconds"][copy, : int(row["finished"])]
    return Measures(
        steps=steps,
        run_time_s=float(row["now"]),
        cost=dollars(rent + penalty),
        rent=dollars(rent),
        penalty=dollars(penalty),
        jobs_finished=int(row["finished"]),
        jobs_submitted=int(row["submitted"]),
        mean_wait_s=float(waits.mean()) if waits.size else 0.0,
        p95_wait_s=float(np.percentile(waits, 95.0)) if waits.size else 0.0,
        allocated_ratio=float(row["allocated"]) / steps if steps else 0.0,
        utilisation=busy_core_s / ready_core_s if ready_core_s > 0 else 0.0,
        idle_core_h=(ready_core_s - busy_core_s) / 3600.0,
        executed_core_s=float(row["executed_core_s"]),
        added=tuple(counts["added"].tolist()),
        removed=tuple(counts["removed"].tolist()),
        refused=tuple(counts["refused"].tolist()),
        interruptions=int(row["interruptions"]),
        lost_core_s=float(row["lost_core_s"]),
        peak_cores=int(row["peak_cores"]),
        bursts=int(row["bursts"]),
        reclaimed=int(row["reclaimed"]),
        first_core_s=float(row["burst_wait_s"]) / answered if answered else 0.0,
    )


def info_of(worlds: Worlds, copy: int, config: SimulationConfig, *, with_outcome: bool) -> StepInfo:
    """Return a copy's counts at this instant, with what became of the last step's orders or with no outcome."""
    row, counts = worlds.copies[copy], worlds.counts[copy]
    ready, booting = counts["ready"].tolist(), counts["booting"].tolist()
    none = (0,) * len(ready)
    names = ("step_added", "step_removed", "step_refused")
    outcome = Outcome(*(tuple(counts[name].tolist()) for name in names)) if with_outcome else Outcome(none, none, none)
    return StepInfo(
        step=int(row["steps"]),
        now_s=float(row["now"]),
        waiting=int(row["waiting"]),
        executing=int(row["executing"]),
        finished=int(row["finished"]),
        submitted=int(row["submitted"]),
        ready=tuple(ready),
        booting=tuple(booting),
        draining=tuple((counts["present"] - counts["ready"] - counts["booting"]).tolist()),
        cores_ready=int(row["ready_cores"]),
        cores_booting=sum(n * cores for n, cores in zip(booting, config.cores, strict=True)),
        cores_busy=int(row["busy_cores"]),
        outcome=outcome,
    )


def fleet_view_of(worlds: Worlds, copy: int, config: SimulationConfig, vms: NDArray[np.float64]) -> FleetView:
    """Return what an outside policy may decide on; `vms` is scratch space of shape (5, V)."""
    row, counts, kinds = worlds.copies[copy], worlds.counts[copy], range(len(config.types))
    view_vms(worlds.copies, copy, vms)
    shown = vms[:, : int(row["ready"])].copy()
    ready, booting = counts["ready"].copy(), counts["booting"].copy()
    waiting, finished, submitted = int(row["waiting"]), int(row["finished"]), int(row["submitted"])
    return FleetView(
        now_s=float(row["now"]),
        cores=np.array(config.cores, dtype=np.int64),
        requested=ready + booting,
        ready=ready,
        booting=booting,
        draining=counts["present"] - ready - booting,
        minimum=np.array(config.minimum, dtype=np.int64),
        maximum=np.array(config.limits, dtype=np.int64),
        cooldown_out_s=np.array([cooldown_left(row, k, True) for k in kinds]),
        cooldown_in_s=np.array([cooldown_left(row, k, False) for k in kinds]),
        free_cores=int(row["free_cores"]),
        busy_cores=int(row["busy_cores"]),
        removes_newest=config.removal_choice is RemovalChoice.NEWEST,
        vm_type=shown[0].astype(np.int64),
        vm_cpu=shown[1],
        vm_ram=shown[2],
        vm_ready_s=shown[3],
        vm_idle_s=shown[4],
        queue=QueueView(
            waiting=waiting,
            running=int(row["executing"]),
            submitted=submitted,
            submitted_recent=submitted - int(row["submitted_before"]),
            oldest_wait_s=float(row["now"]) - oldest_arrival(row) if waiting else 0.0,
            queued_core_s=float(row["queued_core_s"]),
            mean_job_core_s=float(row["finished_core_s"]) / finished if finished else None,
        ),
    )
