"""Whether acting is allowed is asked of IAM on a real socket, for the right role, groups and tags; nothing is tried."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs

import pytest

from agent.autoscaling.preflight.fleets import CHANGES, check_changes, principal
from agent.decisions.checks import State
from agent.preflight.check import check_identity
from agent.settings import load_settings
from collectors.aws import AwsOptions, AwsSession
from domain.clock import WallClock
from tests.deploy.policies import grants

ROLE_SESSION = "arn:aws:sts::111122223333:assumed-role/trimtab/i-0abc1234"
ROLE = "arn:aws:iam::111122223333:role/trimtab"
GROUP_ARN = "arn:aws:autoscaling:eu-west-1:111122223333:autoScalingGroup:1:autoScalingGroupName/web-s"


class Iam(BaseHTTPRequestHandler):
    """Answers as STS and IAM do; `decisions` by action, `asked` what it was asked."""

    protocol_version = "HTTP/1.1"
    decisions: dict[str, str]
    asked: list[dict[str, list[str]]]
    behind_s = 0.0

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.asked.append(form)
        actions = [values[0] for name, values in sorted(form.items()) if name.startswith("ActionNames.member.")]
        results = "".join(
            f"<member><EvalActionName>{action}</EvalActionName><EvalResourceName>{GROUP_ARN}</EvalResourceName>"
            f"<EvalDecision>{self.decisions.get(action, 'allowed')}</EvalDecision></member>"
            for action in actions
        )
        body = (
            f"<R><GetCallerIdentityResult><Arn>{ROLE_SESSION}</Arn><Account>111122223333</Account>"
            f"</GetCallerIdentityResult></R>"
            if form["Action"] == ["GetCallerIdentity"]
            else f"<R><SimulatePrincipalPolicyResult><IsTruncated>false</IsTruncated><EvaluationResults>{results}"
            f"</EvaluationResults></SimulatePrincipalPolicyResult></R>"
        ).encode()
        self.send_response_only(200)
        self.send_header("x-amzn-RequestId", "r-1")
        self.send_header("Date", formatdate(time.time() - self.behind_s, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def iam() -> Iterator[tuple[type[Iam], AwsSession]]:
    handler = type("Handler", (Iam,), {"decisions": {}, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    options = AwsOptions(
        "eu-west-1", f"http://127.0.0.1:{server.server_port}", access_key_id="key", secret_access_key="secret"
    )
    session = AwsSession(options, WallClock(), read_only=True)
    yield handler, session
    session.close()
    server.shutdown()
    server.server_close()
    thread.join()


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
    found = check_changes(settings(mode), session, ROLE_SESSION, {"web-s": GROUP_ARN})  # type: ignore[arg-type]
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
    of_fleets = {"StringLike": {"autoscaling:ResourceTag/trimtab:fleet": "*"}}
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
