"""Liveness, readiness and metrics: what supervisors, load balancers and Prometheus ask for."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Response

from agent.view.records import Health, Readiness
from agent.view.view import AgentView

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_health_router(view: AgentView, exposition: Callable[[], bytes]) -> APIRouter:
    """Return the routes; `exposition` writes the metrics in Prometheus's text format."""
    router = APIRouter(tags=["health"])

    @router.get(
        "/healthz", summary="Does the loop turn?", responses={503: {"model": Health, "description": "It stands still."}}
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
