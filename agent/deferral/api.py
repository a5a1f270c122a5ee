"""Routes of deferral: jobs are submitted, cancelled and explained; capacity is posted, drains are ordered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from agent.deferral.look import LONGEST, CapacityForecast, JobExplained, PoolView
from agent.deferral.records import (
    LONGEST_ID,
    MOST_CORES,
    CancellationResult,
    Drain,
    JobOrder,
    JobRecord,
    Moment,
    Report,
    Stage,
    SubmissionResult,
)
from agent.kernel.controls import checked_owner, checked_reason
from agent.kernel.http import CONFLICT, DIGITS, LARGEST_SEQ, NUMERIC, UNKNOWN, Body, Owner, Why
from agent.kernel.leads import with_leaders

if TYPE_CHECKING:
    from agent.deferral.decision import DeferralPart

PoolPath = Annotated[str, Path(max_length=63, description="The pool's name.", examples=["night"])]
JobPath = Annotated[str, Path(max_length=LONGEST_ID, description="The job's id.", examples=["night-17"])]
MOST_LISTED = 5000


class JobOfPool(JobOrder):
    """A job, and the pool meant."""

    pool: Annotated[
        str | None, Field(max_length=63, description="Pool meant; not needed when there is one.", examples=["night"])
    ] = None


class CancelOrder(Body):
    """A job is taken back."""

    by: Annotated[str, Field(max_length=LONGEST_ID, description="Name of the requester, for the record.")] = ""


class CapacityOrder(Body):
    """Cores that other work leaves over."""

    cores: Annotated[
        float,
        Field(ge=0, le=MOST_CORES, allow_inf_nan=False, description="Including the cores of deferred jobs."),
        NUMERIC,
    ]
    at: Annotated[Moment | None, Field(description="When that was so, in epoch seconds; not given: now.")] = None
    by: Annotated[str, Field(max_length=LONGEST_ID, description="Name of the reporter, for the record.")] = ""


class DrainOrder(Body):
    """No job may run beyond a time."""

    by_at: Annotated[Moment | None, Field(description="In epoch seconds; not given: every job may start again.")] = None
    owner: Owner
    reason: Why


def create_router(part: DeferralPart) -> APIRouter:
    """Return the routes of deferral."""
    router = APIRouter(prefix="/api/v1/deferral", tags=["deferral"])
    pools = part.pools

    @router.get("/pools", summary="Every pool")
    def list_pools() -> list[PoolView]:
        """Capacity, what runs and waits, and how the policies fare."""
        return with_leaders(part.host.ledger, part.name, {name: pool.view() for name, pool in sorted(pools.items())})

    @router.get("/pools/{pool}", summary="One pool", responses=UNKNOWN)
    def one(pool: PoolPath) -> PoolView:
        """Capacity, what runs and waits, and how the policies fare."""
        return with_leaders(part.host.ledger, part.name, {pool: pools.one(pool).view()})[0]

    @router.post("/jobs", summary="A job may wait, of a pool named in the body", responses=UNKNOWN | CONFLICT)
    def submit_to(order: JobOfPool) -> SubmissionResult:
        """As `/pools/{pool}/jobs`."""
        return pools.one(order.pool).submit(order)

    @router.post("/pools/{pool}/jobs", summary="A job may wait", responses=UNKNOWN | CONFLICT)
    def submit(pool: PoolPath, order: JobOrder) -> SubmissionResult:
        """Record a job, to be started in its window. The same id with the same content gets the same answer.

        It is started at most once a step, in the steps that begin in its window; then it runs to its end.
        """
        return pools.one(pool).submit(order)

    @router.get("/pools/{pool}/jobs", summary="Jobs", responses=UNKNOWN)
    def jobs(
        pool: PoolPath,
        stage: Annotated[Stage | None, Query(description="Only those in this stage.")] = None,
        since_step: Annotated[int | None, Query(ge=0, description="Only those started in this step or later.")] = None,
        after: Annotated[
            int, Query(ge=0, le=LARGEST_SEQ, description="Only jobs of a larger number than this."), DIGITS
        ] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED, description="Most jobs in the answer."), DIGITS] = 500,
    ) -> list[JobRecord]:
        """In the order of their submission; go on after the last one's number. Workers without a queue read here."""
        return pools.one(pool).jobs(stage, since_step, after)[:limit]

    @router.get("/pools/{pool}/jobs/{job_id}", summary="One job", responses=UNKNOWN)
    def job(pool: PoolPath, job_id: JobPath) -> JobRecord:
        """Its window, how far it has come, and the decision that started it."""
        return pools.one(pool).job(job_id)

    @router.post("/pools/{pool}/jobs/{job_id}/cancel", summary="Take a job back", responses=UNKNOWN | CONFLICT)
    def cancel(pool: PoolPath, job_id: JobPath, order: CancelOrder) -> CancellationResult:
        """A waiting job never starts. Of a running one the cores are free from the next step on; end it yourself."""
        return pools.one(pool).cancel(job_id, order.by)

    @router.get("/pools/{pool}/jobs/{job_id}/explain", summary="Why does it wait?", responses=UNKNOWN)
    def explain(pool: PoolPath, job_id: JobPath) -> JobExplained:
        """Its score and rank in the newest decision, the first step it is expected to start in, what it waits for."""
        return pools.one(pool).explain(job_id)

    @router.get("/pools/{pool}/forecast", summary="Cores to expect", responses=UNKNOWN)
    def forecast(
        pool: PoolPath,
        steps: Annotated[int, Query(ge=1, le=LONGEST, description="Steps from the next one on."), DIGITS] = 24,
    ) -> CapacityForecast:
        """Left-over cores that are forecast, those that deferred jobs use included; none before the first step."""
        return pools.one(pool).forecast(steps)

    @router.post("/pools/{pool}/capacity", summary="Cores are left over", responses=UNKNOWN | CONFLICT)
    def report(pool: PoolPath, order: CapacityOrder) -> Report:
        """Used by the next decision, and for one step. A pool that reads its capacity elsewhere refuses it."""
        return pools.one(pool).report(order.cores, order.at, order.by)

    @router.post("/pools/{pool}/drain", summary="No job may run beyond a time", responses=UNKNOWN | CONFLICT)
    def drain(pool: PoolPath, order: DrainOrder) -> Drain | None:
        """Start no job that would; those that run go on. Without `by_at` every job may start again."""
        owner, reason = checked_owner(order.owner), checked_reason(order.reason)
        return pools.one(pool).drain(order.by_at, owner, reason)

    return router
