"""Questions to one pool, which change nothing: its figures, hosts and applications, and what a request would get.

What is in memory is what the ledger has as of a head. Each question reads the head, and the pool where it is another.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial as partial_of
from typing import Final

from agent.kernel.decision import Capacity
from agent.kernel.leads import Led
from agent.ledger import Ledger
from agent.placement.advice import PolicyAdvice
from agent.placement.book import Book, Figures, HostView
from agent.placement.choosing import Chooser, HostChoice, lifetime_reason
from agent.placement.curves import CURVE_DAYS_S, CURVES_EVERY_S, MOST_ENDS, LifeCurve, curves_of
from agent.placement.records import (
    Candidate,
    HostRecord,
    HostState,
    LifetimeReason,
    Origin,
    PlacementDecision,
    PlaceRequest,
    PoolHead,
    Reservation,
    check_request,
)
from agent.placement.settings import PlacementSettings
from agent.placement.state import PlacementStore
from domain.clock import Clock
from domain.decisions import Event, Mode
from domain.errors import BadInput, UnknownName
from domain.rules.placement.cluster import Cluster, explain, scored
from domain.rules.placement.coupling import resumed
from domain.rules.placement.instance import Application, Instance
from domain.rules.placement.lifetimes import LifetimeRule, rule_of
from domain.rules.placement.repacking import plan_repacking
from domain.units import HOUR_S

WHAT_IF_MOST: Final = 200
CAPACITY_ENDLESS: Final = 1_000_000
"""What `capacity_for` says of a pool with a type of hosts without bound, which takes the application."""


@dataclass(frozen=True, slots=True)
class LifetimeFigures:
    """The calibration of expected lifetimes, by the containers that ended: ln life = a + b ln expected, deviation s.

    observations: effective number, with the 20 of the begin. rule: of `lifetime` for a container with an expectation.
    """

    rule: LifetimeRule
    observations: float
    a: float
    b: float
    s: float
    r2: float


@dataclass(frozen=True, slots=True)
class PoolView(Led):
    """A pool now. problem: what a person should look into, "" for nothing. pending: cores that its fleet waits for.

    reserved: cores of containers that are not confirmed. policy: what decides, by name. training_distance: how far the
    last day's requests and the hosts lie from those that it was trained on, by part, from 0 to 1; empty where that is
    not known. host_hours: of open hosts. advice: on the policy in force, None where its record was not replayed.
    """

    pool: str
    mode: Mode
    at: float
    policy: str
    figures: Figures
    head: PoolHead
    reservations: int
    unconfirmed: int
    reserved_cores: int
    pending_cores: float
    decision_ms: float
    problem: str
    host_hours: float
    lifetimes: LifetimeFigures
    training_distance: Mapping[str, float] = field(default_factory=dict)
    advice: PolicyAdvice | None = None


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """An application of a pool: what a container needs, where it may be, its source, and how many containers it has.

    excludes: those that must not share a host with it, whichever side names the other. rack_limit: None without bound.
    containers: that run or are reserved. lifetime_s: of a container whose request declares none, None for no default.
    survival: None before the first of its containers was released.
    """

    application: str
    cores: int
    memory_gib: int
    disk_gb: int
    limit: int
    excludes: tuple[str, ...]
    rack_limit: int | None
    label: str
    origin: Origin
    containers: int
    lifetime_s: float | None = None
    survival: LifeCurve | None = None


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
    lifetime: LifetimeReason | None = None
    survival: LifeCurve | None = None


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


class PoolQueries:
    """Questions to one pool; any thread may ask. Each raises LedgerUnavailable when the ledger cannot be used.

    head: as it was read or written last. problem: why the inventory or the fleet cannot be read, "" when they can.
    training_distance: see PoolView. fleet: returns the capacity of the pool's fleet, None where that is not known.
    leads: whether this process removes the fleet's VMs; no other process may let surplus hosts take containers, as a
    call that removes one may be under way.
    """

    def __init__(
        self,
        name: str,
        settings: PlacementSettings,
        ledger: Ledger,
        clock: Clock,
        chooser: Chooser,
        mode: Mode = Mode.ACT,
        fleet: Callable[[], Capacity | None] = lambda: None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name, self.settings, self.ledger, self.clock = name, settings, ledger, clock
        self.chooser, self.mode, self.fleet, self.leads = chooser, mode, fleet, leads
        self.store = PlacementStore(ledger)
        self.head = PoolHead()
        self.problem = ""
        self.training_distance: Mapping[str, float] = {}
        self.decision_ms = 0.0
        self._lock = threading.RLock()
        # Whether the fleet asked which VMs may go, and its hosts were not read since.
        self._may_go = False
        # What was recorded since the alarms were taken.
        self._notes: deque[Event] = deque()
        self._book: Book | None = None
        self._stored: bytes | None = None
        self._curves: tuple[float, Mapping[str, LifeCurve]] = (-math.inf, {})
        self._making = threading.Lock()
        # By request and decision, when this process first saw the reservation: monotonic seconds.
        self._first_seen: dict[tuple[str, str], float] = {}

    def current(self) -> Book:
        """Return the pool as the ledger has it now."""
        stored = self.store.stored_head(self.name)
        if self._book is None or stored != self._stored:
            state = self.store.read(self.name)
            self._book, self.head, self._stored = Book(state), state.head, state.stored
            at = self.clock.monotonic()
            for one in self._book.unconfirmed.values():
                self._first_seen.setdefault(one.key, at)
            self.chooser.follow(state.head)
        return self._book

    def pending(self) -> float:
        """Return the cores that the pool's fleet waits for."""
        found = self.fleet()
        return 0.0 if found is None else found.pending

    def view(self) -> PoolView:
        """Return the pool now."""
        pending_cores = self.pending()
        with self._lock:
            book = self.current()
            unconfirmed = list(book.unconfirmed.values())
            now, lives = self.clock.now(), book.cluster.lives
            fit = lives.fit
            rule = rule_of(fit, hinted=True)
            found = PoolView(
                self.name,
                self.mode,
                now,
                self.chooser.in_force.name,
                book.figures(),
                self.head,
                len(book.reservations),
                len(unconfirmed),
                sum(len(one.hosts) * book.application(one.application).demand[0] for one in unconfirmed),
                pending_cores,
                self.decision_ms,
                "",
                self.head.host_seconds(now) / HOUR_S,
                LifetimeFigures(rule, float(lives.sums[0]), fit.a, fit.b, fit.residual, fit.r2),
                self.training_distance,
            )
        # A directory that does not answer keeps no request waiting.
        advice, unread = self.chooser.advice()
        problem = "; ".join(text for text in (self.problem, self.chooser.problems(), unread) if text)
        return replace(found, problem=problem, advice=advice)

    def hosts(self) -> list[HostView]:
        """Return every host."""
        with self._lock:
            return self.current().hosts()

    def host_records(self) -> dict[str, HostRecord]:
        """Return the hosts of which something is recorded."""
        with self._lock:
            return dict(self.current().records)

    def held_cores(self, origin: Origin) -> tuple[tuple[str, str, float], ...]:
        """Return name, label and cores that containers hold of each host of an origin that has not failed."""
        with self._lock:
            book = self.current()
            return tuple(
                (one.name, one.label, float(book.cluster.used[0][book.cluster.host(one.name)]))
                for one in book.records.values()
                if one.origin is origin and one.state is not HostState.FAILED
            )

    def retained(self) -> frozenset[str]:
        """Return the VMs of the pool's fleet that take containers or have some; the others may go until `follow`."""
        with self._lock:
            self._may_go = True
            book = self.current()
            return frozenset(
                one.name
                for one in book.records.values()
                if one.origin is Origin.FLEET
                and (one.state is HostState.UP or book.cluster.containers[book.cluster.host(one.name)] > 0)
            )

    def _surplus(self, book: Book) -> list[int]:
        """Return the hosts that drain for the fleet and whose VMs no call can be removing, by index."""
        if self._may_go or self.mode is not Mode.ACT or not self.leads():
            return []
        found = [one.name for one in book.records.values() if one.surplus and one.state is HostState.DRAINING]
        fleet = self.fleet() if found else None
        return [] if fleet is None else [book.cluster.host(name) for name in found if name not in fleet.victims]

    def _place(
        self, book: Book, application: str, keys: Sequence[Hashable], *, partial: bool
    ) -> tuple[HostChoice, dict[str, HostRecord]]:
        """Place containers on the cluster, on surplus hosts too where they do not all fit elsewhere.

        Return the choice, and the records of hosts that take containers again with it. The lock is held: the fleet asks
        for `retained` before each call that removes a VM, and waits for the answer.
        """
        place = partial_of(self.chooser.place, book.cluster, application, keys, spare=book.spare)
        if not any(one.surplus for one in book.records.values()):
            return place(partial=partial), {}
        chosen = place(partial=False)
        if chosen.choices:
            return chosen, {}
        surplus = self._surplus(book)
        with resumed(book.cluster, surplus):
            chosen = place(partial=partial)
        taken = {book.cluster.hosts[choice.host].name for choice in chosen.choices if choice.host in surplus}
        return chosen, {name: replace(book.records[name], state=HostState.UP, surplus=False) for name in sorted(taken)}

    def cores_of(self) -> dict[str, int]:
        """Return the cores that one container of each application needs."""
        with self._lock:
            return {one.name: one.demand[0] for one in self.current().cluster.applications}

    def curves(self) -> Mapping[str, LifeCurve]:
        """Return the survival curves by application, made again every CURVES_EVERY_S; no decision waits for them.

        One thread makes them; the others meanwhile get those of before.
        """
        at, now = self.clock.monotonic(), self.clock.now()
        if at - self._curves[0] < CURVES_EVERY_S or not self._making.acquire(blocking=False):
            return self._curves[1]
        try:
            with self._lock:
                book = self.current()
                running, known = tuple(book.reservations.values()), {one.name: one for one in book.cluster.applications}
            since = now - CURVE_DAYS_S
            over, since = self.store.lives_between(self.name, since, now + 1.0, MOST_ENDS)
            self._curves = at, curves_of(over, running, known, since, now)
        finally:
            self._making.release()
        return self._curves[1]

    def applications(self) -> list[ApplicationView]:
        """Return every application, by name."""
        curves = self.curves()
        with self._lock:
            book, held = self.current(), Counter[str]()
            for one in book.reservations.values():
                held[one.application] += len(one.hosts)
            known = sorted(book.cluster.applications, key=lambda app: app.name)
            return [_view(book, app, held[app.name], curves) for app in known]

    def application(self, name: str) -> ApplicationView:
        """Return an application; UnknownName."""
        curves = self.curves()
        with self._lock:
            book = self.current()
            return _view(book, book.application(name), book.containers(name), curves)

    def application_of(self, name: str) -> Application:
        """Return an application of the pool; UnknownName."""
        with self._lock:
            return self.current().application(name)

    def reservations(self) -> tuple[Reservation, ...]:
        """Return what is reserved or runs, by request id."""
        with self._lock:
            return tuple(one for _, one in sorted(self.current().reservations.items()))

    def reservation(self, request_id: str) -> tuple[PlacementDecision, Reservation | None]:
        """Return what was decided on a request, and what it holds now; UnknownName."""
        decision = self._known(request_id)
        with self._lock:
            return decision, self.current().reservations.get(request_id)

    def _known(self, request_id: str) -> PlacementDecision:
        found = self.store.decision(self.name, request_id)
        if found is None:
            raise UnknownName(
                "request_id", request_id, f"the pool {self.name} has no request of this id; observe mode keeps none"
            )
        return found

    def snapshot(self) -> tuple[Cluster, Instance, tuple[Reservation, ...]]:
        """Return a copy of the cluster, the inventory it is of, and what is reserved or runs on it: of one moment."""
        with self._lock:
            book = self.current()
            return book.cluster.copy(), book.instance, tuple(book.reservations.values())

    def what_if(self, asked: Sequence[PlaceRequest]) -> WhatIf:
        """Place requests one after the other on a copy; nothing is reserved or recorded, and no id is used."""
        if not 1 <= len(asked) <= WHAT_IF_MOST:
            raise BadInput("requests", len(asked), f"give 1 to {WHAT_IF_MOST} requests")
        with self._lock:
            book, now = self.current().copy(), self.clock.now()
        hints = []
        for one in asked:
            check_request(one)
            hints.append(one.hint(book.application(one.application), now)[0])
        before = book.cluster.open_hosts
        answers = [self._would_be(book, number, one, hints[number], now) for number, one in enumerate(asked)]
        return WhatIf(self.name, tuple(answers), before, book.cluster.open_hosts)

    def _would_be(self, book: Book, number: int, one: PlaceRequest, hint: float | None, now: float) -> WouldBe:
        application, count = one.application, one.count
        book.cluster.declare(hint, now)
        # A request of the pool has no number for an id.
        keys = [(number, index) for index in range(count)]
        chosen, _ = self._place(book, application, keys, partial=one.partial)
        names = tuple(book.cluster.hosts[choice.host].name for choice in chosen.choices)
        opened = sum(choice.is_new for choice in chosen.choices)
        left = count - len(names)
        return WouldBe(application, count, names, opened, left, chosen.infeasible if left else {}, chosen.policy.name)

    def capacity_for(self, application: str) -> Room:
        """Return how many more containers of an application fit now."""
        with self._lock:
            book = self.current()
            app = book.app(application)
            with resumed(book.cluster, self._surplus(book)):
                fits, reasons = book.cluster.capacity_for(app), book.cluster.reasons(app)
            one = book.cluster.applications[app]
            without = book.endless and any(
                kind.count is None and all(map(int.__le__, one.demand, kind.capacity)) and one.label in ("", kind.label)
                for kind in book.instance.hosts
            )
        counted = {reason.value: number for reason, number in reasons.items()}
        return Room(self.name, application, CAPACITY_ENDLESS if without else fits, without, counted)

    def explained(self, application: str, count: int = 1, lifetime_s: float | None = None) -> Reasons:
        """Return the five best hosts for a container now, with the terms of their scores."""
        one = PlaceRequest(self.name, "explain", application, count, lifetime_s=lifetime_s)
        check_request(one)
        with self._lock:
            book, now = self.current(), self.clock.now()
            app = book.app(application)
            book.cluster.declare(one.hint(book.application(application), now)[0], now)
            policy = self.chooser.policy_for(application)
            found = explain(scored(book.cluster, policy, app, count))
            best = tuple(Candidate(book.cluster.hosts[host].name, score, terms) for host, score, terms in found)
            reasons = {reason.value: number for reason, number in book.cluster.reasons(app).items()}
            lifetime = lifetime_reason(book.cluster, policy, found)
        curve = self.curves().get(application)
        return Reasons(self.name, application, count, policy.name, best, reasons, lifetime, curve)

    def plan_repack(self, budget: int) -> RepackPlan:
        """Return at most so many moves that end violations and then empty hosts; BadInput for a budget below 0."""
        with self._lock:
            book = self.current()
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
        return RepackPlan(self.name, tuple(moves), plan.hosts, plan.closed, plan.violations)

    def judge(
        self, application: str, names: Sequence[str], lifetime_s: float | None = None
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return the scores of those of these hosts that can take a container, and why each other one cannot."""
        with self._lock:
            book = self.current()
            app = book.app(application)
            known = book.application(application).lifetime_s
            book.cluster.declare(known if lifetime_s is None else lifetime_s, self.clock.now())
            cluster, wanted = book.cluster, {}
            failed: dict[str, str] = {}
            for name in names:
                index = book.find(name)
                obstacle = None if index is None else cluster.allows(index, app)
                if index is None:
                    failed[name] = f"not a host of the pool {self.name}"
                elif obstacle is not None:
                    failed[name] = obstacle.value
                else:
                    wanted[name] = index
            scores = self.chooser.scores(cluster, application, list(wanted.values()))
        return dict(zip(wanted, scores, strict=True)), failed


def _view(book: Book, app: Application, containers: int, curves: Mapping[str, LifeCurve]) -> ApplicationView:
    return ApplicationView(
        app.name,
        *app.demand,
        app.limit,
        tuple(sorted(app.excludes)),
        app.rack_limit,
        app.label,
        Origin.API if app.name in book.over_http else Origin.INVENTORY,
        containers,
        app.lifetime_s,
        curves.get(app.name),
    )
