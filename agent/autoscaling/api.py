"""Routes of fleets: status, VMs, pins, announcements, and the list of their decisions by journal number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import structlog
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from agent.autoscaling import announcements, pins
from agent.autoscaling.announcements import Announced
from agent.autoscaling.view import FleetStatus, fleet_status, fleet_statuses
from agent.kernel.decision import one_subject
from agent.kernel.http import CONFLICT, DIGITS, LARGEST_SEQ, NUMERIC, UNKNOWN, Length, Order, Why
from agent.kernel.leads import with_leaders
from domain.announcements import Announcement
from domain.controls import Pin
from domain.decisions import Decision
from domain.errors import BadInput
from domain.units import DAY_S, MINUTE_S

if TYPE_CHECKING:
    from agent.autoscaling.decision import AutoscalingPart

log = structlog.get_logger(__name__)

FleetName = Annotated[str, Path(description="The fleet's name.", max_length=63, examples=["web"])]


@dataclass(frozen=True, slots=True)
class VmReport:
    """Whether a VM reports: `last_sample_at` is the time of its newest reading, None when it never reported."""

    group: str
    vm: str
    reporting: bool
    last_sample_at: float | None


@dataclass(frozen=True, slots=True)
class ListedDecision:
    """A decision and its number in the journal, without the inputs."""

    seq: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class DecisionPage:
    """Decisions, the newest first; give `next_before_seq` as `before_seq` for older ones, None at the end."""

    decisions: tuple[ListedDecision, ...]
    next_before_seq: int | None


class PinOrder(Order):
    """Keep a fleet, or one of its groups, at a size for a time."""

    size: Annotated[
        int, Field(ge=0, le=100_000, description="VMs of the fleet, or of the group.", examples=[12]), NUMERIC
    ]
    group: Annotated[str | None, Field(max_length=63, description="This group only, by its key.")] = None
    reason: Why
    for_s: Length


class UnpinOrder(Order):
    """Lift the pin, so that the policy decides again."""


class PinResult(BaseModel):
    """The pin that now holds, and the one whose place it took."""

    fleet: str
    pin: Pin
    before: Pin | None


class UnpinResult(BaseModel):
    """Whether there was a pin to lift."""

    fleet: str
    lifted: bool


class AnnouncementOrder(Order):
    """Announce work: so many jobs, about so long, at about this time, within so many minutes."""

    id: Annotated[
        str,
        Field(
            pattern=announcements.ID,
            description="Name of this work; the same request again, with the same id, changes nothing.",
            examples=["nightly-build-2026-11-23"],
        ),
    ]
    at: Annotated[
        Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False), NUMERIC] | None,
        Field(description="When the first job comes, seconds since the epoch; or give `in_minutes`."),
    ] = None
    in_minutes: Annotated[
        Annotated[float, Field(ge=0, le=announcements.LONGEST_AHEAD_S / MINUTE_S, allow_inf_nan=False), NUMERIC] | None,
        Field(description="In how many minutes the first job comes; or give `at`.", examples=[30]),
    ] = None
    jobs: Annotated[int, Field(ge=1, le=announcements.MOST_JOBS, description="How many jobs.", examples=[200]), NUMERIC]
    job_core_s: Annotated[
        float,
        Field(
            gt=0,
            le=announcements.MOST_JOB_CORE_S,
            allow_inf_nan=False,
            description="Mean core-seconds of one of them.",
            examples=[120],
        ),
        NUMERIC,
    ]
    over_minutes: Annotated[
        float,
        Field(
            ge=0,
            le=announcements.LONGEST_OVER_S / MINUTE_S,
            allow_inf_nan=False,
            description="Minutes over which they come, evenly; 0 for all at once.",
        ),
        NUMERIC,
    ] = 0.0


class AnnouncedWork(BaseModel):
    """Work announced for a fleet; `id`, `owner` and `since` are null where the settings announce it."""

    fleet: str
    id: str | None
    at: float
    jobs: int
    job_core_s: float
    over_minutes: float
    owner: str | None
    since: float | None


class AnnouncementResult(BaseModel):
    """The announcement as it is kept, and whether it is new."""

    announced: AnnouncedWork
    new: bool


def create_router(part: AutoscalingPart) -> APIRouter:
    """Return the routes of fleets."""
    router = APIRouter(prefix="/api/v1")
    clock = part.host.clock

    @router.get("/autoscaling", summary="Every fleet", tags=["autoscaling"])
    def fleets() -> list[FleetStatus]:
        """Sizes, queue, cost, the last decision and what holds it, per fleet."""
        found = fleet_statuses(part.store, part.subjects(), clock.now())
        return with_leaders(part.host.ledger, part.name, {one.fleet: one for one in found})

    # Before the routes of a fleet: their pattern would take its name for one.
    _add_announcements(router, part)

    @router.get("/autoscaling/{fleet}", summary="One fleet", responses=UNKNOWN, tags=["autoscaling"])
    def fleet(fleet: FleetName) -> FleetStatus:
        """Sizes, queue, cost, the last decision and what holds it."""
        name = part.one(fleet)
        return with_leaders(part.host.ledger, part.name, {name: fleet_status(part.store, name, clock.now())})[0]

    @router.get(
        "/autoscaling/{fleet}/vms", summary="Which VMs report", responses=UNKNOWN | CONFLICT, tags=["autoscaling"]
    )
    def vms(fleet: FleetName) -> list[VmReport]:
        """Every VM that AWS showed in the last minute, and when it last reported.

        Only the agent that leads the fleet knows that.
        """
        return list(part.vms(fleet))

    @router.get("/decisions", summary="Decisions on fleets, the newest first", deprecated=True, tags=["autoscaling"])
    def decisions(
        fleet: Annotated[str | None, Query(description="This fleet only.", max_length=63, examples=["web"])] = None,
        before_seq: Annotated[
            int | None,
            Query(ge=1, le=LARGEST_SEQ, description="Only those before this number: the next page."),
            DIGITS,
        ] = None,
        limit: Annotated[int, Query(ge=1, le=500, description="Most decisions in the answer."), DIGITS] = 50,
        changed: Annotated[bool, Query(description="Only decisions that caused an action.")] = False,
    ) -> DecisionPage:
        """Each with its proposal, what every rail did to it, and its intents.

        `/api/v1/autoscaling/{fleet}/decisions` takes its place.
        """
        found = part.store.decisions_before(before_seq, fleet=fleet, limit=limit, changed_only=changed)
        listed = tuple(ListedDecision(row.seq, row.decision) for row in found)
        return DecisionPage(listed, listed[-1].seq if len(listed) == limit else None)

    _add_pins(router, part)
    return router


def _work(fleet: str, one: Announcement, made: Announced | None = None) -> AnnouncedWork:
    return AnnouncedWork(
        fleet=fleet,
        id=None if made is None else made.id,
        at=one.at,
        jobs=one.jobs,
        job_core_s=one.job_core_s,
        over_minutes=one.over_s / MINUTE_S,
        owner=None if made is None else made.owner,
        since=None if made is None else made.since,
    )


def _add_announcements(router: APIRouter, part: AutoscalingPart) -> None:
    """Add the routes of announced work; a decision sees what they wrote at the loop's next turn."""
    clock, store = part.host.clock, part.store

    @router.get("/autoscaling/announcements", summary="Announced work", responses=UNKNOWN, tags=["autoscaling"])
    def listed(
        fleet: Annotated[
            str | None, Query(description="Fleet meant; not needed when there is one.", max_length=63, examples=["web"])
        ] = None,
    ) -> list[AnnouncedWork]:
        """What is announced and not over, by time: by orders, and by the settings for the next 24 hours."""
        name, now = one_subject(part, fleet, field="fleet"), clock.now()
        found = announcements.to_come(announcements.kept(store, [name])[name], now)
        made = [_work(name, one.announcement, one) for one in found]
        made += [_work(name, one) for each in part.schedule(name) for one in each.between(now, now + DAY_S)]
        return sorted(made, key=lambda one: (one.at, one.id or ""))

    @router.post(
        "/autoscaling/announcements", summary="Announce work", responses={**UNKNOWN, **CONFLICT}, tags=["control"]
    )
    def announce(order: AnnouncementOrder) -> AnnouncementResult:
        """Say what work will come, so that the fleet is prepared; the same again, with its id, changes nothing."""
        fleet, now = one_subject(part, order.fleet, field="fleet"), clock.now()
        if (order.at is None) == (order.in_minutes is None):
            raise BadInput("at", order.at, "give at or in_minutes, one of the two")
        at = now + order.in_minutes * MINUTE_S if order.in_minutes is not None else order.at
        assert at is not None
        told = Announcement(at, order.jobs, order.job_core_s, order.over_minutes * MINUTE_S)
        made = Announced(order.id, told, order.owner, now, order.in_minutes)
        found, new = announcements.announce(store, fleet, made)
        log.info("announced", fleet=fleet, id=order.id, jobs=order.jobs, owner=order.owner, new=new)
        return AnnouncementResult(announced=_work(fleet, found.announcement, found), new=new)

    @router.delete(
        "/autoscaling/announcements/{announcement_id}", summary="Withdraw work", responses=UNKNOWN, tags=["control"]
    )
    def withdraw(
        announcement_id: Annotated[str, Path(description="The id of the announcement.", max_length=100)],
        owner: Annotated[
            str, Query(description="Name of the requester, for the journal.", min_length=1, max_length=100)
        ],
        fleet: Annotated[
            str | None, Query(description="Fleet meant; not needed when there is one.", max_length=63, examples=["web"])
        ] = None,
    ) -> AnnouncedWork:
        """Take an announcement back. What the settings announce is taken out of the settings."""
        name, now = one_subject(part, fleet, field="fleet"), clock.now()
        gone = announcements.withdraw(store, name, announcement_id, owner=owner, now=now)
        log.info("announcement_withdrawn", fleet=name, id=announcement_id, owner=owner)
        return _work(name, gone.announcement, gone)


