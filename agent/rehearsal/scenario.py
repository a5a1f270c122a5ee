"""What the dry run manages: a fleet of three VM types in a fake AWS, its settings, and the recorded jobs."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from agent.autoscaling.policies.ppo_lstm import LEARNED
from collectors.described_groups import DRAIN_HOOK
from domain.errors import BadInput
from domain.fleet import Fleet, Group, VmType
from domain.rules.queue_rule import HORIZON_S
from domain.units import HOUR_S
from domain.workload import Trace
from simulator.autoscaling.world_file import world_named
from simulator.aws.client import CloudControl, start_process
from simulator.aws.prices import price_per_hour
from simulator.paced_clock import PacedClock
from simulator.workloads.named import workload_of
from simulator.workloads.recorded import nasa_day, nasa_hour

FLEET = "web"
REGION = "us-east-1"
ZONES = ("us-east-1a", "us-east-1b")
OWNER_KEY, AGENT_KEY, WORKER_KEY, SECRET = "owner", "agent", "workers", "dry-run"
LEDGER = "ledger.db"
ORIGIN = 1_795_209_000.0 // HOUR_S * HOUR_S
"""Simulated start: an hour on the clock, in November 2026."""

GRACE_S = 5.0
"""As by default: the clock is held while samples travel."""

LEARNED_JOB_CORE_S = 240.0
"""What the learned policy expects of a job until one has finished: the cheapest of 120, 150 and 240 on other choices of
the recorded jobs (seeds 100 to 115) than are reported, with the default horizon; the queue rule is cheapest with its
own 120."""

MOST_FLEETS = 5_000
"""Constant fleets that a dry run is compared with, at most."""

GROUPS = tuple(
    Group(key, f"{FLEET}-{key}", VmType(name, cores, memory_gb, price_per_hour(name, REGION)), minimum, 3)
    for key, name, cores, memory_gb, minimum in (
        ("workers_s", "m5a.large", 2, 8.0, 1),
        ("workers_m", "m5a.xlarge", 4, 16.0, 0),
        ("workers_l", "m5a.2xlarge", 8, 32.0, 0),
    )
)
INITIAL = tuple(group.minimum for group in GROUPS)
MAX_CORES = sum(group.maximum * group.vm_type.cores for group in GROUPS)


def aws_client(service: str, endpoint: str, key: str, region: str = REGION) -> Any:
    """Return a boto3 client for the dry run's endpoint whose calls are signed with this access key."""
    make: Callable[..., Any] = boto3.client
    return make(
        service,
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=key,
        aws_secret_access_key=SECRET,
        config=Config(retries={"mode": "standard", "total_max_attempts": 3}, max_pool_connections=50),
    )


def groups_of(world: str | None) -> tuple[Group, ...]:
    """Return the groups of a world's fleet, those of the dry run without one.

    Of a world the VM types, prices, limits and minimum count: boots, changes and bills are those of the fake AWS. The
    fleet begins at its minimum. Raises BadInput, FileRefused, and BadInput for a VM type that is none of EC2's.
    """
    if world is None:
        return GROUPS
    config = world_named(world).config
    for kind in config.types:
        try:
            price_per_hour(kind.name, REGION)
        except LookupError as fault:
            raise BadInput("--world", f"{world}: {kind.name}", f"{fault}: the fake AWS starts these") from None
    if not any(config.minimum):
        raise BadInput("--world", world, "let one VM type have a minimum of 1 or more: the dry run begins with it")
    fleets = math.prod(high - low + 1 for low, high in zip(config.minimum, config.limits, strict=True))
    if fleets > MOST_FLEETS:
        remedy = (
            f"at the end each of its {fleets:,} constant fleets is tried: lower the limits to {MOST_FLEETS:,} fleets"
        )
        raise BadInput("--world", world, remedy)
    return tuple(
        Group(f"workers_{k}", f"{FLEET}-workers_{k}", kind, low, high)
        for k, (kind, low, high) in enumerate(zip(config.types, config.minimum, config.limits, strict=True), start=1)
    )


DAY = "nasa-day"
SCALED: Mapping[str, Callable[..., tuple[Trace, str]]] = {DAY: nasa_day, "nasa": nasa_hour}
"""Recorded jobs that are scaled to the fleet; a dry run has those of the day unless others are named."""


