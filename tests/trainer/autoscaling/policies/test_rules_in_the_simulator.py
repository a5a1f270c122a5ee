"""Baselines go through the same actions, cool-downs and boot times as anybody (autoscaler specification §9)."""

import pytest

from domain.errors import BadInput
from domain.workload import Trace, make_trace
from simulator.autoscaling.batch import FastSimulation
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import Measures
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_fit, train_text
from trainer.autoscaling.policies import begin, run_policy
from trainer.autoscaling.policy_names import policy_of, run_many

FIXED_BOOT = preset("train-text", boot_low_s=71.0, boot_high_s=71.0)


def run(text: str, trace: Trace, config: SimulationConfig = FIXED_BOOT, seed: int = 0) -> Measures:
    return run_policy(policy_of(text), config, trace, seed)


def fleets(text: str, trace: Trace, config: SimulationConfig = FIXED_BOOT) -> list[tuple[int, ...]]:
    seen = []

    def on_step(simulation: object, result: object) -> None:
        seen.append(tuple(map(int, simulation.fleet_view().requested)))  # type: ignore[attr-defined]

    run_policy(policy_of(text), config, trace, on_step=on_step)
    return seen


def test_a_constant_fleet_is_there_from_the_start_whatever_the_initial_one() -> None:
    figures = run("constant:1,1,1", train_text(), preset("train-text", initial=(5, 5, 5)))
    assert (figures.steps, figures.added, figures.removed) == (666, (0, 0, 0), (0, 0, 0))
    assert figures.cost == pytest.approx(247.5084, abs=1e-9)


@pytest.mark.parametrize("sizes", ["0,1,1", "1,1,11", "1,1"])
def test_a_fleet_outside_minimum_and_limits_is_refused(sizes: str) -> None:
    for name in ("constant", "fixed-ramp"):
        with pytest.raises(BadInput, match=name):
            run(f"{name}:{sizes}", train_fit())


def test_a_ramp_goes_to_its_fleet_at_once_or_one_vm_a_minute() -> None:
    busy = make_trace("long", [0.0], [3600.0])
    at_once, step_by_step = fleets("fixed-ramp:3,1,0", busy), fleets("fixed-ramp:3,1,0,single=true", busy)
    assert at_once[0] == (3, 1, 0)
    assert step_by_step[:4] == [(2, 1, 1), (3, 1, 1), (3, 1, 0), (3, 1, 0)]
    assert set(at_once) == {(3, 1, 0)}


def test_a_ramp_to_so_many_cores_takes_the_largest_vms() -> None:
    assert fleets("fixed-ramp:cores=30", make_trace("long", [0.0], [3600.0]))[-1] == (1, 1, 3)
    with pytest.raises(BadInput, match="C_max is 140"):
        run("fixed-ramp:cores=31", train_fit())


def test_a_ramp_adds_another_type_while_one_cools_down() -> None:
    config = preset("train-text", cooldown_s=300.0)
    seen = fleets("fixed-ramp:3,3,3,single=true", make_trace("long", [0.0], [3600.0]), config)
    assert seen[:6] == [(1, 1, 2), (1, 2, 2), (2, 2, 2), (2, 2, 2), (2, 2, 2), (2, 2, 3)]


# It stands in the queue before the first decision, so that all VMs are busy from the second on.
BUSY = make_trace("busy", [0.0] * 400, [600.0] * 400)


def test_the_thresholds_own_cooldown_counts_from_the_accepted_change() -> None:
    every_minute = fleets("threshold:low=0,warmup_s=0,cooldown_s=0", BUSY)
    every_five = fleets("threshold:low=0,warmup_s=0,cooldown_s=300", BUSY)
    assert every_minute[:4] == [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 4, 4)]
    assert every_five[:12] == [(1, 1, 1)] + [(2, 2, 2)] * 5 + [(3, 3, 3)] * 5 + [(4, 4, 4)]


def test_the_threshold_ignores_vms_that_warm_up_unless_told_not_to() -> None:
    waits = fleets("threshold:low=0,cooldown_s=0", BUSY)
    assert waits[:9] == [(1, 1, 1)] * 5 + [(2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 5, 5)]
    assert fleets("threshold:low=0,cooldown_s=0,exclude_warming=false", BUSY)[1] == (2, 2, 2)


def test_target_tracking_leaves_a_group_without_a_vm_only_where_the_minimum_allows() -> None:
    text = "target-tracking:target=0.6,in_periods=1,warmup_s=0"
    freely, kept = fleets(text, train_fit()), fleets(f"{text},keep_one=true", train_fit())
    assert [min(column) for column in zip(*freely, strict=True)] == [1, 0, 0]
    assert [min(column) for column in zip(*kept, strict=True)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "trace", "cost"),
    [
        ("queue-rule:horizon_s=700,idle_s=120", train_text(), 19.9223),
        ("queue-rule:horizon_s=420,idle_s=0,single=true", train_text(), 20.1179),
        ("queue-rule:horizon_s=240,idle_s=0", train_fit(), 5.7227),
        ("queue-rule:horizon_s=210,idle_s=0,single=true", train_fit(), 6.1653),
    ],
)
def test_the_queue_rules_figures(text: str, trace: Trace, cost: float) -> None:
    assert run(text, trace).cost == pytest.approx(cost, abs=5e-5)


def test_the_queue_rule_may_choose_among_types_that_do_not_cool_down() -> None:
    config = preset("train-text", cooldown_s=300.0)
    waits = fleets("queue-rule:horizon_s=300,single=true", train_text(), config)
    changes = fleets("queue-rule:horizon_s=300,single=true,skip_cooling=true", train_text(), config)
    assert waits[:4] == [(1, 1, 1), (1, 1, 2), (1, 1, 2), (1, 1, 2)]
    assert changes[:4] == [(1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2)]


def test_the_work_of_the_queue_may_be_estimated_as_a_live_controller_does() -> None:
    known = run("queue-rule:horizon_s=420,idle_s=0", train_text())
    assert run("queue-rule:horizon_s=420,idle_s=0,job_core_s=360", train_text()).cost == known.cost
    assert run("queue-rule:horizon_s=420,idle_s=0,job_core_s=36", train_text()).cost != known.cost


def test_one_trace_serves_every_seed_and_several_go_with_their_own() -> None:
    config = preset("paper-live")
    traces = [coevolution(seed, generations=1) for seed in (1, 2)]
    text = "queue-rule:horizon_s=120"
    assert run_many(text, config, traces, [5, 6]) == [run(text, traces[0], config, 5), run(text, traces[1], config, 6)]
    assert run_many(text, config, traces[:1], [5, 6])[1] == run(text, traces[0], config, 6)
    with pytest.raises(BadInput, match="each of the 3 seeds"):
        run_many(text, config, traces, [1, 2, 3])


def test_an_episode_begins_in_the_world_that_the_policy_needs() -> None:
    simulation = begin(policy_of("constant:4,0,0"), FIXED_BOOT, train_fit())
    assert isinstance(simulation, FastSimulation)
    assert simulation.fleet_view().requested.tolist() == [4, 0, 0]