def _add_pins(router: APIRouter, part: AutoscalingPart) -> None:
    """Add the routes that switch; the loop heeds what they wrote at its next turn."""
    ledger, clock = part.host.ledger, part.host.clock

    @router.post("/pin", summary="Keep a size", responses=UNKNOWN, tags=["control"])
    def pin(order: PinOrder) -> PinResult:
        """Keep a fleet or one group at a size for a time; a pause stands before it."""
        fleet = one_subject(part, order.fleet, field="fleet")
        done = pins.pin(
            part.store,
            fleet,
            order.size,
            group=order.group,
            owner=order.owner,
            reason=order.reason,
            now=clock.now(),
            lasting_s=order.for_s,
        )
        log.info("pinned", fleet=fleet, desired=dict(done.pin.desired), owner=order.owner)
        return PinResult(fleet=fleet, pin=done.pin, before=done.before)

    @router.post("/unpin", summary="Let the policy decide the size again", responses=UNKNOWN, tags=["control"])
    def unpin(order: UnpinOrder) -> UnpinResult:
        """Lift the pin."""
        fleet = one_subject(part, order.fleet, field="fleet")
        lifted = pins.unpin(ledger, fleet, owner=order.owner, now=clock.now())
        log.info("unpinned", fleet=fleet, owner=order.owner)
        return UnpinResult(fleet=fleet, lifted=lifted)