def recorded_trace(workload: str, seed: int, max_cores: int = MAX_CORES) -> tuple[Trace, str]:
    """Return the jobs of a workload, and where they come from and how they were scaled.

    max_cores: cores of the fleet at its limits, which those of `SCALED` are scaled to. Raises BadInput, which lists the
    names, and for jobs that no worker of the dry run can run: of more than one core, or released by the end of others.
    """
    if workload in SCALED:
        return SCALED[workload](max_cores=max_cores, seed=seed)
    trace = workload_of(workload)
    if trace.staged or (trace.width != 1).any():
        raise BadInput("--workload", workload, "give jobs of one core that do not wait for others, such as nasa-day")
    work_h = trace.work_core_s / HOUR_S
    return (
        trace,
        f"Jobs of {workload}: {trace.jobs:,}, {work_h:,.1f} core-hours; late ones are left out.",
    )


def environment(
    directory: Path,
    endpoint: str,
    job_queue_url: str,
    interruption_queue_url: str,
    mode: str,
    overrides: Mapping[str, str],
    groups: Sequence[Group] = GROUPS,
) -> dict[str, str]:
    """Return the settings of the dry run as the environment variables an operator would set."""
    values = {
        **aws_environment(directory, endpoint, mode),
        "TRIMTAB_GRACE_S": f"{GRACE_S:g}",
        "TRIMTAB_INTERRUPTION_QUEUE_URL": interruption_queue_url,
        f"TRIMTAB_FLEETS__{FLEET}__QUEUE_URL": job_queue_url,
        f"TRIMTAB_FLEETS__{FLEET}__SHADOW": "threshold",
    }
    for group in groups:
        prefix, vm_type = f"TRIMTAB_FLEETS__{FLEET}__GROUPS__{group.key}__", group.vm_type
        values |= {
            f"{prefix}VM_TYPE": vm_type.name,
            f"{prefix}CORES": str(vm_type.cores),
            f"{prefix}MEMORY_GB": f"{vm_type.memory_gb:g}",
            f"{prefix}PRICE_PER_HOUR": f"{vm_type.price_per_hour:g}",
            f"{prefix}MIN": str(group.minimum),
            f"{prefix}MAX": str(group.maximum),
        }
    return values | dict(overrides)


def aws_environment(directory: Path, endpoint: str, mode: str) -> dict[str, str]:
    """Return the settings that every section of the dry run needs, as environment variables."""
    return {
        "TRIMTAB_MODE": mode,
        "TRIMTAB_STATE_DIRECTORY": str(directory),
        "TRIMTAB_LISTENER__PORT": "0",
        "TRIMTAB_AWS__REGION": REGION,
        "TRIMTAB_AWS__ENDPOINT_URL": endpoint,
    }


POLICY = f"TRIMTAB_FLEETS__{FLEET}__POLICY"


