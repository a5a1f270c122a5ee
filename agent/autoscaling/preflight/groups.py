"""Checks of a fleet's groups at AWS against the settings: tags, bounds, processes, hooks, instance types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.kernel.checks import CheckResult, advice, missing, needed_to_act, ok, unknown
from agent.settings import Settings
from agent.settings.discovery import FLEET
from agent.settings.fleet import FleetSettings, GroupSettings
from collectors.aws import AwsSession
from collectors.described_groups import (
    HOOK_TAG,
    TERMINATING,
    being_deleted,
    capacity_units,
    hook_of,
    launched_weight,
    unclear_units,
    weight_of,
)
from collectors.tagged_groups import TaggedGroups
from domain.capacity_units import bounds_in_vms, size_text
from domain.decisions import Mode
from domain.errors import CloudError

NEEDED_PROCESSES = ("Launch", "Terminate")
MEMORY_TOLERANCE = 0.02
HEARTBEATS_PER_PERIOD = 2.0
"""Turns that must fit into the hook's heartbeat timeout: a draining VM is checked once a turn."""


@dataclass(frozen=True, slots=True)
class Scaler:
    """Another scaler of a group: the operation that lists it, the keys of its response, and its process."""

    kind: str
    operation: str
    answer: str
    name: str
    process: str


OTHER_SCALERS = (
    Scaler("scaling policy", "DescribePolicies", "ScalingPolicies", "PolicyName", "AlarmNotification"),
    Scaler(
        "scheduled action",
        "DescribeScheduledActions",
        "ScheduledUpdateGroupActions",
        "ScheduledActionName",
        "ScheduledActions",
    ),
)


def check_fleet(settings: Settings, session: AwsSession, key: str, arns: dict[str, str]) -> Iterator[CheckResult]:
    """Yield the results for each group of one fleet; add the ARN of each group that exists to `arns`."""
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
        if (deleted := being_deleted(described)) is not None:
            yield missing(subject, deleted, "nothing is sent to it until then")
            continue
        yield ok(subject, f"{name} exists, {len(described['Instances'])} VMs, {_desired(described)} desired")
        yield _tag(settings.mode, subject, key, described)
        yield from _bounds(settings, subject, key, group_key, described)
        yield from _processes(settings.mode, subject, described)
        yield from _protection(settings, subject, described)
        yield from _hook(settings, subject, session, key, described)
        yield from _reads(subject, session, name)
        yield from _units(subject, described)
        yield from _vm_types(subject, key, group_key, group, session, described)
        yield from _other_scaling(settings.mode, subject, session, described)


def check_types(session: AwsSession, key: str, fleet: FleetSettings) -> Iterator[CheckResult]:
    """Yield how the settings' cores, memory and prices agree with AWS's instance types."""
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


def _tag(mode: Mode, subject: str, key: str, described: Mapping[str, Any]) -> CheckResult:
    tags = {tag["Key"]: tag.get("Value", "") for tag in described.get("Tags", ())}
    if tags.get(FLEET) == key:
        return ok(subject, f"tagged {FLEET}={key}")
    found = f"is {tags[FLEET]}" if FLEET in tags else "is not there"
    remedy = f"tag the group {FLEET}={key}; deploy/iam/act.json lets the agent change tagged groups only"
    return needed_to_act(mode, subject, f"its tag {FLEET} {found}", remedy)


def _bounds(
    settings: Settings, subject: str, key: str, group_key: str, described: Mapping[str, Any]
) -> Iterator[CheckResult]:
    group = settings.fleets[key].groups[group_key]
    units = int(described["MinSize"]), int(described["MaxSize"])
    low, high = units if unclear_units(described) else bounds_in_vms(*units, launched_weight(described))
    both = f"the settings have {group.min}..{group.max}, the group {low}..{high}"
    if units != (low, high):
        both += f" VMs = {units[0]}..{units[1]} units"
    if max(low, group.min) > min(high, group.max):
        yield missing(subject, f"no size fits both bounds: {both}", f"change {_variable(key, group_key, 'MIN')} or MAX")
    elif (low, high) != (group.min, group.max):
        inner = f"{max(low, group.min)}..{min(high, group.max)}"
        yield advice(subject, f"{both}: the narrower hold, {inner}", "make them equal if that is not meant")
    else:
        yield ok(subject, f"bounds {low}..{high} agree")


