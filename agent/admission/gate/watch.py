"""Tells clusters what changed in their groups: sizes, ends, those that never asked, and VMs that AWS did not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from actuators.activities import Activity, Kind, read_activities
from agent.admission.cluster import AdmissionService
from agent.admission.deployments import Deployment, Stage
from agent.admission.gate.records import Effect, GroupRecord, Step
from agent.admission.gate.turn import GateJournal, GateTurn
from agent.admission.records import DeploymentEvent, EventKind
from agent.admission.state import AdmissionStore
from agent.ledger import Ledger
from collectors.aws import AwsSession
from collectors.tagged_groups import ClusterGroup
from domain.decisions import Intent, Outcome, Reason
from domain.errors import BadInput, CloudError

_ASKED: Final = re.compile(r"At (\S+Z) .*?changing the desired capacity from \d+ to \d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request for more VMs that AWS had none for: how many did not come, and what names it, the same each time."""

    vms: int
    name: str


def settled_cores(known: int, group: ClusterGroup) -> int:
    """Return the cores that a group counts with, `known` being those last reported to its cluster.

    Those in service. A VM that AWS is replacing, or that is on its way in after an admission, is counted already and
    stays so: the group still desires it. Only what AWS no longer wants has ended.
    """
    lacking = group.desired - group.vms
    if lacking <= 0:
        return group.cores
    largest = max(group.vm_cores.values(), default=0)
    awaited = group.cores + lacking * largest if largest else known
    return max(group.cores, min(known, awaited))


def size_event(deployment: Deployment, group: ClusterGroup | None, now: float) -> DeploymentEvent | None:
    """Return what happened to a running deployment since the last report of it; `group` None: it is no longer there."""
    known = deployment.cores
    cores = 0 if group is None or (group.deleting and not group.vms) else settled_cores(known, group)
    if cores == known:
        return None
    if cores == 0:
        return _event(deployment, EventKind.SHUTDOWN, 0, cores, now)
    if cores > known:
        return _event(deployment, EventKind.SCALED, cores - known, cores, now)
    return _event(deployment, EventKind.CORE_ENDED, known - cores, cores, now)


def start_event(deployment_id: str, cores: int, now: float) -> DeploymentEvent:
    """Return that a deployment runs with so many cores, whether it had asked or not."""
    return DeploymentEvent(f"{deployment_id}/started", deployment_id, EventKind.STARTED, cores, cores, time=now)


def end_event(deployment_id: str, now: float) -> DeploymentEvent:
    """Return that a deployment that was admitted came to nothing."""
    return DeploymentEvent(f"{deployment_id}/ended", deployment_id, EventKind.SHUTDOWN, 0, 0, time=now)


def refusal_event(deployment_id: str, refusal: Refusal, vm_cores: int, at: float) -> DeploymentEvent:
    """Return that a running deployment asked for more and got none of it."""
    name = f"{deployment_id}/refused/{refusal.name}"
    return DeploymentEvent(name, deployment_id, EventKind.REFUSED, refusal.vms * vm_cores, time=at)


def refusals(names: Mapping[tuple[str, str], str], results: Iterable[tuple[Intent, Outcome]]) -> dict[str, Refusal]:
    """Return by AWS group name what a loop's own scale-outs did not get in this turn for want of capacity.

    names: of the groups that fleets size, by fleet and group key.
    """
    found: dict[str, Refusal] = {}
    for intent, outcome in results:
        name = names.get((intent.fleet, intent.group))
        missed = outcome.asked - outcome.achieved
        if name is not None and outcome.status.final and outcome.reason is Reason.NO_CAPACITY and missed > 0:
            found[name] = Refusal(missed, outcome.intent_id)
    return found


def shortage(group: ClusterGroup, activities: Iterable[Activity]) -> Refusal | None:
    """Return the newest request of a group that AWS has no VM for, from its activities, newest first; None: none.

    AWS tries again and again, and each attempt is an activity; all of them are one request, named by when its size was
    asked for.
    """
    missing = group.desired - group.there
    if missing <= 0 or group.unsupported is not None:
        return None
    size = group.desired if group.desired_units is None else group.desired_units
    for activity in activities:
        if activity.kind is Kind.LAUNCH and activity.no_capacity and activity.desired_to == size:
            asked = _ASKED.search(activity.cause)
            return Refusal(missing, asked.group(1) if asked else f"{activity.started_at:.0f}")
    return None


def _event(deployment: Deployment, kind: EventKind, cores: int, after: int, now: float) -> DeploymentEvent:
    name = f"{deployment.deployment_id}/{kind}/{deployment.cores}-{after}@{deployment.last_at:.3f}"
    at = max(now, deployment.last_at)
    return DeploymentEvent(name, deployment.deployment_id, kind, cores, after, time=at)


log = structlog.get_logger(__name__)

ACTIVITIES_S: Final = 3600.0
"""A launch that failed longer ago is no news."""