def beside_learned(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that go with the learned policy where that is asked for; none with any other policy.

    Without a policy the fleet has the one that any new fleet has.
    """
    if overrides.get(POLICY) != LEARNED:
        return {}
    rule = f"TRIMTAB_FLEETS__{FLEET}__QUEUE_RULE"
    return {f"{rule}__JOB_CORE_S": f"{LEARNED_JOB_CORE_S:g}", f"{rule}__HORIZON_S": f"{HORIZON_S:g}"}


HEARTBEAT_S = 180
VISIBILITY_S = 900
"""How long a job whose VM vanished stays invisible: longer than any job of the trace."""
BILLED_AT_LEAST_S = 60.0
UP = {"Name": "instance-state-name", "Values": ["pending", "running", "shutting-down", "stopping", "stopped"]}
"""A filter of EC2: every state but terminated."""


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
    """Run the fake AWS on the time of `clock`, with `fleet_groups` at `initial` sizes in service, for the block.

    Raises RuntimeError when it does not start.
    """
    with start_process(["--clock-file", str(clock.path), "--seed", str(seed)]) as process:
        control = CloudControl(process.endpoint)
        groups = aws_client("autoscaling", process.endpoint, OWNER_KEY)
        machines = aws_client("ec2", process.endpoint, OWNER_KEY)
        queues = aws_client("sqs", process.endpoint, OWNER_KEY)
        attributes = {"VisibilityTimeout": str(VISIBILITY_S)}
        jobs = queues.create_queue(QueueName="web-jobs", Attributes=attributes)["QueueUrl"]
        interruptions = queues.create_queue(QueueName="trimtab-interruptions")["QueueUrl"]
        for group, size in zip(fleet_groups, initial, strict=True):
            make_group(groups, machines, FLEET, group, size)
        control.ready_now()
        yield DryRunCloud(process.endpoint, process.popen, control, jobs, interruptions)


def make_group(client: Any, machines: Any, fleet: str, group: Group, size: int, zones: Sequence[str] = ZONES) -> None:
    """Make a group with its launch template, the tag of its fleet and the hook that lets its VMs drain."""
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
        AvailabilityZones=list(zones),
        Tags=[{"Key": "trimtab:fleet", "Value": fleet, "PropagateAtLaunch": True}],
    )
    client.put_lifecycle_hook(
        LifecycleHookName=DRAIN_HOOK,
        AutoScalingGroupName=group.name,
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=HEARTBEAT_S,
        DefaultResult="CONTINUE",
    )


class Rent:
    """The dollars of rent from `start` on, from EC2's records of launches and terminations.

    By the second from a VM's launch on, 60 s at the least, at the prices of the fleet's settings; VMs of other types
    cost nothing.
    """

    def __init__(self, endpoint: str, fleet: Fleet, start: float) -> None:
        self._machines = aws_client("ec2", endpoint, OWNER_KEY)
        self._prices = {group.vm_type.name: group.vm_type.price_per_hour for group in fleet.groups}
        self._start = start
        self._ended: dict[str, float] = {}
        self._last_up: frozenset[str] = frozenset()

    def until(self, end: float) -> float:
        """Return the rent until `end`, from all records."""
        return sum(self._rent(vm, end) for vm in self._records())

    def so_far(self, now: float) -> float:
        """Return the rent until now; a VM that has ended is read once.

        A VM launched and terminated since the last call is left out; `until` includes it.
        """
        up = {vm["InstanceId"]: self._rent(vm, now) for vm in self._records(Filters=[UP])}
        ended = sorted(self._last_up - up.keys())
        if ended:
            self._ended |= {vm["InstanceId"]: self._rent(vm, now) for vm in self._records(InstanceIds=ended)}
        self._last_up = frozenset(up)
        return sum(self._ended.values()) + sum(up.values())

    def _records(self, **which: Any) -> Iterator[dict[str, Any]]:
        for page in self._machines.get_paginator("describe_instances").paginate(**which):
            for reservation in page["Reservations"]:
                yield from reservation["Instances"]

    def _rent(self, vm: Mapping[str, Any], end: float) -> float:
        since, until = max(self._start, vm["LaunchTime"].timestamp()), min(end, _terminated_at(vm, end))
        if until <= since:
            return 0.0
        rent: float = self._prices.get(vm["InstanceType"], 0.0) * max(BILLED_AT_LEAST_S, until - since) / HOUR_S
        return rent


def _terminated_at(vm: Mapping[str, Any], otherwise: float) -> float:
    """Return when the VM was terminated: EC2 gives the time in the reason of the transition, and nowhere else."""
    found = re.search(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:UTC|GMT)\)", vm.get("StateTransitionReason", ""))
    if vm["State"]["Name"] != "terminated" or found is None:
        return otherwise
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()


def shell_lines(command: Sequence[str], width: int) -> str:
    """Return a command for the shell, continued on another line where it is wider than `width` columns."""
    if len(shlex.join(command)) <= width:
        return shlex.join(command)
    lines, room = [""], max(1, width - len(" \\"))
    for word in (shlex.quote(word) for word in command):
        longer = f"{lines[-1]} {word}" if lines[-1].strip() else f"{lines[-1]}{word}"
        if len(longer) > room and lines[-1].strip():
            lines.append(f"    {word}")
        else:
            lines[-1] = longer
    return " \\\n".join(lines)


def shown_path(path: Path) -> str:
    """Return the path as one would type it here: relative where that is shorter."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def shown_program() -> str:
    """Return how this program was called: by its name where the shell finds that, else by its path."""
    name = Path(sys.argv[0]).name
    found = shutil.which(name)
    if found is not None and Path(found).resolve() == Path(sys.argv[0]).resolve():
        return name
    return shown_path(Path(sys.argv[0]).absolute()) if Path(sys.argv[0]).exists() else "trimtab"
