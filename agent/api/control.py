"""Routes that switch: pause and resume, the same verbs as on the command line."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter
from pydantic import BaseModel, Field

from agent.decisions import controls
from agent.decisions.http import UNKNOWN, Length, Order, Why
from agent.decisions.part import one_subject
from agent.view.view import AgentView
from domain.controls import Pause, PauseScope

log = structlog.get_logger(__name__)

Scope = Annotated[PauseScope, Field(description="Direction: scale-`in`, scale-`out` or `all` changes.")]


class PauseOrder(Order):
    """Hold changes in one direction or both."""

    scope: Scope = PauseScope.ALL
    reason: Why
    for_s: Annotated[Length | None, Field(description="For how many seconds; not given: until resumed.")] = None


class ResumeOrder(Order):
    """Lift the pause of a scope; `all` lifts every one."""

    scope: Scope = PauseScope.ALL


class Paused(BaseModel):
    """The pause that now holds."""

    fleet: str
    pause: Pause


class Resumed(BaseModel):
    """Whether there was a pause to lift, and those that still hold."""

    fleet: str
    lifted: bool
    left: list[Pause]


def create_control_router(view: AgentView) -> APIRouter:
    """Return the routes that switch; the loop heeds what they wrote at its next turn."""
    router = APIRouter(prefix="/api/v1", tags=["control"], responses=UNKNOWN)
    ledger, now = view.parts.ledger, view.parts.now

    parts = view.parts.parts

    def chosen(order: Order) -> str:
        """Return the fleet meant."""
        return one_subject(parts[0], order.fleet, field="fleet")

    def paused(order: Order) -> str:
        """Return the subject meant, of any decision: a fleet, a cluster or a pool."""
        if order.fleet is None:
            return chosen(order)
        return order.fleet if parts.of(order.fleet) is not None else chosen(order)

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

    return router
