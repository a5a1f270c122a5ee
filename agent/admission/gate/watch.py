"""Tells clusters what changed in their groups: sizes, ends, those that never asked, and VMs that AWS did not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from actuators.activities import read_activities
from agent.admission.deployments import Deployment, Stage
from agent.admission.gate.effects import Effect
from agent.admission.gate.records import GroupRecord, Step
from agent.admission.gate.sizes import Refusal, refusal_event, refusals, shortage, size_event, start_event
from agent.admission.gate.turn import GateJournal, GateTurn
from agent.admission.records import DeploymentEvent
from agent.admission.service import AdmissionService
from agent.ledger import Ledger
from collectors.aws import AwsSession
from collectors.clusters import ClusterGroup
from domain.decisions import Outcome, Reason
from domain.errors import BadInput, CloudError
from domain.fleet import Fleet

log = structlog.get_logger(__name__)

ACTIVITIES_S: Final = 3600.0
"""A launch that failed longer ago is no news."""


class GateWatch:
    """Compares what clusters know of their deployments with their groups; nothing here changes a group."""

    def __init__(
        self, session: AwsSession, ledger: Ledger, clusters: Mapping[str, AdmissionService], journal: GateJournal
    ) -> None:
        self._session, self._ledger, self._clusters, self._journal = session, ledger, clusters, journal
        self._short: dict[str, tuple[int, int]] = {}

    def look(self, turn: GateTurn, fleets: Sequence[Fleet] = (), outcomes: Sequence[Outcome] = ()) -> None:
        """Tell the clusters of everything that changed since they were last told, and what fleets asked for in vain."""
        for record in list(turn.records.values()):
            with self._journal.alone(turn, record.cluster, record.group):
                self._gone(turn, record)
        for group in turn.groups.values():
            with self._journal.alone(turn, group.cluster, group.name):
                if group.cluster in self._clusters:
                    self._size(turn, group)
        for name, refusal in refusals(fleets, outcomes).items():
            if name in turn.groups and name in turn.records:
                with self._journal.alone(turn, turn.records[name].cluster, name):
                    self._refused_to_fleet(turn, turn.records[name], turn.groups[name], refusal)

    def _gone(self, turn: GateTurn, record: GroupRecord) -> None:
        """Tell the end of a deployment whose group is no longer there."""
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
                    # What an admission itself did not get was told with its outcome.
                    self._shortage(turn, record, deployment, group)
                return
        if group.cores and not (record is not None and record.step is Step.RAISING):
            self._adopt(turn, group, record.number + 1 if record is not None else 1)

    def _adopt(self, turn: GateTurn, group: ClusterGroup, number: int) -> None:
        """Count a group that runs in a cluster without having asked it."""
        cores = group.cores
        if cores > self._clusters[group.cluster].rules.capacity_cores:
            detail = f"{group.name} has {cores} cores in service, more than the whole cluster: set its capacity right"
            self._journal.say(turn, group.cluster, group.name, Reason.SIZES_REPAIRED, detail)
            return
        record = GroupRecord(group.cluster, group.name, number, Step.SETTLED, turn.now, epoch=turn.epoch)
        detail = f"{group.name} has {cores} cores in service and never asked: they count"
        self._journal.write(turn, record, Effect(record, Reason.STARTED, detail))
        self._tell(turn, record, start_event(record.deployment_id, cores, turn.now))

    def _shortage(self, turn: GateTurn, record: GroupRecord, deployment: Deployment, group: ClusterGroup) -> None:
        """Tell of VMs that AWS did not have, once for each time that they were asked for."""
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
        if self._ledger.admission.events(record.cluster, [event.event_id]):
            return
        self._tell(turn, record, event)
        detail = f"AWS has none of the {found.vms} VMs more that {group.name} asked for"
        self._journal.say(turn, record.cluster, record.group, Reason.NO_CAPACITY, detail)

    def _tell(self, turn: GateTurn, record: GroupRecord, event: DeploymentEvent | None) -> None:
        """Tell the record's cluster; what it cannot take is told to people."""
        if event is None:
            return
        try:
            self._clusters[record.cluster].observe(event)
        except BadInput as error:
            detail = f"{event.deployment_id}: {event.kind} could not be taken in: {error}"
            self._journal.say(turn, record.cluster, record.group, Reason.INTERNAL_ERROR, detail)
        else:
            log.info("deployment_event", cluster=record.cluster, event_id=event.event_id, cores_after=event.cores_after)
