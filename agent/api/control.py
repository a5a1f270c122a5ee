"""Routes that switch: pause and resume, the same verbs as on the command line."""

from __future__ import annotations

from typing import Annotated

import structlog
from fastapi import APIRouter
from pydantic import BaseModel, Field

from agent.kernel import controls
from agent.kernel.http import UNKNOWN, Body, Length, Owner, Why
from agent.view.view import AgentView
from domain.controls import Pause, PauseScope
from domain.subject import Subject

log = structlog.get_logger(__name__)

Scope = Annotated[PauseScope, Field(description="Direction: scale-`in`, scale-`out` or `all` changes.")]


class SubjectOrder(Body):
    """What every order about a subject of any decision says: which one, and by whom."""

    subject: Annotated[
        str | None,
        Field(
            max_length=127,
            description="Fleet, cluster or pool meant, as `name`, or as `decision/name` where several decisions have "
            "one of this name; not needed when there is one fleet.",
            examples=["web"],
        ),
    ] = None
    fleet: Annotated[str | None, Field(max_length=127, description="The same, for `subject`.", examples=["web"])] = None
    owner: Owner


class PauseOrder(SubjectOrder):
    """Hold changes in one direction or both."""

    scope: Scope = PauseScope.ALL
    reason: Why
    for_s: Annotated[Length | None, Field(description="For how many seconds; not given: until resumed.")] = None


class ResumeOrder(SubjectOrder):
    """Lift the pause of a scope; `all` lifts every one."""

    scope: Scope = PauseScope.ALL


class PauseResult(BaseModel):
    """The pause that now holds; fleet: the subject where it is one."""

    decision: str
    subject: str
    fleet: str | None = None
    pause: Pause


class ResumeResult(BaseModel):
    """Whether there was a pause to lift, and those that still hold; fleet: the subject where it is one."""

    decision: str
    subject: str
    fleet: str | None = None
    lifted: bool
    left: list[Pause]


def create_control_router(view: AgentView) -> APIRouter:
    """Return the routes that switch; the loop heeds what they wrote at its next turn."""
    router = APIRouter(prefix="/api/v1", tags=["control"], responses=UNKNOWN)
    ledger, now, parts = view.parts.ledger, view.parts.now, view.parts.parts

    def meant(order: SubjectOrder) -> Subject:
        field = "fleet" if order.subject is None else "subject"
        part, name = parts.meant(order.subject or order.fleet, field=field)
        return Subject(part.name, name)

    @router.post("/pause", summary="Hold changes")
    def pause(order: PauseOrder) -> PauseResult:
        """Hold scale-in, scale-out or both, for a time or until resumed; of a cluster, admissions of tagged groups."""
        subject = meant(order)
        made = controls.pause(
            *(ledger, *subject, order.scope),
            owner=order.owner,
            reason=order.reason,
            now=now(),
            lasting_s=order.for_s,
        )
        log.info("paused", **subject.fields(), scope=order.scope, owner=order.owner)
        return PauseResult(**subject.fields(), pause=made)

    @router.post("/resume", summary="Let changes happen again")
    def resume(order: ResumeOrder) -> ResumeResult:
        """Lift pauses."""
        subject = meant(order)
        done = controls.resume(ledger, *subject, order.scope, owner=order.owner, now=now())
        log.info("resumed", **subject.fields(), scope=order.scope, owner=order.owner)
        return ResumeResult(**subject.fields(), lifted=done.lifted, left=list(done.left))

    return router
