"""One text describes a policy, and an error names what is wrong with a text."""

from dataclasses import fields

import pytest

from agent.autoscaling.policies.registry import policy_from_name
from agent.models.shipped import ShippedModel, shipped_models
from domain.errors import BadInput
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit
from trainer.autoscaling.policies import QueueRulePolicy, ThresholdPolicy, run_policy
from trainer.autoscaling.policy_names import policy_of

FIXED_BOOT = preset("train-fit", boot_low_s=71.0, boot_high_s=71.0)
SOME_OF_EACH = (
    "nothing",
    "constant:2,1,0",
    "fixed-ramp:cores=24,single=true",
    "fixed-ramp:2,1,2",
    "random:seed=3,masked=true,multi=true",
    "threshold:high=0.8,low=0.5,periods=3,cooldown_s=120",
    "target-tracking:target=0.7",
    "queue-rule:horizon_s=240,idle_s=0",
)


@pytest.mark.parametrize("text", SOME_OF_EACH)
def test_a_policys_name_makes_the_same_policy(text: str) -> None:
    policy = policy_of(text)
    assert policy_of(policy.name) == policy
    assert policy_of(policy.name).name == policy.name


@pytest.mark.parametrize("name", ["queue-rule", "threshold", "target-tracking"])
def test_a_live_policys_name_describes_the_simulated_one(name: str) -> None:
    live = policy_from_name(name)
    simulated = policy_of(live.name)  # type: ignore[attr-defined]
    shared = {field.name for field in fields(type(live))}
    assert shared <= {field.name for field in fields(type(simulated))}  # type: ignore[arg-type]
    assert {n: getattr(simulated, n) for n in shared} == {n: getattr(live, n) for n in shared}


def test_multi_is_the_opposite_of_single() -> None:
    assert policy_of("queue-rule:multi=false") == QueueRulePolicy(single=True)
    assert policy_of("queue-rule:multi=true") == QueueRulePolicy(single=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quite-rule", "choose one of"),
        ("threshold:hihg=0.7", "choose from: high, low"),
        ("threshold:high=warm", "give a number"),
        ("threshold:periods=1.5", "whole number"),
        ("threshold:low=0.9", "at most high"),
        ("queue-rule:single=perhaps", "true or false"),
        ("queue-rule:horizon_s=0", "above 0"),
        ("queue-rule:horizon_s=nan", "0 or more"),
        ("queue-rule:single=true,multi=true", "its opposite"),
        ("target-tracking:target=0", "above 0"),
        ("constant:1,x,1", "one whole number per VM type"),
        ("fixed-ramp:", "cores=N"),
        ("fixed-ramp:1,1,1,cores=8", "not both"),
        ("nothing:at=all", "choose from: none"),
        ("script:absent.txt", "readable text file"),
        ("absent.onnx", "absent.onnx"),
        ("absent.onnx:greedy=1", "sample"),
    ],
)
def test_a_wrong_text_is_refused_with_what_there_is(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        policy_of(text)


def test_every_policy_of_a_text_has_its_own_memory() -> None:
    one, other = policy_of("threshold"), policy_of("threshold")
    first = run_policy(one, FIXED_BOOT, train_fit())
    assert isinstance(other, ThresholdPolicy)
    assert other == ThresholdPolicy()
    assert run_policy(other, FIXED_BOOT, train_fit()) == first
    assert run_policy(one, FIXED_BOOT, train_fit()) == first


@pytest.mark.parametrize("model", shipped_models(), ids=lambda model: model.name)
def test_a_bundled_model_is_taken_by_its_name(model: ShippedModel) -> None:
    assert policy_of(model.name).name == policy_of(str(model.path)).name
    assert model.title == model.name + (" (to compare)" if model.name.startswith("ppo-lstm") else "")


def test_a_bundled_model_takes_parameters_behind_its_name() -> None:
    assert policy_of("scorer:horizon_s=240").name.endswith("horizon_s=240,idle_s=0,job_core_s=0")
    assert policy_of("ppo-lstm-published:sample=3").name.endswith(":sample=3")
