"""What the gate says of pending groups while it only observes: would they come in, and why; nothing is taken in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.admission.gate.rails import Asked
from agent.admission.gate.records import REQUESTED, REQUESTED_BY, deployment_id
from agent.admission.gate.turn import AGENT, GateTurn
from agent.admission.records import AdmissionRequest
from agent.admission.service import AdmissionService
from collectors.clusters import ClusterGroup
from domain.decisions import Event, Reason

EVERY_S: Final = 600.0
"""How long what was said of a group stands, unless it asks for something else."""


class GateAdvice:
    """Asks clusters for advice on groups, each as if it alone were to come in, and tells it when it changes."""

    def __init__(self, clusters: Mapping[str, AdmissionService]) -> None:
        self._clusters = clusters
        self._looked: dict[str, tuple[float, str]] = {}
        self._told: dict[str, str] = {}

    def due(self, group: ClusterGroup, now: float) -> bool:
        """Return whether to look at a group now."""
        at, before = self._looked.get(group.name, (float("-inf"), ""))
        return not (_wanted(group) == before and 0.0 <= now - at < EVERY_S)

    def looked(self, group: ClusterGroup, now: float) -> None:
        """Note that a group was looked at, and what came of it recorded: it is not due for a while."""
        self._looked[group.name] = (now, _wanted(group))

    def give(self, turn: GateTurn, group: ClusterGroup, asked: Asked, number: int) -> None:
        """Have the group's cluster judge it and tell what it said."""
        name = deployment_id(group.name, number)
        request = AdmissionRequest(group.cluster, name, asked.cores, requested_by=REQUESTED_BY)
        decision = self._clusters[group.cluster].advise(request)
        if self._told.get(group.name) == decision.decision_id:
            return
        self._told[group.name] = decision.decision_id
        verb = "would come in" if decision.admit else f"would be refused ({decision.reason})"
        said = f"{group.name} {verb} with {asked.vms} x {asked.vm_type}: {decision.detail}"
        told = f"{group.cluster}: {decision.decision_id}: {said}; the agent only observes, so it waits"
        turn.events.append(Event(AGENT, turn.now, Reason.OBSERVE_MODE, told, group.name))


def _wanted(group: ClusterGroup) -> str:
    return f"{group.cluster} {group.tags.get(REQUESTED, '')}"
