"""What a policy saw in training is what it sees in service: one scenario through simulator and through the agent.

The simulator's monitors are read out and sent as Graphite lines; the agent folds them. Both vectors agree to 1e-6.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from agent.autoscaling.snapshot.aggregate import AggregationSettings
from agent.rails.base import RailLimits
from domain.fleet import Fleet, Group
from domain.observed import DrainHook, Instance, Lifecycle
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import CpuSampling, RemovalChoice, RemovalMode, SimulationConfig
from simulator.autoscaling.twin import Simulation
from simulator.autoscaling.twin_world import BOOTING, DRAINING, Machine, World
from tests.agent.autoscaling.snapshot.scene import T0, Scene

JOB_S = 97.3
KEYS = ("s", "m", "l")
CONFIG = SimulationConfig(
    cpu_sampling=CpuSampling.SAMPLED,
    removal_choice=RemovalChoice.LEAST_WORK_LOST,
    removal_mode=RemovalMode.DRAIN,
    idle_cpu=0.07,
    base_ram_gb=0.9,
)


def _fleet(config: SimulationConfig) -> Fleet:
    kinds = zip(KEYS, config.types, config.minimum, config.limits, strict=True)
    return Fleet("web", tuple(Group(key, f"web-{key}", vm_type, low, high) for key, vm_type, low, high in kinds))


def _vm(machine: Machine) -> str:
    return f"i-{machine.number:017x}"


def _trace() -> Trace:
    rng = np.random.default_rng(7)
    bursts = np.repeat([3.0, 301.7, 777.1, 1500.9], [40, 90, 25, 60])
    arrivals = bursts + rng.uniform(0.0, 50.0, bursts.size)
    return make_trace("parity", arrivals, np.full(arrivals.size, JOB_S))


def _send_readings(scene: Scene) -> Callable[[World], None]:
    """Return the simulator's monitor, which also sends what it reads."""
    read = World._read_monitors

    def read_and_send(world: World) -> None:
        at = T0 + world.next_reading
        scene.now = at
        for machine in world.ready:
            busy = 1.0 - machine.free / machine.cores
            scene.report(
                KEYS[machine.kind],
                _vm(machine),
                [at],
                cpu_percent=100.0 * (busy + (1.0 - busy) * CONFIG.idle_cpu),
                ram_percent=100.0 * machine.used_ram_gb / machine.ram_gb,
                busy_cores=float(machine.cores - machine.free),
                work_core_seconds=world.work_lost(machine),
            )
        read(world)

    return read_and_send


def _show_cloud(scene: Scene, world: World) -> None:
    states = {BOOTING: Lifecycle.PENDING, DRAINING: Lifecycle.DRAINING}
    for kind, key in enumerate(KEYS):
        instances = [
            Instance(_vm(m), "a", states.get(m.state, Lifecycle.IN_SERVICE), launched_at=T0 + m.requested_at)
            for m in world.machines
            if m.kind == kind
        ]
        scene.place(key, *instances, drain_hook=DrainHook("drain", 60.0, 600.0))


@pytest.mark.parametrize("interval_s", [10.0, 15.0, 20.0, 30.0, 60.0])
def test_the_agent_observes_what_the_simulator_observes(interval_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RailLimits(cooldown_out_s=0.0, cooldown_in_s=0.0, min_lifetime_s=0.0)
    settings = AggregationSettings(limits=limits, sample_interval_s=interval_s)
    config = replace(CONFIG, sample_interval_s=interval_s, samples_needed=settings.min_samples)
    scene = Scene(now=T0, fleet=_fleet(config), settings=settings)
    simulation = Simulation(config, _trace(), seed=11)
    monkeypatch.setattr(World, "_read_monitors", _send_readings(scene))
    scene.report_queue(T0, submitted_total=0)
    actions = np.random.default_rng(3)
    steps = removed = 0
    while not simulation.finished:
        change = actions.choice([-1, 0, 0, 1, 2], size=3)
        result = simulation.step(change)
        steps += 1
        removed += sum(result.info.outcome.removed)
        view = simulation.fleet_view().queue
        scene.now = T0 + 60.0 * steps
        oldest, job = view.oldest_wait_s, JOB_S
        scene.report_queue(
            scene.now,
            waiting=view.waiting,
            running=view.running,
            submitted_total=view.submitted,
            oldest_wait_seconds=oldest,
            job_core_seconds=job,
        )
        _show_cloud(scene, simulation._world)
        scene.now += 5.0
        snapshot = scene.fold()
        assert snapshot.bin_end == T0 + 60.0 * steps
        assert snapshot.warm == result.info.ready
        np.testing.assert_allclose(snapshot.obs7, result.obs, rtol=0, atol=1e-6)
        np.testing.assert_allclose(snapshot.obs_v2, simulation.observe_v2(), rtol=0, atol=1e-6)
    assert scene.counters.rejected_total == 0
    assert steps > 25
    assert removed > 5
