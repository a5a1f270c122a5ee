"""The groups of a fleet as AWS holds them, against the settings: tags, bounds, processes, hooks, instance types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent.preflight.findings import Finding, advice, missing, needed_to_act, ok, unknown
from agent.settings import Settings
from agent.settings.fleet import FleetSettings, GroupSettings
from collectors.aws import AwsSession
from collectors.inventory import TERMINATING
from domain.decisions import Mode
from domain.errors import CloudError

FLEET_TAG = "trimtab:fleet"
NEEDED_PROCESSES = ("Launch", "Terminate")
MEMORY_TOLERANCE = 0.02
HEARTBEATS_PER_PERIOD = 2.0
"""A drained VM is looked at once a turn; so many turns must fit into the hook's heartbeat timeout."""


def check_fleet(settings: Settings, session: AwsSession, key: str, arns: dict[str, str]) -> Iterator[Finding]:
    """Yield what was found about each group of one fleet; note the ARN of each group that exists in `arns`."""
    fleet = settings.fleets[key]
    for group_key, group in fleet.ordered_groups:
        name, subject = group.name or group_key, f"group {key}.{group_key}"
        try:
            described = _described(session, name)
        except CloudError as error:
            yield unknown(subject, str(error), "allow autoscaling:DescribeAutoScalingGroups (deploy/iam/observe.json)")
            continue
        if described is None:
            yield missing(
                subject,
                f"no Auto Scaling group is named {name} in {session.region}",
                f"create it, or correct {_variable(key, group_key, 'NAME')} or TRIMTAB_AWS__REGION",
            )
            continue
        arns[name] = str(described["AutoScalingGroupARN"])
        yield ok(subject, f"{name} exists, {len(described['Instances'])} VMs, {described['DesiredCapacity']} desired")
        yield _tag(settings.mode, subject, key, described)
        yield from _bounds(settings, subject, key, group_key, described)
        yield from _processes(settings.mode, subject, described)
        yield from _hook(settings, subject, session, name)
        yield from _reads(subject, session, name)
        yield from _types_of_vms(subject, key, group_key, group, described)


def check_types(session: AwsSession, key: str, fleet: FleetSettings) -> Iterator[Finding]:
    """Yield how the settings' cores, memory and prices agree with what AWS says of the instance types."""
    for group_key, group in fleet.ordered_groups:
        subject = f"type {key}.{group_key}"
        try:
            answer = session.read("ec2", "DescribeInstanceTypes", InstanceTypes=[group.vm_type])
        except CloudError as error:
            if error.code == "InvalidInstanceType":
                variable = _variable(key, group_key, "VM_TYPE")
                yield missing(subject, f"{session.region} has no {group.vm_type}", f"correct {variable}")
            else:
                yield unknown(subject, str(error), "allow ec2:DescribeInstanceTypes (deploy/iam/observe.json)")
            continue
        yield _size(subject, key, group_key, group, answer["InstanceTypes"][0])
        if group.price_per_hour == 0.0:
            variable = _variable(key, group_key, "PRICE_PER_HOUR")
            yield advice(
                subject, "its price is 0: costs count as nothing and no budget holds", f"set {variable} to its price"
            )


def _described(session: AwsSession, name: str) -> dict[str, Any] | None:
    answer = session.read("autoscaling", "DescribeAutoScalingGroups", AutoScalingGroupNames=[name])
    return next(iter(answer["AutoScalingGroups"]), None)


def _tag(mode: Mode, subject: str, key: str, described: Mapping[str, Any]) -> Finding:
    tags = {tag["Key"]: tag.get("Value", "") for tag in described.get("Tags", ())}
    if tags.get(FLEET_TAG) == key:
        return ok(subject, f"tagged {FLEET_TAG}={key}")
    found = f"is {tags[FLEET_TAG]}" if FLEET_TAG in tags else "is not there"
    remedy = f"tag the group {FLEET_TAG}={key}; deploy/iam/act.json lets the agent change tagged groups only"
    return needed_to_act(mode, subject, f"its tag {FLEET_TAG} {found}", remedy)


def _bounds(
    settings: Settings, subject: str, key: str, group_key: str, described: Mapping[str, Any]
) -> Iterator[Finding]:
    group = settings.fleets[key].groups[group_key]
    low, high = int(described["MinSize"]), int(described["MaxSize"])
    both = f"the settings say {group.min}..{group.max}, the group {low}..{high}"
    if max(low, group.min) > min(high, group.max):
        yield missing(subject, f"no size fits both bounds: {both}", f"change {_variable(key, group_key, 'MIN')} or MAX")
    elif (low, high) != (group.min, group.max):
        inner = f"{max(low, group.min)}..{min(high, group.max)}"
        yield advice(subject, f"{both}: the narrower hold, {inner}", "make them equal if that is not meant")
    else:
        yield ok(subject, f"bounds {low}..{high} agree")


