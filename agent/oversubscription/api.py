"""Routes of overselling: a pool's rates with reasons and risk, the rate for one request, and the way back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from agent.kernel.decision import Services
from agent.kernel.http import CONFLICT, DIGITS, UNKNOWN, Body
from agent.kernel.leads import with_leaders
from agent.ledger import Ledger
from agent.oversubscription.pool import Pool, PoolView
from agent.oversubscription.records import LONGEST, HourDecision, PoolName, RateDecision, RateRequest
from agent.oversubscription.state import OVERSUBSCRIPTION, OversubscriptionStore


class RearmOrder(Body):
    """Somebody who has looked into it lets the rates of a rolled-back pool go down again."""

    pool: PoolName = None
    by: Annotated[str, Field(min_length=1, max_length=LONGEST, description="Name of the operator.", examples=["ada"])]
    reason: Annotated[str, Field(min_length=1, max_length=500, description="Why it is safe again.")]


def create_router(pools: Services[Pool], store: OversubscriptionStore, ledger: Ledger) -> APIRouter:
    """Return the routes of overselling."""
    router = APIRouter(prefix="/api/v1/oversubscription", tags=["oversubscription"])

    @router.get("", summary="Every pool: rates, reasons and risk")
    def list_pools() -> list[PoolView]:
        """The newest hour of each pool, what was counted, and how publishing its rates has gone."""
        return with_leaders(ledger, OVERSUBSCRIPTION, {name: pool.view() for name, pool in sorted(pools.items())})

    # Before the routes with a pool's name, which would take these words for one.
    @router.post("/requests", summary="Which rate may this VM have?", responses=UNKNOWN | CONFLICT)
    def request(order: RateRequest) -> RateDecision:
        """Decide, record and answer: the rate, the machine it was judged on, its risk, and why."""
        return pools.one(order.pool).request(order)

    @router.post("/rearm", summary="Let the rates of a rolled-back pool go down again", responses=UNKNOWN | CONFLICT)
    def rearm(order: RearmOrder) -> PoolView:
        """Recorded with who and why; hot hours from before no longer count."""
        found = pools.one(order.pool).rearm(order.by, order.reason)
        return with_leaders(ledger, OVERSUBSCRIPTION, {found.pool: found})[0]

    @router.get("/{pool}", summary="One pool", responses=UNKNOWN)
    def one(pool: Annotated[str, Path(max_length=63, description="The pool's name.")]) -> PoolView:
        """Its newest hour, what was counted, and how publishing its rates has gone."""
        return with_leaders(ledger, OVERSUBSCRIPTION, {pool: pools.one(pool).view()})[0]

    @router.get("/{pool}/rates", summary="A pool's decisions", responses=UNKNOWN)
    def decisions(
        pool: Annotated[str, Path(max_length=63, description="The pool's name.")],
        limit: Annotated[int, Query(ge=1, le=500, description="Most decisions in the answer."), DIGITS] = 20,
        kind: Annotated[str | None, Query(pattern="^(hour|request)$", description="Only those of this kind.")] = None,
    ) -> list[HourDecision | RateDecision]:
        """On hours and on requests, the newest first."""
        return list(store.newest(pools.one(pool).rules.name, limit, kind))

    return router
