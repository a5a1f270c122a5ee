"""botocore's descriptions in the agent: smaller, and still those of AWS."""

from __future__ import annotations

import re
from pathlib import Path

import botocore.session
import pytest

from collectors.aws import AwsOptions, AwsSession
from collectors.aws_models import KEPT, check_kept
from domain.clock import VirtualClock
from domain.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def session() -> AwsSession:
    options = AwsOptions(region="us-east-1", access_key_id="agent", secret_access_key="simulated")
    return AwsSession(options, VirtualClock(0.0), read_only=True)


def test_ec2_keeps_what_the_agent_calls_and_nothing_else(session: AwsSession) -> None:
    assert set(session.client("ec2").meta.service_model.operation_names) == KEPT["ec2"]


@pytest.mark.parametrize("operation", sorted(KEPT["ec2"]))
def test_a_kept_operation_reads_and_writes_as_botocore_describes_it(session: AwsSession, operation: str) -> None:
    whole = botocore.session.get_session().get_service_model("ec2").operation_model(operation)
    ours = session.client("ec2").meta.service_model.operation_model(operation)
    for shape, original in ((ours.input_shape, whole.input_shape), (ours.output_shape, whole.output_shape)):
        assert list(shape.members) == list(original.members)
        assert _deep(shape) == _deep(original)


def _deep(shape: object, depth: int = 6) -> object:
    """A shape as its name, type and members, some levels down."""
    name, kind = shape.name, shape.type_name  # type: ignore[attr-defined]
    if depth == 0:
        return name, kind
    if kind == "structure":
        return name, {key: _deep(member, depth - 1) for key, member in shape.members.items()}  # type: ignore[attr-defined]
    if kind == "list":
        return name, _deep(shape.member, depth - 1)  # type: ignore[attr-defined]
    return name, kind


@pytest.mark.parametrize("service", ["autoscaling", "sqs", "sns", "cloudwatch", "sts"])
def test_other_services_stay_whole(session: AwsSession, service: str) -> None:
    whole = botocore.session.get_session().get_service_model(service)
    assert session.client(service).meta.service_model.operation_names == whole.operation_names


def test_every_ec2_call_in_the_product_is_kept() -> None:
    called = set()
    for folder in ("collectors", "actuators", "agent"):
        for path in (ROOT / folder).rglob("*.py"):
            if "rehearsal" not in path.parts:
                called |= set(re.findall(r'"ec2",\s*"([A-Z]\w+)"', path.read_text(encoding="utf-8")))
    assert called <= KEPT["ec2"]
    assert "DescribeInstances" in called


def test_an_operation_that_was_cut_away_is_refused_by_name() -> None:
    with pytest.raises(BadInput, match=r"ec2 operation is 'RunInstances': .*KEPT"):
        check_kept("ec2", "RunInstances")
