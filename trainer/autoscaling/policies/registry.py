"""From a text to a policy of the simulator; where the agent has the same policy, its parameters have the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from domain.errors import BadInput
from trainer.autoscaling.policies.base import SimulatedPolicy
from trainer.autoscaling.policies.fixed import (
    ConstantPolicy,
    FixedRampPolicy,
    NothingPolicy,
    RandomPolicy,
    read_script,
)
from trainer.autoscaling.policies.rules import QueueRulePolicy, TargetTrackingPolicy, ThresholdPolicy
from trainer.autoscaling.policies.text import WORDS, parameters_of, read_parameters

FORMS = (
    "nothing",
    "constant:N,N,...",
    "fixed-ramp:cores=N | fixed-ramp:N,N,...",
    "random:seed=,masked=,multi=",
    "threshold:high=,low=,periods=,exclude_warming=,warmup_s=,cooldown_s=",
    "target-tracking:target=,scale_in_factor=,out_periods=,in_periods=,warmup_s=,keep_one=",
    "queue-rule:horizon_s=,idle_s=,single=,busy_counts=,skip_cooling=,job_core_s=",
    "plan:time_limit_s=,single=",
    "script:FILE",
    "FILE.onnx | FILE.onnx:sample=SEED",
)
"""The texts there are, for help and messages."""


def is_model(text: str) -> bool:
    """Whether a text names a model file."""
    return ".onnx" in text


def policy_of(text: str) -> SimulatedPolicy:
    """Return a new policy for `name:parameter=value,...`, a script or a model file.

    Every call makes a policy with a memory of its own. Raises BadInput, which names the policies, parameters or kinds
    of value there are, and ModelRefused for a model file that cannot be used.
    """
    name, _, rest = text.strip().partition(":")
    if is_model(text):
        return _model(text.strip())
    if name not in _MAKERS:
        raise BadInput("policy", text, f"choose one of: {'; '.join(FORMS)}")
    return _MAKERS[name](rest)


def _nothing(rest: str) -> SimulatedPolicy:
    read_parameters("nothing", NothingPolicy(), parameters_of("nothing", rest))
    return NothingPolicy()


def _sizes(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise BadInput(f"policy {name}: sizes", text, f"give one whole number per VM type, such as {name}:2,0,1")
    return tuple(map(int, parts))


def _constant(rest: str) -> SimulatedPolicy:
    return ConstantPolicy(_sizes("constant", rest))


def _fixed_ramp(rest: str) -> SimulatedPolicy:
    plain = [part for part in rest.split(",") if "=" not in part and part.strip()]
    pairs = parameters_of("fixed-ramp", ",".join(part for part in rest.split(",") if "=" in part))
    if plain and "cores" in pairs:
        raise BadInput("policy fixed-ramp", rest, "give cores=N or sizes, not both")
    sizes = _sizes("fixed-ramp", ",".join(plain)) if plain else ()
    policy = FixedRampPolicy(**read_parameters("fixed-ramp", _RampParameters, pairs))
    policy.sizes = sizes
    if not sizes and not policy.cores:
        raise BadInput("policy fixed-ramp", rest, "give cores=N, or one size per VM type")
    return policy


_RampParameters = FixedRampPolicy()


def _random(rest: str) -> SimulatedPolicy:
    return RandomPolicy(**read_parameters("random", RandomPolicy(), parameters_of("random", rest)))


def _threshold(rest: str) -> SimulatedPolicy:
    values = read_parameters("threshold", ThresholdPolicy(), parameters_of("threshold", rest))
    policy = ThresholdPolicy(**values)
    if policy.low > policy.high:
        raise BadInput("policy threshold: low", policy.low, f"give at most high, which is {policy.high:g}")
    return policy


def _target_tracking(rest: str) -> SimulatedPolicy:
    pairs = parameters_of("target-tracking", rest)
    policy = TargetTrackingPolicy(**read_parameters("target-tracking", TargetTrackingPolicy(), pairs))
    if not 0 < policy.target <= 1:
        raise BadInput("policy target-tracking: target", policy.target, "give a share above 0 and up to 1")
    return policy


def _single(pairs: dict[str, str], name: str) -> dict[str, str]:
    """Read `multi` as the opposite of `single`."""
    if "multi" in pairs:
        multi = pairs.pop("multi").lower()
        if multi not in WORDS or "single" in pairs:
            raise BadInput(f"policy {name}: multi", multi, "give multi=true or false, or single=, its opposite")
        pairs["single"] = str(not WORDS[multi]).lower()
    return pairs


def _queue_rule(rest: str) -> SimulatedPolicy:
    pairs = _single(parameters_of("queue-rule", rest), "queue-rule")
    policy = QueueRulePolicy(**read_parameters("queue-rule", QueueRulePolicy(), pairs))
    if policy.horizon_s <= 0:
        raise BadInput("policy queue-rule: horizon_s", policy.horizon_s, "give seconds above 0")
    return policy


def _plan(rest: str) -> SimulatedPolicy:
    # It brings the solver and the compiled simulator along.
    from trainer.autoscaling.policies.plan import PlanPolicy

    pairs = _single(parameters_of("plan", rest), "plan")
    return PlanPolicy(**read_parameters("plan", PlanPolicy(), pairs))


def _script(rest: str) -> SimulatedPolicy:
    return read_script(Path(rest))


def _model(text: str) -> SimulatedPolicy:
    # ONNX Runtime takes a while to load, and most policies do without it.
    from trainer.autoscaling.policies.model import ModelPolicy, read_network

    path, _, rest = text.rpartition(".onnx")
    pairs = parameters_of("model", rest.removeprefix(":"))
    seed = pairs.pop("sample", None)
    if pairs:
        raise BadInput("policy model: parameter", next(iter(pairs)), "choose from: sample")
    if seed is not None and not seed.isdecimal():
        raise BadInput("policy model: sample", seed, "give a whole number, the seed of the draws")
    return ModelPolicy(read_network(Path(f"{path}.onnx")), None if seed is None else int(seed))


_MAKERS: Mapping[str, Callable[[str], SimulatedPolicy]] = {
    "nothing": _nothing,
    "constant": _constant,
    "fixed-ramp": _fixed_ramp,
    "random": _random,
    "threshold": _threshold,
    "target-tracking": _target_tracking,
    "queue-rule": _queue_rule,
    "plan": _plan,
    "script": _script,
}
