"""A cloud in virtual time: the reference simulator behind the ports of the loop, whose VMs and job queue report.

Nothing here waits: the clock moves as the simulator is stepped, so that days of a trace take seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from actuators.base import Act, ChangingCall, Permit
from agent.autoscaling.snapshot.series import SeriesStore
from domain.clock import VirtualClock
from domain.decisions import Direction, Event, Intent, Outcome, Reason, Status
from domain.fleet import Fleet
from domain.observed import DrainHook, GroupObserved, Instance, Lifecycle, Observed
from domain.samples import QueueMetric, QueueSeries, VmMetric, VmSeries
from domain.workload import Trace
from simulator.autoscaling.reference import Simulation, SimulationConfig, Watch
from simulator.autoscaling.reference.machine import BOOTING, DRAINING, READY, Machine

ZONE = "virtual-1a"
HOOK = DrainHook("drain", 300.0, 7200.0)
BEFORE_S = 60.0
"""The first VMs have reported for so long, idle, before the first decision."""

_LIFECYCLE = {BOOTING: Lifecycle.PENDING, READY: Lifecycle.IN_SERVICE, DRAINING: Lifecycle.DRAINING}


class VirtualCloud:
    """The simulated fleet as the loop's cloud (an `actuators.base.Actuator`) and as the sender of its measurements.

    clock: stands at the time of the first decision; the simulator's second 0 is that moment. sample_interval_s: how
    often VMs and queue report, counted from each decision. Intents become sizes: which VM leaves is the simulator's
    rule, and what is applied takes effect at once, as a step of the simulator begins with its action.
    """

    def __init__(
        self,
        fleet: Fleet,
        config: SimulationConfig,
        trace: Trace,
        seed: int,
        store: SeriesStore,
        clock: VirtualClock,
        sample_interval_s: float,
    ) -> None:
        self.simulation = Simulation(config, trace, seed, Watch(sample_interval_s, self._report))
        self._fleet, self._store, self._clock = fleet, store, clock
        self._origin = clock.now()
        self._changes = [0] * len(fleet.groups)
        self._paths: dict[str, tuple[bytes, ...]] = {}
        self._queue_paths = {metric: QueueSeries(fleet.name, metric).path.encode() for metric in QueueMetric}
        steps = round(BEFORE_S / sample_interval_s)
        for number in range(steps):
            self._send(self._origin - (steps - 1 - number) * sample_interval_s)

    def minute(self) -> None:
        """Let one step of the simulator pass, with what was applied since the last one."""
        self.simulation.step(np.array(self._changes, dtype=np.int64))
        self._changes = [0] * len(self._changes)

    # The actuator

    def observe(self, fleets: Sequence[Fleet], now: float) -> Observed:
        """Return the groups as the simulator has them."""
        by_kind: dict[int, list[Machine]] = {}
        for machine in self.simulation.machines:
            by_kind.setdefault(machine.kind, []).append(machine)
        groups = {}
        for kind, group in enumerate(self._fleet.groups):
            machines = by_kind.get(kind, [])
            groups[group.name] = GroupObserved(
                name=group.name,
                desired=sum(machine.state != DRAINING for machine in machines),
                minimum=group.minimum,
                maximum=group.maximum,
                instances=tuple(self._instance(machine) for machine in machines),
                zones=(ZONE,),
                drain_hook=HOOK,
            )
        return Observed(now, groups)

    def apply(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Note the change of size; what exceeds the room that the simulator has left is not achieved."""
        kind = self._fleet.index(intent.group)
        asked = abs(intent.target - intent.before)
        if intent.direction is Direction.REPLACE:
            return Outcome(intent.intent_id, Status.SKIPPED, Reason.NOTHING_TO_DO, asked, 0, now)
        act = Act.LAUNCH if intent.direction is Direction.OUT else Act.REMOVE
        refusal = permit(ChangingCall(act, intent.fleet, intent.group, intent))
        if refusal is not None:
            return Outcome(intent.intent_id, Status.SKIPPED, refusal.reason, asked, 0, now, refusal.detail)
        mine = [machine for machine in self.simulation.machines if machine.kind == kind]
        config = self.simulation.config
        if intent.direction is Direction.OUT:
            achieved = min(asked, config.limits[kind] - len(mine))
            self._changes[kind] += achieved
        else:
            achieved = min(asked, sum(machine.state == READY for machine in mine) - config.minimum[kind])
            self._changes[kind] -= achieved
        done = achieved == asked
        status, reason = (Status.DONE, Reason.DONE) if done else (Status.PARTIAL, Reason.PARTIAL)
        return Outcome(intent.intent_id, status, reason, asked, achieved, now)

    def follow(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Close an intent that an earlier run left open: nothing of it is known here."""
        asked = abs(intent.target - intent.before)
        return Outcome(intent.intent_id, Status.SKIPPED, Reason.SUPERSEDED, asked, 0, now)

    def clock_stepped(self, step_s: float) -> None:
        """Do nothing: nobody sets a virtual clock."""

    def tend(
        self, fleet: Fleet, observed: Observed, busy_cores: Mapping[str, float | None], now: float, permit: Permit
    ) -> tuple[Event, ...]:
        """Do nothing: drains end by themselves."""
        return ()

    # What is reported

    def _instance(self, machine: Machine) -> Instance:
        launched_at = self._origin + machine.requested_at
        return Instance(_vm(machine), ZONE, _LIFECYCLE[machine.state], launched_at=launched_at)

    def _report(self, simulation: Simulation) -> None:
        at = self._origin + simulation.now_s
        self._clock.advance(at - self._clock.now())
        self._send(at)

    def _send(self, at: float) -> None:
        paths: list[bytes] = []
        values: list[float] = []
        for machine in self.simulation.machines:
            if machine.state == READY:
                paths += self._paths_of(machine)
                values += self._readings(machine)
        queue = self.simulation.fleet_view().queue
        counts = {
            QueueMetric.WAITING: float(queue.waiting),
            QueueMetric.RUNNING: float(queue.running),
            QueueMetric.SUBMITTED_TOTAL: float(queue.submitted),
            QueueMetric.OLDEST_WAIT_SECONDS: queue.oldest_wait_s,
        }
        if queue.waiting:
            counts[QueueMetric.JOB_CORE_SECONDS] = queue.queued_core_s / queue.waiting
        paths += [self._queue_paths[metric] for metric in counts]
        values += counts.values()
        refused = self._store.append(paths, values, [at] * len(paths), at)
        assert not refused, f"what the simulator reports is well formed: {refused[0]}"

    def _readings(self, machine: Machine) -> tuple[float, float, float, float]:
        busy, idle = machine.busy, self.simulation.config.idle_cpu
        share = busy / machine.cores
        return (
            100.0 * (share + (1.0 - share) * idle),
            100.0 * machine.used_ram_gb / machine.ram_gb,
            float(busy),
            self.simulation.work_lost(machine),
        )

    def _paths_of(self, machine: Machine) -> tuple[bytes, ...]:
        vm = _vm(machine)
        if vm not in self._paths:
            group = self._fleet.groups[machine.kind].key
            metrics = (VmMetric.CPU_PERCENT, VmMetric.RAM_PERCENT, VmMetric.BUSY_CORES, VmMetric.WORK_CORE_SECONDS)
            self._paths[vm] = tuple(VmSeries(self._fleet.name, group, vm, m).path.encode() for m in metrics)
        return self._paths[vm]


def _vm(machine: Machine) -> str:
    return f"i-{machine.number:017x}"
