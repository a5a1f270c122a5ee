"""Contenders of an evaluation, on the suite or on one's own cases: a label, and the policy's text in each group."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent.models.shipped import shipped_models
from domain.errors import BadInput
from simulator.autoscaling.world_file import World as OwnWorld
from trainer.autoscaling.baselines.plans import kept_plan
from trainer.autoscaling.baselines.tuning import MOST_FLEETS, TUNING_SEED, best_constant, cases_of, count_fleets, tune
from trainer.autoscaling.evaluation.suite import GROUPS, OWN, Case, World, suite
from trainer.autoscaling.policies import parameters_of
from trainer.autoscaling.worlds import policy_in_world, traces_by_seed, world_of
from trainer.kit.jobs import HERE, Workers

ANYWHERE = "*"


@dataclass(frozen=True, slots=True)
class Contender:
    """A label for people, and the policy's text per group; the entry `*` is for the other groups."""

    label: str
    texts: Mapping[str, str]

    def text(self, group: str) -> str | None:
        """Return the policy's text in a group, None where it does not take part."""
        return self.texts.get(group, self.texts.get(ANYWHERE))


def contenders_of(given: Sequence[str]) -> tuple[Contender, ...]:
    """Read contenders: a policy's text, `LABEL=TEXT`, or `@FILE.json`.

    The file holds one object, label to text, or label to an object with T1..T6 and `*` as keys. Raises BadInput; two
    contenders with one label are a mistake.
    """
    found: list[Contender] = []
    for text in given:
        found += _of_file(Path(text[1:])) if text.startswith("@") else [_of_text(text)]
    labels = [contender.label for contender in found]
    for label in labels:
        if labels.count(label) > 1:
            raise BadInput("--policies", label, "give each policy another label: LABEL=TEXT")
    return tuple(found)


def _of_text(text: str) -> Contender:
    before, equals, after = text.partition("=")
    # An equals sign behind a colon belongs to the policy's own parameters.
    if equals and before.strip() and ":" not in before:
        return Contender(before.strip(), {ANYWHERE: after.strip()})
    if not text.strip():
        raise BadInput("--policies", text, "give a policy, LABEL=POLICY, or @FILE.json")
    return Contender(text.strip(), {ANYWHERE: text.strip()})


def _of_file(path: Path) -> list[Contender]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise BadInput("--policies", f"@{path}", f"{fault}: give a JSON object of label to policy") from None
    if not isinstance(data, dict):
        raise BadInput("--policies", f"@{path}", "give a JSON object of label to policy")
    made = []
    for label, entry in data.items():
        texts = {ANYWHERE: entry} if isinstance(entry, str) else entry
        wrong = not isinstance(texts, dict) or not texts or any(not isinstance(t, str) for t in texts.values())
        if wrong or any(key not in (*GROUPS, OWN, ANYWHERE) for key in texts):
            raise BadInput(f"{path.name}: {label}", entry, f"give a policy, or policies for {', '.join(GROUPS)} and *")
        made.append(Contender(label, texts))
    return made


QUEUE_RULE = "queue rule, multi"
"""The reference of comparisons by default."""

