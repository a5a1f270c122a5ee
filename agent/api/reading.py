"""Routes that read: status, decisions, fleets, inputs, and the journal from any point."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from agent.api.bodies import DIGITS
from agent.api.errors import UNKNOWN
from agent.autoscaling.explain import as_data, explain, plain
from agent.autoscaling.status import FleetStatus
from agent.ledger import Kind
from agent.view.records import AgentStatus, DecisionPage, InputStatus, JournalPage, VmReport
from agent.view.view import AgentView

LARGEST_SEQ = 2**63 - 1
FleetName = Annotated[str, Path(description="The fleet's name.", max_length=63, examples=["web"])]
OneFleet = Annotated[str | None, Query(description="This fleet only.", max_length=63, examples=["web"])]


def create_reading_router(view: AgentView) -> APIRouter:
    """Return the routes that read."""
    router = APIRouter(prefix="/api/v1", tags=["reading"])

    @router.get("/status", summary="The agent and every fleet")
    def status() -> AgentStatus:
        """What `trimtab status --json` shows, with the agent's own counters."""
        return view.status()

    @router.get("/fleets", summary="Every fleet")
    def fleets() -> list[FleetStatus]:
        """Sizes, queue, cost, the last decision and what holds it, per fleet."""
        return list(view.fleets())

    @router.get("/fleets/{fleet}", summary="One fleet", responses=UNKNOWN)
    def fleet(fleet: FleetName) -> FleetStatus:
        """Sizes, queue, cost, the last decision and what holds it."""
        return view.fleet(fleet)

    @router.get("/fleets/{fleet}/vms", summary="Which VMs report", responses=UNKNOWN)
    def vms(fleet: FleetName) -> list[VmReport]:
        """Every VM that AWS showed in the last minute, and when it last reported."""
        return list(view.vms(fleet))

    @router.get("/decisions", summary="Decisions, the newest first")
    def decisions(
        fleet: OneFleet = None,
        before_seq: Annotated[
            int | None,
            Query(ge=1, le=LARGEST_SEQ, description="Only those before this number: the next page."),
            DIGITS,
        ] = None,
        limit: Annotated[int, Query(ge=1, le=500, description="Most decisions in the answer."), DIGITS] = 50,
        changed: Annotated[bool, Query(description="Only those that led to something to do.")] = False,
    ) -> DecisionPage:
        """Each with its proposal, what every rail did to it, and its intents; inputs stand with the single decision."""
        return view.decisions(fleet, before_seq=before_seq, limit=limit, changed_only=changed)

    @router.get("/decisions/{decision_id}", summary="Why one decision came out as it did", responses=UNKNOWN)
    def decision(
        decision_id: Annotated[str, Path(description="The decision's id.", max_length=100, examples=["web-17"])],
    ) -> dict[str, Any]:
        """Everything recorded about it (`seq`, `decision`, `inputs`, `intents` with outcomes), and it in words."""
        record = view.decision(decision_id)
        return {**as_data(record), "explanation": plain(explain(record))}

    @router.get("/collectors", summary="Collectors and listener")
    def collectors() -> InputStatus:
        """How each input fares: successes, failures, duration, what was refused and why."""
        return view.inputs()

    @router.get("/events", summary="The journal from any point, in order")
    def events(
        since_seq: Annotated[int, Query(ge=0, le=LARGEST_SEQ, description="Rows after this number."), DIGITS] = 0,
        fleet: OneFleet = None,
        kind: Annotated[Kind | None, Query(description="Rows of this kind only.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Most rows looked at."), DIGITS] = 100,
    ) -> JournalPage:
        """Decisions, intents, outcomes, events and changes of settings; go on from `next_since_seq`."""
        return view.journal(since_seq, fleet=fleet, kind=kind, limit=limit)

    return router
