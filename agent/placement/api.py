"""Routes of placement: hosts for containers in two phases, what would be, hosts, and a scheduler's extender."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from agent.kernel.controls import checked_owner, checked_reason
from agent.kernel.http import CONFLICT, DIGITS, NUMERIC, UNKNOWN, Body, Owner, Why
from agent.kernel.leads import with_leaders
from agent.placement.book import HostView
from agent.placement.extender import ExtenderArgs, ExtenderFilterResult, HostPriority, filtered, prioritized
from agent.placement.look import WHAT_IF_MOST, ApplicationView, PoolView, Reasons, RepackPlan, Room, WhatIf
from agent.placement.records import (
    ID,
    LARGEST,
    LONGEST_ID,
    MOST_COUNT,
    HostRecord,
    HostState,
    OrderResult,
    Origin,
    PlacementDecision,
    PlaceRequest,
    Reservation,
    Stage,
    moment_of,
)
from agent.placement.settings import PlacementPolicyText
from domain.rules.placement.instance import LONGEST_LIFETIME_S, MOST, UNLIMITED, Application

if TYPE_CHECKING:
    from agent.placement.decision import PlacementPart

Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, pattern=ID)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT, description="Containers.", examples=[3]), NUMERIC]
Size = Annotated[int, Field(ge=1, le=LARGEST), NUMERIC]
PoolPath = Annotated[str, Path(max_length=63, description="The pool's name.", examples=["main"])]
RequestPath = Annotated[str, Path(max_length=LONGEST_ID, description="The request's id.", examples=["shop-17"])]
HostPath = Annotated[str, Path(max_length=LONGEST_ID, description="The host's name.", examples=["large-1"])]
ApplicationPath = Annotated[str, Path(max_length=LONGEST_ID, description="The application's id.", examples=["shop"])]
NewApplicationPath = Annotated[
    str, Path(max_length=LONGEST_ID, pattern=ID, description="The application's id.", examples=["shop"])
]
ApplicationName = Annotated[
    str, Field(max_length=LONGEST_ID, description="Application, by its id in the inventory.", examples=["shop"])
]

Lifetime = Annotated[float, Field(gt=0, le=LONGEST_LIFETIME_S, allow_inf_nan=False, examples=[7200]), NUMERIC]

MOST_RELEASED = 1000
"""Containers that one release names; it may leave them out and mean all."""


class PlaceOrder(Body):
    """Containers of one application that need hosts."""

    request_id: Annotated[
        Id, Field(description="Of your choice; the same one again gets the same answer.", examples=["shop-17"])
    ]
    application: ApplicationName
    count: Count = 1
    partial: Annotated[
        bool, Field(description="Place a part of the containers if not all fit; default: all or none.")
    ] = False
    requested_by: Annotated[str, Field(max_length=LONGEST_ID, description="Name of the requester, for the record.")] = (
        ""
    )
    lifetime_s: Lifetime | None = Field(
        None,
        description="Expected seconds of each container. A container that runs longer is not stopped. Not given: those "
        "of its application, if any.",
    )
    expected_end: Annotated[str, Field(max_length=40)] | None = Field(
        None,
        description="In place of `lifetime_s`: the expected end, a time of RFC 3339 after now.",
        examples=["2026-03-01T12:00:00Z"],
    )

    def request(self, pool: str) -> PlaceRequest:
        """Return it as the pool takes it; BadInput."""
        asked = (pool, self.request_id, self.application, self.count, self.partial, self.requested_by)
        return PlaceRequest(
            *asked, self.lifetime_s, None if self.expected_end is None else moment_of(self.expected_end)
        )


class PlaceOrderOfPool(PlaceOrder):
    """Containers of one application that need hosts, and the pool meant."""

    pool: Annotated[
        str | None, Field(max_length=63, description="Pool meant; not needed when there is one.", examples=["main"])
    ] = None


class StageOrder(Body):
    """Nothing more than what the path says."""


class ReleaseOrder(Body):
    """Containers that ended."""

    containers: Annotated[
        list[Annotated[int, Field(ge=0, le=MOST_COUNT), NUMERIC]] | None,
        Field(max_length=MOST_RELEASED, description="By their index in the request, from 0; not given: all of them."),
    ] = None


class MoveOrder(Body):
    """A container that runs on another host now."""

    container: Annotated[int, Field(ge=0, le=MOST_COUNT, description="Its index in the request, from 0."), NUMERIC]
    host: Annotated[Id, Field(description="Its host now.", examples=["large-2"])]


class WouldBeOrder(Body):
    """Containers that would be placed."""

    application: ApplicationName
    count: Count = 1
    partial: Annotated[
        bool, Field(description="Place a part of the containers if not all fit; default: all or none.")
    ] = False

    lifetime_s: Lifetime | None = Field(None, description="Expected seconds of each container.")

    def request(self, pool: str) -> PlaceRequest:
        """Return it as the pool takes it."""
        return PlaceRequest(pool, "what-if", self.application, self.count, self.partial, lifetime_s=self.lifetime_s)


class WhatIfOrder(Body):
    """Requests that would come one after the other."""

    requests: Annotated[
        list[WouldBeOrder], Field(min_length=1, max_length=WHAT_IF_MOST, description="Each knows of those before it.")
    ]


class CapacityOrder(Body):
    """What a host has."""

    cores: Annotated[Size, Field(description="Cores.", examples=[96])]
    memory_gib: Annotated[Size, Field(description="Memory in GiB.", examples=[512])]
    disk_gb: Annotated[Size, Field(description="Disk in GB.", examples=[3000])]


class JoinOrder(CapacityOrder):
    """A host that joins the pool."""

    host: Annotated[Id, Field(description="Its name.", examples=["rack7-12"])]
    rack: Annotated[str, Field(max_length=LONGEST_ID, description="Its fault domain, where it shares one.")] = ""
    label: Annotated[str, Field(max_length=LONGEST_ID, description="Label that applications may require.")] = ""

    def record(self) -> HostRecord:
        """Return it as the pool takes it."""
        capacity = (self.cores, self.memory_gib, self.disk_gb)
        return HostRecord(self.host, capacity, Origin.API, HostState.UP, self.rack, self.label, capacity)


class ApplicationOrder(Body):
    """What a container of an application needs, and where it may be."""

    cores: Annotated[Size, Field(description="Cores.", examples=[4])]
    memory_gib: Annotated[Size, Field(description="Memory in GiB.", examples=[8])]
    disk_gb: Annotated[Size, Field(description="Disk in GB.", examples=[60])]
    limit: Annotated[
        int, Field(ge=1, le=MOST, description=f"Most instances on one host; {UNLIMITED} or more: any number."), NUMERIC
    ] = UNLIMITED
    excludes: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_ID)], ...],
        Field(max_length=1000, description="Applications that must not share a host with it.", examples=[["batch"]]),
    ] = ()
    rack_limit: Annotated[
        Annotated[int, Field(ge=1, le=MOST), NUMERIC] | None, Field(description="Most instances in one rack.")
    ] = None
    label: Annotated[str, Field(max_length=LONGEST_ID, description="Label that a host must have.")] = ""
    lifetime_s: Lifetime | None = Field(
        None, description="Expected seconds of a container, for requests that give neither `lifetime_s` nor an end."
    )

    def of(self, name: str) -> Application:
        """Return it as the pool takes it."""
        demand = (self.cores, self.memory_gib, self.disk_gb)
        rules = (self.limit, frozenset(self.excludes), self.rack_limit, self.label)
        return Application(name, demand, *rules, self.lifetime_s)


class SwitchOrder(Body):
    """Another policy for every request from now on."""

    policy: PlacementPolicyText | None = Field(
        None, description="Policy in the words of the settings; none: that of the settings again.", examples=["bf"]
    )
    owner: Owner
    reason: Why


class RequestView(BaseModel):
    """A request: what was decided on it, and what it holds now; None when it holds nothing."""

    decision: PlacementDecision
    reservation: Reservation | None


def create_router(part: PlacementPart) -> APIRouter:
    """Return the routes of placement."""
    router = APIRouter(prefix="/api/v1/placement", tags=["placement"])
    pools = part.pools

    @router.get("", summary="Every pool")
    def list_pools() -> list[PoolView]:
        """Open hosts against the lower bound, allocation, headroom, and what is reserved."""
        return with_leaders(part.host.ledger, part.name, {name: pool.view() for name, pool in sorted(pools.items())})

    # Before the routes with a pool's name, which would take this word for one.
    @router.post("/requests", summary="Hosts for containers, of a pool named in the body", responses=UNKNOWN | CONFLICT)
    def request_of(order: PlaceOrderOfPool) -> PlacementDecision:
        """As `/{pool}/requests`."""
        pool = pools.one(order.pool)
        return pool.request(order.request(pool.name))

    @router.post("/{pool}/requests", summary="Hosts for containers", responses=UNKNOWN | CONFLICT)
    def request(pool: PoolPath, order: PlaceOrder) -> PlacementDecision:
        """Reserve a host for each container, record it and answer; confirm it within the pool's time.

        Where not all fit, none is reserved (`reason` is `no_host`), or with `partial` those that do. In observe mode
        the answer is advice (`advice` is true), and nothing is reserved.
        """
        return pools.one(pool).request(order.request(pool))

    @router.post("/{pool}/requests/{request_id}/confirm", summary="Keep a reservation", responses=UNKNOWN | CONFLICT)
    def confirm(pool: PoolPath, request_id: RequestPath, order: StageOrder) -> OrderResult:
        """The containers run on their hosts until they are released; again, it changes nothing."""
        return pools.one(pool).confirm(request_id)

    @router.post("/{pool}/requests/{request_id}/cancel", summary="Drop a reservation", responses=UNKNOWN | CONFLICT)
    def cancel(pool: PoolPath, request_id: RequestPath, order: StageOrder) -> OrderResult:
        """Give back what was reserved and not confirmed; again, it changes nothing."""
        return pools.one(pool).cancel(request_id)

    @router.post("/{pool}/requests/{request_id}/release", summary="Containers ended", responses=UNKNOWN | CONFLICT)
    def release(pool: PoolPath, request_id: RequestPath, order: ReleaseOrder) -> OrderResult:
        """Take containers of a confirmed reservation off their hosts, all or none; again, it changes nothing."""
        return pools.one(pool).release(request_id, order.containers)

    @router.post("/{pool}/requests/{request_id}/move", summary="A container moved", responses=UNKNOWN | CONFLICT)
    def move(pool: PoolPath, request_id: RequestPath, order: MoveOrder) -> OrderResult:
        """Record that a container runs on another host now, such as by a plan to repack."""
        return pools.one(pool).move(request_id, order.container, order.host)

    @router.get("/{pool}/repack", summary="Which moves would empty hosts?", responses=UNKNOWN)
    def repack(
        pool: PoolPath,
        budget: Annotated[int, Query(ge=1, le=1000, description="Most moves."), DIGITS] = 20,
    ) -> RepackPlan:
        """A plan alone: it may be stopped after any move. Report each move that was made by `move`."""
        return pools.one(pool).plan_repack(budget)

    @router.get("/{pool}/requests", summary="Reserved and running containers", responses=UNKNOWN)
    def reservations(
        pool: PoolPath,
        limit: Annotated[int, Query(ge=1, le=5000, description="Most reservations in the answer."), DIGITS] = 500,
        stage: Annotated[Stage | None, Query(description="Only reserved, or only confirmed, requests.")] = None,
        application: Annotated[str | None, Query(max_length=LONGEST_ID, description="Only those of this one.")] = None,
    ) -> list[Reservation]:
        """By request id."""
        found = [
            one
            for one in pools.one(pool).reservations()
            if stage in (None, one.stage) and application in (None, one.application)
        ]
        return found[:limit]

    @router.get("/{pool}/requests/{request_id}", summary="One request", responses=UNKNOWN)
    def reservation(pool: PoolPath, request_id: RequestPath) -> RequestView:
        """What was decided, and what it holds now."""
        decision, held = pools.one(pool).reservation(request_id)
        return RequestView(decision=decision, reservation=held)

    @router.post("/{pool}/what-if", summary="Where would these be placed?", responses=UNKNOWN)
    def what_if(pool: PoolPath, order: WhatIfOrder) -> WhatIf:
        """Placed one after the other on a copy; nothing is reserved or recorded."""
        return pools.one(pool).what_if([one.request(pool) for one in order.requests])

    @router.get("/{pool}/capacity-for/{application}", summary="How many more fit?", responses=UNKNOWN)
    def capacity_for(pool: PoolPath, application: ApplicationPath) -> Room:
        """Containers of an application that fit now, and why hosts can take none."""
        return pools.one(pool).capacity_for(application)

    @router.get("/{pool}/explain/{application}", summary="Which host, and why?", responses=UNKNOWN)
    def explain(
        pool: PoolPath,
        application: ApplicationPath,
        count: Annotated[int, Query(ge=1, le=MOST_COUNT, description="Containers of the request."), DIGITS] = 1,
        lifetime_s: Annotated[
            float | None, Query(gt=0, le=LONGEST_LIFETIME_S, description="Expected seconds of each container.")
        ] = None,
    ) -> Reasons:
        """The five best hosts for a container now with the terms of their scores, and why others cannot take it."""
        return pools.one(pool).explained(application, count, lifetime_s)

    @router.get("/{pool}/hosts", summary="A pool's hosts", responses=UNKNOWN)
    def hosts(
        pool: PoolPath,
        limit: Annotated[int, Query(ge=1, le=20_000, description="Most hosts in the answer."), DIGITS] = 1000,
        state: Annotated[HostState | None, Query(description="Only those in this state.")] = None,
        open_only: Annotated[bool, Query(alias="open", description="Only those with containers.")] = False,
    ) -> list[HostView]:
        """In the order in which equal scores prefer them."""
        there = pools.one(pool).hosts()
        found = [one for one in there if state in (None, one.state) and (one.containers or not open_only)]
        return found[:limit]

    @router.post("/{pool}/hosts", summary="A host joins", responses=UNKNOWN | CONFLICT)
    def join(pool: PoolPath, order: JoinOrder) -> OrderResult:
        """Bring in a host, or bring back one that failed."""
        return pools.one(pool).join(order.record())

    @router.post("/{pool}/hosts/{host}/drain", summary="No new containers on a host", responses=UNKNOWN | CONFLICT)
    def drain(pool: PoolPath, host: HostPath, order: StageOrder) -> OrderResult:
        """Those on it stay until they are released."""
        return pools.one(pool).drain(host)

    @router.post("/{pool}/hosts/{host}/resume", summary="Containers on a host again", responses=UNKNOWN | CONFLICT)
    def resume(pool: PoolPath, host: HostPath, order: StageOrder) -> OrderResult:
        """Undo a drain."""
        return pools.one(pool).resume(host)

    @router.post("/{pool}/hosts/{host}/fail", summary="A host failed", responses=UNKNOWN | CONFLICT)
    def fail(pool: PoolPath, host: HostPath, order: StageOrder) -> OrderResult:
        """Its containers are placed again at once; `moves` says where each is now, or that none could take it."""
        return pools.one(pool).fail(host)

    @router.post("/{pool}/hosts/{host}/capacity", summary="A host has another size", responses=UNKNOWN | CONFLICT)
    def resize(pool: PoolPath, host: HostPath, order: CapacityOrder) -> OrderResult:
        """Below what it holds too: then it takes nothing until containers ended."""
        return pools.one(pool).resize(host, (order.cores, order.memory_gib, order.disk_gb))

    @router.get("/{pool}/applications", summary="A pool's applications", responses=UNKNOWN)
    def applications(
        pool: PoolPath,
        limit: Annotated[int, Query(ge=1, le=20_000, description="Most of them in the answer."), DIGITS] = 1000,
        origin: Annotated[Origin | None, Query(description="Only those of the file, or over HTTP.")] = None,
        after: Annotated[str, Query(max_length=300, description="Only those after this name.")] = "",
    ) -> list[ApplicationView]:
        """By name; `origin` is `inventory` for those of the inventory file. The next page is `after` the last name."""
        every = pools.one(pool).applications()
        found = (one for one in every if origin in (None, one.origin) and one.application > after)
        return list(islice(found, limit))

    @router.get("/{pool}/applications/{application}", summary="One application", responses=UNKNOWN)
    def application(pool: PoolPath, application: ApplicationPath) -> ApplicationView:
        """What a container of it needs, where it may be, and how many there are."""
        return pools.one(pool).application(application)

    @router.put(
        "/{pool}/applications/{application}", summary="An application comes or changes", responses=UNKNOWN | CONFLICT
    )
    def put_application(pool: PoolPath, application: NewApplicationPath, order: ApplicationOrder) -> OrderResult:
        """All of what is sent holds from the next request on, or none. One of the inventory file is changed there."""
        return pools.one(pool).put_application(order.of(application))

    @router.delete("/{pool}/applications/{application}", summary="An application goes", responses=UNKNOWN | CONFLICT)
    def delete_application(pool: PoolPath, application: ApplicationPath) -> OrderResult:
        """Only what came over HTTP, once no container of it runs and no other application excludes it."""
        return pools.one(pool).delete_application(application)

    @router.post("/{pool}/switch", summary="Let another policy decide", responses=UNKNOWN | CONFLICT)
    def switch(pool: PoolPath, order: SwitchOrder) -> OrderResult:
        """At once, in every agent of the pool, until it is switched back; recorded with who and why."""
        owner, reason = checked_owner(order.owner), checked_reason(order.reason)
        return pools.one(pool).switch(order.policy or "", owner, reason)

    @router.post("/{pool}/extender/filter", summary="Kubernetes: which nodes can take a pod?", responses=UNKNOWN)
    def extender_filter(pool: PoolPath, args: ExtenderArgs) -> ExtenderFilterResult:
        """Answer kube-scheduler's extender; nothing is reserved."""
        return filtered(pools.one(pool), args)

    @router.post("/{pool}/extender/prioritize", summary="Kubernetes: how good is each node?", responses=UNKNOWN)
    def extender_prioritize(pool: PoolPath, args: ExtenderArgs) -> list[HostPriority]:
        """Answer kube-scheduler's extender with a score from 0 to 10 for each node."""
        return prioritized(pools.one(pool), args)

    @router.get("/{pool}", summary="One pool", responses=UNKNOWN)
    def one(pool: PoolPath) -> PoolView:
        """Open hosts against the lower bound, allocation, headroom, and what is reserved."""
        return with_leaders(part.host.ledger, part.name, {pool: pools.one(pool).view()})[0]

    return router