def _processes(mode: Mode, subject: str, described: Mapping[str, Any]) -> Iterator[Finding]:
    suspended = {one["ProcessName"] for one in described.get("SuspendedProcesses", ())}
    for process in NEEDED_PROCESSES:
        if process in suspended:
            remedy = f"resume it: aws autoscaling resume-processes --scaling-processes {process} ..."
            yield needed_to_act(mode, subject, f"its process {process} is suspended", remedy)
    if not suspended & set(NEEDED_PROCESSES):
        yield ok(subject, "Launch and Terminate run")


def _hook(settings: Settings, subject: str, session: AwsSession, name: str) -> Iterator[Finding]:
    try:
        hooks = session.read("autoscaling", "DescribeLifecycleHooks", AutoScalingGroupName=name)["LifecycleHooks"]
    except CloudError as error:
        yield unknown(subject, str(error), "allow autoscaling:DescribeLifecycleHooks (deploy/iam/observe.json)")
        return
    draining = [hook for hook in hooks if hook["LifecycleTransition"] == TERMINATING]
    if not draining:
        yield advice(
            subject,
            "it has no terminating lifecycle hook: VMs are removed without finishing their jobs",
            "add one as docs/instrument.md shows",
        )
        return
    hook, needed_s = draining[0], HEARTBEATS_PER_PERIOD * settings.tick_interval_s
    heartbeat_s = float(hook.get("HeartbeatTimeout", 3600))
    detail = f"hook {hook['LifecycleHookName']} drains, heartbeat timeout {heartbeat_s:.0f} s"
    if heartbeat_s < needed_s:
        remedy = f"raise it to at least {needed_s:.0f} s, two turns of the loop, else jobs are cut off"
        yield needed_to_act(settings.mode, subject, detail, remedy)
    else:
        yield ok(subject, detail)


def _reads(subject: str, session: AwsSession, name: str) -> Iterator[Finding]:
    """Try the calls whose failure the agent would live with, or meet later."""
    for service, operation, parameters in (
        ("autoscaling", "DescribeScalingActivities", {"AutoScalingGroupName": name, "MaxRecords": 1}),
        ("autoscaling", "DescribeInstanceRefreshes", {"AutoScalingGroupName": name, "MaxRecords": 1}),
    ):
        try:
            session.read(service, operation, **parameters)
        except CloudError as error:
            yield missing(subject, str(error), f"allow {service}:{operation} (deploy/iam/observe.json)")


def _types_of_vms(
    subject: str, key: str, group_key: str, group: GroupSettings, described: Mapping[str, Any]
) -> Iterator[Finding]:
    """Compare the types of the group's VMs; a group without VMs tells nothing, and its template is not read."""
    types = sorted({one["InstanceType"] for one in described["Instances"] if one.get("InstanceType")})
    if not types:
        yield unknown(subject, f"it has no VM whose type could be compared with {group.vm_type}")
    elif types == [group.vm_type]:
        yield ok(subject, f"its VMs are {group.vm_type}")
    else:
        remedy = f"one type to a group: correct {_variable(key, group_key, 'VM_TYPE')}, or the group's launch template"
        yield missing(subject, f"its VMs are {', '.join(types)}, the settings say {group.vm_type}", remedy)


def _size(subject: str, key: str, group_key: str, group: GroupSettings, told: Mapping[str, Any]) -> Finding:
    cores, memory_gb = int(told["VCpuInfo"]["DefaultVCpus"]), told["MemoryInfo"]["SizeInMiB"] / 1024.0
    size = f"{group.vm_type} has {cores} vCPUs and {memory_gb:g} GB"
    wrong = []
    if cores != group.cores:
        wrong.append(f"{_variable(key, group_key, 'CORES')}={cores}")
    if abs(memory_gb - group.memory_gb) > MEMORY_TOLERANCE * memory_gb:
        wrong.append(f"{_variable(key, group_key, 'MEMORY_GB')}={memory_gb:g}")
    if wrong:
        return missing(subject, f"{size}, the settings say otherwise", f"set {' and '.join(wrong)}")
    return ok(subject, f"{size}, as set")


def _variable(fleet: str, group: str, name: str) -> str:
    return f"TRIMTAB_FLEETS__{fleet}__GROUPS__{group}__{name}"
