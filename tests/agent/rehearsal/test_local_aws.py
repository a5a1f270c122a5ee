"""A local AWS has the groups and queues of a settings file, and what CloudFormation makes on it the agent sees too."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.autoscaling.decision import AutoscalingPart
from agent.rehearsal.local_aws import furnish, local_settings, variables_of
from agent.rehearsal.scenario import AGENT_KEY, OWNER_KEY, SECRET, aws_client
from agent.service.assembly import AwsKeys, assembled
from agent.settings import load_settings, read_settings
from agent.settings.discovery import discover
from agent.settings.names import as_toml, values
from collectors.aws import AwsOptions, AwsSession
from collectors.tagged_groups import TaggedGroups
from domain.clock import VirtualClock
from domain.errors import BadInput
from simulator.aws.client import CloudControl
from simulator.aws.process import RunningCloud
from tests.agent.simulated_cloud import cloud
from tests.architecture.product import ROOT

__all__ = ["cloud"]

REGION = "eu-west-1"
START = 1_795_209_000.0
FILE = f"""# Settings of the agent
TRIMTAB_MODE=act
export TRIMTAB_AWS__REGION='{REGION}'
TRIMTAB_LISTENER__PORT=0
TRIMTAB_FLEETS__web__QUEUE_URL=https://sqs.{REGION}.amazonaws.com/111122223333/web-jobs
TRIMTAB_FLEETS__web__GROUPS__small__NAME=web-small
TRIMTAB_FLEETS__web__GROUPS__small__VM_TYPE=m5a.large
TRIMTAB_FLEETS__web__GROUPS__small__CORES=2
TRIMTAB_FLEETS__web__GROUPS__small__MEMORY_GB=8
TRIMTAB_FLEETS__web__GROUPS__small__PRICE_PER_HOUR=0.096
TRIMTAB_FLEETS__web__GROUPS__small__MIN=1
TRIMTAB_FLEETS__web__GROUPS__small__MAX=10
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "web.env"
    found.write_text(FILE, "utf-8")
    return found


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


def test_the_agent_decides_for_the_fleet_of_the_file(file: Path, cloud: RunningCloud, clock: VirtualClock) -> None:
    own, groups, queues = furnish(cloud.endpoint, {**variables_of(file), "TRIMTAB_STATE_DIRECTORY": str(file.parent)})
    assert (groups, queues) == (("web-small",), ("web-jobs",))
    written = variables_of(local_settings(file, own))
    assert written == own
    (group,) = aws_client("autoscaling", cloud.endpoint, OWNER_KEY, REGION).describe_auto_scaling_groups()[
        "AutoScalingGroups"
    ]
    assert (group["MinSize"], group["DesiredCapacity"], group["MaxSize"]) == (1, 1, 10)
    assert {tag["Key"]: tag["Value"] for tag in group["Tags"]}["trimtab:fleet"] == "web"
    assert own["TRIMTAB_FLEETS__web__QUEUE_URL"].startswith(cloud.endpoint)
    assert [vm["LifecycleState"] for vm in group["Instances"]] == ["InService"]
    settings = load_settings({name: text for name, text in written.items() if name.startswith("TRIMTAB_")})
    with assembled(settings, clock, AwsKeys(AGENT_KEY, SECRET)) as agent:
        clock.advance(60.0)
        agent.turn()
        minute = agent.part(AutoscalingPart).minute
        assert agent.part(AutoscalingPart).loop.fleets[0].fleet.name == "web"
    assert [snapshot.requested for snapshot in minute.snapshots] == [(1,)]
    assert [decision.fleet for decision in minute.decisions] == ["web"]


