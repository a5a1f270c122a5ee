"""What a pending group asks for, what keeps it waiting, and the check of its cluster before the agent starts.

All guards may only refuse: a deployment comes in at the size it asked for, or it waits. So what a rail would shrink is
held as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from agent.admission.gate.records import ADMISSION, PENDING, REQUESTED, REQUESTED_BY, deployment_id
from agent.admission.records import AdmissionRequest, bad_input
from agent.admission.settings import LEARNED, SUBJECTS, ClusterSettings, champion_of
from agent.kernel.checks import CheckResult, advice, missing, ok
from agent.kernel.guards import Held, held_by_breaker, held_by_pause
from agent.models.directory import ModelsDirectory
from agent.rails.base import RailLimits, utc
from agent.rails.capacity_memory import short_until
from agent.rails.state import GuardState
from agent.settings import Settings
from collectors.aws import AwsSession
from collectors.tagged_groups import ClusterGroup, ClusterReader
from domain.controls import Controls
from domain.decisions import Direction, Reason
from domain.errors import BadInput, CloudError


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """A pending group's size: a number of VMs of one type, with their cores."""

    vms: int
    vm_type: str
    vm_cores: int

    @property
    def cores(self) -> int:
        """Cores in all."""
        return self.vms * self.vm_cores


def held(
    group: ClusterGroup,
    asked: GroupRequest,
    memory: GuardState,
    controls: Controls,
    limits: RailLimits,
    now: float,
) -> Held | None:
    """Return what holds the group back, None when nothing does; observe mode, which would hide it, is not asked.

    controls: those of the cluster, which is paused as a fleet is. memory: its shortages and circuit breakers.
    """
    return (
        held_by_pause(controls, (Direction.OUT,), now)
        or _held_by_shortage(group, asked, memory, now)
        or _held_by_group(group)
        or held_by_breaker(group.name, memory.breakers, now, trials=limits.breaker_failures if asked.vms > 1 else None)
    )


def _held_by_shortage(group: ClusterGroup, asked: GroupRequest, memory: GuardState, now: float) -> Held | None:
    until = short_until(memory.capacity, asked.vm_type, group.zones, now)
    if until is None:
        return None
    where = ", ".join(group.zones) or "any zone"
    return Held("capacity_memory", Reason.NO_CAPACITY, f"no {asked.vm_type} in {where}; next attempt {utc(until)}")


def _held_by_group(group: ClusterGroup) -> Held | None:
    if "Launch" not in group.suspended:
        return None
    return Held("group_state", Reason.LAUNCH_SUSPENDED, "the group's Launch process is suspended")


def check_rules(settings: Settings) -> Iterator[CheckResult]:
    """Yield what decides for each cluster with a learned rule, or why nothing does."""
    for name, cluster in SUBJECTS.of(settings).items():
        if cluster.rule == LEARNED:
            try:
                rule = champion_of(ModelsDirectory(settings.models_directory, settings.promotion_key), name).rule
            except BadInput as error:
                yield missing(f"rule of {name}", str(error), "promote a file; until then the other settings decide")
            else:
                yield ok(f"rule of {name}", f"{rule}, promoted or forced")


def check_clusters(settings: Settings, session: AwsSession) -> Iterator[CheckResult]:
    """Yield the results for every cluster of tagged groups."""
    gated = {name: cluster for name, cluster in SUBJECTS.of(settings).items() if cluster.tagged_groups}
    if not gated:
        return
    reader = ClusterReader(session)
    try:
        read = reader.groups()
    except CloudError as error:
        yield missing("clusters", str(error), "allow autoscaling:DescribeAutoScalingGroups (deploy/iam/observe.json)")
        return
    groups = read.groups
    for group_name, why in sorted(read.unreadable.items()):
        yield advice(f"group {group_name or '(without a name)'}", why, "correct it: until then the gate ignores it")
    for name, cluster in gated.items():
        yield _capacity(name, cluster, reader)
        yield from _groups(name, [group for group in groups if group.cluster == name])
    unknown_names = sorted({group.cluster for group in groups} - SUBJECTS.of(settings).keys())
    if unknown_names:
        detail = f"groups are tagged into clusters that no setting describes: {', '.join(map(repr, unknown_names))}"
        yield advice("clusters", detail, "correct their tag trimtab:cluster, or describe the cluster")


