"""Routes of admission: deployments that ask to come into a cluster, and what becomes of those inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from agent.admission.cluster import AdmissionService, Gauges
from agent.admission.records import (
    LONGEST_ID,
    LONGEST_WORDS,
    MOST_CORES,
    MOST_KINDS,
    AdmissionDecision,
    AdmissionRequest,
    DeploymentEvent,
    EventKind,
    Prior,
    Taken,
)
from agent.kernel.http import CONFLICT, DIGITS, NUMERIC, UNKNOWN, Body
from domain.errors import BadInput
from domain.rules.admission.names import LONGEST_NAME, NAME_OR_NONE

if TYPE_CHECKING:
    from agent.admission.part import AdmissionPart

MOST_AT_ONCE = 200
"""Requests or events of one batch; `RequestLimits.batch_bytes` holds as many with every text at its longest."""
PRINTED = r"^[^\x00-\x1f\x7f]+$"
"""A text without control characters."""
MOST_NUMBER = 1e15

Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=PRINTED)]
DeploymentId = Annotated[Id, Field(description="The deployment's id, of your choice.", examples=["shop-42"])]
ClusterName = Annotated[
    str | None, Field(max_length=63, description="Cluster meant; not needed when there is one.", examples=["main"])
]
Cores = Annotated[int, Field(ge=1, le=MOST_CORES, description="Cores that it asks for.", examples=[16]), NUMERIC]
LabelName = Annotated[str, Field(max_length=LONGEST_NAME, pattern=NAME_OR_NONE, examples=["batch"])]
Amount = Annotated[float, Field(ge=0, le=MOST_NUMBER, allow_inf_nan=False), NUMERIC]


class PriorOrder(Body):
    """What was seen of a deployment's kind before it asks; several of them are the kinds that it may be of."""

    deaths: Annotated[Amount, Field(description="Cores that ended, one by one.")] = 0.0
    core_hours: Annotated[Amount, Field(description="Hours that those cores ran, together.")] = 0.0
    scale_outs: Annotated[Amount, Field(description="Requests for more cores.")] = 0.0
    gap_hours: Annotated[Amount, Field(description="Hours in which those requests were looked for.")] = 0.0
    extra_cores: Annotated[Amount, Field(description="Sum of (cores - 1) over requests whose size was seen.")] = 0.0
    size_draws: Annotated[Amount, Field(description="Requests whose size was seen.")] = 0.0
    label: Annotated[str, Field(max_length=LONGEST_WORDS, description="Its name, where there are several.")] = ""
    weight: Annotated[
        float,
        Field(gt=0, le=MOST_NUMBER, allow_inf_nan=False, description="Chance of this kind against the others."),
        NUMERIC,
    ] = 1.0

    def prior(self) -> Prior:
        """Return it as the service takes it."""
        return Prior(**self.model_dump())


class AdmissionOrder(Body):
    """A deployment that asks to come in."""

    cluster: ClusterName = None
    deployment_id: DeploymentId
    cores: Cores
    observations: Annotated[
        list[PriorOrder],
        Field(max_length=MOST_KINDS, description="None: the population speaks. One: so much was seen. Several: kinds."),
    ] = Field(default_factory=list)
    requested_by: Annotated[
        str, Field(max_length=LONGEST_WORDS, description="Name of the requester, for the record.", examples=["ada"])
    ] = ""
    request_id: Annotated[
        str,
        Field(
            max_length=LONGEST_WORDS,
            description="The same one again gets the same decision.",
            examples=["shop-42-first"],
        ),
    ] = ""
    label: Annotated[
        LabelName,
        Field(description="Kind of deployment, by a name of yours: those of one name are expected to be alike."),
    ] = ""
    owner: Annotated[LabelName, Field(description="Whose it is. A label is learnt within its owner.")] = ""

    def request(self, cluster: str) -> AdmissionRequest:
        """Return it as the service takes it."""
        priors = tuple(order.prior() for order in self.observations)
        return AdmissionRequest(
            *(cluster, self.deployment_id, self.cores, priors, self.requested_by, self.request_id),
            label=self.label,
            owner=self.owner,
        )


class AdmissionsOrder(Body):
    """Deployments that ask to come into one cluster, in this order."""

    cluster: ClusterName = None
    admissions: Annotated[
        list[AdmissionOrder],
        Field(min_length=1, max_length=MOST_AT_ONCE, description="Each knows of those admitted before it."),
    ]