def test_a_file_of_settings_in_toml_has_its_queues_and_groups_made_too(tmp_path: Path, cloud: RunningCloud) -> None:
    file = tmp_path / "web.toml"
    (tmp_path / "web.env").write_text(FILE, "utf-8")
    given = read_settings(variables_of(tmp_path / "web.env"))
    file.write_text(as_toml((path, value) for path, value in values(given.settings) if path in given.given), "utf-8")
    own, groups, queues = furnish(cloud.endpoint, variables_of(file))
    assert (groups, queues) == (("web-small",), ("web-jobs",))
    target = local_settings(file, own)
    assert target == tmp_path / "web.local.env"
    settings = load_settings({name: text for name, text in variables_of(target).items() if name.startswith("TRIMTAB_")})
    assert (settings.fleets["web"].queue_url or "").startswith(cloud.endpoint)
    assert settings.state_directory == Path(".trimtab/local-aws").resolve()
    assert settings.aws.endpoint_url == cloud.endpoint


@pytest.mark.filterwarnings("ignore:Tried to parse AWS:UserWarning")
def test_groups_of_the_shipped_template_are_found_by_their_tags(file: Path, cloud: RunningCloud) -> None:
    furnish(cloud.endpoint, variables_of(file))
    services = ("ec2", "ssm", "cloudformation")
    ec2, ssm, stacks = (aws_client(name, cloud.endpoint, OWNER_KEY, REGION) for name in services)
    ssm.put_parameter(Name="/ami", Value="ami-12c6146b", Type="String")
    subnets = ",".join(one["SubnetId"] for one in ec2.describe_subnets()["Subnets"][:2])
    (default,) = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
    given = {"FleetName": "made", "Image": "/ami", "Subnets": subnets, "WorkerSecurityGroup": default["GroupId"]}
    stacks.create_stack(
        StackName="fleet",
        TemplateBody=(ROOT / "deploy" / "cloudformation" / "fleet.yaml").read_text("utf-8"),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
    )
    CloudControl(cloud.endpoint).ready_now()
    options = AwsOptions(REGION, cloud.endpoint, 1.0, 20.0, 1, 10_000, AGENT_KEY, SECRET)
    session = AwsSession(options, VirtualClock(START), read_only=True)
    found = discover(TaggedGroups(session), load_settings({"TRIMTAB_DISCOVERY__ENABLED": "true"}), REGION)
    session.close()
    assert found.settings.fleet("made").cores == (2, 4, 8)


@pytest.mark.parametrize("line", ["TRIMTAB_MODE", "a-b=c", "TRIMTAB_MODE='act"])
def test_a_line_that_is_no_setting_is_named(file: Path, line: str) -> None:
    file.write_text(f"{FILE}{line}\n", "utf-8")
    with pytest.raises(BadInput, match=f"line {len(FILE.splitlines()) + 1}"):
        variables_of(file)


@pytest.mark.parametrize(("name", "content"), [("none.toml", None), ("wrong.toml", "a = "), ("none.env", None)])
def test_a_file_that_cannot_be_used_is_named_by_its_argument(tmp_path: Path, name: str, content: str | None) -> None:
    if content is not None:
        (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(BadInput) as refused:
        variables_of(tmp_path / name)
    assert (refused.value.field, refused.value.value) == ("FILE", str(tmp_path / name))


@pytest.mark.exhaustive
def test_the_verb_serves_until_a_signal_and_says_how_to_run_the_agent(file: Path) -> None:
    program = [sys.executable, "-c", "from agent.commands.main import app; app()", "local-aws", str(file)]
    with subprocess.Popen([*program, "--messages", "12"], stdout=subprocess.PIPE, text=True) as popen:
        assert popen.stdout is not None
        endpoint = popen.stdout.readline().split()[3]
        written = [popen.stdout.readline() for _ in range(3)][1]
        assert str(file.with_name("web.local.env")) in written
        own = variables_of(file.with_name("web.local.env"))
        url = own["TRIMTAB_FLEETS__web__QUEUE_URL"]
        sqs = aws_client("sqs", endpoint, OWNER_KEY, REGION)
        about = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        assert about["Attributes"]["ApproximateNumberOfMessages"] == "12"
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(30.0) == 0
