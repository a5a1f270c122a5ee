"""One pool of hosts: containers are reserved on it, confirmed, cancelled and released; hosts come, drain, fail and go.

Everything it answers is in the ledger before the answer: a process that dies in between, and starts again, knows as
much as it would have. Several agents may serve one pool on a shared ledger: who finds that another wrote reads again
and decides again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import structlog

from agent.decisions.guards import held_by_pause
from agent.ledger import Ledger
from agent.placement.book import Book, Figures, HostView
from agent.placement.choosing import Chooser, Chosen
from agent.placement.records import (
    Candidate,
    Changed,
    HostRecord,
    HostState,
    Move,
    MoveDecision,
    Origin,
    Placed,
    PlacementDecision,
    PlaceRequest,
    PoolHead,
    Reservation,
    Stage,
    Switch,
    check_capacity,
    check_id,
    check_request,
    hosts_text,
    most_common,
)
from agent.placement.store import Change, Made, Moved, PlacementStore
from agent.settings.placement import PlacementSettings
from domain.clock import Clock
from domain.decisions import Direction, Event, Mode, Reason
from domain.errors import BadInput, ConfigurationError, LedgerUnavailable, StateConflict, UnknownName
from domain.rules.placement.cluster import DIGEST_EVERY, Choice, Cluster, explain
from domain.rules.placement.instance import Instance, Vector, parse_instance
from domain.units import DAY_S

log = structlog.get_logger(__name__)

TRIES: Final = 50
"""Times that what another process wrote meanwhile is read again; each takes some milliseconds."""
HALF_LIFE_S: Final = 14 * DAY_S
"""After so long half of the largest request's count above 1 is still believed in."""
MOST_FREE: Final = 0.05
"""A container that finds no host while a larger share of the cores is free raises an alarm."""
WHAT_IF_MOST: Final = 200
CAPACITY_ENDLESS: Final = 1_000_000
"""What `capacity_for` says of a pool with a type of hosts without bound, which takes the application."""

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool now. problem: what a person should look into, "" for nothing. pending: cores that its fleet waits for.

    reserved: cores of containers that are not confirmed. policy: what decides, by name.
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


