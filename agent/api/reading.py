"""Routes that read: liveness, readiness, metrics; status, decisions of every part, inputs, the journal."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from agent.kernel.decision import Part, one_subject
from agent.kernel.http import DIGITS, LARGEST_SEQ, UNKNOWN
from agent.ledger import Kind
from agent.view.view import AgentView, DecisionPage, Health, InputStatus, JournalPage, Readiness
from domain.errors import UnknownName
from domain.subject import fleet_subject

Subject = Annotated[str, Path(description="Its subject: a fleet, a cluster, a pool.", max_length=63, examples=["web"])]
DecisionId = Annotated[str, Path(description="The decision's id.", max_length=100, examples=["web-17"])]
Most = Annotated[int, Query(ge=1, le=500, description="Most decisions in the answer."), DIGITS]
Before = Annotated[
    str | None, Query(max_length=100, description="Only those before the decision with this id: the next page.")
]
Changed = Annotated[bool, Query(description="Only decisions that caused an action.")]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_health_router(view: AgentView, exposition: Callable[[], bytes]) -> APIRouter:
    """Return the routes; `exposition` writes the metrics in Prometheus's text format."""
    router = APIRouter(tags=["health"])

    @router.get(
        "/healthz",
        summary="Does the loop turn?",
        responses={503: {"model": Health, "description": "The loop has stopped."}},
    )
    def healthz(response: Response) -> Health:
        """200 while the last turn of the loop ended less than three intervals ago, else 503."""
        health = view.health()
        response.status_code = 200 if health.ok else 503
        return health

    @router.get(
        "/readyz",
        summary="Can the agent do its work?",
        responses={503: {"model": Readiness, "description": "It cannot."}},
    )
    def readyz(response: Response) -> Readiness:
        """200 when the loop turns, the ledger can be written, AWS could be read and some agent leads."""
        readiness = view.readiness()
        response.status_code = 200 if readiness.ready else 503
        return readiness

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={
            200: {
                "content": {"text/plain": {}},
                "description": "Prometheus's text format; see docs/operate/metrics.md.",
            }
        },
    )
    def metrics() -> Response:
        """Every metric of the catalogue in Prometheus's text format."""
        return Response(exposition(), media_type=METRICS_TYPE)

    return router


def create_reading_router(view: AgentView) -> APIRouter:
    """Return the routes that read and are the same for every decision."""
    router = APIRouter(prefix="/api/v1", tags=["reading"])
    parts = view.parts.parts

    @router.get("/status", summary="The agent and every subject")
    def status() -> dict[str, Any]:
        """What `trimtab status --json` shows, with the agent's own counters.

        `subjects` holds the status of each subject by decision; fleets, clusters and pools stand under their own names
        as well.
        """
        data = view.status()
        return {**data, **{f"{part.subject_word}s": data["subjects"][part.name] for part in parts}}

    @router.get("/decisions/{decision_id}", summary="Why one decision came out as it did", responses=UNKNOWN)
    def decision(decision_id: DecisionId) -> dict[str, Any]:
        """Everything recorded about a decision of any kind, and it in words (`lines`)."""
        explained = view.explain(decision_id)
        return {**explained.data, "lines": list(explained.lines)}

    @router.get("/collectors", summary="Collectors and listener")
    def collectors() -> InputStatus:
        """How each input fares: successes, failures, duration, what was refused and why."""
        return view.inputs()

    @router.get("/events", summary="The journal from any point, in order")
    def events(
        since_seq: Annotated[int, Query(ge=0, le=LARGEST_SEQ, description="Rows after this number."), DIGITS] = 0,
        decision: Annotated[str | None, Query(description="This decision only.", max_length=63)] = None,
        subject: Annotated[str | None, Query(description="Subjects of this name only.", max_length=63)] = None,
        fleet: Annotated[str | None, Query(description="This fleet only.", max_length=63, examples=["web"])] = None,
        kind: Annotated[Kind | None, Query(description="Rows of this kind only.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Most rows looked at."), DIGITS] = 100,
    ) -> JournalPage:
        """Decisions, intents, outcomes, events and changes of settings; go on from `next_since_seq`."""
        if fleet is not None:
            decision, subject = fleet_subject(fleet)
        return view.journal(since_seq, decision=decision, subject=subject, kind=kind, limit=limit)

    return router


def create_subject_router(view: AgentView, part: Part, served: Collection[str]) -> APIRouter:
    """Return the routes that every decision has for its subjects.

    served: paths that the part reads at by routes of its own, with `{}` for each parameter; these are left to it.
    """
    base = f"/api/v1/{part.name}"
    router = APIRouter(tags=[part.name], responses=UNKNOWN)

    def _data(wanted: Iterable[tuple[Part, str]]) -> list[dict[str, Any]]:
        return [dict(status.data) for _, status in view.parts.parts.statuses(wanted, view.parts.now())]

    def subjects() -> list[dict[str, Any]]:
        """The status of each of its subjects."""
        return _data((part, subject) for subject in part.subjects())

    def subject(subject: Subject) -> dict[str, Any]:
        """Its status."""
        return _data([(part, one_subject(part, subject))])[0]

    def decisions(subject: Subject, before: Before = None, limit: Most = 50, changed: Changed = False) -> DecisionPage:
        """Each with its sentence and the guards that changed it; `/api/v1/decisions/{id}` has everything."""
        name = one_subject(part, subject)
        return view.decisions(name, decision=part.name, before=before, limit=limit, changed_only=changed)

    def decision(decision_id: DecisionId) -> dict[str, Any]:
        """Everything recorded about it, and it in words (`lines`); one of another decision is not found here."""
        owner, record = view.parts.parts.find(decision_id)
        if owner is not part:
            raise UnknownName("decision", decision_id, f"it is not of {part.name}: read /api/v1/decisions/{{id}}")
        explained = part.explain(record)
        return {**explained.data, "lines": list(explained.lines)}

    for path, endpoint, summary in (
        (f"{base}/decisions/{{decision_id}}", decision, f"Why one decision on a {part.subject_word} came out so"),
        (base, subjects, f"Every {part.subject_word}"),
        (f"{base}/{{subject}}", subject, f"One {part.subject_word}"),
        (f"{base}/{{subject}}/decisions", decisions, f"A {part.subject_word}'s decisions, the newest first"),
    ):
        if anonymous(path) not in served:
            router.add_api_route(path, endpoint, methods=["GET"], summary=summary)
    return router


def anonymous(path: str) -> str:
    """Return a route's path without the names of its parameters."""
    return re.sub(r"{[^}]*}", "{}", path)
