"""A learned policy: greedy among what physics allows, one step of its memory a minute, and a sentence on why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from agent.autoscaling.decide import with_bars
from agent.autoscaling.policies.base import InputAbsent
from agent.autoscaling.policies.ppo_lstm import LearnedPolicy, compact, names_model, outside_training, sha_of
from agent.models.file import load_model
from agent.rails.state import CapacityMark, Cooldown
from domain.decisions import Direction, Reason
from domain.errors import PolicyFailure
from domain.fleet import Fleet, Group, VmType
from domain.snapshot import GroupSnapshot, Snapshot
from tests.agent.models.making import ADD_L, ADD_M, ADD_S, NOTHING, REMOVE_M, REMOVE_S, poisoned, preferring
from tests.agent.rails.scenes import NOON, scene
from tests.golden import check_wording
from tests.oracles.lstm_model import write_model

TYPES = (VmType("m5a.large", 2, 8.0, 0.2), VmType("m5a.xlarge", 4, 16.0, 0.4), VmType("m5a.2xlarge", 8, 32.0, 0.8))
FLEET = Fleet("web", tuple(Group(k, f"web-{k}", t, int(k == "s"), 10) for k, t in zip("sml", TYPES, strict=True)))


def group(key: str, requested: int, **other: Any) -> GroupSnapshot:
    counts = dict.fromkeys(("overdue", "draining", "silent", "unhealthy", "idle_long"), 0)
    calm = {"in_service": requested, "warm": requested, "booting": 0, "mature": requested, "minimum": 0, "maximum": 10}
    return GroupSnapshot(key=key, requested=requested, **(counts | calm | other))


def snapshot(*groups: GroupSnapshot, **other: Any) -> Snapshot:
    seen: dict[str, Any] = {"obs7": (0.1, 0.5, 0.75, 0.0, 0.0, 0.0, 0.0), "obs_v2": tuple([0.25] * 20)}
    chosen = groups or (group("s", 2), group("m", 1), group("l", 0))
    return Snapshot("web", NOON, NOON, chosen, None, 1.0, 0.0, **(seen | other))


def preferring_policy(directory: Path, *ranking: int, **more: Any) -> LearnedPolicy:
    return LearnedPolicy(load_model(preferring(directory, *ranking, **more)))


def test_the_likeliest_action_becomes_sizes_and_the_sentence_tells_what_it_saw(tmp_path: Path) -> None:
    policy = preferring_policy(tmp_path, ADD_M, NOTHING)
    proposal, _ = policy.decide(FLEET, snapshot(group("s", 2), group("m", 1), group("l", 1, cannot_remove="none")), {})
    assert proposal.desired == (2, 2, 1)
    assert proposal.reason is Reason.LEARNED
    assert proposal.policy == policy.name == f"learned:{policy.model.name}"
    check_wording("policy-learned", {"the likeliest actions, what was seen, what is impossible": proposal.detail})


@pytest.mark.parametrize(
    ("ranking", "bars", "desired"),
    [
        ((ADD_S, ADD_M), {"s": {"cannot_add": "cooling down"}}, (2, 2, 0)),
        ((REMOVE_S, ADD_L), {"s": {"cannot_remove": "at the minimum"}}, (2, 1, 1)),
        ((ADD_S, REMOVE_M, ADD_L), {"s": {"cannot_add": "x"}, "m": {"cannot_remove": "y"}}, (2, 1, 1)),
        ((REMOVE_S,), {}, (1, 1, 0)),
        ((NOTHING,), {}, (2, 1, 0)),
    ],
)
def test_what_physics_forbids_is_not_chosen(
    tmp_path: Path, ranking: tuple[int, ...], bars: dict[str, dict[str, str]], desired: tuple[int, ...]
) -> None:
    groups = [group("s", 2), group("m", 1), group("l", 0)]
    barred = [replace(g, **bars.get(g.key, {})) for g in groups]
    assert preferring_policy(tmp_path, *ranking).decide(FLEET, snapshot(*barred), {})[0].desired == desired


def test_a_model_trained_without_masks_may_choose_what_has_no_effect(tmp_path: Path) -> None:
    policy = preferring_policy(tmp_path, ADD_S, ADD_M, changes={"masked": False})
    full = snapshot(group("s", 10, cannot_add="10 of at most 10 are there"), group("m", 1), group("l", 0))
    assert policy.decide(FLEET, full, {})[0].desired == (10, 1, 0)


def test_when_nothing_is_allowed_the_memory_still_takes_its_step(tmp_path: Path) -> None:
    policy = LearnedPolicy(load_model(write_model(tmp_path, hidden=8)))
    shut = [replace(g, cannot_add="x", cannot_remove="x") for g in snapshot().groups]
    proposal, memory = policy.decide(FLEET, snapshot(*shut), {})
    assert proposal.desired == (2, 1, 0)
    _, again = policy.decide(FLEET, snapshot(*shut), memory)
    assert {key.partition(".")[2] for key in memory} == {"hidden", "cell"}
    assert all(len(values) == 8 for values in memory.values())
    assert again != memory


def test_many_changes_are_chosen_type_by_type_and_reach_as_far_as_there_is_room(tmp_path: Path) -> None:
    bias = [0.0] * 21
    bias[0 + 0], bias[7 + 6], bias[14 + 5], bias[14 + 3] = 9.0, 9.0, 9.0, 7.0
    policy = LearnedPolicy(load_model(write_model(tmp_path, hidden=4, scale=0.0, bias=bias, action_set="act-multi")))
    seen = snapshot(group("s", 4, warm=3, booting=1), group("m", 8), group("l", 1, cannot_add="cooling down"))
    proposal, _ = policy.decide(FLEET, seen, {})
    # Of 5 small ones 2 can go, for 3 are ready and 1 must stay; of 5 medium ones 2 have room; no large one may come.
    assert proposal.desired == (2, 10, 1)
    assert proposal.detail.startswith("s: s -5 99.9%, ")


def test_the_extended_observation_is_taken_where_the_card_says_so(tmp_path: Path) -> None:
    policy = LearnedPolicy(load_model(write_model(tmp_path, hidden=4, observation="obs-v2")))
    assert "cooldown_ratio 0.25" in policy.decide(FLEET, snapshot(), {})[0].detail
    with pytest.raises(InputAbsent, match="age of the waiting jobs"):
        policy.decide(FLEET, snapshot(obs_v2=None), {})


def test_a_minute_without_observation_is_no_failure_but_absent_input(tmp_path: Path) -> None:
    with pytest.raises(InputAbsent, match="absent: cpu, queue"):
        preferring_policy(tmp_path, ADD_S).decide(FLEET, snapshot(obs7=None, absent=("cpu", "queue")), {})


@pytest.mark.parametrize(
    ("types", "limit", "difference"),
    [
        (TYPES[:2], 10, "the fleet web has 10 of 2 cores, 10 of 4 cores"),
        ((TYPES[0], TYPES[1], VmType("c5.9xlarge", 36, 72.0, 1.5)), 10, "10 of 36 cores"),
        (TYPES, 9, "the fleet web has 9 of 2 cores, 9 of 4 cores, 9 of 8 cores"),
    ],
)
def test_a_fleet_of_other_types_is_refused_in_words(
    tmp_path: Path, types: tuple[VmType, ...], limit: int, difference: str
) -> None:
    other = Fleet("web", tuple(Group(k, k, t, 0, limit) for k, t in zip("sml", types, strict=False)))
    with pytest.raises(PolicyFailure) as refused:
        preferring_policy(tmp_path, ADD_S).decide(other, snapshot(), {})
    assert "10 of 2 cores, 10 of 4" in str(refused.value)
    assert difference in str(refused.value)


def test_other_prices_and_names_do_not_matter(tmp_path: Path) -> None:
    other = [VmType(f"t3.{t.cores}", t.cores, t.memory_gb, 3 * t.price_per_hour) for t in TYPES]
    fleet = Fleet("web", tuple(Group(k, k, t, 0, 10) for k, t in zip("sml", other, strict=True)))
    assert preferring_policy(tmp_path, ADD_S).decide(fleet, snapshot(), {})[0].desired == (3, 1, 0)


def test_an_answer_that_is_no_number_fails_the_policy(tmp_path: Path) -> None:
    policy = LearnedPolicy(load_model(poisoned(tmp_path, preferring(tmp_path, ADD_S))))
    with pytest.raises(PolicyFailure, match="logits with no number"):
        policy.decide(FLEET, snapshot(), {})
    waiting = (0.1, 0.5, 0.75, 0.0, 0.0, 0.5, 0.0)
    assert policy.decide(FLEET, snapshot(obs7=waiting), {})[0].desired == (3, 1, 0)


def test_features_outside_the_training_are_reported_and_remembered(tmp_path: Path) -> None:
    policy = preferring_policy(tmp_path, ADD_S, changes={"feature_high": [1.0, 0.4, 1.0, 1.0, 1.0, 1.0, 1.0]})
    proposal, memory = policy.decide(FLEET, snapshot(), {})
    assert proposal.detail.endswith(": cpu_mean 0.5")
    assert outside_training(memory) == {1}
    calm = (0.1, 0.25, 0.75, 0.0, 0.0, 0.0, 0.0)
    assert outside_training(policy.decide(FLEET, snapshot(obs7=calm), memory)[1]) == frozenset()


def test_another_model_begins_with_nothing_in_its_memory(tmp_path: Path) -> None:
    first, second = (LearnedPolicy(load_model(write_model(tmp_path, seed, hidden=8))) for seed in (1, 2))
    _, memory = first.decide(FLEET, snapshot(), {})
    assert second.decide(FLEET, snapshot(), memory) == second.decide(FLEET, snapshot(), {})
    assert first.decide(FLEET, snapshot(), memory) != first.decide(FLEET, snapshot(), {})


@given(arrays(np.float32, 16, elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_memory_in_few_decimals_is_the_same_memory(values: np.ndarray) -> None:
    np.testing.assert_array_equal(np.array(compact(values), dtype=np.float32), values)


def test_names_of_models_are_kept_apart_from_names_of_rules() -> None:
    sha = "0a" * 32
    assert [names_model(name) for name in ("learned", f"learned:{sha}", "model:/x.onnx", "hold", "learner")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert (sha_of(f"learned:{sha}"), sha_of("learned:latest"), sha_of(f"model:{sha}")) == (sha, "", "")


class TestMask:
    """The mask of a learned policy holds bounds, minimum, cool-down, changes under way and shortages; no more."""

    def bars(self, **arrangement: Any) -> list[tuple[str, str]]:
        return [(g.cannot_add, g.cannot_remove) for g in with_bars(scene(**arrangement)).groups]

    def test_each_cause_bars_its_own_group_and_direction_and_says_so(self) -> None:
        cooling = Cooldown("workers_l", Direction.OUT, NOON + 90.4, 300.0)
        mark = CapacityMark("m5a.large", "", NOON + 300.0, 600.0)
        causes = {
            "calm": self.bars(),
            "at the ends of the range": self.bars(requested=(20, 0, 4), groups={"workers_m": {}}),
            "booting": self.bars(groups={"workers_m": {"warm": 0, "booting": 4}}),
            "cooling down": self.bars(state={"cooldowns": (cooling,)}),
            "change under way": self.bars(in_flight=("workers_xl",)),
            "short": self.bars(state={"capacity": (mark,)}),
        }
        free = (False, False)
        assert {name: [(add != "", remove != "") for add, remove in bars] for name, bars in causes.items()} == {
            "calm": [free] * 3,
            "at the ends of the range": [(True, False), (False, True), free],
            "booting": [(False, True), free, free],
            "cooling down": [free, (True, False), free],
            "change under way": [free, free, (True, True)],
            "short": [(True, False), free, free],
        }
        texts = {name: "\n".join(filter(None, (text for bar in bars for text in bar))) for name, bars in causes.items()}
        check_wording("policy-mask", {name: text for name, text in texts.items() if text})

    def test_neither_flap_guard_nor_budget_nor_lifetime_bars_anything(self) -> None:
        young = {"workers_m": {"mature": 0, "removable": ()}}
        assert self.bars(limits={"budget_per_hour": 0.01, "max_reversals": 0, "in_periods": 9}, groups=young) == (
            [("", "")] * 3
        )