def _processes(mode: Mode, subject: str, described: Mapping[str, Any]) -> Iterator[CheckResult]:
    suspended = {one["ProcessName"] for one in described.get("SuspendedProcesses", ())}
    for process in NEEDED_PROCESSES:
        if process in suspended:
            remedy = f"resume it: aws autoscaling resume-processes --scaling-processes {process} ..."
            yield needed_to_act(mode, subject, f"its process {process} is suspended", remedy)
    if not suspended & set(NEEDED_PROCESSES):
        yield ok(subject, "Launch and Terminate run")


def _protection(settings: Settings, subject: str, described: Mapping[str, Any]) -> Iterator[CheckResult]:
    """Tell of VMs that no scale-in takes, for another party protects them or the group protects each new one."""
    if described.get("NewInstancesProtectedFromScaleIn"):
        if settings.unprotect_new and settings.protect_busy:
            yield ok(
                subject, "it protects each new VM from scale-in; the agent takes that off idle ones it saw launched"
            )
            return
        detail = "it protects each new VM from scale-in: one that was never busy is not removed"
        remedy = "aws autoscaling update-auto-scaling-group --no-new-instances-protected-from-scale-in ..., then "
        remedy += "set-instance-protection --no-protected-from-scale-in for its VMs; or TRIMTAB_UNPROTECT_NEW=true"
        yield advice(subject, detail, remedy)
    else:
        yield ok(subject, "it does not protect new VMs from scale-in")


def _hook(
    settings: Settings, subject: str, session: AwsSession, key: str, described: Mapping[str, Any]
) -> Iterator[CheckResult]:
    name, ours = described["AutoScalingGroupName"], hook_of(described, settings.fleets[key].drain_hook)
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
            "add one as docs/operate/instrument.md shows",
        )
        return
    others = ", ".join(sorted(hook["LifecycleHookName"] for hook in draining if hook["LifecycleHookName"] != ours))
    hook = next((hook for hook in draining if hook["LifecycleHookName"] == ours), None)
    if hook is None:
        detail = f"it has no hook {ours}, and {others} is another party's: no VM finishes its jobs before it is removed"
        remedy = f"name the hook that drains in TRIMTAB_FLEETS__{key}__DRAIN_HOOK or in the tag {HOOK_TAG}, or add one"
        yield needed_to_act(settings.mode, subject, detail, remedy)
        return
    if others:
        detail = f"hook {ours} drains, and {others} of another party holds its VMs too: only {ours} is answered here"
        yield advice(
            subject, detail, f"let that party complete its own hook, or name the draining hook instead of {ours}"
        )
    needed_s = HEARTBEATS_PER_PERIOD * settings.tick_interval_s
    heartbeat_s = float(hook.get("HeartbeatTimeout", 3600))
    detail = f"hook {hook['LifecycleHookName']} drains, heartbeat timeout {heartbeat_s:.0f} s"
    if heartbeat_s < needed_s:
        remedy = f"raise it to at least {needed_s:.0f} s, two turns of the loop, else jobs are cut off"
        yield needed_to_act(settings.mode, subject, detail, remedy)
    else:
        yield ok(subject, detail)


def _reads(subject: str, session: AwsSession, name: str) -> Iterator[CheckResult]:
    """Try the calls whose failure the agent tolerates, or meets later."""
    for service, operation, parameters in (
        ("autoscaling", "DescribeScalingActivities", {"AutoScalingGroupName": name, "MaxRecords": 1}),
        ("autoscaling", "DescribeInstanceRefreshes", {"AutoScalingGroupName": name, "MaxRecords": 1}),
    ):
        try:
            session.read(service, operation, **parameters)
        except CloudError as error:
            yield missing(subject, str(error), f"allow {service}:{operation} (deploy/iam/observe.json)")


def _units(subject: str, described: Mapping[str, Any]) -> Iterator[CheckResult]:
    why = unclear_units(described)
    if why is not None:
        yield missing(subject, f"it cannot be managed: {why}", "the agent holds its fleet until then")
        return
    launched = launched_weight(described)
    if launched != 1:
        yield ok(subject, f"AWS counts a VM that it launches as {launched} units; everything here counts VMs")
    others = sorted(one["InstanceId"] for one in described["Instances"] if weight_of(one) != launched)
    if others:
        detail = f"a new VM counts as {launched}, and these do not: {', '.join(others)}"
        yield advice(subject, detail, "replace them if that is not meant; until then each counts with its own weight")


