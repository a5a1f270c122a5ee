"""From a policy's name and parameters, as settings, ledger and command line write them, to the policy.

Every rule, ours too, is an entry point of the group `trimtab.policies`: a frozen dataclass whose fields are the rule's
parameters, loaded when it is first named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from agent.autoscaling.policies.base import Policy
from agent.autoscaling.policies.ppo_lstm import MODEL
from agent.autoscaling.policies.rules import ConstantPolicy
from agent.settings.fleet import PolicyName
from agent.settings.plug_ins import POLICIES, installed, load, own_settings, refused
from domain.errors import BadInput
from domain.snapshot import OnMissing, Signal

INPUTS: Final = ("cpu", "ram", "queue")
"""What a policy may need; a minute without it counts as stale."""
LEARNED_NEEDS: Final = INPUTS
REPORTS: Final = "reports"
"""An input that is never absent: VMs are due to report, whichever metrics."""
VM_INPUTS: Final = frozenset({"cpu", "ram", REPORTS})

RULES: Final = frozenset(PolicyName) - {PolicyName.LEARNED}
"""Our own, which are always there; where one is not, the installation is broken."""

MOST_DIGITS = 9

NAMES_KEPT = 256
"""Policies kept by their text: they are frozen, and every fleet names the same one each minute."""


def rule_of(name: str) -> type[Any] | None:
    """Return the class of an installed rule, None when there is none of this name; ConfigurationError for a bad one."""
    if name not in installed(POLICIES) and name not in RULES:
        return None
    wanted = f"a frozen dataclass with name and decide, whose `needs`, if any, are among {', '.join(INPUTS)}"
    loaded: type[Any] = load(POLICIES, name, _is_rule, wanted)
    return loaded


def _is_rule(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and is_dataclass(kind)
        and bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]  # not in the type's description
        and callable(getattr(kind, "decide", None))
        and hasattr(kind, "name")
        and set(getattr(kind, "needs", ())) <= set(INPUTS)
    )


def inputs_needed(text: str, signals: Sequence[Signal] = ()) -> tuple[str, ...]:
    """Return the inputs without which a minute of this policy is stale; none for a constant fleet.

    VMs must report while one of them is in VM_INPUTS. signals: the fleet's own. Signal tracking needs those that hold
    while they are absent, no other policy needs any.
    """
    name = text.partition(":")[0]
    if name == PolicyName.LEARNED:
        return LEARNED_NEEDS
    if name == MODEL:
        return (REPORTS,)
    if name == PolicyName.SIGNAL_TRACKING:
        return tuple(one.input_name for one in signals if one.on_missing is OnMissing.HOLD)
    return tuple(getattr(rule_of(name), "needs", ()))


def with_own_settings(text: str, environ: Mapping[str, str]) -> str:
    """Return a policy of the fleet's settings as the ledger records it: one of another package with its own settings.

    ConfigurationError when these are wrong, or when the policy's name is not read back as the same policy.
    """
    rule = None if text.partition(":")[0] in set(PolicyName) else rule_of(text)
    if rule is None:
        return text
    model = getattr(rule, "settings_model", None)
    policy = rule() if model is None else rule(**own_settings(text, model, environ).model_dump())
    name: str = policy.name
    if name.partition(":")[0] != text or policy_from_name(name) != policy:
        raise refused(POLICIES, installed(POLICIES)[text], f"its policy's name, {name!r}, does not describe it")
    return name


@lru_cache(maxsize=NAMES_KEPT)
def policy_from_name(text: str) -> Policy:
    """Return the rule that `NAME` or `NAME:parameter=value,...` describes; `constant:2,0,1` is a constant fleet.

    Learned policies, `learned` and `model:FILE`, need the shelf of their models (`learned_models`). Raises BadInput
    naming the policies, the parameters or the kind of value there are, ConfigurationError for an unusable package.
    """
    name, _, rest = text.partition(":")
    if name == "constant":
        return ConstantPolicy(tuple(_whole(part) for part in rest.split(",")))
    rule = rule_of(name)
    if rule is None:
        there = ", ".join(installed(POLICIES))
        raise BadInput("policy", name, f"choose one of: {there}, constant:N,N,..., learned, model:FILE")
    names = [field.name for field in fields(rule)]
    values: dict[str, str] = {}
    for pair in filter(None, rest.split(",")):
        parameter, _, value = pair.partition("=")
        if parameter not in names:
            raise BadInput(f"policy {name}: parameter", parameter, f"choose from: {', '.join(names) or 'none'}")
        values[parameter] = value
    try:
        made: Policy = TypeAdapter(rule).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"policy {name}: {first['loc'][0]}", first["input"], first["msg"].lower()) from None
    return made


def _whole(text: str) -> int:
    # Digits by the thousand make no size, and Python refuses to read them.
    if not text.strip().isdecimal() or len(text.strip()) > MOST_DIGITS:
        raise BadInput("policy constant: size", text, "give one whole number per group, for example constant:2,0,1")
    return int(text)
