"""What the gate does to a group: brings it to its size and writes the answer into its tags, each once, read back first.

A record is written before the first call. What a later turn finds after a crash:

| killed                              | finds                               | does                             |
|-------------------------------------|-------------------------------------|----------------------------------|
| before the record                   | tag pending, no open record         | asks again: the same decision    |
| before SetDesiredCapacity           | open record, group at its old size  | sends it                         |
| after it, before its outcome        | desired capacity at the size        | no call                          |
| after the outcome, before the tags  | group at its size, or given back    | writes the tags                  |
| after the tags                      | tags as they should be              | no call: closes the record       |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from actuators.base import Held, Permit
from actuators.outcomes import Report
from actuators.sizes import GroupSizes
from actuators.values import GroupTags, missing
from agent.admission.deployments import Deployment, Stage
from agent.admission.gate.records import Effect, GroupRecord, Step, as_group, refused
from agent.admission.gate.watch import Refusal, end_event, refusal_event, start_event
from agent.admission.records import DeploymentEvent
from collectors.tagged_groups import ClusterGroup
from domain.decisions import Outcome, Reason, Status
from domain.errors import CloudError, Fenced
from domain.fleet import Group
from domain.observed import Observed

HIGHEST = 1_000_000
"""Larger than any group; what a group may have is checked by the actuator as AWS holds it."""


class GateEffects:
    """Carries records to their end. `observe` tells the record's cluster of an event."""

    def __init__(self, sizes: GroupSizes, tags: GroupTags, observe: Callable[[str, DeploymentEvent], None]) -> None:
        self._sizes, self._tags, self._observe = sizes, tags, observe

    def begin(self, record: GroupRecord, now: float, permit: Permit) -> Effect:
        """Do what a record that has just been written asks for."""
        if record.step is Step.MARKING:
            return self.mark(record, None, permit)
        outcome = self._sizes.apply(record.intent, _group(record), now, permit)
        if outcome.reason is Reason.NOTHING_TO_DO:
            # Somebody brought it to its size in the meantime: followed as if it had been us.
            outcome = Report(record.intent, now).waiting(Reason.ACCEPTED, 0, outcome.detail)
        return Effect(record, outcome.reason, outcome.detail, outcome)

    def follow(
        self, record: GroupRecord, group: ClusterGroup | None, observed: Observed, now: float, permit: Permit
    ) -> Effect:
        """Return how a group that is being brought to its size stands; calls are made only for what is undone."""
        outcome = self._sizes.follow(record.intent, _group(record), observed, now, permit)
        if outcome.status.final or group is None or group.desired < record.vms:
            return Effect(record, outcome.reason, outcome.detail, outcome)
        marked = self.mark(record, group, permit)
        return marked if marked.reason is not None else Effect(record, outcome.reason, outcome.detail, outcome)

    def mark(self, record: GroupRecord, group: ClusterGroup | None, permit: Permit) -> Effect:
        """Write the answer into the group's tags, unless they were read (`group`) and say it already.

        The record does not move: only a later reading shows that they are there.
        """
        wanted = record.tags if group is None else missing(record.tags, group.tags)
        if not wanted:
            return Effect(record)
        try:
            self._tags.put(record.cluster, record.group, wanted, permit)
        except Fenced as error:
            return Effect(record, Reason.NOT_LEADER, str(error))
        except Held as held:
            return Effect(record, held.refusal.reason, f"tags of {record.group} wait: {held}")
        except CloudError as error:
            failed = Report(record.intent, record.at).after(error, 0, record.vm_type)
            return Effect(record, failed.reason, f"tags of {record.group}: {failed.detail}")
        return Effect(record)

    def conclude(self, record: GroupRecord, outcome: Outcome, deployment: Deployment | None, now: float) -> GroupRecord:
        """Tell the cluster what came of the admission and return the record whose answer is to be written.

        A cluster that was notified before a crash is not notified again: its deployment is no longer only admitted.
        """
        pending = deployment is not None and deployment.stage is Stage.RESERVED
        at = max(now, deployment.last_at) if deployment is not None else now
        if outcome.achieved == 0 and outcome.status is not Status.DONE:
            if pending:
                self._observe(record.cluster, end_event(record.deployment_id, at))
            return replace(record, step=Step.MARKING, answer=refused(outcome.reason))
        achieved = record.vms if outcome.status is Status.DONE else outcome.achieved
        if pending:
            self._observe(record.cluster, start_event(record.deployment_id, achieved * record.vm_cores, at))
        if achieved < record.vms and outcome.reason is Reason.NO_CAPACITY:
            missed = Refusal(record.vms - achieved, "admission")
            refusal = refusal_event(record.deployment_id, missed, record.vm_cores, at)
            self._observe(record.cluster, refusal)
        return replace(record, step=Step.MARKING)


def _group(record: GroupRecord) -> Group:
    return as_group(record.group, record.vm_type, record.vm_cores, HIGHEST)
