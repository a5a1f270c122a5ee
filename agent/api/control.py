"""Routes that switch: pause, resume, pin, unpin, the same verbs as on the command line."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter
from pydantic import BaseModel, Field

from agent.api.bodies import NUMERIC, Body
from agent.api.errors import UNKNOWN
from agent.autoscaling import controls
from agent.autoscaling.controls import LONGEST_S, LONGEST_WORDS
from agent.autoscaling.known_fleets import one_fleet
from agent.autoscaling.state import Pause, PauseScope, Pin
from agent.view.view import AgentView

log = structlog.get_logger(__name__)

Owner = Annotated[
    str,
    Field(
        min_length=1, max_length=LONGEST_WORDS // 5, description="Who asks; it stands in the journal.", examples=["ada"]
    ),
]
Why = Annotated[
    str,
    Field(
        min_length=1,
        max_length=LONGEST_WORDS,
        description="Why; it stands in status and in every decision.",
        examples=["load test"],
    ),
]
Scope = Annotated[PauseScope, Field(description="Direction: scale-`in`, scale-`out` or `all` changes.")]
OneFleet = Annotated[
    str | None, Field(max_length=63, description="Fleet meant; not needed when there is one.", examples=["web"])
]
Length = Annotated[
    float,
    Field(gt=0, le=LONGEST_S, allow_inf_nan=False, description="For how many seconds.", examples=[7200]),
    NUMERIC,
]


class _Order(Body):
    fleet: OneFleet = None
    owner: Owner


class PauseOrder(_Order):
    """Hold changes in one direction or both."""

    scope: Scope = PauseScope.ALL
    reason: Why
    for_s: Annotated[Length | None, Field(description="For how many seconds; not given: until resumed.")] = None


class ResumeOrder(_Order):
    """Lift the pause of a scope; `all` lifts every one."""

    scope: Scope = PauseScope.ALL


class PinOrder(_Order):
    """Keep a fleet, or one of its groups, at a size for a time."""

    size: Annotated[
        int, Field(ge=0, le=100_000, description="VMs of the fleet, or of the group.", examples=[12]), NUMERIC
    ]
    group: Annotated[str | None, Field(max_length=63, description="This group only, by its key.")] = None
    reason: Why
    for_s: Length


class UnpinOrder(_Order):
    """Lift the pin, so that the policy decides again."""


class Paused(BaseModel):
    """The pause that now holds."""

    fleet: str
    pause: Pause


class Resumed(BaseModel):
    """Whether there was a pause to lift, and those that still hold."""

    fleet: str
    lifted: bool
    left: list[Pause]


class Pinned(BaseModel):
    """The pin that now holds, and the one whose place it took."""

    fleet: str
    pin: Pin
    before: Pin | None


class Unpinned(BaseModel):
    """Whether there was a pin to lift."""

    fleet: str
    lifted: bool


def create_control_router(view: AgentView) -> APIRouter:
    """Return the routes that switch; the loop heeds what they wrote at its next turn."""
    router = APIRouter(prefix="/api/v1", tags=["control"], responses=UNKNOWN)
    ledger, now = view.parts.ledger, view.parts.now

    def chosen(order: _Order) -> str:
        return one_fleet(order.fleet, view.fleet_names())

    def paused(order: _Order) -> str:
        """Return the fleet meant, or the cluster or pool of that name, held as a fleet's changes are."""
        others = {*view.parts.clusters, *view.parts.pools}
        return order.fleet if order.fleet is not None and order.fleet in others else chosen(order)

    @router.post("/pause", summary="Hold changes")
    def pause(order: PauseOrder) -> Paused:
        """Hold scale-in, scale-out or both, for a time or until resumed; of a cluster, admissions of tagged groups."""
        fleet = paused(order)
        made = controls.pause(
            ledger, fleet, order.scope, owner=order.owner, reason=order.reason, now=now(), lasting_s=order.for_s
        )
        log.info("paused", fleet=fleet, scope=order.scope, owner=order.owner)
        return Paused(fleet=fleet, pause=made)

    @router.post("/resume", summary="Let changes happen again")
    def resume(order: ResumeOrder) -> Resumed:
        """Lift pauses."""
        fleet = paused(order)
        done = controls.resume(ledger, fleet, order.scope, owner=order.owner, now=now())
        log.info("resumed", fleet=fleet, scope=order.scope, owner=order.owner)
        return Resumed(fleet=fleet, lifted=done.lifted, left=list(done.left))

    @router.post("/pin", summary="Keep a size")
    def pin(order: PinOrder) -> Pinned:
        """Keep a fleet or one group at a size for a time; a pause stands before it."""
        fleet = chosen(order)
        done = controls.pin(
            ledger,
            fleet,
            order.size,
            group=order.group,
            owner=order.owner,
            reason=order.reason,
            now=now(),
            lasting_s=order.for_s,
        )
        log.info("pinned", fleet=fleet, desired=dict(done.pin.desired), owner=order.owner)
        return Pinned(fleet=fleet, pin=done.pin, before=done.before)

    @router.post("/unpin", summary="Let the policy decide the size again")
    def unpin(order: UnpinOrder) -> Unpinned:
        """Lift the pin."""
        fleet = chosen(order)
        lifted = controls.unpin(ledger, fleet, owner=order.owner, now=now())
        log.info("unpinned", fleet=fleet, owner=order.owner)
        return Unpinned(fleet=fleet, lifted=lifted)

    return router