def _desired(described: Mapping[str, Any]) -> str:
    desired = int(described["DesiredCapacity"])
    return str(desired) if unclear_units(described) else size_text(capacity_units(described).desired_vms, desired)


def _vm_types(
    subject: str, key: str, group_key: str, group: GroupSettings, session: AwsSession, described: Mapping[str, Any]
) -> Iterator[CheckResult]:
    """Compare the types of the VMs in the group, and those that it may launch, with that of the settings."""
    variable = _variable(key, group_key, "VM_TYPE")
    present = sorted({one["InstanceType"] for one in described["Instances"] if one.get("InstanceType")})
    if present == [group.vm_type]:
        yield ok(subject, f"its VMs are {group.vm_type}")
    elif present:
        remedy = f"one type to a group: correct {variable}, or the group's launch template"
        yield missing(subject, f"its VMs are {', '.join(present)}, the settings have {group.vm_type}", remedy)
    try:
        launched = TaggedGroups(session).vm_types(described)
    except CloudError as error:
        remedy = "allow ec2:DescribeLaunchTemplateVersions and autoscaling:DescribeLaunchConfigurations"
        yield unknown(subject, str(error), f"{remedy} (deploy/iam/observe.json)")
        return
    if not launched:
        detail = f"AWS names no type that it launches, the settings have {group.vm_type}"
        yield missing(subject, detail, f"name {group.vm_type} in the group's launch template")
    elif launched != [group.vm_type]:
        remedy = f"one type to a group: correct {variable}, or the group's overrides and launch template"
        yield missing(subject, f"it may launch {', '.join(launched)}, the settings have {group.vm_type}", remedy)
    elif not present:
        yield ok(subject, f"it launches {group.vm_type}")


def _other_scaling(
    mode: Mode, subject: str, session: AwsSession, described: Mapping[str, Any]
) -> Iterator[CheckResult]:
    """Yield other sources of changes of size: the group's scaling policies and scheduled actions that are active."""
    name = described["AutoScalingGroupName"]
    suspended = {one["ProcessName"] for one in described.get("SuspendedProcesses", ())}
    found: list[CheckResult] = []
    for scaler in OTHER_SCALERS:
        try:
            pages = session.pages("autoscaling", scaler.operation, AutoScalingGroupName=name)
            rows = [row for page in pages for row in page[scaler.answer]]
        except CloudError as error:
            found.append(
                unknown(subject, str(error), f"allow autoscaling:{scaler.operation} (deploy/iam/observe.json)")
            )
            continue
        for row in rows:
            if not _is_off(row, scaler.process in suspended):
                kind = f" ({row['PolicyType']})" if row.get("PolicyType") else ""
                detail = f"the {scaler.kind} {row[scaler.name]}{kind} sizes it too: the two undo each other's changes"
                remedy = f"delete it, or suspend the group's process {scaler.process}"
                found.append(needed_to_act(mode, subject, detail, remedy))
    yield from found or [ok(subject, "no scaling policy or scheduled action changes its size")]


def _is_off(row: Mapping[str, Any], suspended: bool) -> bool:
    """Return whether a policy or scheduled action cannot change the size: off, forecast only, or its process is."""
    if row.get("PolicyType") == "PredictiveScaling":
        # Suspending AlarmNotification does not stop it.
        mode = (row.get("PredictiveScalingConfiguration") or {}).get("Mode", "ForecastOnly")
        return row.get("Enabled") is False or mode != "ForecastAndScale"
    return suspended or row.get("Enabled") is False


def _size(subject: str, key: str, group_key: str, group: GroupSettings, described: Mapping[str, Any]) -> CheckResult:
    cores, memory_gb = int(described["VCpuInfo"]["DefaultVCpus"]), described["MemoryInfo"]["SizeInMiB"] / 1024.0
    size = f"{group.vm_type} has {cores} vCPUs and {memory_gb:g} GB"
    wrong = []
    if cores != group.cores:
        wrong.append(f"{_variable(key, group_key, 'CORES')}={cores}")
    if abs(memory_gb - group.memory_gb) > MEMORY_TOLERANCE * memory_gb:
        wrong.append(f"{_variable(key, group_key, 'MEMORY_GB')}={memory_gb:g}")
    if wrong:
        return missing(subject, f"{size}, not the values of the settings", f"set {' and '.join(wrong)}")
    return ok(subject, f"{size}, as set")


def _variable(fleet: str, group: str, name: str) -> str:
    return f"TRIMTAB_FLEETS__{fleet}__GROUPS__{group}__{name}"
