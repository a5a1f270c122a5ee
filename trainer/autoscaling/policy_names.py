"""Texts that name policies of the simulator, and their episodes: one, or many over traces and seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from agent.models.shipped import with_file
from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import Measures
from trainer.autoscaling.policies import (
    ConstantPolicy,
    FixedRampPolicy,
    NothingPolicy,
    QueueRulePolicy,
    RandomPolicy,
    SimulatedPolicy,
    TargetTrackingPolicy,
    ThresholdPolicy,
    parameters_of,
    read_parameters,
    read_script,
    run_policy,
)
from trainer.kit.fields import value_of

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
    "scorer:horizon_s=,idle_s=,job_core_s= | FILE.onnx:horizon_s=,... (a scorer, with this queue rule)",
    "lstm | ppo-lstm-published (to compare) | FILE.onnx | FILE.onnx:sample=SEED",
)
"""The texts there are, for help and messages."""


def model_file(text: str) -> str:
    """Return the text of a learned policy as `FILE.onnx:parameters`, "" for another policy."""
    found = with_file(text)
    return found if ".onnx" in found else ""


def policy_of(text: str) -> SimulatedPolicy:
    """Return a new policy for `name:parameter=value,...`, a script or a model file.

    Every call makes a policy with a separate memory. Raises BadInput, which names the policies, parameters or kinds
    of value there are, and ModelRefused for a model file that cannot be used.
    """
    name, _, rest = text.strip().partition(":")
    if model := model_file(text.strip()):
        return _model(model)
    if name not in _MAKERS:
        raise BadInput("policy", text, f"choose one of: {'; '.join(FORMS)}")
    return _MAKERS[name](rest)


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
    policy = FixedRampPolicy(sizes, **read_parameters("fixed-ramp", FixedRampPolicy(), pairs))
    if not sizes and not policy.cores:
        raise BadInput("policy fixed-ramp", rest, "give cores=N, or one size per VM type")
    return policy


def _of_parameters(name: str, kind: Callable[..., Any], rest: str) -> SimulatedPolicy:
    """Return a policy whose parameters are its fields; `multi` is read as the opposite of `single`."""
    pairs = parameters_of(name, rest)
    known = kind()
    if "multi" in pairs and hasattr(known, "single"):
        field, multi = f"policy {name}: multi", pairs.pop("multi")
        if "single" in pairs:
            raise BadInput(field, multi, "give multi=true or false, or single=, its opposite")
        pairs["single"] = str(not value_of(field, bool, multi))
    policy: SimulatedPolicy = kind(**read_parameters(name, known, pairs))
    return policy


def _plan(rest: str) -> SimulatedPolicy:
    # It brings the solver and the compiled simulator along.
    from trainer.autoscaling.baselines.plans import PlanPolicy

    return _of_parameters("plan", PlanPolicy, rest)


def _script(rest: str) -> SimulatedPolicy:
    return read_script(Path(rest))


def _model(text: str) -> SimulatedPolicy:
    # ONNX Runtime takes a while to load, and most policies do without it.
    from agent.autoscaling.policies.scorer import ScorerPolicy
    from agent.models.card import ScorerCard
    from agent.models.file import load_model
    from domain.rules.queue_rule import RuleSetting
    from trainer.autoscaling.model_policies import ModelPolicy, SimulatedScorer, read_network

    path, _, rest = text.rpartition(".onnx")
    pairs = parameters_of("model", rest.removeprefix(":"))
    known = ("sample", *(field.name for field in fields(RuleSetting)))
    if set(pairs) - set(known):
        there = f"sample (of a network), or {', '.join(known[1:])} (with a scorer)"
        raise BadInput(
            "policy model: parameter", next(name for name in pairs if name not in known), f"choose from: {there}"
        )
    file = Path(f"{path}.onnx")
    model = load_model(file)
    if isinstance(model.card, ScorerCard):
        rule = read_parameters("model", RuleSetting(), pairs)
        return SimulatedScorer(ScorerPolicy(model), RuleSetting(**rule))
    seed = pairs.pop("sample", None)
    if pairs:
        raise BadInput("policy model: parameter", next(iter(pairs)), "choose from: sample")
    if seed is not None and not seed.isdecimal():
        raise BadInput("policy model: sample", seed, "give a whole number, the seed of the draws")
    return ModelPolicy(read_network(file), None if seed is None else int(seed))


_MAKERS: Mapping[str, Callable[[str], SimulatedPolicy]] = {
    **{
        policy.kind: partial(_of_parameters, policy.kind, policy)
        for policy in (NothingPolicy, RandomPolicy, ThresholdPolicy, TargetTrackingPolicy, QueueRulePolicy)
    },
    "constant": _constant,
    "fixed-ramp": _fixed_ramp,
    "plan": _plan,
    "script": _script,
}


# Episodes.


RULES = ("threshold", "target-tracking", "queue-rule")
"""Policies that are expected to change the fleet; a constant fleet, or a script, is not."""


def run_many(
    policy_text: str,
    config: SimulationConfig,
    traces: Sequence[Trace],
    seeds: Sequence[int],
) -> list[Measures]:
    """Return the figures of one run per seed, in order; `traces` has one trace per seed, or one for all of them.

    The episodes of a model file are played together; other policies one by one.
    """
    pairs = paired(traces, seeds)
    if model_file(policy_text):
        # It brings ONNX Runtime along, which most policies do without.
        from trainer.autoscaling.model_policies import ModelPolicy, run_batched

        learned = policy_of(policy_text)
        if isinstance(learned, ModelPolicy):
            return run_batched(learned, config, pairs)
    policy = policy_of(policy_text)
    return [run_policy(policy, config, trace, seed) for trace, seed in pairs]


def paired(traces: Sequence[Trace], seeds: Sequence[int]) -> list[tuple[Trace, int]]:
    """Pair traces with seeds, a single trace with every seed; BadInput when their numbers do not go together."""
    if len(traces) not in (1, len(seeds)):
        raise BadInput("traces", len(traces), f"give one trace, or one for each of the {len(seeds)} seeds")
    repeated = traces if len(traces) == len(seeds) else list(traces) * len(seeds)
    return list(zip(repeated, seeds, strict=True))


def stuck(policy: str, runs: Sequence[Measures], cut_off: int) -> str:
    """Return why runs are nothing to compare with: cut off before their jobs had finished, or nothing changed; or "".

    policy: its text. cut_off: how many of the runs were.
    """
    if cut_off:
        return "cut off" if len(runs) == 1 else f"cut off in {cut_off} of {len(runs)} cases"
    idle = policy.startswith(RULES) and not any(
        map(any, (counts for run in runs for counts in (run.added, run.removed)))
    )
    return "changed nothing" if idle else ""


Task = tuple[str, SimulationConfig, Trace, int]
"""A policy's text, the world, the trace and the seed."""


def run_task(task: Task) -> Measures:
    """Run one task."""
    text, config, trace, seed = task
    return run_policy(policy_of(text), config, trace, seed)
