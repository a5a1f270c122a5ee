"""What other fleets would have cost: closed forms, brute force, and the same decisions as in the live loop."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from agent.autoscaling.decide import DecisionInputs, decide
from agent.autoscaling.policies.fallback import Proposer, evaluate_directly
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.rails.base import RailLimits
from agent.rails.state import LoopState
from agent.rehearsal.faults import Lack, SimulatedFault
from agent.rehearsal.summary import (
    FleetParameters,
    best_constant,
    never_ending,
    run_agent,
    run_constant,
    snapshot_of,
    world_of,
)
from domain.controls import Controls
from domain.decisions import Mode, Reason
from domain.fleet import Fleet, Group, VmType
from domain.observed import GroupObserved, Instance, Lifecycle, Observed
from domain.samples import QueueMetric, QueueSeries, Sample, VmMetric, VmSeries
from domain.workload import make_trace
from simulator.autoscaling.twin import Simulation

S = VmType("m5a.large", 2, 8.0, 0.086)
M = VmType("m5a.xlarge", 4, 16.0, 0.172)
SMALL = Fleet("web", (Group("s", "web-s", S, 1, 2), Group("m", "web-m", M, 0, 2)))
LIMITS = RailLimits()
PARAMETERS = FleetParameters(SMALL, LIMITS, 300.0)
QUEUE_RULE = "queue-rule:horizon_s=150,job_core_s=120"
HOUR_S = 3600.0


def burst(jobs: int, at: float = 60.0, service_s: float = 300.0):
    return make_trace("burst", [at] * jobs, [service_s] * jobs)


def test_a_constant_fleet_costs_its_price_for_the_whole_horizon_whatever_the_jobs():
    run = run_constant((1, 1), SMALL, burst(3), HOUR_S, 0)
    assert run.rent == pytest.approx(0.086 + 0.172)
    assert run.jobs_finished == 3
    assert run.waiting_cost == 0.0


def test_waiting_costs_what_the_jobs_hours_in_the_queue_are_worth():
    # Two cores, four jobs of 300 s at once: two of them wait 300 s.
    run = run_constant((1, 0), SMALL, burst(4), HOUR_S, 0)
    assert run.waiting_cost == pytest.approx(0.036 * 2 * 300.0 / 3600.0)
    assert run.mean_wait_s == pytest.approx(150.0)
    assert run.cost == run.rent + run.waiting_cost


def test_jobs_that_end_early_do_not_end_the_rent():
    # The reference simulator's episode is over with its last job; a fleet is not.
    assert run_constant((1, 0), SMALL, burst(1, service_s=10.0), HOUR_S, 0).rent == pytest.approx(0.086)


def test_the_job_that_keeps_the_hour_going_is_never_submitted():
    trace = never_ending(burst(3), HOUR_S)
    assert trace.job_id.size == 4
    assert trace.arrival_s.max() > HOUR_S
    assert len(set(trace.job_id.tolist())) == 4


def test_no_jobs_at_all_is_a_trace_too():
    empty = make_trace("empty", np.zeros(0), np.zeros(0))
    assert run_constant((1, 0), SMALL, empty, HOUR_S, 0).rent == pytest.approx(0.086)


def test_the_best_constant_fleet_is_the_cheapest_of_all_sizes():
    trace = make_trace("mixed", [0.0] * 6 + [600.0] * 9, [200.0] * 6 + [500.0] * 9)
    sizes = list(itertools.product(range(1, 3), range(3)))
    costs = {pair: run_constant(pair, SMALL, trace, HOUR_S, 0).cost for pair in sizes}
    best = best_constant(SMALL, trace, HOUR_S, 0)
    assert best.cost == min(costs.values())
    assert best.policy == "constant:" + ",".join(map(str, min(costs, key=costs.__getitem__)))


def test_the_agent_in_the_simulator_keeps_its_rails():
    # 40 jobs ask for everything at once; the step limit lets one VM per group and minute through.
    careful = replace(PARAMETERS, limits=replace(LIMITS, max_step_out=1, cooldown_out_s=0.0))
    hasty = replace(PARAMETERS, limits=replace(LIMITS, cooldown_out_s=0.0))
    slow = run_agent(QUEUE_RULE, careful, burst(40), (1, 0), HOUR_S, 0)
    fast = run_agent(QUEUE_RULE, hasty, burst(40), (1, 0), HOUR_S, 0)
    assert slow.waiting_cost > fast.waiting_cost


def test_a_quiet_hour_leaves_the_agent_with_its_minimum():
    assert run_agent(QUEUE_RULE, PARAMETERS, burst(1, service_s=5.0), (1, 0), HOUR_S, 0).rent == pytest.approx(0.086)


def test_the_same_run_twice_is_the_same_run():
    assert run_agent(QUEUE_RULE, PARAMETERS, burst(30), (1, 0), HOUR_S, 5) == run_agent(
        QUEUE_RULE, PARAMETERS, burst(30), (1, 0), HOUR_S, 5
    )


def fault(lack: Lack, since_s: float, until_s: float, vm_type: str = "") -> SimulatedFault:
    return SimulatedFault(lack, since_s, until_s, vm_type)


def test_while_aws_has_none_of_a_type_the_agent_takes_the_next_one_a_minute_later():
    rich = replace(SMALL, groups=(replace(SMALL.groups[0], maximum=9), SMALL.groups[1]))
    parameters = replace(PARAMETERS, fleet=rich)
    short = run_agent(
        QUEUE_RULE, parameters, burst(8), (1, 0), HOUR_S, 0, faults=[fault(Lack.VMS, 0.0, 1e9, "m5a.large")]
    )
    free = run_agent(QUEUE_RULE, parameters, burst(8), (1, 0), HOUR_S, 0)
    assert short.waiting_cost > free.waiting_cost
    assert short.jobs_finished == free.jobs_finished == 8


@pytest.mark.parametrize("lack", [Lack.MEASUREMENTS, Lack.ANSWERS])
def test_without_measurements_or_answers_the_agent_holds_its_fleet(lack: Lack):
    held = run_agent(QUEUE_RULE, PARAMETERS, burst(30), (1, 0), 900.0, 0, faults=[fault(lack, 0.0, 1e9)])
    alone = run_constant((1, 0), SMALL, burst(30), 900.0, 0)
    assert (held.rent, held.waiting_cost) == pytest.approx((alone.rent, alone.waiting_cost))
    # Once they are back it goes on as before.
    late = run_agent(QUEUE_RULE, PARAMETERS, burst(30), (1, 0), 900.0, 0, faults=[fault(lack, 0.0, 300.0)])
    assert late.jobs_finished > alone.jobs_finished


def test_a_vm_that_aws_takes_back_is_replaced_and_its_jobs_begin_again():
    taken = [fault(Lack.ONE_VM, 300.0, 300.0)]
    # Six jobs of 600 s from second 60 on: four of them are cut off two minutes after the notice.
    cut, plain = (run_constant((1, 1), SMALL, burst(6, service_s=600.0), 720.0, 0, f) for f in (taken, []))
    assert (cut.jobs_finished, plain.jobs_finished) == (2, 6)
    cut, plain = (run_constant((1, 1), SMALL, burst(6, service_s=600.0), HOUR_S, 0, f) for f in (taken, []))
    assert cut.jobs_finished == 6
    # The old VM and the one in its place are both paid for while the old one ends.
    assert plain.rent < cut.rent < plain.rent + 0.172 * 120.0 / 3600.0 + 1e-9


def live_snapshot(waiting: int, running: int, submitted: int, cpu: dict[tuple[str, str], float], now: float):
    """What the live path makes of VMs that report these CPU shares for a minute, and of a queue of this length."""
    store = SeriesStore(watched=[SMALL])
    cores = {group.key: group.vm_type.cores for group in SMALL.groups}
    for second in range(-590, 1, 10):
        for (key, vm), share in cpu.items():
            readings = ((VmMetric.CPU_PERCENT, 100.0 * share), (VmMetric.BUSY_CORES, share * cores[key]))
            for metric, value in readings:
                store.append_samples([Sample(VmSeries("web", key, vm, metric), value, now + second)], now + second)
            store.append_samples(
                [Sample(VmSeries("web", key, vm, VmMetric.RAM_PERCENT), 5.0, now + second)], now + second
            )
        for queue_metric, value in (
            (QueueMetric.WAITING, waiting),
            (QueueMetric.RUNNING, running),
            (QueueMetric.SUBMITTED_TOTAL, submitted),
        ):
            store.append_samples([Sample(QueueSeries("web", queue_metric), float(value), now + second)], now + second)
    groups = {}
    for group in SMALL.groups:
        vms = tuple(
            Instance(vm, "us-east-1a", Lifecycle.IN_SERVICE, launched_at=now - 900.0)
            for key, vm in cpu
            if key == group.key
        )
        groups[group.name] = GroupObserved(group.name, len(vms), group.minimum, group.maximum, vms)
    settings = AggregationSettings(limits=LIMITS)
    return Aggregator(store).snapshot(SMALL, Observed(now, groups), LoopState(), settings, now + 5.0).snapshot


def decided(snapshot):
    inputs = DecisionInputs(
        "web-1", snapshot.taken_at, SMALL, snapshot, LoopState(), Controls(), LIMITS, Mode.ACT, True, 1, QUEUE_RULE
    )
    return decide(inputs, Proposer(evaluate_directly)).decision


def test_the_simulated_fleet_looks_to_the_agent_as_the_same_live_fleet_does():
    trace = burst(20, at=900.0, service_s=1000.0)
    simulation = Simulation(world_of(SMALL, (1, 1)), never_ending(trace, HOUR_S), 0)
    for _ in range(16):
        simulation.step(np.zeros(2, dtype=np.int64))
    simulated = snapshot_of(PARAMETERS, simulation.fleet_view())
    assert simulated.queue is not None
    now = 1_795_208_400.0
    live = live_snapshot(
        simulated.queue.waiting,
        simulated.queue.running,
        simulated.queue.submitted,
        {("s", "i-1"): 1.0, ("m", "i-2"): 1.0},
        now,
    )
    mine, theirs = decided(simulated), decided(live)
    assert mine.desired == theirs.desired == (2, 2)
    assert (mine.reason, mine.proposal.detail) == (theirs.reason, theirs.proposal.detail)
    assert mine.reason is Reason.QUEUE_GREW
