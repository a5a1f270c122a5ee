"""Who the agent is to AWS, how its clock agrees, and whether it may make the calls that change something."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from agent.preflight.groups import FLEET_TAG
from agent.preflight.results import Finding, advice, missing, needed_to_act, ok, unknown
from agent.settings import Settings
from collectors.aws import AwsSession
from domain.decisions import Mode
from domain.errors import CloudError

CHANGES = (
    "autoscaling:SetDesiredCapacity",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "autoscaling:SetInstanceProtection",
    "autoscaling:RecordLifecycleActionHeartbeat",
    "autoscaling:CompleteLifecycleAction",
)
"""What acting on a group takes; deploy/iam/act.json allows it, and a test compares it with the calls really made."""

NOTABLE_SKEW_S, LARGEST_SKEW_S = 2.0, 60.0
"""AWS refuses calls from a clock that is five minutes off; measurements stop to fit long before."""

_ROLE = re.compile(r"arn:(?P<partition>aws[a-z-]*):sts::(?P<account>\d{12}):assumed-role/(?P<role>[^/]+)/.+")
_LASTING = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:(?:user|role)/.+")


def check_identity(session: AwsSession, now: float) -> tuple[str | None, list[Finding]]:
    """Return the identity's ARN, None when there is none, and what was found about it and the clock.

    now: this host's time right before the call, epoch seconds.
    """
    try:
        answer = session.read("sts", "GetCallerIdentity")
    except CloudError as error:
        remedy = "give the host an instance profile with deploy/iam/observe.json or act.json (docs/operate/install.md)"
        return None, [missing("credentials", str(error), remedy)]
    arn = str(answer["Arn"])
    return arn, [ok("credentials", f"account {answer['Account']}, {arn}"), _clock(answer, now)]


def _clock(answer: Mapping[str, Any], now: float) -> Finding:
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        skew_s = now - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return unknown("clock", "AWS's answer carries no date to compare with")
    detail = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} AWS"
    remedy = "let it be set by NTP, such as chrony with AWS's 169.254.169.123"
    # The header has whole seconds, and the answer took its time.
    if abs(skew_s) <= NOTABLE_SKEW_S:
        return ok("clock", "agrees with AWS to within 2 s")
    if abs(skew_s) <= LARGEST_SKEW_S:
        return advice("clock", detail, remedy)
    return missing("clock", detail, remedy)


def check_changes(settings: Settings, session: AwsSession, identity: str, arns: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether IAM would let the agent change the fleets' groups; IAM is asked, nothing is tried.

    arns: group names and their ARNs.
    """
    source = principal(identity)
    if source is None:
        yield unknown("permission to act", f"{identity} is no role or user of which IAM could be asked")
        return
    for key, fleet in settings.fleets.items():
        named = [group.name or group_key for group_key, group in fleet.ordered_groups]
        wanted = [arns[name] for name in named if name in arns]
        if wanted:
            yield _judged(settings.mode, session, source, key, wanted)


def _judged(mode: Mode, session: AwsSession, source: str, fleet: str, arns: list[str]) -> Finding:
    subject = f"permission to act on {fleet}"
    try:
        answer = session.read(
            "iam",
            "SimulatePrincipalPolicy",
            PolicySourceArn=source,
            ActionNames=list(CHANGES),
            ResourceArns=arns,
            ContextEntries=[
                {
                    "ContextKeyName": f"{namespace}:ResourceTag/{FLEET_TAG}",
                    "ContextKeyValues": [fleet],
                    "ContextKeyType": "string",
                }
                for namespace in ("autoscaling", "aws")
            ],
        )
    except CloudError as error:
        return unknown(subject, str(error), "allow iam:SimulatePrincipalPolicy on the agent's own role to find out")
    refused = sorted(
        {one["EvalActionName"] for one in answer["EvaluationResults"] if one["EvalDecision"] != "allowed"}
        | {
            one["EvalActionName"]
            for one in answer["EvaluationResults"]
            if any(each["EvalResourceDecision"] != "allowed" for each in one.get("ResourceSpecificResults", ()))
        }
    )
    if refused:
        return needed_to_act(mode, subject, f"IAM refuses {', '.join(refused)}", "attach deploy/iam/act.json")
    return ok(subject, "IAM allows every change that acting takes, where the groups bear the fleet's tag")


def principal(identity: str) -> str | None:
    """Return the ARN of the role or user behind the caller's ARN, None for anything else.

    A role with a path cannot be told from its session: IAM will not know it, which is reported as unknown.
    """
    if found := _ROLE.fullmatch(identity):
        return f"arn:{found['partition']}:iam::{found['account']}:role/{found['role']}"
    return identity if _LASTING.fullmatch(identity) else None
