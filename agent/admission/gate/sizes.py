"""From sizes of groups as AWS shows them to events of deployments: what changed since the cluster was last told.

What the cluster knows is the only memory: an event is made from the difference, and once it is told there is none. So a
process that dies in between makes the same event again, under the same id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from actuators.activities import Activity, Kind
from agent.admission.deployments import Deployment
from agent.admission.records import DeploymentEvent, EventKind
from collectors.clusters import ClusterGroup
from domain.decisions import Outcome, Reason
from domain.fleet import Fleet

_ASKED: Final = re.compile(r"At (\S+Z) .*?changing the desired capacity from \d+ to \d+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request for more VMs that AWS had none for: how many did not come, and what names it, the same each time."""

    vms: int
    name: str


def settled_cores(known: int, group: ClusterGroup) -> int:
    """Return the cores that a group counts with, `known` being those that its cluster was last told of.

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
    """Return what happened to a running deployment since it was last told of; `group` None: it is no longer there."""
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
    return DeploymentEvent(f"{deployment_id}/started", deployment_id, EventKind.STARTED, cores, now, cores)


def end_event(deployment_id: str, now: float) -> DeploymentEvent:
    """Return that a deployment that was admitted came to nothing."""
    return DeploymentEvent(f"{deployment_id}/ended", deployment_id, EventKind.SHUTDOWN, 0, now, 0)


def refusal_event(deployment_id: str, refusal: Refusal, vm_cores: int, at: float) -> DeploymentEvent:
    """Return that a running deployment asked for more and got none of it."""
    name = f"{deployment_id}/refused/{refusal.name}"
    return DeploymentEvent(name, deployment_id, EventKind.REFUSED, refusal.vms * vm_cores, at)


def refusals(fleets: Iterable[Fleet], outcomes: Iterable[Outcome]) -> dict[str, Refusal]:
    """Return by AWS group name what a loop's own scale-outs did not get in this turn for want of capacity."""
    names = {(fleet.name, group.key): group.name for fleet in fleets for group in fleet.groups}
    found: dict[str, Refusal] = {}
    for outcome in outcomes:
        decision_id, _, key = outcome.intent_id.partition(".")
        name = names.get((decision_id.rpartition("-")[0], key))
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
    for activity in activities:
        if activity.kind is Kind.LAUNCH and activity.no_capacity and activity.desired_to == group.desired:
            asked = _ASKED.search(activity.cause)
            return Refusal(missing, asked.group(1) if asked else f"{activity.started_at:.0f}")
    return None


def _event(deployment: Deployment, kind: EventKind, cores: int, after: int, now: float) -> DeploymentEvent:
    name = f"{deployment.deployment_id}/{kind}/{deployment.cores}-{after}@{deployment.last_at:.3f}"
    at = max(now, deployment.last_at)
    return DeploymentEvent(name, deployment.deployment_id, kind, cores, at, after)
