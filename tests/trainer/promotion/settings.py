"""Settings of the queue rule put in use or proposed, with a report as a tuning writes it."""

from __future__ import annotations

from typing import Any

from agent.models.directory import Then, moment_text
from agent.models.queue_rule import load_rule, rule_file
from domain.rules.queue_rule import RuleSetting
from domain.subject import QUEUE_RULE, Subject
from trainer.promotion.directory import ModelsWriter

BEFORE = RuleSetting(150.0, 120.0)


def _values(rule: RuleSetting) -> dict[str, float | None]:
    return {"horizon_s": rule.horizon_s, "idle_s": rule.idle_s, "job_core_s": rule.job_core_s or None}


def promoted_rule(
    directory: ModelsWriter,
    rule: RuleSetting,
    fleet: str,
    at: float,
    *,
    file_of: str | None = None,
    then: Then | None = None,
    **report: Any,
) -> str:
    """The file of a setting that is promoted for a fleet, or put on probation where `then` is given.

    file_of: the fleet that the file names, by default the same. report: fields of the report in place of its own.
    """
    subject, made = Subject(QUEUE_RULE, fleet), rule_file(file_of or fleet, rule)
    now = directory.champion(subject)
    body = {
        "passed": True,
        "reasons": [],
        "challenger": {"sha256": made.sha256},
        "champion": {"sha256": None if now is None else now.model.partition(".")[0]},
        "self_tuning": {
            "from": _values(BEFORE),
            "to": _values(rule),
            "gain": {"share": 0.12, "low": 0.08, "high": 0.15},
            "dollars_a_month": 41.2,
            "hours": 72.0,
            "why": "cheaper",
        },
    }
    name = directory.store_report(body | report, subject, moment_text(at))
    beaten = None if now is None else now.model
    if then is None:
        directory.promote(made, subject, name, moment_text(at), load_rule, beaten=beaten)
    else:
        directory.put_on_probation(made, subject, name, at, 24.0, then, load_rule, beaten=beaten)
    return made.name
