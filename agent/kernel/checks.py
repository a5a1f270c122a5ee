"""What a part's checks of preflight look at, and the result of a check, with what to do about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from domain.decisions import Mode
from domain.errors import CloudError

if TYPE_CHECKING:
    from collectors.aws import AwsSession
    from collectors.base import SampleSink
    from collectors.intake import IntakeCounters


@dataclass(frozen=True, slots=True)
class Account:
    """An account of AWS: a session that refuses every call that changes anything, and the ARN of its caller."""

    session: AwsSession
    identity: str


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How to find out what arrives at this host.

    wait_s: how long to listen where no agent runs, 0 for not at all. metrics: returns those of the agent that runs here
    in Prometheus's text format; CollectionFailed when none does. listen: hands a sink what arrives in that time
    and returns what was taken and refused; BadInput when the port cannot be had.
    """

    wait_s: float
    metrics: Callable[[], str]
    listen: Callable[[SampleSink], IntakeCounters]


class State(StrEnum):
    """missing: the agent cannot work. advice: it works, but not as well. unknown: it could not be checked."""

    OK = "ok"
    ADVICE = "advice"
    UNKNOWN = "unknown"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `remedy` says what to do, "" when nothing is to be done."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


def ok(subject: str, detail: str) -> CheckResult:
    """Return that the subject is as it should be."""
    return CheckResult(subject, State.OK, detail)


def missing(subject: str, detail: str, remedy: str) -> CheckResult:
    """Return that something required is not there."""
    return CheckResult(subject, State.MISSING, detail, remedy)


def advice(subject: str, detail: str, remedy: str) -> CheckResult:
    """Return that something should be improved."""
    return CheckResult(subject, State.ADVICE, detail, remedy)


def unknown(subject: str, detail: str, remedy: str = "") -> CheckResult:
    """Return that something could not be checked."""
    return CheckResult(subject, State.UNKNOWN, detail, remedy)


def needed_to_act(mode: Mode, subject: str, detail: str, remedy: str) -> CheckResult:
    """Return a result for a requirement of act mode: missing in act mode, advice in observe mode."""
    return CheckResult(subject, State.MISSING if mode is Mode.ACT else State.ADVICE, detail, remedy)


_ROLE: Final = re.compile(r"arn:(?P<partition>aws[a-z-]*):sts::(?P<account>\d{12}):assumed-role/(?P<role>[^/]+)/.+")
_LASTING: Final = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(?:user|role)/.+")


def principal(identity: str) -> str | None:
    """Return the ARN of the role or user behind the caller's ARN, None for anything else.

    The path of a role cannot be read from its session: IAM then reports it as unknown.
    """
    if found := _ROLE.fullmatch(identity):
        return f"arn:{found['partition']}:iam::{found['account']}:role/{found['role']}"
    return identity if _LASTING.fullmatch(identity) else None


def permitted(
    mode: Mode,
    account: Account,
    subject: str,
    actions: Sequence[str],
    arns: Sequence[str],
    allowed: str,
    context: Mapping[str, str] | None = None,
) -> CheckResult:
    """Return whether IAM permits actions on resources, by simulation; nothing is tried.

    allowed: the sentence where it does. context: values of condition keys.
    """
    source = principal(account.identity)
    if source is None:
        return unknown(subject, f"{account.identity} is neither a role nor a user, which IAM could simulate")
    entries = [
        {"ContextKeyName": name, "ContextKeyValues": [value], "ContextKeyType": "string"}
        for name, value in (context or {}).items()
    ]
    try:
        answer = account.session.read(
            "iam",
            "SimulatePrincipalPolicy",
            PolicySourceArn=source,
            ActionNames=list(actions),
            ResourceArns=list(arns),
            ContextEntries=entries,
        )
    except CloudError as error:
        return unknown(subject, str(error), "allow iam:SimulatePrincipalPolicy on the agent's own role for this check")
    refused = sorted(
        one["EvalActionName"]
        for one in answer["EvaluationResults"]
        if one["EvalDecision"] != "allowed"
        or any(each["EvalResourceDecision"] != "allowed" for each in one.get("ResourceSpecificResults", ()))
    )
    if refused:
        return needed_to_act(mode, subject, f"IAM refuses {', '.join(refused)}", "attach deploy/iam/act.json")
    return ok(subject, allowed)


def passed(results: Iterable[CheckResult]) -> bool:
    """Return whether nothing required is missing."""
    return all(result.state is not State.MISSING for result in results)
