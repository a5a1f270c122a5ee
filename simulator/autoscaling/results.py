"""Reads one copy's records into the reference simulator's own types: measures, counts and the view of the fleet."""

from __future__ import annotations

import numpy as np

from simulator.autoscaling.episode import view
from simulator.autoscaling.layout import Records, Worlds
from simulator.autoscaling.reference.accounting import UNITS_PER_DOLLAR, dollars
from simulator.autoscaling.reference.actions import Outcome
from simulator.autoscaling.reference.configuration import RemovalChoice, SimulationConfig
from simulator.autoscaling.reference.measures import Measures
from simulator.autoscaling.reference.view import FleetView, QueueView, StepInfo


def total_units(row: Records, name: str) -> int:
    """Return an episode total in the units of `simulator.autoscaling.reference.accounting`."""
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
        waiting=int(row["waiting"] - row["uncounted"]),
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


class Viewer:
    """Reads the view of the fleet of copies of one configuration; what never changes is shared by all views."""

    def __init__(self, config: SimulationConfig) -> None:
        self._removes_newest = config.removal_choice is RemovalChoice.NEWEST
        self._cores, self._minimum, self._maximum = (
            np.array(column, dtype=np.int64) for column in (config.cores, config.minimum, config.limits)
        )
        for shared in (self._cores, self._minimum, self._maximum):
            shared.setflags(write=False)
        self._cooldowns = np.zeros((2, len(config.types)), dtype=np.float64)
        self._vms = np.zeros((5, max(sum(config.limits), 1)), dtype=np.float64)

    def view(self, worlds: Worlds, copy: int) -> FleetView:
        """Return what an outside policy may decide on."""
        oldest = view(worlds.copies, copy, self._cooldowns, self._vms)
        row, counts = worlds.copies[copy], worlds.counts[copy]
        now, queued, finished, submitted = (row[name].item() for name in ("now", "waiting", "finished", "submitted"))
        shown, cooldowns = self._vms[:, : row["ready"]].copy(), self._cooldowns.copy()
        ready, booting = counts["ready"].copy(), counts["booting"].copy()
        requested = ready + booting
        return FleetView(
            now_s=now,
            cores=self._cores,
            requested=requested,
            ready=ready,
            booting=booting,
            draining=counts["present"] - requested,
            minimum=self._minimum,
            maximum=self._maximum,
            cooldown_out_s=cooldowns[0],
            cooldown_in_s=cooldowns[1],
            free_cores=row["free_cores"].item(),
            busy_cores=row["busy_cores"].item(),
            removes_newest=self._removes_newest,
            vm_type=shown[0].astype(np.int64),
            vm_cpu=shown[1],
            vm_ram=shown[2],
            vm_ready_s=shown[3],
            vm_idle_s=shown[4],
            queue=QueueView(
                waiting=queued - row["uncounted"].item(),
                running=row["executing"].item(),
                submitted=submitted,
                submitted_recent=submitted - row["submitted_before"].item(),
                oldest_wait_s=now - oldest if queued else 0.0,
                queued_core_s=row["queued_core_s"].item(),
                mean_job_core_s=row["finished_core_s"].item() / finished if finished else None,
            ),
        )
