"""The answer to a request: its hosts with the reasons, in words too, and the reservation that it makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from agent.placement.book import Book
from agent.placement.choosing import HostChoice
from agent.placement.records import (
    Candidate,
    ContainerPlacement,
    HintSource,
    PlacementDecision,
    PlaceRequest,
    Reservation,
    Stage,
    hosts_text,
    most_common,
)
from domain.decisions import Reason
from domain.rules.placement.cluster import DIGEST_EVERY, Choice, Cluster
from domain.rules.placement.mix import outside

MOST_FREE: Final = 0.05
"""A container that finds no host while a larger share of the cores is free raises an alarm."""


def decision_on(
    request: PlaceRequest,
    chosen: HostChoice,
    book: Book,
    now: float,
    number: int,
    revision: int,
    *,
    hint: tuple[float | None, HintSource],
    confirm_within_s: float | None,
    pending: Callable[[], float],
    began: float,
) -> PlacementDecision:
    """Return the answer to a request that was placed on the book, or was not.

    number: of the decision; revision: of the pool with it. hint: expected seconds of each container, and their source.
    confirm_within_s: the time of its reservation, None where it
    is advice alone. pending: returns the cores that the pool's fleet waits for. began: when choosing began, by
    `time.perf_counter`.
    """
    advice = confirm_within_s is None
    cluster, policy = book.cluster, chosen.policy.name
    placed = tuple(_placed(cluster, k, choice, policy) for k, choice in enumerate(chosen.choices))
    unplaced = request.count - len(placed)
    reason = Reason.PLACED if not unplaced else Reason.PLACED_IN_PART if placed else Reason.NO_HOST
    opened = sum(one.opened for one in placed)
    what = f"{request.count} x {request.application}"
    if placed:
        detail = f"{len(placed)} of {what} on {hosts_text(placed)}" if unplaced else f"{what} on {hosts_text(placed)}"
        detail += f", {opened} of them opened" if opened else ""
    else:
        detail = f"{what}: not all of them fit, and none is placed"
    if unplaced:
        counted = ", ".join(f"{why} {n}" for why, n in chosen.infeasible.items()) or "the pool has no hosts"
        detail += f"; {unplaced} found no host ({counted})"
        coming = pending()
        detail += f"; {coming:g} cores are on their way" if coming else ""
    mix = chosen.policy.training.mix if chosen.policy.training is not None else None
    live = ~cluster.drained & ~cluster.failed
    free = (cluster.capacity[0] - cluster.used[0])[live]
    return PlacementDecision(
        decision_id=f"{request.pool}-p{number}",
        pool=request.pool,
        at=now,
        request_id=request.request_id,
        application=request.application,
        count=request.count,
        partial=request.partial,
        fingerprint=request.fingerprint,
        reason=reason,
        detail=f"advice: {detail}" if advice else detail,
        policy=policy,
        containers=placed,
        best=tuple(Candidate(cluster.hosts[k].name, score, terms) for k, score, terms in chosen.best),
        unplaced=unplaced,
        infeasible=chosen.infeasible,
        until=now + confirm_within_s if placed and confirm_within_s is not None else None,
        advice=advice,
        replaced=chosen.replaced,
        open_hosts=cluster.open_hosts,
        free_cores=int(free[free > 0].sum()),
        evaluation_us=round(1e6 * (time.perf_counter() - began)),
        revision=revision,
        digest=cluster.digest() if number % DIGEST_EVERY == 0 else "",
        requested_by=request.requested_by,
        lifetime_s=hint[0],
        lifetime_from=hint[1],
        lifetime=chosen.lifetime,
        policy_digest=chosen.policy.digest,
        outside=() if mix is None else outside(book.application(request.application), request.count, mix),
    )


def reservation_of(request: PlaceRequest, made: PlacementDecision) -> Reservation:
    """Return what a request holds once it was placed."""
    return Reservation(
        request.request_id,
        request.application,
        made.decision_id,
        made.at,
        Stage.RESERVED,
        made.until or made.at,
        {str(one.index): one.host for one in made.containers},
        requested_by=request.requested_by,
        lifetime_s=made.lifetime_s,
    )


def refusal_alarm(book: Book, made: PlacementDecision) -> str:
    """Return the alarm on containers that found no host while many cores are free, "" where few are."""
    figures = book.figures()
    if figures.free_share <= MOST_FREE:
        return ""
    return (
        f"{made.unplaced} of {made.count} containers of {made.application} found no host while "
        f"{figures.free_share:.0%} of the cores are free: {most_common(made.infeasible)} keeps most hosts"
    )


def _placed(cluster: Cluster, index: int, choice: Choice, policy: str) -> ContainerPlacement:
    other = choice.runner_up >= 0
    return ContainerPlacement(
        index,
        cluster.hosts[choice.host].name,
        choice.score,
        cluster.hosts[choice.runner_up].name if other else None,
        choice.runner_up_score if other else None,
        choice.feasible,
        choice.is_new,
        policy,
    )