def _capacity(name: str, cluster: ClusterSettings, reader: ClusterReader) -> CheckResult:
    subject = f"capacity of {name}"
    try:
        if cluster.quota_code:
            source, cores = f"quota {cluster.quota_code}", reader.quota_cores(cluster.quota_code)
        elif cluster.reservation_id:
            source, cores = f"reservation {cluster.reservation_id}", reader.reserved_cores(cluster.reservation_id)
        else:
            return ok(subject, f"{cluster.capacity_cores} cores, fixed by the settings")
    except CloudError as error:
        remedy = "correct the code or id, or allow the call (deploy/iam/observe.json): until then nothing is admitted"
        return missing(subject, str(error), remedy)
    left = cores - cluster.set_aside_cores
    if left < 1:
        remedy = "raise the quota or reservation, or set less aside: nothing can be admitted"
        return missing(subject, f"{source} has {cores} cores, {cluster.set_aside_cores} are set aside", remedy)
    return ok(subject, f"{left} cores: {source} has {cores}, {cluster.set_aside_cores} are set aside")


def _groups(name: str, groups: list[ClusterGroup]) -> Iterator[CheckResult]:
    subject = f"groups of {name}"
    if not groups:
        remedy = f"tag the groups that share its limit trimtab:cluster={name}: docs/decide/admission-gate.md"
        yield advice(subject, "no group is tagged into it", remedy)
        return
    pending = [group for group in groups if is_pending(group)]
    cores = sum(group.cores for group in groups)
    yield ok(subject, f"{len(groups)} groups with {cores} cores in service; {len(pending)} request admission")
    for group in pending:
        try:
            vms_wanted(group)
        except BadInput as error:
            yield advice(f"group {group.name}", str(error), "it will be refused: correct the tag")


LONGEST_NUMBER: Final = 6


def is_pending(group: ClusterGroup) -> bool:
    """Return whether the group asks to come in."""
    return group.tags.get(ADMISSION) == PENDING and not group.deleting


def vms_wanted(group: ClusterGroup) -> int:
    """Return the size that a pending group asks for; BadInput when its tag holds none that it could have.

    BadInput as well for a group whose capacity units tell no number of VMs.
    """
    if group.unsupported is not None:
        raise BadInput(f"units of group {group.name}", "no number of VMs", group.unsupported)
    text = group.tags.get(REQUESTED, "")
    vms = int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else 0
    if vms < 1:
        raise BadInput(f"tag {REQUESTED}", text, "give the number of VMs that the group is to have, 1 or more")
    if vms > group.maximum:
        raise BadInput(f"tag {REQUESTED}", vms, f"the group's maximum is {group.maximum}: raise it, or request less")
    return vms


def asked_by(group: ClusterGroup, reader: ClusterReader) -> GroupRequest:
    """Return what a pending group asks for; BadInput says what is wrong with it, CloudError that AWS did not answer."""
    vms = vms_wanted(group)
    vm_types, cores = reader.launched_cores(group.name)
    if len(vm_types) != 1 or vm_types[0] not in cores:
        shown = ", ".join(vm_types) or "none that its launch template names"
        raise BadInput("VM type", shown, "let a pending group launch one type that AWS knows in this region")
    return GroupRequest(vms, vm_types[0], cores[vm_types[0]])


def request_of(group: ClusterGroup, asked: GroupRequest, number: int) -> AdmissionRequest:
    """Return a pending group's request to its cluster, validated as a body is; BadInput names the field."""
    name = deployment_id(group.name, number)
    try:
        return AdmissionRequest(deployment_id=name, cores=asked.cores, requested_by=REQUESTED_BY, request_id=name)
    except ValidationError as error:
        raise bad_input(error) from None


def waits_for(group: ClusterGroup, *, sized_by_fleet: bool, capacity_known: bool) -> Held | None:
    """Return what must be put right, or come first, before a pending group can be asked for."""
    if sized_by_fleet:
        return Held("request", Reason.IN_FLIGHT, "a fleet sizes it; take it out of the fleet until it is admitted")
    if group.desired or group.there:
        detail = f"it desires {group.desired} VMs and has {group.there}; set its desired capacity to 0"
        return Held("request", Reason.NOTHING_TO_DO, detail)
    if not capacity_known:
        return Held("request", Reason.CLOUD_UNREADABLE, "the capacity of its cluster is unknown or 0")
    return None
