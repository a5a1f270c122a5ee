"""From a policy's name and parameters, as settings, ledger and command line write them, to the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache

from pydantic import TypeAdapter, ValidationError

from agent.autoscaling.policies.base import Policy
from agent.autoscaling.policies.fixed import ConstantPolicy, HoldPolicy
from agent.autoscaling.policies.queue_rule import QueueRulePolicy
from agent.autoscaling.policies.target_tracking import TargetTrackingPolicy
from agent.autoscaling.policies.threshold import ThresholdPolicy
from domain.errors import BadInput

RULES: Mapping[str, type[QueueRulePolicy | ThresholdPolicy | TargetTrackingPolicy | HoldPolicy]] = {
    "queue-rule": QueueRulePolicy,
    "threshold": ThresholdPolicy,
    "target-tracking": TargetTrackingPolicy,
    "hold": HoldPolicy,
}

MOST_DIGITS = 9

NAMES_KEPT = 256
"""Policies kept by their text: they are frozen, and every fleet names the same one each minute."""


@lru_cache(maxsize=NAMES_KEPT)
def policy_from_name(text: str) -> Policy:
    """Return the rule that `NAME` or `NAME:parameter=value,...` describes; `constant:2,0,1` is a constant fleet.

    Learned policies, `learned` and `model:FILE`, need the shelf their models stand on (`agent.models.shelf`). Raises
    BadInput naming the policies, the parameters or the kind of value there are.
    """
    name, _, rest = text.partition(":")
    if name == "constant":
        return ConstantPolicy(tuple(_whole(part) for part in rest.split(",")))
    rule = RULES.get(name)
    if rule is None:
        raise BadInput("policy", name, f"choose one of: {', '.join(RULES)}, constant:N,N,..., learned, model:FILE")
    names = [field.name for field in fields(rule)]
    values: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        parameter, _, value = pair.partition("=")
        if parameter not in names:
            raise BadInput(f"policy {name}: parameter", parameter, f"choose from: {', '.join(names) or 'none'}")
        values[parameter] = value
    try:
        return TypeAdapter(rule).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"policy {name}: {first['loc'][0]}", first["input"], first["msg"].lower()) from None


def _whole(text: str) -> int:
    # Digits by the thousand make no size, and Python refuses to read them.
    if not text.strip().isdecimal() or len(text.strip()) > MOST_DIGITS:
        raise BadInput("policy constant: size", text, "give one whole number per group, for example constant:2,0,1")
    return int(text)
