"""Who takes part when nobody is named: the baselines of the specification, tuned, and the shipped models (§9, §11)."""

from __future__ import annotations

from agent.shipped.index import shipped_models
from trainer.evaluation.contenders import ANYWHERE, Contender

QUEUE_RULE = "queue rule, multi"
"""What others are compared with unless something else is asked for."""

BASELINES: tuple[Contender, ...] = (
    Contender(
        QUEUE_RULE,
        {
            "T1": "queue-rule:horizon_s=700,idle_s=120,single=false",
            "T2": "queue-rule:horizon_s=240,idle_s=0,single=false",
            ANYWHERE: "queue-rule:horizon_s=420,idle_s=120,single=false",
        },
    ),
    Contender(
        "queue rule, one action",
        {
            "T1": "queue-rule:horizon_s=420,idle_s=0,single=true",
            "T2": "queue-rule:horizon_s=210,idle_s=0,single=true",
            ANYWHERE: "queue-rule:horizon_s=300,idle_s=120,single=true",
        },
    ),
    Contender("threshold 75 %, 1 period", {ANYWHERE: "threshold:high=0.75,low=0.75,periods=1"}),
    Contender("threshold 75 %, 3 periods", {ANYWHERE: "threshold:high=0.75,low=0.75,periods=3"}),
    Contender("target tracking 65 %", {ANYWHERE: "target-tracking:target=0.65"}),
)


def default_contenders() -> tuple[Contender, ...]:
    """Return the baselines, and every model that ships with the agent under its name."""
    shipped = (Contender(model.name, {ANYWHERE: str(model.path)}) for model in shipped_models())
    return (*BASELINES, *shipped)