class EventOrder(Body):
    """Something that happened to a deployment."""

    event_id: Annotated[Id, Field(description="Unique per event; a repeated event counts once.")]
    kind: Annotated[
        EventKind,
        Field(description="`scaled`: number of cores added. `refused`: number of cores requested and not granted."),
    ]
    cores: Annotated[int, Field(ge=0, le=MOST_CORES, description="How many; 0 with `shutdown`."), NUMERIC] = 0
    time: Annotated[
        float,
        Field(ge=0, le=MOST_NUMBER, allow_inf_nan=False, description="When, in seconds since the epoch."),
        NUMERIC,
    ]
    cores_after: Annotated[
        int | None,
        Field(ge=0, le=MOST_CORES, description="Cores that it has then, where that is known."),
        NUMERIC,
    ] = None
    label: Annotated[
        LabelName, Field(description="With `started`, of a deployment that was not admitted: its kind.")
    ] = ""
    owner: Annotated[LabelName, Field(description="With `started`, of one that was not admitted: whose it is.")] = ""

    def event(self, deployment_id: str) -> DeploymentEvent:
        """Return it as the service takes it."""
        return DeploymentEvent(
            *(self.event_id, deployment_id, self.kind, self.cores, self.time, self.cores_after),
            label=self.label,
            owner=self.owner,
        )


class OneEventOrder(EventOrder):
    """Something that happened to the deployment that the path names."""

    cluster: ClusterName = None


class NamedEventOrder(EventOrder):
    """Something that happened to the deployment named."""

    deployment_id: DeploymentId


class EventsOrder(Body):
    """What happened to deployments of one cluster, in this order; all of it is taken or nothing."""

    cluster: ClusterName = None
    events: Annotated[
        list[NamedEventOrder],
        Field(
            min_length=1, max_length=MOST_AT_ONCE, description="Those of one deployment in the order of their times."
        ),
    ]


def create_router(part: AdmissionPart) -> APIRouter:
    """Return the routes of admission."""
    router = APIRouter(prefix="/api/v1/admission", tags=["admission"])
    clusters, now = part.clusters, part.host.clock.now

    @router.post("/requests", summary="May this deployment come in?", responses=UNKNOWN | CONFLICT)
    def admit(order: AdmissionOrder) -> AdmissionDecision:
        """Decide, record and answer; one that may not come in is answered too, with the reason.

        In observe mode the answer is advice (`advice` is true): it is recorded, and nothing is taken in.
        """
        service = clusters.one(order.cluster)
        return service.answer_all([order.request(service.rules.name)])[0]

    @router.post("/requests/batch", summary="May these come in, one after the other?", responses=UNKNOWN | CONFLICT)
    def admit_all(order: AdmissionsOrder) -> list[AdmissionDecision]:
        """Decide on each in this order, knowing those before it; all are recorded, or none.

        In observe mode each is advised on as if it alone asked.
        """
        service = clusters.one(order.cluster)
        for k, one in enumerate(order.admissions):
            if one.cluster not in (None, service.rules.name):
                raise BadInput(f"admissions.{k}.cluster", one.cluster, "a batch is of one cluster")
        return list(service.answer_all([one.request(service.rules.name) for one in order.admissions]))

    @router.post(
        "/deployments/{deployment_id}/events",
        summary="Report an event of a deployment",
        responses=UNKNOWN | CONFLICT,
    )
    def observe(
        order: OneEventOrder,
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
    ) -> Taken:
        """Take in one event: started, scaled, refused, core_ended or shutdown."""
        return clusters.one(order.cluster).observe(order.event(deployment_id))

    @router.post("/deployments/events", summary="Report events of several deployments", responses=UNKNOWN | CONFLICT)
    def observe_all(order: EventsOrder) -> list[Taken]:
        """Take in events in this order; all of them, or none when one is wrong."""
        events = [one.event(one.deployment_id) for one in order.events]
        return list(clusters.one(order.cluster).observe_all(events))

    @router.get("", summary="Every cluster")
    def list_clusters() -> list[Gauges]:
        """Cores taken, room left by band, and how much of the month's promise is used, per cluster."""
        return [service.gauges(now()) for _, service in sorted(clusters.items())]

    @router.get("/{cluster}", summary="One cluster", responses=UNKNOWN)
    def cluster(cluster: Annotated[str, Path(description="The cluster's name.", max_length=63)]) -> Gauges:
        """Cores taken, room left by band, and how much of the month's promise is used."""
        return clusters.one(cluster).gauges(now())

    @router.get("/{cluster}/requests", summary="A cluster's decisions", responses=UNKNOWN)
    def admissions(
        cluster: Annotated[str, Path(description="The cluster's name.", max_length=63)],
        limit: Annotated[int, Query(ge=1, le=500, description="Most decisions in the answer."), DIGITS] = 20,
        deployment_id: Annotated[
            str | None, Query(max_length=LONGEST_ID, description="Those on this deployment only.")
        ] = None,
    ) -> list[AdmissionDecision]:
        """The newest first."""
        found: AdmissionService = clusters.one(cluster)
        return list(found.newest(limit, deployment_id))

    return router
