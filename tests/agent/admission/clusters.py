"""Rules, requests and events that the tests of admission share."""

from __future__ import annotations

from typing import Any

from agent.admission.cluster import AdmissionService
from agent.admission.records import AdmissionDecision, AdmissionRequest, DeploymentEvent, EventKind, Prior
from domain.rules.admission.cluster import ClusterRules, Moments, PolicyKind
from domain.rules.admission.population import POPULATIONS

START = 1_790_000_000.0
"""2026-09-21 14:13:20 UTC."""
HOUR_S = 3600.0
SEEN = Prior(deaths=5, core_hours=400.0, scale_outs=5, gap_hours=300.0, extra_cores=12, size_draws=5)


def rules(**changes: Any) -> ClusterRules:
    """The cluster `main`: 1,000 cores, preset K, second moment with 2.2 standard deviations, cheap moments."""
    given: dict[str, Any] = {
        "name": "main",
        "capacity_cores": 1000,
        "population": POPULATIONS["K"],
        "policy": PolicyKind.SECOND,
        "kappa": 2.2,
        "moments": Moments.AB_FAST,
        **changes,
    }
    return ClusterRules(**given)


def ask(deployment_id: str, cores: Any = 10, *observations: Prior, **more: Any) -> AdmissionRequest:
    """A request to the cluster `main`."""
    return AdmissionRequest(deployment_id=deployment_id, cores=cores, observations=observations, **more)


def recorded(service: AdmissionService, decision_id: str) -> AdmissionDecision:
    """A decision of the cluster, as the ledger has it."""
    return next(one for one in service.newest(10_000) if one.decision_id == decision_id)


_numbers = iter(range(10**9))


def event(deployment_id: str, kind: str, cores: int = 0, at: float = START, **more: Any) -> DeploymentEvent:
    """An event under an id of its own, unless one is given."""
    event_id = more.pop("event_id", f"e{next(_numbers)}")
    return DeploymentEvent(event_id, deployment_id, EventKind(kind), cores, time=at, **more)