class GateWatch:
    """Compares what clusters know of their deployments with their groups; nothing here changes a group."""

    def __init__(
        self, session: AwsSession, ledger: Ledger, clusters: Mapping[str, AdmissionService], journal: GateJournal
    ) -> None:
        self._session, self._clusters, self._journal = session, clusters, journal
        self._store = AdmissionStore(ledger)
        self._short: dict[str, tuple[int, int]] = {}

    def look(
        self, turn: GateTurn, sized: Mapping[tuple[str, str], str], results: Sequence[tuple[Intent, Outcome]]
    ) -> None:
        """Report to the clusters everything that changed since the last report, and what fleets asked for in vain."""
        for record in list(turn.records.values()):
            with self._journal.alone(turn, record.cluster, record.group):
                self._gone(turn, record)
        for group in turn.groups.values():
            with self._journal.alone(turn, group.cluster, group.name):
                if group.cluster in self._clusters:
                    self._size(turn, group)
        for name, refusal in refusals(sized, results).items():
            if name in turn.groups and name in turn.records:
                with self._journal.alone(turn, turn.records[name].cluster, name):
                    self._refused_to_fleet(turn, turn.records[name], turn.groups[name], refusal)

    def _gone(self, turn: GateTurn, record: GroupRecord) -> None:
        if record.cluster not in self._clusters or turn.has_group(record) is not None or turn.is_unknown(record):
            return
        deployment = self._clusters[record.cluster].deployment(record.deployment_id)
        if deployment is not None and deployment.stage is Stage.LIVE:
            self._tell(turn, record, size_event(deployment, None, turn.now))

    def _refused_to_fleet(self, turn: GateTurn, record: GroupRecord, group: ClusterGroup, found: Refusal) -> None:
        if record.cluster in self._clusters:
            deployment = self._clusters[record.cluster].deployment(record.deployment_id)
            if deployment is not None and deployment.stage is Stage.LIVE:
                self._refused(turn, record, deployment, group, found)

    def _size(self, turn: GateTurn, group: ClusterGroup) -> None:
        record, cluster = turn.records.get(group.name), self._clusters[group.cluster]
        if record is not None and record.cluster == group.cluster:
            deployment = cluster.deployment(record.deployment_id)
            if deployment is not None and deployment.stage is Stage.LIVE:
                self._tell(turn, record, size_event(deployment, group, turn.now))
                if not record.open:
                    # What an admission itself did not get was reported with its outcome.
                    self._shortage(turn, record, deployment, group)
                return
        if group.cores and not (record is not None and record.step is Step.RAISING):
            self._adopt(turn, group, record.number + 1 if record is not None else 1)

    def _adopt(self, turn: GateTurn, group: ClusterGroup, number: int) -> None:
        cores = group.cores
        if cores > self._clusters[group.cluster].rules.capacity_cores:
            detail = f"{group.name} has {cores} cores in service, more than the whole cluster: correct its capacity"
            self._journal.say(turn, group.cluster, group.name, Reason.SIZES_REPAIRED, detail)
            return
        record = GroupRecord(
            group.cluster, group.name, number, Step.SETTLED, turn.now, epoch=turn.epoch_of(group.cluster)
        )
        detail = f"{group.name} has {cores} cores in service without an admission: they count"
        self._journal.write(turn, record, Effect(record, Reason.STARTED, detail))
        self._tell(turn, record, start_event(record.deployment_id, cores, turn.now))

    def _shortage(self, turn: GateTurn, record: GroupRecord, deployment: Deployment, group: ClusterGroup) -> None:
        lack = (group.desired, group.there)
        if group.there >= group.desired:
            self._short.pop(group.name, None)
            return
        if self._short.get(group.name) == lack:
            return
        try:
            activities = read_activities(self._session, group.name, turn.now - ACTIVITIES_S, most_pages=1)
        except CloudError:
            return
        found = shortage(group, activities)
        if found is not None:
            self._refused(turn, record, deployment, group, found)
            # Only now: what could not be recorded is found again by the next turn.
            self._short[group.name] = lack

    def _refused(
        self, turn: GateTurn, record: GroupRecord, deployment: Deployment, group: ClusterGroup, found: Refusal
    ) -> None:
        vm_cores = max(group.vm_cores.values(), default=0) or record.vm_cores or 1
        event = refusal_event(record.deployment_id, found, vm_cores, max(turn.now, deployment.last_at))
        if self._store.events(record.cluster, [event.event_id]):
            return
        self._tell(turn, record, event)
        detail = f"AWS has none of the {found.vms} VMs more that {group.name} asked for"
        self._journal.say(turn, record.cluster, record.group, Reason.NO_CAPACITY, detail)

    def _tell(self, turn: GateTurn, record: GroupRecord, event: DeploymentEvent | None) -> None:
        if event is None:
            return
        try:
            self._clusters[record.cluster].observe([event])
        except BadInput as error:
            detail = f"{event.deployment_id}: {event.kind} could not be recorded: {error}"
            self._journal.say(turn, record.cluster, record.group, Reason.INTERNAL_ERROR, detail)
        else:
            log.info("deployment_event", cluster=record.cluster, event_id=event.event_id, cores_after=event.cores_after)
