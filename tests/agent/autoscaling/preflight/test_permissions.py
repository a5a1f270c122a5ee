"""Whether acting is allowed is asked of IAM on a real socket, for the right role, groups and tags; nothing is tried."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agent.autoscaling.preflight.fleets import CHANGES, check_changes
from agent.kernel.checks import Account, State, principal
from agent.preflight.check import check_identity
from agent.settings import load_settings
from collectors.aws import AwsSession
from tests.agent.preflight.iam import ROLE, ROLE_SESSION, Iam, running_iam
from tests.deploy.policies import grants

GROUP_ARN = "arn:aws:autoscaling:eu-west-1:111122223333:autoScalingGroup:1:autoScalingGroupName/web-s"


@pytest.fixture
def iam() -> Iterator[tuple[type[Iam], AwsSession]]:
    with running_iam() as running:
        yield running


def settings(mode: str) -> object:
    group = "TRIMTAB_FLEETS__web__GROUPS__small__"
    values = {
        "NAME": "web-s",
        "VM_TYPE": "m5a.large",
        "CORES": "2",
        "MEMORY_GB": "8",
        "PRICE_PER_HOUR": "0.1",
        "MAX": "9",
    }
    given = {"TRIMTAB_MODE": mode, "TRIMTAB_AWS__REGION": "eu-west-1"}
    return load_settings(given | {group + name: value for name, value in values.items()})


def look(session: AwsSession, mode: str = "act") -> list[tuple[State, str]]:
    found = check_changes(settings(mode), Account(session, ROLE_SESSION), {"web-s": GROUP_ARN})  # type: ignore[arg-type]
    return [(one.state, one.detail) for one in found]


def test_every_change_is_simulated_for_the_role_the_group_and_its_tag(iam: tuple[type[Iam], AwsSession]) -> None:
    handler, session = iam
    ((state, _),) = look(session)
    assert state is State.OK
    (form,) = handler.asked
    assert form["PolicySourceArn"] == [ROLE]
    assert form["ResourceArns.member.1"] == [GROUP_ARN]
    assert form["ContextEntries.member.1.ContextKeyName"] == ["autoscaling:ResourceTag/trimtab:fleet"]
    assert form["ContextEntries.member.1.ContextKeyValues.member.1"] == ["web"]
    assert {form[f"ActionNames.member.{n}"][0] for n in range(1, len(CHANGES) + 1)} == set(CHANGES)


@pytest.mark.parametrize(("mode", "state"), [("act", State.MISSING), ("observe", State.ADVICE)])
def test_what_iam_refuses_is_named(iam: tuple[type[Iam], AwsSession], mode: str, state: State) -> None:
    handler, session = iam
    handler.decisions["autoscaling:SetDesiredCapacity"] = "implicitDeny"
    assert look(session, mode) == [(state, "IAM refuses autoscaling:SetDesiredCapacity")]


def test_the_simulated_changes_are_those_the_policy_allows_on_groups() -> None:
    of_fleets = {"StringEquals": {"autoscaling:ResourceTag/trimtab:fleet": ["FLEET"]}}
    on_groups = {grant.action for grant in grants("act") if grant.condition == of_fleets}
    assert set(CHANGES) == on_groups


@pytest.mark.parametrize(
    ("behind_s", "state"), [(0.0, State.OK), (20.0, State.ADVICE), (300.0, State.MISSING), (-300.0, State.MISSING)]
)
def test_the_clock_is_compared_with_that_of_aws(
    iam: tuple[type[Iam], AwsSession], behind_s: float, state: State
) -> None:
    handler, session = iam
    handler.behind_s = behind_s
    arn, (identity, clock) = check_identity(session, time.time())
    assert (arn, identity.state, clock.state) == (ROLE_SESSION, State.OK, state)


@pytest.mark.parametrize(
    ("arn", "expected"),
    [
        (ROLE_SESSION, ROLE),
        ("arn:aws-cn:sts::111122223333:assumed-role/a/b", "arn:aws-cn:iam::111122223333:role/a"),
        ("arn:aws:iam::111122223333:user/ann", "arn:aws:iam::111122223333:user/ann"),
        ("arn:aws:iam::111122223333:root", None),
        ("arn:aws:sts::111122223333:federated-user/ann", None),
    ],
)
def test_the_role_behind_a_session_is_simulated(arn: str, expected: str | None) -> None:
    assert principal(arn) == expected
