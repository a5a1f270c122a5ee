"""Who takes part when nobody is named: the baselines of the specification, tuned, and the shipped models (§9, §11).

Rules are tuned by `trainer.autoscaling.baselines.tuning` on seeds from 500,000 on: for the cost of T1, T2 and random
traces, and for rent and 4 cents a minute of run time on T4 (but for its queue rules, which were tuned for cost). T5 and
T6 are run with what was tuned on random traces: nobody is tuned for a shift. The 75 % thresholds stand as published,
and beside them a tuned one.
"""

from __future__ import annotations

from agent.models.shipped.index import shipped_models
from trainer.autoscaling.baselines.plans import kept_plan
from trainer.autoscaling.evaluation.contenders import ANYWHERE, Contender
from trainer.autoscaling.evaluation.suite import Case, World, suite

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


def default_contenders(world: World = World.LIVE_LIKE) -> tuple[Contender, ...]:
    """Return the baselines, every model that ships with the agent under its name, and what knows the future."""
    shipped = (Contender(model.name, {ANYWHERE: str(model.path)}) for model in shipped_models())
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
