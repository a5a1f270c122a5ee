"""Routes of admission: deployments that ask to come into a cluster, and what becomes of those inside."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from agent.admission.cluster import Clusters, Gauges
from agent.admission.records import (
    LONGEST_ID,
    PRINTED,
    AdmissionDecision,
    AdmissionRequest,
    ClusterName,
    CoresAfter,
    DeploymentEvent,
    EventCores,
    EventId,
    EventKind,
    EventResult,
    EventTime,
    StartedLabel,
    StartedOwner,
)
from agent.admission.state import ADMISSION
from agent.kernel.decision import Host
from agent.kernel.http import CONFLICT, DIGITS, UNKNOWN, Body
from agent.kernel.leads import with_leaders
from domain.errors import BadInput

MOST_AT_ONCE = 200
"""Requests or events of one batch; `RequestLimits.batch_bytes` holds as many with every text at its longest."""


class AdmissionsOrder(Body):
    """Deployments that ask to come into one cluster, in this order."""

    cluster: ClusterName = None
    admissions: Annotated[
        list[AdmissionRequest],
        Field(min_length=1, max_length=MOST_AT_ONCE, description="Each knows of those admitted before it."),
    ]


class EventOrder(Body):
    """An event of the deployment that the path names."""

    cluster: ClusterName = None
    event_id: EventId
    kind: Annotated[
        EventKind,
        Field(description="`scaled`: number of cores added. `refused`: number of cores requested and not granted."),
    ]
    cores: EventCores = 0
    time: EventTime
    cores_after: CoresAfter = None
    label: StartedLabel = ""
    owner: StartedOwner = ""


class EventsOrder(Body):
    """Events of deployments of one cluster, in this order; all of them are recorded, or none."""

    cluster: ClusterName = None
    events: Annotated[
        list[DeploymentEvent],
        Field(
            min_length=1, max_length=MOST_AT_ONCE, description="Those of one deployment in the order of their times."
        ),
    ]


def create_router(clusters: Clusters, host: Host) -> APIRouter:
    """Return the routes of admission."""
    router = APIRouter(prefix="/api/v1/admission", tags=["admission"])
    clock = host.clock

    @router.post("/requests", summary="May this deployment come in?", responses=UNKNOWN | CONFLICT)
    def admit(order: AdmissionRequest) -> AdmissionDecision:
        """Decide, record and answer; one that may not come in is answered too, with the reason.

        In observe mode the answer is advice (`advice` is true): it is recorded, and nothing is taken in.
        """
        return clusters.one(order.cluster).answer([order])[0]

    @router.post("/requests/batch", summary="May these come in, one after the other?", responses=UNKNOWN | CONFLICT)
    def admit_all(order: AdmissionsOrder) -> list[AdmissionDecision]:
        """Decide on each in this order, knowing those before it; all are recorded, or none.

        In observe mode each is advised on as if it alone asked.
        """
        service = clusters.one(order.cluster)
        for k, one in enumerate(order.admissions):
            if one.cluster not in (None, service.rules.name):
                raise BadInput(f"admissions.{k}.cluster", one.cluster, "a batch is of one cluster")
        return list(service.answer(order.admissions))

    @router.post(
        "/deployments/{deployment_id}/events",
        summary="Report an event of a deployment",
        responses=UNKNOWN | CONFLICT,
    )
    def observe(
        order: EventOrder,
        deployment_id: Annotated[
            str,
            Path(
                description="The deployment's id.",
                min_length=1,
                max_length=LONGEST_ID,
                pattern=PRINTED,
                examples=["shop-42"],
            ),
        ],
    ) -> EventResult:
        """Take in one event: started, scaled, refused, core_ended or shutdown."""
        event = DeploymentEvent(deployment_id=deployment_id, **order.model_dump(exclude={"cluster"}))
        return clusters.one(order.cluster).observe([event])[0]

    @router.post("/deployments/events", summary="Report events of several deployments", responses=UNKNOWN | CONFLICT)
    def observe_all(order: EventsOrder) -> list[EventResult]:
        """Take in events in this order; all of them, or none when one is wrong."""
        return list(clusters.one(order.cluster).observe(order.events))

    @router.get("", summary="Every cluster")
    def list_clusters() -> list[Gauges]:
        """Cores taken, room left by band, and how much of the month's promise is used, per cluster."""
        found = {name: service.gauges(clock.now()) for name, service in sorted(clusters.items())}
        return with_leaders(host.ledger, ADMISSION, found)

    @router.get("/{cluster}", summary="One cluster", responses=UNKNOWN)
    def cluster(cluster: Annotated[str, Path(description="The cluster's name.", max_length=63)]) -> Gauges:
        """Cores taken, room left by band, and how much of the month's promise is used."""
        return with_leaders(host.ledger, ADMISSION, {cluster: clusters.one(cluster).gauges(clock.now())})[0]

    @router.get("/{cluster}/requests", summary="A cluster's decisions", responses=UNKNOWN)
    def admissions(
        cluster: Annotated[str, Path(description="The cluster's name.", max_length=63)],
        limit: Annotated[int, Query(ge=1, le=500, description="Most decisions in the answer."), DIGITS] = 20,
        deployment_id: Annotated[
            str | None, Query(max_length=LONGEST_ID, description="Those on this deployment only.")
        ] = None,
    ) -> list[AdmissionDecision]:
        """The newest first."""
        return list(clusters.one(cluster).newest(limit, deployment_id))

    return router
