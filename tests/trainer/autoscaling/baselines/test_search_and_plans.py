"""Plans: found, bettered in the simulator, kept with the program, played as a policy (§9.5)."""

import numpy as np
import pytest

from domain.workload import Trace, make_trace
from simulator.autoscaling.actions import MULTI_CHANGES
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_fit, train_text
from trainer.autoscaling.baselines.clairvoyant import Unavailable
from trainer.autoscaling.baselines.plans import Replay, SearchSettings, better, kept_plan, make_plan
from trainer.autoscaling.policies import ScriptPolicy, run_policy
from trainer.autoscaling.policy_names import policy_of

FIXED_BOOT = preset("train-text", boot_low_s=71.0, boot_high_s=71.0)
SMALL = make_trace("small", [0.0] * 60 + [900.0] * 20, [120.0] * 80)
SHORT = SearchSettings(chains=8, rounds=40, time_limit_s=300.0)


@pytest.mark.parametrize("multi", [False, True])
def test_a_replay_costs_what_the_script_costs(multi: bool) -> None:
    rng = np.random.default_rng(1)
    shape = (3, 30, 3) if multi else (3, 30)
    lists = rng.integers(0, 7, size=shape)
    costs = Replay(FIXED_BOOT, SMALL, 3, [4], multi).costs(lists)
    for row, cost in zip(lists, costs, strict=True):
        actions = tuple(tuple(MULTI_CHANGES[i] for i in step) for step in row) if multi else tuple(map(int, row))
        assert run_policy(ScriptPolicy("list", actions), FIXED_BOOT, SMALL, 4).cost == pytest.approx(cost, abs=1e-12)


@pytest.mark.parametrize("multi", [False, True])
def test_a_search_betters_what_it_starts_from_and_repeats_itself(multi: bool) -> None:
    first = np.full((30, 3), MULTI_CHANGES.index(0)) if multi else np.zeros(30, dtype=np.int64)
    begun = float(Replay(FIXED_BOOT, SMALL, 1, [0, 1], multi).costs(first[None])[0])
    found, cost = better(FIXED_BOOT, SMALL, [first], [0, 1], SHORT)
    assert cost < 0.97 * begun
    again, same = better(FIXED_BOOT, SMALL, [first], [0, 1], SHORT)
    assert cost == same
    assert np.array_equal(found, again)
    assert float(Replay(FIXED_BOOT, SMALL, 1, [0, 1], multi).costs(found[None])[0]) == cost


@pytest.mark.exhaustive
@pytest.mark.parametrize("single", [True, False])
def test_a_plan_lies_between_the_bound_and_the_queue_rule(single: bool) -> None:
    plan = make_plan(FIXED_BOOT, SMALL, single=single, time_limit_s=6.0)
    played = run_policy(ScriptPolicy("plan", plan.actions), FIXED_BOOT, SMALL)
    rule = run_policy(policy_of(f"queue-rule:horizon_s=120,idle_s=0,single={single}"), FIXED_BOOT, SMALL)
    assert plan.bound <= played.cost == pytest.approx(plan.cost, abs=1e-12)
    assert plan.cost <= rule.cost


@pytest.mark.parametrize(
    ("trace", "action_set", "bound", "at_most"),
    [
        (train_text(), "act-7", 19.148, 19.51),
        (train_text(), "act-multi", 18.986, 19.60),
        (train_fit(), "act-7", 4.830, 5.00),
        (train_fit(), "act-multi", 4.693, 4.78),
    ],
)
def test_the_kept_plans_cost_what_they_say(trace: Trace, action_set: str, bound: float, at_most: float) -> None:
    kept = kept_plan(FIXED_BOOT, trace, action_set == "act-7")
    assert kept is not None
    played = run_policy(ScriptPolicy("kept", kept.actions), FIXED_BOOT, trace)
    assert played.cost == pytest.approx(kept.cost, abs=1e-9)
    assert kept.bound == pytest.approx(bound, abs=0.003)
    assert kept.bound < played.cost < at_most
    single = str(action_set == "act-7").lower()
    assert run_policy(policy_of(f"plan:single={single}"), FIXED_BOOT, trace).cost == played.cost


def test_a_kept_plan_is_for_its_own_world_only() -> None:
    assert (
        kept_plan(preset("train-text", boot_low_s=71.0, boot_high_s=71.0, initial=(2, 1, 1)), train_text(), True)
        is None
    )
    assert kept_plan(FIXED_BOOT, SMALL, True) is None


def test_what_has_no_plan_says_so() -> None:
    with pytest.raises(Unavailable, match="whole VMs"):
        run_policy(policy_of("plan"), preset("paper-live"), coevolution(0))


@pytest.mark.parametrize(
    ("trace", "action_set", "at_most"),
    [
        (train_text(), "act-7", 19.45),
        (train_text(), "act-multi", 19.50),
        (train_fit(), "act-7", 5.06),
        (train_fit(), "act-multi", 4.95),
    ],
)
def test_plans_made_for_drawn_boot_times_hold_on_others(trace: Trace, action_set: str, at_most: float) -> None:
    drawn = preset("train-text")
    kept = kept_plan(drawn, trace, action_set == "act-7")
    assert kept is not None
    script = ScriptPolicy("kept", kept.actions)
    costs = [run_policy(script, drawn, trace, seed).cost for seed in range(10)]
    assert kept.bound < min(costs)
    assert np.mean(costs) < at_most
