"""Contenders of an evaluation: a label, and the policy's text, the same everywhere or tuned for each group."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.models.shipped import shipped_models
from domain.errors import BadInput
from trainer.autoscaling.baselines.plans import kept_plan
from trainer.autoscaling.evaluation.suite import GROUPS, OWN, Case, World, suite
from trainer.autoscaling.policies.base import parameters_of

ANYWHERE = "*"


@dataclass(frozen=True, slots=True)
class Contender:
    """A label for people, and the policy's text per group; the entry `*` stands for the groups that have none."""

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
"""What others are compared with unless something else is asked for."""

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


def beside(path: Path, rule: Contender, label: str = "") -> Contender:
    """Return a model file as a contender: a scorer beside the rule's setting in each group, a network everywhere."""
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
    """Return the baselines, every model that ships with the agent under its name, and what knows the future."""
    rule = queue_rule(world)
    shipped = (beside(model.path, rule, model.title) for model in shipped_models())
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