class PlacementPool:
    """One pool; every method may be called from any thread and raises LedgerUnavailable when the ledger cannot be used.

    mode: in observe mode a request is answered by advice and reserves nothing. pending: returns the cores that the
    pool's fleet waits for.
    """

    def __init__(
        self,
        name: str,
        settings: PlacementSettings,
        ledger: Ledger,
        clock: Clock,
        chooser: Chooser,
        mode: Mode = Mode.ACT,
        pending: Callable[[], float] = float,
    ) -> None:
        self.name, self.settings, self.mode = name, settings, mode
        self.chooser = chooser
        self.pending = pending
        self.store = PlacementStore(ledger)
        self.lock = threading.RLock()
        self.problem = ""
        """Why the inventory or the fleet cannot be read, "" when they can."""
        self._ledger, self._clock = ledger, clock
        self._book: Book | None = None
        self._head = PoolHead()
        self._stored_is: bytes | None = None
        # By request and decision, when this process first saw the reservation: monotonic seconds.
        self._first_seen: dict[tuple[str, str], float] = {}
        self._alarms: deque[Event] = deque()
        self.decision_ms = 0.0

    # What is asked

    def request(self, request: PlaceRequest) -> PlacementDecision:
        """Reserve hosts for containers and record it; the same request id with the same body gets the same answer.

        BadInput for what cannot be asked, UnknownName for an application that the pool does not know. StateConflict for
        an id that stands for another request, and while the pool is paused.
        """
        check_request(request)
        if request.pool != self.name:
            raise BadInput("pool", request.pool, f"this is the pool {self.name}")

        def work(book: Book, now: float) -> tuple[PlacementDecision, Change | None]:
            before = self.store.decision(self.name, request.request_id)
            if before is not None:
                if before.fingerprint != request.fingerprint:
                    asked = f"{before.count} of {before.application}{', in part' if before.partial else ''}"
                    raise StateConflict("request_id", request.request_id, f"it stands for {asked}: choose another id")
                return before, None
            if request.request_id in book.reservations:
                remedy = "its containers still run, and its decision is older than the ledger keeps: choose another id"
                raise StateConflict("request_id", request.request_id, remedy)
            held = held_by_pause(self._ledger.controls(self.name), (Direction.OUT,), now)
            if held is not None:
                raise StateConflict("pool", self.name, held.detail)
            book.app(request.application)
            changed, notes = self._lapse(book, now)
            advice = self.mode is not Mode.ACT
            head = replace(self._seen(now, request.count), decisions=self._head.decisions + 1)
            book.cluster.largest = head.largest_count
            book.touched = True
            began = time.perf_counter()
            chosen = self.chooser.place(
                book.cluster, request.application, request.count, partial=request.partial, spare=book.spare
            )
            made = self._made(book, request, chosen, now, head.decisions, advice=advice, began=began)
            notes.append(Event(self.name, now, made.reason, made.detail, made.decision_id))
            if made.replaced:
                notes.append(Event(self.name, now, Reason.POLICY_REPLACED, made.replaced, made.decision_id))
                head = replace(head, replaced=head.replaced + 1)
            if advice:
                app = book.cluster.application(request.application)
                for choice in reversed(chosen.choices):
                    book.cluster.release(choice.host, app)
            elif made.containers:
                reservation = _reservation(request, made)
                book.take(reservation)
                changed[request.request_id] = reservation
                self._first_seen[_key(reservation)] = self._clock.monotonic()
                head = replace(head, containers=head.containers + len(made.containers))
            if made.unplaced and not advice:
                why = most_common(made.infeasible)
                refusals = {**head.refusals, why: head.refusals.get(why, 0) + made.unplaced}
                head = replace(head, refused=head.refused + made.unplaced, refusals=refusals)
                notes += self._refusing(book, made, now)
            return made, Change(self._next(head), reservations=changed, made=(made,), notes=notes)

        asked = time.perf_counter()
        made = self._tried(work)
        self.decision_ms = 1000.0 * (time.perf_counter() - asked)
        log.info("placed", pool=self.name, decision_id=made.decision_id, detail=made.detail)
        return made

    def confirm(self, request_id: str) -> Changed:
        """Let a reservation last until its containers are released; a confirmed one stays so.

        UnknownName for a request that was never made, StateConflict for one that holds nothing any more.
        """

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            found = book.reservations.get(request_id)
            if found is not None and found.stage is Stage.CONFIRMED:
                return Changed("it was confirmed before", True, found), None
            lapsed, notes = self._lapse(book, now)
            if found is None or request_id in lapsed:
                # What lapsed is given back by the next write; memory is dropped with this error.
                self._known(request_id)
                raise StateConflict("request_id", request_id, "it lapsed, was cancelled or released: request again")
            confirmed = replace(found, stage=Stage.CONFIRMED)
            book.take(confirmed)
            notes.append(Event(self.name, now, Reason.PLACEMENT_CONFIRMED, f"{request_id} is confirmed", request_id))
            change = Change(self._next(self._head), reservations={**lapsed, request_id: confirmed}, notes=notes)
            return Changed("confirmed", False, confirmed), change

        return self._tried(work)

    def cancel(self, request_id: str) -> Changed:
        """Give back what a reservation holds that was not confirmed; one that holds nothing stays so.

        UnknownName for a request that was never made, StateConflict for a confirmed one.
        """

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            found = book.reservations.get(request_id)
            if found is None:
                self._known(request_id)
                return Changed("it holds nothing any more", True), None
            if found.stage is Stage.CONFIRMED:
                raise StateConflict("request_id", request_id, "it is confirmed: release its containers")
            book.free(found, found.hosts)
            detail = f"{request_id} is cancelled: {len(found.hosts)} containers of {found.application} are given back"
            note = Event(self.name, now, Reason.PLACEMENT_CANCELLED, detail, request_id)
            change = Change(self._next(self._head), reservations={request_id: None}, notes=[note])
            return Changed("cancelled", False, replace(found, released=_indices(found.hosts), hosts={})), change

        return self._tried(work)

    def release(self, request_id: str, containers: Collection[int] | None = None) -> Changed:
        """Take containers of a confirmed reservation off their hosts, all of them or (None) all there are.

        UnknownName for a request or container that never was, StateConflict for one released before; then nothing is.
        """

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            found = book.reservations.get(request_id)
            if found is None:
                self._known(request_id)
                raise StateConflict("request_id", request_id, "it holds nothing: it was released, cancelled or lapsed")
            if found.stage is not Stage.CONFIRMED:
                raise StateConflict("request_id", request_id, "it is not confirmed: cancel it, or confirm it first")
            wanted = sorted({int(index) for index in found.hosts} if containers is None else set(containers))
            self._check_released(found, wanted)
            gone = {str(index): found.hosts[str(index)] for index in wanted}
            book.free(found, gone)
            left = {index: host for index, host in found.hosts.items() if index not in gone}
            after = replace(found, hosts=left, released=tuple(sorted({*found.released, *wanted})))
            if left:
                book.take(after)
            detail = f"{len(gone)} containers of {found.application} are released, {len(left)} are left"
            note = Event(self.name, now, Reason.CONTAINERS_RELEASED, detail, request_id)
            change = Change(self._next(self._head), reservations={request_id: after if left else None}, notes=[note])
            return Changed("released", False, after), change

        return self._tried(work)

    def _check_released(self, found: Reservation, wanted: Sequence[int]) -> None:
        if not wanted:
            raise BadInput("containers", list(wanted), "name at least one container, or leave the field out for all")
        for index in wanted:
            if str(index) in found.hosts:
                continue
            what = f"{found.request_id} {index}"
            if index in found.released:
                raise StateConflict("containers", what, "it was released before")
            if index in found.lost:
                raise StateConflict("containers", what, "its host failed and no other could take it: it runs nowhere")
            held = ", ".join(sorted(found.hosts, key=int)[:20])
            raise UnknownName("containers", what, f"the request has no such container; it holds: {held}")

    # What is asked without changing anything

    def what_if(self, asked: Sequence[tuple[str, int, bool]]) -> WhatIf:
        """Place (application, count, partial) one after the other on a copy; nothing is reserved or recorded."""
        if not 1 <= len(asked) <= WHAT_IF_MOST:
            raise BadInput("requests", len(asked), f"give 1 to {WHAT_IF_MOST} requests")
        with self.lock:
            book = self._current()
            for application, count, _ in asked:
                check_request(PlaceRequest(self.name, "what-if", application, count))
                book.app(application)
            real, endless = book.cluster, dict(book._endless)
            book.cluster = real.copy()
            try:
                before, answers = book.cluster.open_hosts, [self._would_be(book, *one) for one in asked]
                after = book.cluster.open_hosts
            finally:
                book.cluster, book._endless = real, endless
        return WhatIf(self.name, tuple(answers), before, after)

    def _would_be(self, book: Book, application: str, count: int, partial: bool) -> WouldBe:
        chosen = self.chooser.place(book.cluster, application, count, partial=partial, spare=book.spare)
        names = tuple(book.cluster.hosts[choice.host].name for choice in chosen.choices)
        opened = sum(choice.is_new for choice in chosen.choices)
        left = count - len(names)
        return WouldBe(application, count, names, opened, left, chosen.infeasible if left else {}, chosen.policy.name)

    def capacity_for(self, application: str) -> Room:
        """Return how many more containers of an application fit now."""
        with self.lock:
            book = self._current()
            app = book.app(application)
            fits, reasons = book.cluster.capacity_for(app), book.cluster.reasons(app)
            one = book.cluster.applications[app]
            without = book.endless and any(
                kind.count is None and all(map(int.__le__, one.demand, kind.capacity)) and one.label in ("", kind.label)
                for kind in book.instance.hosts
            )
        counted = {reason.value: number for reason, number in reasons.items()}
        return Room(self.name, application, CAPACITY_ENDLESS if without else fits, without, counted)

    def explain(self, application: str, count: int = 1) -> Reasons:
        """Return the five best hosts for a container now, with the terms of their scores."""
        check_request(PlaceRequest(self.name, "explain", application, count))
        with self.lock:
            book = self._current()
            app = book.app(application)
            policy = self.chooser.policy_for(application)
            found = explain(book.cluster, policy, app, count)
            best = tuple(Candidate(book.cluster.hosts[host].name, score, terms) for host, score, terms in found)
            reasons = {reason.value: number for reason, number in book.cluster.reasons(app).items()}
        return Reasons(self.name, application, count, policy.name, best, reasons)

    def judge(self, application: str, names: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
        """Return the scores of those of these hosts that can take a container, and why each other one cannot."""
        with self.lock:
            book = self._current()
            app = book.app(application)
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

    def reservations(self) -> tuple[Reservation, ...]:
        """Return what is reserved or runs, by request id."""
        with self.lock:
            return tuple(one for _, one in sorted(self._current().reservations.items()))

    def reservation(self, request_id: str) -> tuple[PlacementDecision, Reservation | None]:
        """Return what was decided on a request, and what it holds now; UnknownName."""
        decision = self._known(request_id)
        with self.lock:
            return decision, self._current().reservations.get(request_id)

    def hosts(self) -> list[HostView]:
        """Return every host."""
        with self.lock:
            return self._current().hosts()

    def view(self) -> PoolView:
        """Return the pool now."""
        pending_cores = self.pending()
        with self.lock:
            book = self._current()
            held, unconfirmed = book.reservations, list(book.unconfirmed.values())
            switched = self.chooser.switched
            problem = "; ".join(text for text in (self.problem, self.chooser.problems()) if text)
            return PoolView(
                self.name,
                self.mode,
                self._clock.now(),
                (switched or self.chooser.main).policy.name,
                book.figures(),
                self._head,
                len(held),
                len(unconfirmed),
                sum(self._cores(book, one) for one in unconfirmed),
                pending_cores,
                self.decision_ms,
                problem,
            )

    # Hosts

    def join(self, host: HostRecord) -> Changed:
        """Bring in a host, or bring back one that failed; StateConflict for one that is there."""
        check_id("host", host.name)
        check_capacity(*host.capacity)

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            index = book.find(host.name)
            if index is not None and not book.cluster.failed[index]:
                known = book.record_of(host.name)
                if known.rated in (None, host.rated) and (known.rack, known.label) == (host.rack, host.label):
                    return Changed("it is there already", True, host=known), None
                raise StateConflict("host", host.name, "another host of this name is in the pool: fail it first")
            was = book.records.get(host.name)
            record = host if was is None or was.origin is Origin.API else replace(host, origin=was.origin)
            book.put(record)
            return self._host_changed(record, now, f"{host.name} joins with {record.capacity}")

        return self._tried(work)

    def drain(self, name: str) -> Changed:
        """Let no new container on a host; those on it stay."""
        return self._ordered(name, HostState.DRAINING, "takes no more containers")

    def resume(self, name: str) -> Changed:
        """Let containers on a drained host again."""
        return self._ordered(name, HostState.UP, "takes containers again")

    def _ordered(self, name: str, state: HostState, words: str) -> Changed:
        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            before = book.record_of(name)
            if before.state is HostState.FAILED:
                raise StateConflict("host", name, "it has failed: let it join again")
            if before.state is state:
                return Changed(f"it {words} already", True, host=before), None
            record = replace(before, state=state, ordered=True)
            book.put(record)
            return self._host_changed(record, now, f"{name} {words}")

        return self._tried(work)

    def resize(self, name: str, capacity: Vector) -> Changed:
        """Change what a host has, below what it holds too: then it is over-committed and takes nothing."""
        check_capacity(*capacity)

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            before = book.record_of(name)
            if before.state is HostState.FAILED:
                raise StateConflict("host", name, "it has failed: let it join again")
            if before.capacity == capacity:
                return Changed("it has that capacity already", True, host=before), None
            record = replace(before, capacity=capacity, rated=before.rated or before.capacity)
            book.put(record)
            return self._host_changed(record, now, f"{name} has {capacity}, it had {before.capacity}")

        return self._tried(work)

    def fail(self, name: str) -> Changed:
        """Take a host out; each of its containers is placed anew before any other request, or lost."""

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            before = book.record_of(name)
            if before.state is HostState.FAILED:
                return Changed("it has failed before", True, host=before), None
            return self._failed(book, before, now, self._head)

        return self._tried(work)

    def _failed(
        self, book: Book, before: HostRecord, now: float, head: PoolHead, *, kept: bool = True
    ) -> tuple[Changed, Change]:
        """Return what became of a host that failed; kept: whether its record stays, else it is forgotten."""
        held = book.containers_of(before.name)
        record = replace(before, state=HostState.FAILED)
        book.put(record) if book.find(before.name) is not None else None
        moves = []
        for reservation, index in held:
            chosen = self.chooser.place(book.cluster, reservation.application, 1, partial=False, spare=book.spare)
            host = book.cluster.hosts[chosen.choices[0].host].name if chosen.choices else None
            moves.append(Move(reservation.request_id, index, reservation.application, before.name, host))
        changed = self._moved(book, moves)
        made: list[Made] = []
        detail = f"{before.name} failed"
        if moves:
            lost = sum(move.host is None for move in moves)
            detail += f": {len(moves) - lost} of its containers are placed anew, {lost} found no host"
            head = replace(head, decisions=head.decisions + 1)
            reason = Reason.CONTAINERS_LOST if lost else Reason.HOST_FAILED
            decision_id = f"{self.name}-p{head.decisions}"
            policy = self.chooser.main.policy.name
            made.append(MoveDecision(decision_id, self.name, now, before.name, tuple(moves), reason, detail, policy))
        reason = made[0].reason if made else Reason.HOST_FAILED
        note = Event(self.name, now, reason, detail, before.name)
        if not kept:
            book.records.pop(before.name, None)
        hosts = {before.name: record if kept else None}
        change = Change(self._next(head), hosts=hosts, reservations=changed, made=made, notes=[note])
        return Changed("failed", False, host=record, moves=tuple(moves)), change

    def _moved(self, book: Book, moves: Iterable[Move]) -> dict[str, Reservation | None]:
        """Return the reservations after moves, by request id, and have them in the book."""
        changed: dict[str, Reservation | None] = {}
        for move in moves:
            one = book.reservations[move.request_id]
            hosts = dict(one.hosts)
            if move.host is None:
                hosts.pop(str(move.index))
                one = replace(one, hosts=hosts, lost=tuple(sorted({*one.lost, move.index})))
            else:
                hosts[str(move.index)] = move.host
                one = replace(one, hosts=hosts, moved=tuple(sorted({*one.moved, move.index})))
            changed[move.request_id] = one
            book.take(one)
        for name, after in list(changed.items()):
            if after is not None and not after.hosts:
                book.drop(name)
                changed[name] = None
        return changed

    def _host_changed(self, record: HostRecord, now: float, detail: str) -> tuple[Changed, Change]:
        note = Event(self.name, now, Reason.HOST_CHANGED, detail, record.name)
        return Changed(detail, False, host=record), Change(
            self._next(self._head), hosts={record.name: record}, notes=[note]
        )

    # Orders of operators

    def switch(self, policy: str, owner: str, reason: str) -> Changed:
        """Let another policy decide from now on, in every agent, "" for those of the settings; BadInput."""
        if policy:
            try:
                self.chooser.check(policy)
            except (BadInput, ConfigurationError) as error:
                raise BadInput("policy", policy, str(error)) from None

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            before = self._head.switch
            if (before.policy if before else "") == policy:
                return Changed("it decides already", True), None
            made = Switch(policy, owner, reason, now) if policy else None
            detail = f"{owner}: {policy or 'the policy of the settings'} decides from now on: {reason}"
            note = Event(self.name, now, Reason.POLICY_SWITCHED, detail)
            return Changed(detail), Change(self._next(replace(self._head, switch=made)), notes=[note])

        return self._tried(work)

    # In the turn of the agent that leads

    def lapse(self, epoch: int) -> None:
        """Give back what was reserved and not confirmed in time; Fenced when the epoch is over."""

        def work(book: Book, now: float) -> tuple[None, Change | None]:
            lapsed, notes = self._lapse(book, now)
            gone = self._forgotten(book)
            if not lapsed and not gone:
                return None, None
            return None, Change(self._next(self._head), hosts=gone, reservations=lapsed, notes=notes)

        self._tried(work, epoch=epoch)

    def _forgotten(self, book: Book) -> dict[str, HostRecord | None]:
        """Return the hosts that left the inventory and hold nothing any more."""
        listed = {host.name for host in book._listed}
        gone: dict[str, HostRecord | None] = {}
        for name, record in book.records.items():
            index = book.find(name)
            of_inventory = record.origin is Origin.INVENTORY and name not in listed
            if of_inventory and (index is None or not book.cluster.containers[index]):
                gone[name] = None
        for name in gone:
            book.remove(name)
        return gone

    def adopt(self, document: Mapping[str, Any], digest: str, epoch: int) -> bool:
        """Work by another inventory from now on; return whether it is another one.

        ConfigurationError with every wrong field, BadInput where what runs keeps it from being followed, Fenced.
        """
        instance, warnings = parse_instance(document, "inventory")

        def work(book: Book, now: float) -> tuple[bool, Change | None]:
            if self._head.inventory == digest:
                return False, None
            conflicts = book.document_conflicts(document, instance)
            if conflicts:
                raise BadInput("inventory_file", digest, "; ".join(conflicts))
            hosts = self._left_over(book, instance)
            detail = (
                f"inventory {digest}: {len(instance.hosts)} types of hosts, {len(instance.applications)} applications"
            )
            notes = [Event(self.name, now, Reason.INVENTORY_CHANGED, "; ".join([detail, *warnings]))]
            head = self._next(replace(self._head, inventory=digest))
            return True, Change(head, hosts=hosts, inventory=document, notes=notes)

        done = self._tried(work, epoch=epoch)
        if done:
            with self.lock:
                self._book = None
        return done

    def _left_over(self, book: Book, instance: Instance) -> dict[str, HostRecord | None]:
        """Return the hosts that containers run on and that a new inventory does not list, as draining ones."""
        after = {
            kind.name if kind.count == 1 else f"{kind.name}-{number}"
            for kind in instance.hosts
            for number in range(1, (kind.count or 0) + 1)
        }
        endless = [f"{kind.name}-" for kind in instance.hosts if kind.count is None]
        held = {name for one in book.reservations.values() for name in one.hosts.values()}
        left: dict[str, HostRecord | None] = {}
        for name in sorted(held - after):
            if any(name.startswith(prefix) for prefix in endless):
                continue
            record = book.record_of(name)
            if record.origin is Origin.INVENTORY:
                left[name] = replace(record, state=HostState.DRAINING)
        return left

    def follow(self, changed: Mapping[str, HostRecord], gone: Iterable[str], epoch: int) -> tuple[Move, ...]:
        """Take in what became of a fleet's VMs: those new or changed, and those that AWS no longer lists; Fenced."""
        moves: list[Move] = []
        if changed:

            def work(book: Book, now: float) -> tuple[None, Change | None]:
                # In the order in which a start anew has them.
                for _, record in sorted(changed.items()):
                    book.put(record)
                detail = f"{len(changed)} VMs of the fleet joined or changed: {', '.join(sorted(changed)[:8])}"
                notes = [Event(self.name, now, Reason.HOST_CHANGED, detail)]
                return None, Change(self._next(self._head), hosts=dict(changed), notes=notes)

            self._tried(work, epoch=epoch)
        for name in gone:

            def lost(book: Book, now: float, name: str = name) -> tuple[Changed | None, Change | None]:
                if name not in book.records:
                    return None, None
                return self._failed(book, book.records[name], now, self._head, kept=False)

            found = self._tried(lost, epoch=epoch)
            moves += found.moves if found is not None else ()
        return tuple(moves)

    def note(self, made: Sequence[Made], notes: Sequence[Event], epoch: int) -> None:
        """Write decisions and events of the turn, numbered here; Fenced when the epoch is over."""

        def work(book: Book, now: float) -> tuple[None, Change | None]:
            head = replace(self._head, decisions=self._head.decisions + len(made))
            numbered = [
                replace(one, decision_id=f"{self.name}-p{self._head.decisions + k}") for k, one in enumerate(made, 1)
            ]
            return None, Change(self._next(head), made=numbered, notes=notes)

        self._tried(work, epoch=epoch)

    def alarms(self) -> tuple[Event, ...]:
        """Return what a person should look into since the last call."""
        return tuple(self._alarms.popleft() for _ in range(len(self._alarms)))

    def now(self) -> float:
        """Return the time by the pool's clock, in epoch seconds."""
        return self._clock.now()

    def snapshot(self) -> tuple[Cluster, Instance]:
        """Return a copy of the cluster, and the inventory it is of."""
        with self.lock:
            book = self._current()
            return book.cluster.copy(), book.instance

    def records(self) -> dict[str, HostRecord]:
        """Return the hosts of which something is recorded."""
        with self.lock:
            return dict(self._current().records)

    # Within

    def _current(self) -> Book:
        """Return the pool as the ledger has it now."""
        stored = self.store.stored_head(self.name)
        if self._book is None or stored != self._stored_is:
            state = self.store.read(self.name)
            self._book, self._head, self._stored_is = Book(state), state.head, state.stored
            at = self._clock.monotonic()
            self._first_seen = {_key(one): self._first_seen.get(_key(one), at) for one in state.reservations.values()}
            self.chooser.switch(state.head.switch.policy if state.head.switch else "")
        return self._book

    def _tried(
        self,
        work: Callable[[Book, float], tuple[T, Change | None]],
        *,
        epoch: int | None = None,
    ) -> T:
        """Do work on the book and write what it changes; again on what there is when another process wrote first."""
        with self.lock:
            for _ in range(TRIES):
                try:
                    answer, change = work(self._current(), self._clock.now())
                    if change is not None:
                        self._write(change, epoch)
                except Moved:
                    self._book = None
                    continue
                except BaseException:
                    # What was changed in memory is not in the ledger; what was refused before any change stays.
                    if self._book is not None and self._book.touched:
                        self._book = None
                    raise
                if change is not None:
                    self._alarms += change.notes
                return answer
        raise LedgerUnavailable(f"pool {self.name} is written by others all the time: try again")

    def _write(self, change: Change, epoch: int | None = None) -> None:
        self._stored_is = self.store.write(self.name, self._stored_is, change, epoch=epoch)
        self._head = change.head
        if self._book is not None:
            self._book.touched = False
        self.chooser.switch(change.head.switch.policy if change.head.switch else "")

    def _next(self, head: PoolHead) -> PoolHead:
        return replace(head, revision=self._head.revision + 1)

    def _seen(self, now: float, count: int) -> PoolHead:
        """Return the head with the largest request that is still believed in, and this one."""
        head = self._head
        passed = max(0.0, now - head.as_of) if head.as_of else 0.0
        decayed = 1.0 + (head.largest_count - 1.0) * 0.5 ** (passed / HALF_LIFE_S)
        return replace(head, largest_count=max(decayed, float(count)), as_of=now)

    def _lapse(self, book: Book, now: float) -> tuple[dict[str, Reservation | None], list[Event]]:
        """Free what was not confirmed in time: the changed reservations, and what to say of them.

        Their time is what passed on this process's monotonic clock since it first saw them. A wall clock that is set
        ends no reservation; a restart begins the wait anew.
        """
        at = self._clock.monotonic()
        gone: dict[str, Reservation | None] = {}
        notes = []
        for one in list(book.unconfirmed.values()):
            if at - self._first_seen.setdefault(_key(one), at) <= self.settings.confirm_within_s:
                continue
            book.free(one, one.hosts)
            gone[one.request_id] = None
            detail = f"{one.request_id} was not confirmed in time: {len(one.hosts)} containers are given back"
            notes.append(Event(self.name, now, Reason.PLACEMENT_LAPSED, detail, one.request_id))
        if gone:
            self._head = replace(self._head, lapsed=self._head.lapsed + len(gone))
        return gone, notes

    def _known(self, request_id: str) -> PlacementDecision:
        found = self.store.decision(self.name, request_id)
        if found is None:
            raise UnknownName("request_id", request_id, f"the pool {self.name} has no request of this id")
        return found

    def _cores(self, book: Book, one: Reservation) -> int:
        return len(one.hosts) * book.cluster.applications[book.app(one.application)].demand[0]

    def _made(
        self,
        book: Book,
        request: PlaceRequest,
        chosen: Chosen,
        now: float,
        number: int,
        *,
        advice: bool,
        began: float,
    ) -> PlacementDecision:
        cluster, policy = book.cluster, chosen.policy.name
        placed = tuple(_placed(cluster, k, choice, policy) for k, choice in enumerate(chosen.choices))
        unplaced = request.count - len(placed)
        reason = Reason.PLACED if not unplaced else Reason.PLACED_IN_PART if placed else Reason.NO_HOST
        opened = sum(one.opened for one in placed)
        what = f"{request.count} x {request.application}"
        if placed:
            detail = (
                f"{len(placed)} of {what} on {hosts_text(placed)}" if unplaced else f"{what} on {hosts_text(placed)}"
            )
            detail += f", {opened} of them opened" if opened else ""
        else:
            detail = f"{what}: not all of them fit, and none is placed"
        if unplaced:
            counted = ", ".join(f"{why} {n}" for why, n in chosen.infeasible.items()) or "the pool has no hosts"
            detail += f"; {unplaced} found no host ({counted})"
            pending = self.pending()
            detail += f"; {pending:g} cores are on their way" if pending else ""
        live = ~cluster.drained & ~cluster.failed
        free = (cluster.capacity[0] - cluster.used[0])[live]
        return PlacementDecision(
            decision_id=f"{self.name}-p{number}",
            pool=self.name,
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
            until=now + self.settings.confirm_within_s if placed and not advice else None,
            advice=advice,
            replaced=chosen.replaced,
            open_hosts=cluster.open_hosts,
            free_cores=int(free[free > 0].sum()),
            evaluation_us=round(1e6 * (time.perf_counter() - began)),
            revision=self._head.revision + 1,
            digest=cluster.digest() if number % DIGEST_EVERY == 0 else "",
            requested_by=request.requested_by,
        )

    def _refusing(self, book: Book, made: PlacementDecision, now: float) -> list[Event]:
        figures = book.figures()
        if figures.free_share <= MOST_FREE:
            return []
        detail = (
            f"{made.unplaced} of {made.count} containers of {made.application} found no host while "
            f"{figures.free_share:.0%} of the cores are free: {most_common(made.infeasible)} keeps most hosts"
        )
        return [Event(self.name, now, Reason.PLACEMENT_REFUSING, detail, made.decision_id)]


def _placed(cluster: Cluster, index: int, choice: Choice, policy: str) -> Placed:
    other = choice.runner_up >= 0
    return Placed(
        index,
        cluster.hosts[choice.host].name,
        choice.score,
        cluster.hosts[choice.runner_up].name if other else None,
        choice.runner_up_score if other else None,
        choice.feasible,
        choice.is_new,
        policy,
    )


def _reservation(request: PlaceRequest, made: PlacementDecision) -> Reservation:
    return Reservation(
        request.request_id,
        request.application,
        made.decision_id,
        made.at,
        Stage.RESERVED,
        made.until or made.at,
        {str(one.index): one.host for one in made.containers},
        requested_by=request.requested_by,
    )


def _key(one: Reservation) -> tuple[str, str]:
    return one.request_id, one.decision_id


def _indices(hosts: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(sorted(int(index) for index in hosts))