_T1_T2_T4 = {
    QUEUE_RULE: {
        "T1": "queue-rule:horizon_s=700,idle_s=120,single=false,busy_counts=true",
        "T2": "queue-rule:horizon_s=210,idle_s=0,single=false,busy_counts=true",
        "T4": "queue-rule:horizon_s=1800,idle_s=120,single=false,busy_counts=false",
    },
    "queue rule, one action": {
        "T1": "queue-rule:horizon_s=420,idle_s=0,single=true,busy_counts=true",
        "T2": "queue-rule:horizon_s=480,idle_s=60,single=true,busy_counts=true",
        "T4": "queue-rule:horizon_s=600,idle_s=0,single=true,busy_counts=false",
    },
    "threshold, tuned": {
        "T1": "threshold:high=0.95,low=0.95,periods=2,exclude_warming=true,cooldown_s=300",
        "T2": "threshold:high=0.75,low=0.75,periods=3,exclude_warming=false,cooldown_s=600",
        "T4": "threshold:high=0.7,low=0.7,periods=2,exclude_warming=false,cooldown_s=600",
    },
    "target tracking, tuned": {
        "T1": "target-tracking:target=0.9,out_periods=3,in_periods=1,warmup_s=0,keep_one=false",
        "T2": "target-tracking:target=0.3,out_periods=1,in_periods=1,warmup_s=0,keep_one=false",
        "T4": "target-tracking:target=0.75,out_periods=3,in_periods=5,warmup_s=0",
    },
    "best constant fleet": {"T1": "constant:1,0,7", "T2": "constant:2,1,0"},
}
_AS_RANDOM = ("T3", "T5", "T6", "recent")
_RANDOM = {
    World.LIVE_LIKE: {
        QUEUE_RULE: "queue-rule:horizon_s=300,idle_s=0,single=false,busy_counts=true,skip_cooling=true",
        "queue rule, one action": "queue-rule:horizon_s=240,idle_s=120,single=true,busy_counts=true,skip_cooling=true",
        "threshold, tuned": "threshold:high=0.9,low=0.5,periods=1,exclude_warming=false,cooldown_s=0",
        "target tracking, tuned": "target-tracking:target=0.6,out_periods=1,in_periods=1,warmup_s=0",
        "best constant fleet": "constant:1,1,9",
    },
    World.TRAINING: {
        QUEUE_RULE: "queue-rule:horizon_s=420,idle_s=0,single=false,busy_counts=true",
        "queue rule, one action": "queue-rule:horizon_s=420,idle_s=0,single=true,busy_counts=true",
        "threshold, tuned": "threshold:high=0.95,low=0.95,periods=1,exclude_warming=false,cooldown_s=120",
        "target tracking, tuned": "target-tracking:target=0.9,out_periods=3,in_periods=1,warmup_s=0",
        "best constant fleet": "constant:2,0,8",
    },
}
_PUBLISHED = (
    Contender("threshold 75 %, 1 period", {ANYWHERE: "threshold:high=0.75,low=0.75,periods=1"}),
    Contender("threshold 75 %, 3 periods", {ANYWHERE: "threshold:high=0.75,low=0.75,periods=3"}),
    Contender("ramp to 1, 10, 3", {"T4": "fixed-ramp:1,10,3"}),
    Contender("ramp to 1, 10, 4", {"T4": "fixed-ramp:1,10,4"}),
)


def baselines(world: World = World.LIVE_LIKE) -> tuple[Contender, ...]:
    """Return the baselines; T3, T5 and T6 are run in `world`."""
    rules = (
        Contender(label, {**texts, **dict.fromkeys(_AS_RANDOM, _RANDOM[world][label])})
        for label, texts in _T1_T2_T4.items()
    )
    return (*rules, *_PUBLISHED)


def queue_rule(world: World = World.LIVE_LIKE) -> Contender:
    """Return the reference: the tuned queue rule that may change every type at once."""
    return next(baseline for baseline in baselines(world) if baseline.label == QUEUE_RULE)


def model_contender(path: Path, rule: Contender, label: str = "") -> Contender:
    """Return a model file as a contender: a scorer with the rule's setting in each group, a network everywhere."""
    # ONNX Runtime takes a while to load.
    from agent.models.card import ScorerCard
    from agent.models.file import load_model

    if not isinstance(load_model(path).card, ScorerCard):
        return Contender(label, {ANYWHERE: str(path)})
    texts = {}
    for group, text in rule.texts.items():
        pairs = parameters_of("queue-rule", text.partition(":")[2])
        setting = (f"{name}={pairs[name]}" for name in ("horizon_s", "idle_s", "job_core_s") if name in pairs)
        texts[group] = f"{path}:{','.join(setting)}"
    return Contender(label, texts)


def default_contenders(world: World = World.LIVE_LIKE) -> tuple[Contender, ...]:
    """Return the baselines, every model that ships with the agent under its name, and the clairvoyant plans."""
    rule = queue_rule(world)
    shipped = (model_contender(model.path, rule, model.title) for model in shipped_models())
    return (*baselines(world), *shipped, *_clairvoyant())


def _clairvoyant() -> list[Contender]:
    """Return the plans that are kept with the program; to make one takes minutes, and comes out otherwise each time."""
    found = []
    for label, single in (("clairvoyant plan, one action", True), ("clairvoyant plan, multi", False)):
        text = f"plan:single={str(single).lower()}"
        here = {case.group: text for case in suite(("T1", "T2"), short=True, seeds=1) if _is_kept(case, single)}
        if here:
            found.append(Contender(label, here))
    return found


def _is_kept(case: Case, single: bool) -> bool:
    return kept_plan(case.config, case.trace, single) is not None


# One's own cases: any workloads in any world, and the policies to compare.


