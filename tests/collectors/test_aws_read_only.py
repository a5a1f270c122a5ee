"""Observe mode's choke point: of all operations of the services in use, only those that read leave the process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import botocore
import botocore.session
import pytest
from botocore.config import Config

from collectors.aws import AwsOptions, AwsSession
from collectors.aws_failures import CREDENTIAL_CALLS, is_read
from collectors.aws_models import SlimLoader
from domain.clock import WallClock
from domain.errors import CloudError, FailureClass, Fenced
from tests.collectors.surroundings import body_of, http_server, respond

SERVICES = ("autoscaling", "ec2", "sqs", "ssm", "cloudwatch")
# Verbs that AWS uses for what changes something, written down apart from the code under test.
CHANGING = re.compile(
    r"(Accept|Add|Advertise|Allocate|Apply|Assign|Associate|Attach|Authorize|Batch|Bundle|Cancel|Change|Complete|Confirm|Copy|Create|Delete"
    r"|Deprovision|Deregister|Detach|Disable|Disassociate|Enable|Enter|Execute|Exit|Export|Import|Label|Launch|Lock|Modify"
    r"|Monitor|Move|Provision|Purchase|Purge|Put|Reboot|Receive|Record|Register|Reject|Release|Remove|Replace|Report"
    r"|Request|Reset|Restore|Resume|Revoke|Rollback|Run|Send|Set|Start|Stop|Suspend|Tag|Terminate|Unassign|Unlabel|Unlock"
    r"|Unmonitor|Untag|Update|Withdraw)[A-Z]"
)


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """An address that answers every request with an error, and the paths of those that came."""
    seen: list[str] = []

    def refuse(handler: BaseHTTPRequestHandler) -> None:
        body_of(handler)
        seen.append(handler.path)
        respond(handler, status=400)

    with http_server(refuse) as url:
        yield url, seen


def operations(service: str) -> list[str]:
    return list(botocore.session.get_session().get_service_model(service).operation_names)


def session(endpoint: str, *, read_only: bool, fence: object = None) -> AwsSession:
    options = AwsOptions(
        "us-east-1", endpoint, access_key_id="AKIA", secret_access_key="simulated", calls_per_minute=10_000
    )
    return AwsSession(options, WallClock(), read_only=read_only, fence=fence)


def attempt(aws: AwsSession, service: str, operation: str) -> CloudError:
    """Call the operation past parameter validation, so that only the guard can stop it."""
    with pytest.raises(CloudError) as failed:
        aws.mutate(service, operation)
    return failed.value


@pytest.mark.exhaustive
@pytest.mark.parametrize("service", SERVICES)
def test_only_reads_leave_the_process(
    service: str, endpoint: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, seen = endpoint
    monkeypatch.setattr("botocore.config.Config", lambda **about: Config(parameter_validation=False, **about))
    # The guard is held to every operation there is, those that are cut away included.
    monkeypatch.setattr("collectors.aws_models.KEPT", {})
    # A loader of its own: what other tests have loaded is cut down, and is remembered by kind of loader.
    monkeypatch.setattr("collectors.aws_models.SlimLoader", type("WholeLoader", (SlimLoader,), {}))
    aws = session(url, read_only=True)
    let_out = []
    for operation in operations(service):
        before = len(seen)
        error = attempt(aws, service, operation)
        if len(seen) > before:
            let_out.append(operation)
        else:
            assert (error.failure, error.code) == (FailureClass.READ_ONLY, "ReadOnly"), operation
    aws.close()
    assert let_out == [
        operation for operation in operations(service) if not CHANGING.match(operation) and is_read(service, operation)
    ]
    assert {re.match("[A-Z][a-z]+", operation).group() for operation in let_out} <= {"Describe", "Get", "List", "Head"}
    assert set(operations(service)) - set(let_out) >= {one for one in operations(service) if CHANGING.match(one)}


@pytest.mark.parametrize(
    ("service", "operation"),
    [
        ("autoscaling", "SetDesiredCapacity"),
        ("autoscaling", "TerminateInstanceInAutoScalingGroup"),
        ("autoscaling", "SetInstanceProtection"),
        ("autoscaling", "CompleteLifecycleAction"),
        ("sqs", "ReceiveMessage"),
        ("sqs", "PurgeQueue"),
        ("ssm", "PutParameter"),
        ("ec2", "TerminateInstances"),
        ("ec2", "NoSuchVerbYet"),
        ("ec2", "Getaway"),
        ("sts", "NoSuchVerbYet"),
    ],
)
def test_what_is_not_known_to_read_counts_as_a_change(service: str, operation: str) -> None:
    assert not is_read(service, operation)


def test_fetching_credentials_is_allowed() -> None:
    assert all(is_read(*call) for call in CREDENTIAL_CALLS)


def test_every_client_of_the_session_is_guarded_however_it_is_used(endpoint: tuple[str, list[str]]) -> None:
    url, seen = endpoint
    aws = session(url, read_only=True)
    for attempts in (1, 5):
        client = aws.client("autoscaling", attempts)
        with pytest.raises(CloudError, match="observe mode"):
            client.set_desired_capacity(AutoScalingGroupName="web", DesiredCapacity=9)
        with pytest.raises(CloudError, match="observe mode"):
            client.delete_auto_scaling_group(AutoScalingGroupName="web", ForceDelete=True)
    aws.close()
    assert seen == []


def test_a_refused_change_costs_no_budget(endpoint: tuple[str, list[str]]) -> None:
    aws = session(endpoint[0], read_only=True)
    for _ in range(3):
        attempt(aws, "autoscaling", "SetDesiredCapacity")
    assert aws.budget.counts == {("autoscaling change", "read_only"): 3}


def test_the_fence_is_asked_before_every_change_and_never_before_a_read(endpoint: tuple[str, list[str]]) -> None:
    url, seen = endpoint
    asked: list[int] = []

    def fence() -> None:
        asked.append(len(seen))
        raise Fenced("superseded")

    aws = session(url, read_only=False, fence=fence)
    with pytest.raises(CloudError):
        aws.read("autoscaling", "DescribeAutoScalingGroups")
    assert asked == []
    with pytest.raises(Fenced):
        aws.mutate("autoscaling", "SetDesiredCapacity", AutoScalingGroupName="web", DesiredCapacity=9)
    assert asked == [1]
    with pytest.raises(Fenced):
        aws.client("sqs", 3).delete_message(QueueUrl=url, ReceiptHandle="r")
    assert asked == [1, 1]
    aws.close()
    assert len(seen) == 1
