"""The dry run's cloud.

The fake AWS in its own process, with the fleet's groups, hook and queues made through its API.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import boto3

from domain.fleet import Fleet, Group
from simulator.aws.client import CloudControl, ControlError
from simulator.aws.process import start_process
from simulator.paced_clock import PacedClock

REGION = "us-east-1"
ZONES = ("us-east-1a", "us-east-1b")
OWNER_KEY = "owner"
AGENT_KEY = "agent"
SECRET = "dry-run"
DRAIN_HOOK = "trimtab-drain"
HEARTBEAT_S = 180
VISIBILITY_S = 900
"""How long a job whose VM vanished stays invisible: longer than any job of the trace."""
BILLED_AT_LEAST_S = 60.0


@dataclass(frozen=True, slots=True)
class DryRunCloud:
    """A running fake AWS with the fleet in it."""

    endpoint: str
    process: subprocess.Popen[str]
    control: CloudControl
    job_queue_url: str
    interruption_queue_url: str


@contextmanager
def fake_aws(
    fleet_groups: Sequence[Group], initial: Sequence[int], clock: PacedClock, seed: int
) -> Iterator[DryRunCloud]:
    """Run the fake AWS and set up `fleet_groups` at `initial` sizes, all in service; gone when the block ends.

    Its time is that of `clock`.

    Raises RuntimeError when it does not start.
    """
    with start_process(["--clock-file", str(clock.path), "--seed", str(seed)]) as process:
        control = CloudControl(process.endpoint)
        groups = _client("autoscaling", process.endpoint)
        machines = _client("ec2", process.endpoint)
        queues = _client("sqs", process.endpoint)
        attributes = {"VisibilityTimeout": str(VISIBILITY_S)}
        jobs = queues.create_queue(QueueName="web-jobs", Attributes=attributes)["QueueUrl"]
        notices = queues.create_queue(QueueName="trimtab-interruptions")["QueueUrl"]
        for group, size in zip(fleet_groups, initial, strict=True):
            _make_group(groups, machines, group, size)
        control.ready_now()
        yield DryRunCloud(process.endpoint, process.popen, control, jobs, notices)


def _make_group(client: Any, machines: Any, group: Group, size: int) -> None:
    machines.create_launch_template(
        LaunchTemplateName=group.name,
        LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": group.vm_type.name},
    )
    client.create_auto_scaling_group(
        AutoScalingGroupName=group.name,
        LaunchTemplate={"LaunchTemplateName": group.name, "Version": "$Latest"},
        MinSize=group.minimum,
        MaxSize=group.maximum,
        DesiredCapacity=size,
        AvailabilityZones=list(ZONES),
        Tags=[{"Key": "trimtab:fleet", "Value": "web", "PropagateAtLaunch": True}],
    )
    client.put_lifecycle_hook(
        LifecycleHookName=DRAIN_HOOK,
        AutoScalingGroupName=group.name,
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=HEARTBEAT_S,
        DefaultResult="CONTINUE",
    )


def _client(service: str, endpoint: str) -> Any:
    make: Callable[..., Any] = boto3.client
    return make(
        service,
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=OWNER_KEY,
        aws_secret_access_key=SECRET,
    )


def bill(cloud: DryRunCloud, fleet: Fleet, start: float, end: float) -> float:
    """Return the dollars of rent between `start` and `end`, as EC2's own records of launches and ends have it.

    By the second from a VM's launch on, 60 s at the least, at the prices of the fleet's settings; VMs of other types
    cost nothing.
    """
    prices = {group.vm_type.name: group.vm_type.price_per_hour for group in fleet.groups}
    machines = _client("ec2", cloud.endpoint)
    rent = 0.0
    for page in machines.get_paginator("describe_instances").paginate():
        for vm in (vm for reservation in page["Reservations"] for vm in reservation["Instances"]):
            since = max(start, vm["LaunchTime"].timestamp())
            until = min(end, _terminated_at(vm, end))
            if until > since:
                held_s = max(BILLED_AT_LEAST_S, until - since)
                rent += prices.get(vm["InstanceType"], 0.0) * held_s / 3600.0
    return rent


def _terminated_at(vm: dict[str, Any], otherwise: float) -> float:
    """Return when EC2 says that the VM was terminated: it writes it into the reason, and nowhere else."""
    found = re.search(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:UTC|GMT)\)", vm.get("StateTransitionReason", ""))
    if vm["State"]["Name"] != "terminated" or found is None:
        return otherwise
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()


class CloudStage:
    """What a story does to the fake AWS and to the site's metrics (see `agent.rehearsal.story.Stage`)."""

    def __init__(
        self,
        cloud: DryRunCloud,
        order: Callable[[dict[str, Any]], None],
        busiest: Callable[[], str | None],
    ) -> None:
        self._cloud, self._order, self._busiest = cloud, order, busiest

    def shortage(self, vm_type: str, duration_s: float) -> None:
        """AWS has no VM of this type in any zone."""
        self._cloud.control.add_fault("capacity", instance_type=vm_type, duration_s=duration_s)

    def metric_gap(self, duration_s: float) -> None:
        """The site loses every sample."""
        self._order({"gap_s": duration_s})

    def spot_notice(self) -> str | None:
        """Give the busiest VM its notice and return its id; None while none is busy, or when that one has just left."""
        vm = self._busiest()
        if vm is None:
            return None
        try:
            self._cloud.control.spot_notice([vm], queue=self._cloud.interruption_queue_url)
        except ControlError:
            return None
        return vm

    def throttle(self, rate: float, duration_s: float) -> None:
        """The agent's Auto Scaling calls are throttled; the workers' calls are not."""
        self._cloud.control.add_fault(
            "throttle", rate=rate, duration_s=duration_s, services=["autoscaling"], access_keys=[AGENT_KEY]
        )

    def timeouts(self, count: int) -> None:
        """The answers to the agent's next changes of a group are lost after they took effect."""
        self._cloud.control.add_fault(
            "timeout_after",
            count=count,
            operations=["SetDesiredCapacity"],
            access_keys=[AGENT_KEY],
        )
