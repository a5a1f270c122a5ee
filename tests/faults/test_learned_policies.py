"""A learned policy in the loop: it decides, is replaced in order when it cannot, is swapped whole, and shadows."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.autoscaling.policies.base import Policy
from agent.autoscaling.policies.fallback import FALLBACKS, Evaluate, Proposer, evaluate_directly, evaluate_within
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import LearnedPolicy
from agent.autoscaling.policies.rules import QueueRulePolicy, ThresholdPolicy
from agent.autoscaling.replay import replay
from agent.autoscaling.state import FleetStore
from agent.ledger.journal import Kind
from agent.models.file import load_model
from agent.rails.state import Memory
from domain.decisions import Proposal, Reason
from domain.errors import PolicyFailure
from domain.fleet import Fleet
from domain.snapshot import Snapshot, Terms
from domain.subject import Subject
from tests.agent.models.making import ADD_L, ADD_M, ADD_S, NOTHING, REMOVE_M, poisoned, preferring, promote, scorer
from tests.agent.models.test_probation import tried
from tests.faults.evidence import told
from tests.faults.world import QUICK, MakeWorld, World
from tests.oracles.lstm_model import write_model
from tests.stages import exhaustive
from trainer.promotion.directory import ModelsWriter


@pytest.fixture
def models(tmp_path: Path) -> Path:
    directory = tmp_path / "models"
    directory.mkdir()
    return directory


@pytest.fixture
def learned(make_world: MakeWorld, models: Path) -> MakeWorld:
    """A maker of worlds whose policy is the champion of the models directory."""

    def make(
        shadows: tuple[str, ...] = (), policy: str = "learned", evaluate: Evaluate | None = None, **plan: object
    ) -> World:
        world = make_world(**({"policy": policy, "interruptions": False} | plan))
        set_up(world, models, shadows, evaluate)
        return world

    return make


def set_up(world: World, models: Path, shadows: tuple[str, ...] = (), evaluate: Evaluate | None = None) -> None:
    shelf = ModelShelf(models, models / "nothing-shipped")
    world.loop.proposer = Proposer(evaluate or evaluate_within(5.0), models=shelf)
    world.loop.fleets = tuple(replace(managed, shadows=shadows) for managed in world.loop.fleets)


def name(path: Path) -> str:
    return f"learned:{path.stem}"


def deciders(world: World) -> list[str]:
    return [report.decisions[0].proposal.policy for report in world.reports]


def test_the_champion_scales_the_fleet_under_the_name_of_its_file(learned: MakeWorld, models: Path) -> None:
    path = preferring(models, ADD_M, NOTHING)
    promote(models, path)
    world = learned()
    world.tick(3)
    assert deciders(world) == [name(path)] * 3
    assert world.desired() == {"small": 1, "medium": 3, "large": 0}
    assert world.last.reason is Reason.LEARNED
    assert world.last.proposal.detail.startswith("medium +1 88.1%")
    assert told(world, Reason.POLICY_FAILED) == []


def test_it_is_not_offered_what_cools_down_and_chooses_the_next_best(learned: MakeWorld, models: Path) -> None:
    promote(models, preferring(models, ADD_M, ADD_L, ADD_S, NOTHING))
    world = learned(limits=replace(QUICK, cooldown_out_s=300.0, cooldown_in_s=300.0))
    world.tick(5)
    changes = [report.decisions[0].desired for report in world.reports]
    assert changes == [(1, 1, 0), (1, 1, 1), (2, 1, 1), (2, 1, 1), (2, 1, 1)]
    assert all(not effect.reason for report in world.reports for effect in report.decisions[0].effects)


def test_its_memory_goes_on_minute_by_minute_and_over_a_restart(learned: MakeWorld, models: Path) -> None:
    promote(models, write_model(models, 3, hidden=8, scale=1.0))
    ends = []
    for restarts in (False, True):
        world = learned()
        for minute in range(8):
            world.submit(minute)
            if minute == 4 and restarts:
                world.restart()
                set_up(world, models)
            world.tick()
        ends.append((FleetStore(world.ledger).loop_state("web").memory, world.last.proposal))
        world.close()
    assert ends[0] == ends[1]
    assert [len(values) for values in ends[0][0].values()] == [8, 8]


def test_a_scorer_scales_any_fleet_goes_on_after_a_restart_and_comes_out_the_same_again(
    learned: MakeWorld, models: Path
) -> None:
    path = scorer(models, {"added_log": 1.0, "is_hold": 0.01}, sees={"jobs_3": 0.5}, margin=0.001)
    promote(models, path)
    terms = Terms(0.036, 300.0, 120.0, 300.0, (45.0,) * 3, (97.0,) * 3)
    ends = []
    for restarts in (False, True):
        world = learned()
        fleets = tuple(replace(one, aggregation=replace(one.aggregation, terms=terms)) for one in world.loop.fleets)
        world.loop.fleets = fleets
        world.submit(12)
        for minute in range(4):
            if minute == 2 and restarts:
                world.restart()
                set_up(world, models)
                world.loop.fleets = fleets
            world.tick()
        assert deciders(world)[-4:] == [name(path)] * 4
        records = list(FleetStore(world.ledger).inputs("web"))
        assert all(item.same for item in replay(records, ModelShelf(models)))
        ends.append((FleetStore(world.ledger).loop_state("web").memory, world.last.proposal, world.desired()))
        world.close()
    assert ends[0] == ends[1]
    assert sum(ends[0][2].values()) > 3
    assert told(world, Reason.POLICY_FAILED) == []


def test_its_memory_is_zeroed_when_a_live_episode_begins(learned: MakeWorld, models: Path) -> None:
    path = write_model(models, 3, hidden=8, scale=0.5, bias=[9.0] + [0.0] * 6)
    promote(models, path)
    world = learned(sizes=(1, 0, 0))
    world.submit(1)
    world.tick(2)
    world.waiting = 0
    world.tick(9)
    policy = ModelShelf(models).policy("learned", world.fleet)
    assert FleetStore(world.ledger).loop_state("web").memory != policy.decide(world.fleet, world.snapshot, {})[1]
    world.tick()
    assert FleetStore(world.ledger).loop_state("web").memory == policy.decide(world.fleet, world.snapshot, {})[1]
    assert world.snapshot.queue is not None
    assert world.snapshot.queue.submitted == 0


@pytest.mark.parametrize(
    "trouble", ["corrupt", "nan", *exhaustive("missing", "truncated", "no champion", "other fleet", "slow")]
)
def test_the_queue_rule_stands_in_for_a_model_in_trouble_and_steps_back_when_it_is_good_again(
    learned: MakeWorld, models: Path, trouble: str
) -> None:
    good = preferring(models, NOTHING)
    spoil(models, trouble)
    slow = trouble == "slow"
    world = learned(evaluate=_late if slow else None)
    world.submit(12)
    if trouble == "nan":
        world.waiting = 0
        world.running_jobs = 12
    world.tick(2)
    assert deciders(world) == [QueueRulePolicy().name] * 2
    assert [len(report.decisions[0].policy_failures) for report in world.reports] == [1, 1]
    assert WORDS[trouble] in world.last.policy_failures[0]
    assert "standing in: " in world.last.proposal.detail
    assert len(told(world, Reason.POLICY_FAILED)) == 2
    if slow:
        world.loop.proposer = Proposer(evaluate_directly, models=world.loop.proposer._models)
    promote(models, good)
    world.tick()
    assert deciders(world)[-1] == name(good)
    assert world.last.policy_failures == ()


WORDS = {
    "missing": "name a file that can be read",
    "corrupt": "it is damaged or was renamed",
    "truncated": "it is damaged or was renamed",
    "no champion": "no model comes with this version",
    "other fleet": "it was trained for VM types of at most 3 of 2 cores",
    "nan": "answers logits with no number",
    "slow": "did not answer within 0.1 s",
}


def spoil(models: Path, trouble: str) -> None:
    path = preferring(models, ADD_S, limits=(3, 3, 3) if trouble == "other fleet" else (10, 10, 10))
    content = path.read_bytes()
    if trouble == "nan":
        path = poisoned(models, path)
    if trouble != "no champion":
        promote(models, path)
    if trouble == "missing":
        path.unlink()
    elif trouble == "corrupt":
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    elif trouble == "truncated":
        path.write_bytes(content[: len(content) // 2])


def _late(policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
    if isinstance(policy, LearnedPolicy):
        return evaluate_within(0.1)(Sleepy(policy.name), fleet, snapshot, memory)
    return evaluate_directly(policy, fleet, snapshot, memory)


class Sleepy:
    """Takes longer than it has."""

    def __init__(self, name: str) -> None:
        self.name = name

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        time.sleep(0.3)
        raise AssertionError("nobody waits for this")


@pytest.mark.parametrize(
    ("broken", "stands_in"),
    [
        ((), QueueRulePolicy().name),
        ((QueueRulePolicy,), ThresholdPolicy(low=0.5, periods=3).name),
        ((QueueRulePolicy, ThresholdPolicy), "hold"),
    ],
)
def test_the_order_is_queue_rule_threshold_hold(
    learned: MakeWorld, broken: tuple[type[Policy], ...], stands_in: str
) -> None:
    def evaluate(policy: Policy, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        if isinstance(policy, broken):
            raise PolicyFailure(f"{policy.name} is broken")
        return evaluate_directly(policy, fleet, snapshot, memory)

    world = learned(evaluate=evaluate)
    world.tick()
    assert deciders(world) == [stands_in]
    assert len(world.last.policy_failures) == 1 + len(broken)
    assert [policy.name for policy in FALLBACKS][len(broken)] == stands_in


def test_absent_input_holds_the_fleet_and_keeps_the_memory(learned: MakeWorld, models: Path) -> None:
    promote(models, write_model(models, 3, hidden=8))
    world = learned()
    world.tick(2)
    before = FleetStore(world.ledger).loop_state("web").memory
    world.metric_gap(minutes=1)
    assert world.last.reason is Reason.STALE_INPUT
    assert FleetStore(world.ledger).loop_state("web").memory == before
    assert told(world, Reason.POLICY_FAILED) == []


def test_a_new_champion_decides_from_the_next_minute_with_its_own_memory(learned: MakeWorld, models: Path) -> None:
    first, second = write_model(models, 1, hidden=8), write_model(models, 2, hidden=8)
    promote(models, first)
    world = learned()
    world.tick(2)
    promote(models, second)
    world.tick()
    assert deciders(world) == [name(first), name(first), name(second)]
    assert {key.partition(".")[0] for key in FleetStore(world.ledger).loop_state("web").memory} == {second.stem[:12]}


def test_a_champion_that_is_refused_leaves_the_one_before_it_deciding(learned: MakeWorld, models: Path) -> None:
    first, second = preferring(models, NOTHING), preferring(models, ADD_S)
    promote(models, first)
    world = learned()
    world.tick()
    second.write_bytes(b"spoilt")
    promote(models, second)
    world.tick(2)
    assert deciders(world) == [name(first)] * 3
    assert told(world, Reason.POLICY_FAILED) == []


def test_a_learned_shadow_is_recorded_with_its_own_memory_and_changes_nothing(learned: MakeWorld, models: Path) -> None:
    path = write_model(models, 3, hidden=8, scale=1.0, bias=[0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0])
    promote(models, path)
    world = learned(policy="hold", shadows=("learned",))
    world.tick(2)
    (shadow,) = world.last.shadows
    assert (shadow.policy, shadow.desired) == (name(path), (1, 1, 0))
    assert world.desired() == {"small": 1, "medium": 0, "large": 0}
    state = FleetStore(world.ledger).loop_state("web")
    assert state.memory == {}
    assert len(state.shadow_memories[name(path)]) == 2


def test_a_rule_can_be_the_shadow_of_a_learned_policy(learned: MakeWorld, models: Path) -> None:
    promote(models, preferring(models, NOTHING))
    world = learned(shadows=("threshold:low=0.5,periods=3,exclude_warming=false",))
    world.cpu = 0.95
    world.tick(2)
    (shadow,) = world.last.shadows
    assert shadow.detail.endswith("2 of 3 minutes")
    state = FleetStore(world.ledger).loop_state("web")
    (memory,) = state.shadow_memories.values()
    assert (set(memory), len(state.memory)) == ({"streaks"}, 2)


def test_a_model_in_trouble_as_a_shadow_harms_nothing(learned: MakeWorld) -> None:
    world = learned(policy="hold", shadows=("learned",))
    world.tick()
    (shadow,) = world.last.shadows
    assert "standing in: " in shadow.detail
    assert world.last.policy_failures == ()


def test_a_model_on_probation_is_recorded_beside_the_policy_until_its_probation_ends(
    learned: MakeWorld, models: Path, tmp_path: Path
) -> None:
    first, challenger = preferring(models, NOTHING), preferring(tmp_path, ADD_M)
    promote(models, first)
    directory = ModelsWriter(models)
    one = tried(directory, challenger)
    world = learned()
    shelf = ModelShelf(models, models / "nothing-shipped")
    world.loop.probationer = shelf.probationer
    world.tick(2)
    assert deciders(world) == [name(first)] * 2
    assert [(made.policy, made.desired) for made in world.last.shadows] == [(name(challenger), (1, 1, 0))]
    assert world.desired() == {"small": 1, "medium": 0, "large": 0}
    whole = (models / one.report).read_bytes()
    (models / one.report).write_bytes(whole.replace(b"true", b"1"))
    world.tick()
    assert (deciders(world)[-1], world.last.shadows, world.last.policy_failures) == (name(first), (), ())
    assert shelf.refusal.startswith("on probation for web: ")
    (models / one.report).write_bytes(whole)
    world.tick()
    assert [made.policy for made in world.last.shadows] == [name(challenger)]
    directory.approve(Subject("autoscaling", "web"), "2026-03-04T12:00:00Z", load_model)
    world.tick()
    assert (deciders(world)[-1], world.last.shadows) == (name(challenger), ())
    assert [item.difference for item in replay(FleetStore(world.ledger).inputs("web"), ModelShelf(models))] == [""] * 5


def test_every_minute_replays_byte_for_byte_also_those_in_which_another_stood_in(
    learned: MakeWorld, models: Path
) -> None:
    world = learned(shadows=("queue-rule", "learned"))
    world.submit(5)
    world.tick(2)
    promote(models, poisoned(models, write_model(models, 3, hidden=8, scale=1.0)))
    world.tick(2)
    world.waiting, world.running_jobs = 0, 5
    world.tick(2)
    promote(models, preferring(models, ADD_M, REMOVE_M))
    world.tick(3)
    assert len(set(deciders(world))) == 3
    records = list(FleetStore(world.ledger).inputs("web"))
    items = list(replay(records, ModelShelf(models)))
    assert [item.difference for item in items] == [""] * len(records)
    assert all(item.same for item in items)


def test_what_the_training_did_not_see_is_reported_once_when_it_begins_and_once_when_it_ends(
    learned: MakeWorld, models: Path
) -> None:
    promote(models, preferring(models, NOTHING, changes={"feature_high": [1.0, 0.8, 0.8, 1.0, 1.0, 1.0, 1.0]}))
    world = learned()
    world.tick()
    world.cpu = 0.9
    world.tick(3)
    world.cpu = 0.5
    world.tick(2)
    (outside,) = told(world, Reason.OUTSIDE_TRAINING)
    assert outside.endswith("cpu_mean, cpu_p90")
    assert len(told(world, Reason.WITHIN_TRAINING)) == 1
    assert [entry for entry in world.journal if entry.kind is Kind.EVENT and entry.reason == Reason.POLICY_FAILED] == []
