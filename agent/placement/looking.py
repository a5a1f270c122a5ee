"""What would be on a pool: hosts that requests would get, room for an application, scores; nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.placement.book import Book
from agent.placement.choosing import Chooser
from agent.placement.records import Candidate, PlaceRequest, check_request
from agent.placement.shared import SharedBook
from domain.errors import BadInput
from domain.rules.placement.cluster import explain
from domain.rules.placement.repacking import plan_repacking

WHAT_IF_MOST: Final = 200
CAPACITY_ENDLESS: Final = 1_000_000
"""What `capacity_for` says of a pool with a type of hosts without bound, which takes the application."""


@dataclass(frozen=True, slots=True)
class WouldBe:
    """The hosts that a request would get now. unplaced: how many of its containers none could take, and why."""

    application: str
    count: int
    hosts: tuple[str, ...]
    opened: int
    unplaced: int
    infeasible: Mapping[str, int]
    policy: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A list of requests placed one after the other on a copy, and the open hosts before and after."""

    pool: str
    requests: tuple[WouldBe, ...]
    open_before: int
    open_after: int


@dataclass(frozen=True, slots=True)
class Room:
    """How many more containers of an application fit now. without_bound: a type of hosts has no number."""

    pool: str
    application: str
    containers: int
    without_bound: bool
    infeasible: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a container of an application would be placed where: the best hosts, and those that could not take it."""

    pool: str
    application: str
    count: int
    policy: str
    best: tuple[Candidate, ...]
    infeasible: Mapping[str, int]


def what_if(shared: SharedBook, asked: Sequence[tuple[str, int, bool]]) -> WhatIf:
    """Place (application, count, partial) one after the other on a copy; nothing is reserved or recorded."""
    if not 1 <= len(asked) <= WHAT_IF_MOST:
        raise BadInput("requests", len(asked), f"give 1 to {WHAT_IF_MOST} requests")
    with shared.lock:
        book = shared.current().copy()
    for application, count, _ in asked:
        check_request(PlaceRequest(shared.name, "what-if", application, count))
        book.app(application)
    before, answers = book.cluster.open_hosts, [_would_be(shared.chooser, book, *one) for one in asked]
    return WhatIf(shared.name, tuple(answers), before, book.cluster.open_hosts)


def _would_be(chooser: Chooser, book: Book, application: str, count: int, partial: bool) -> WouldBe:
    chosen = chooser.place(book.cluster, application, count, partial=partial, spare=book.spare)
    names = tuple(book.cluster.hosts[choice.host].name for choice in chosen.choices)
    opened = sum(choice.is_new for choice in chosen.choices)
    left = count - len(names)
    return WouldBe(application, count, names, opened, left, chosen.infeasible if left else {}, chosen.policy.name)


def capacity_for(shared: SharedBook, application: str) -> Room:
    """Return how many more containers of an application fit now."""
    with shared.lock:
        book = shared.current()
        app = book.app(application)
        fits, reasons = book.cluster.capacity_for(app), book.cluster.reasons(app)
        one = book.cluster.applications[app]
        without = book.endless and any(
            kind.count is None and all(map(int.__le__, one.demand, kind.capacity)) and one.label in ("", kind.label)
            for kind in book.instance.hosts
        )
    counted = {reason.value: number for reason, number in reasons.items()}
    return Room(shared.name, application, CAPACITY_ENDLESS if without else fits, without, counted)


def explained(shared: SharedBook, application: str, count: int = 1) -> Reasons:
    """Return the five best hosts for a container now, with the terms of their scores."""
    check_request(PlaceRequest(shared.name, "explain", application, count))
    with shared.lock:
        book = shared.current()
        app = book.app(application)
        policy = shared.chooser.policy_for(application)
        found = explain(book.cluster, policy, app, count)
        best = tuple(Candidate(book.cluster.hosts[host].name, score, terms) for host, score, terms in found)
        reasons = {reason.value: number for reason, number in book.cluster.reasons(app).items()}
    return Reasons(shared.name, application, count, policy.name, best, reasons)


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A container that should go to another host. request_id, container: "" and -1 for one that the inventory lists.

    why: `cure` (it runs against a rule), `room` (it makes room for the next move), or `empty`. closed: hosts that are
    empty once the plan is done up to this move.
    """

    request_id: str
    container: int
    application: str
    source: str
    target: str
    why: str
    closed: int


@dataclass(frozen=True, slots=True)
class RepackPlan:
    """Moves in their order: any beginning of them keeps every rule. Nothing is moved by it.

    open_hosts: now; closed: of them, empty at the end. violations: what runs against a rule and finds no other host.
    """

    pool: str
    moves: tuple[PlannedMove, ...]
    open_hosts: int
    closed: int
    violations: int


def plan_repack(shared: SharedBook, budget: int) -> RepackPlan:
    """Return at most so many moves that end violations and then empty hosts; BadInput for a budget below 0."""
    with shared.lock:
        book = shared.current()
        cluster = book.cluster.copy()
        where = {
            (one.request_id, int(index)): (one.application, host)
            for one in book.reservations.values()
            for index, host in one.hosts.items()
        }
    plan = plan_repacking(cluster, budget)
    moves = []
    for move in plan.moves:
        app, source, target = cluster.applications[move.application].name, move.source, move.target
        there = (app, cluster.hosts[source].name)
        request_id, index = min((key for key, held in where.items() if held == there), default=("", -1))
        if index >= 0:
            where[request_id, index] = (app, cluster.hosts[target].name)
        moves.append(PlannedMove(request_id, index, *there, cluster.hosts[target].name, move.why, move.closed))
    return RepackPlan(shared.name, tuple(moves), plan.hosts, plan.closed, plan.violations)


def judge(shared: SharedBook, application: str, names: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the scores of those of these hosts that can take a container, and why each other one cannot."""
    with shared.lock:
        book = shared.current()
        app = book.app(application)
        cluster, wanted = book.cluster, {}
        failed: dict[str, str] = {}
        for name in names:
            index = book.find(name)
            obstacle = None if index is None else cluster.allows(index, app)
            if index is None:
                failed[name] = f"not a host of the pool {shared.name}"
            elif obstacle is not None:
                failed[name] = obstacle.value
            else:
                wanted[name] = index
        scores = shared.chooser.scores(cluster, application, list(wanted.values()))
    return dict(zip(wanted, scores, strict=True)), failed