SUITE_WORLDS = {"live-like": "live-like", "training": "exact"}
"""Worlds of the suite, and their names among all worlds."""
TARGET_TRACKING, BEST_CONSTANT = "target tracking, tuned", "best constant fleet"
TUNED = {"queue-rule": QUEUE_RULE, "target-tracking": TARGET_TRACKING}
"""Rules that are tuned for one's own jobs, and their labels."""
OnRun = Callable[[int, int], None] | None
"""Called with the runs done and of all."""
SEEDS, FEW_SEEDS, TUNED_ON = 10, 3, 3
"""Boot seeds for each workload, in the short form too, and for tuning the queue rule."""


def own_world(text: str, workloads: Sequence[str], recent: Sequence[str] = ()) -> OwnWorld | None:
    """Return the world of one's own cases, None where the suite alone is asked for.

    recent: ledgers and traces of production, which a world of one's own may have for its jobs too. Raises BadInput for
    a world of one's own without jobs, and as `world_of`.
    """
    if not workloads and text in SUITE_WORLDS:
        return None
    if not workloads and not recent:
        names = ", ".join(SUITE_WORLDS)
        raise BadInput(
            "--world", text, f"choose one of {names}, which T1 to T6 are for, or give its jobs by --workload"
        )
    return world_of(SUITE_WORLDS.get(text, text))


def own_cases(world: OwnWorld, workloads: Sequence[str], seeds: int) -> tuple[Case, ...]:
    """Return `seeds` cases of each workload, from seed 0 on; random workloads are drawn for each seed."""
    drawn = zip(workloads, traces_by_seed(workloads, world.config), strict=True)
    return tuple(
        Case(f"{OWN} {_short(text)} boot {seed}", f"{OWN} {_short(text)}", world.name, world.config, made(seed), seed)
        for text, made in drawn
        for seed in range(seeds)
    )


def _short(text: str) -> str:
    return Path(text).name.replace(" ", "_")


def tuned_rule(
    world: OwnWorld, workloads: Sequence[str], workers: Workers = HERE, on_run: OnRun = None, name: str = "queue-rule"
) -> Contender:
    """Return the queue rule that costs least on these workloads in this world, tuned on separate seeds.

    name: another rule of TUNED instead.
    """
    config, traces = world.config, traces_by_seed(workloads, world.config)
    found = tune(
        name,
        cases_of(config, traces, TUNING_SEED, TUNED_ON),
        cases_of(config, traces, 0, 1),
        workers=workers,
        on_run=on_run,
        adapt=lambda text: policy_in_world(text, world),
        widen=True,
    )
    return Contender(TUNED[name], {ANYWHERE: found.policy})


def constant_fleet(world: OwnWorld, workloads: Sequence[str], on_fleet: OnRun = None) -> tuple[Contender, ...]:
    """Return the constant fleet that costs least on these workloads; none where there are more than MOST_FLEETS."""
    config, traces = world.config, traces_by_seed(workloads, world.config)
    if count_fleets(config) > MOST_FLEETS:
        return ()
    found = best_constant(config, [trace_of(TUNING_SEED) for trace_of in traces], on_fleet)
    return (Contender(BEST_CONSTANT, {ANYWHERE: f"constant:{','.join(map(str, found.sizes))}"}),)


def own_contenders(world: OwnWorld, rule: Contender, others: Sequence[Contender] = ()) -> tuple[Contender, ...]:
    """Return the tuned rule, `others`, rules as they are without tuning, and the shipped models that may decide here.

    A model for another fleet is reported as absent. A scorer is shown with the tuned rule's setting.
    """
    texts = {"queue rule, not tuned": "queue-rule", "threshold 75 %": "threshold:high=0.75,low=0.75,periods=1"}
    found = [*others, *(Contender(label, {ANYWHERE: policy_in_world(text, world)}) for label, text in texts.items())]
    for model in shipped_models():
        # A network that observes the sizes of jobs has no place in a world that hides them.
        with suppress(BadInput):
            found.append(
                Contender(
                    model.title, {ANYWHERE: policy_in_world(model_contender(model.path, rule).texts[ANYWHERE], world)}
                )
            )
    return (rule, *found)


def contenders_in_world(contenders: Sequence[Contender], world: OwnWorld) -> tuple[Contender, ...]:
    """Return the contenders as they decide in a world that may keep job sizes back."""
    return tuple(
        Contender(c.label, {group: policy_in_world(text, world) for group, text in c.texts.items()}) for c in contenders
    )
