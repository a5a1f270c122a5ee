"""One pool of hosts: containers are reserved on it, confirmed, cancelled and released; hosts come, drain, fail and go.

Everything it answers is in the ledger before the answer: a process that dies in between, and starts again, knows as
much as it would have. Several agents may serve one pool on a shared ledger: each piece of work reads the head, changes
the book in memory, and writes the change under the head that it read, again where another process wrote first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog

from agent.kernel.guards import held_by_pause
from agent.kernel.text import counted
from agent.kernel.transaction import Conflict, retried
from agent.ledger.codec import plain
from agent.placement.answers import decision_on, refusal_alarm, reservation_of
from agent.placement.book import Book
from agent.placement.choosing import take_back
from agent.placement.inventory import changed_hosts, check_fits, check_source, entries_of, merged
from agent.placement.look import PoolQueries
from agent.placement.records import (
    Cause,
    Ended,
    HostRecord,
    HostState,
    Move,
    MoveDecision,
    OrderResult,
    Origin,
    PlacementDecision,
    PlaceRequest,
    PoolHead,
    Reservation,
    Stage,
    Switch,
    check_capacity,
    check_id,
    check_request,
    most_common,
)
from agent.placement.state import ENDED, PLACEMENT, Change, Made, PoolState
from domain.decisions import Direction, Event, Mode, Reason
from domain.errors import BadInput, ConfigurationError, StateConflict, UnknownName
from domain.rules.placement.instance import VERSION, Application, Vector, application_document, parse_instance
from domain.subject import Subject
from domain.units import DAY_S

log = structlog.get_logger(__name__)

OF_REQUESTS: Final = (Reason.PLACEMENT_REFUSING, Reason.POLICY_REPLACED)
"""Alarms whose event names a decision: one for each of many requests would be as many notifications."""
HALF_LIFE_S: Final = 14 * DAY_S
"""After so long half of the largest request's count above 1 is still believed in."""
MOST_APPLICATIONS: Final = 5000
"""That come over HTTP to one pool: every host counts the instances of each."""

T = TypeVar("T")
Work = Callable[[Book, float], tuple[T, Change | None]]
"""Works on the book at a time; returns its answer, and what is to be written, None for nothing."""


class PlacementPool(PoolQueries):
    """One pool; any thread may call a method. Each raises LedgerUnavailable when the ledger cannot be used.

    mode: in observe mode a request is answered by advice and reserves nothing.
    """

    def transact(self, work: Work[T], *, epoch: int | None = None) -> T:
        """Do work on the book and write its change; again on the new state when another process wrote first."""
        with self._lock:
            return retried(f"pool {self.name}", lambda: self._attempt(work, epoch))

    def _attempt(self, work: Work[T], epoch: int | None) -> T:
        try:
            book, now = self.current(), self.clock.now()
            answer, change = work(book, now)
            if change is not None:
                head = replace(
                    change.head or self.head,
                    revision=self.head.revision + 1,
                    open_hosts=book.cluster.open_hosts if change.open_hosts is None else change.open_hosts,
                    as_written=now,
                    host_s=self.head.host_seconds(now),
                )
                self._stored = self.store.write(self.name, self._stored, head, change, epoch=epoch)
                self.head, book.touched = head, False
                self.chooser.follow(head)
                self._notes += change.notes
        except BaseException as error:
            # Changes in memory are not in the ledger; a refusal before any change leaves the book as it is.
            if isinstance(error, Conflict) or (self._book is not None and self._book.touched):
                self._book = None
            raise
        return answer

    def _replaced(self, work: Work[tuple[T, Book | None]], *, epoch: int | None = None) -> T:
        """Do work that makes the book anew where it changes, and take that one from then on."""
        with self._lock:
            answer, book = self.transact(work, epoch=epoch)
            self._book = book or self._book
            return answer

    def event(self, now: float, reason: Reason, detail: str, about: str = "", ended: Sequence[Ended] = ()) -> Event:
        """Return an event of the pool; ended: the containers that ended with it."""
        data = {ENDED: json.dumps([plain(one) for one in ended])} if ended else {}
        return Event(Subject(PLACEMENT, self.name), now, reason, detail, about, data)

    # Requests

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
                    raise StateConflict("request_id", request.request_id, f"it belongs to {asked}: use another id")
                return before, None
            if request.request_id in book.reservations:
                remedy = "its containers still run, and its decision is older than the ledger keeps: use another id"
                raise StateConflict("request_id", request.request_id, remedy)
            held = held_by_pause(self.ledger.controls(PLACEMENT, self.name), (Direction.OUT,), now)
            if held is not None:
                raise StateConflict("pool", self.name, held.detail)
            hint = request.hint(book.application(request.application), now)
            changed, notes = self._lapse(book, now)
            advice = self.mode is not Mode.ACT
            head = replace(self._with_count(now, request.count), decisions=self.head.decisions + 1)
            book.cluster.largest = head.largest_count
            book.touched = True
            head = replace(head, requests=head.requests + 1, hinted=head.hinted + (hint[0] is not None))
            keys = [(request.request_id, index) for index in range(request.count)]
            began = time.perf_counter()
            book.cluster.declare(hint[0], now)
            chosen, reopened = self._place(book, request.application, keys, partial=request.partial)
            made = decision_on(
                *(request, chosen, book, now, head.decisions, self.head.revision + 1),
                hint=hint,
                confirm_within_s=None if advice else self.settings.confirm_within_s,
                pending=self.pending,
                began=began,
            )
            made = replace(made, rate=head.rate)
            notes.append(self.event(now, made.reason, made.detail, made.decision_id))
            if made.replaced:
                notes.append(self.event(now, Reason.POLICY_REPLACED, made.replaced, made.decision_id))
                head = replace(head, replaced=head.replaced + 1)
            if advice:
                app = book.cluster.application(request.application)
                take_back(book.cluster, chosen.choices, app, keys)
            elif made.containers:
                for record in reopened.values():
                    book.put(record)
                reservation = book.take(reservation_of(request, made))
                changed[request.request_id] = reservation
                self._first_seen[reservation.key] = self.clock.monotonic()
                head = replace(head, containers=head.containers + len(made.containers))
            if made.unplaced and not advice:
                why = most_common(made.infeasible)
                refusals = {**head.refusals, why: head.refusals.get(why, 0) + made.unplaced}
                head = replace(head, refused=head.refused + made.unplaced, refusals=refusals)
                if detail := refusal_alarm(book, made):
                    notes.append(self.event(now, Reason.PLACEMENT_REFUSING, detail, made.decision_id))
            return made, Change(head, hosts=reopened, reservations=changed, made=[made], notes=notes)

        asked = time.perf_counter()
        made = self.transact(work)
        self.decision_ms = 1000.0 * (time.perf_counter() - asked)
        log.info("placed", pool=self.name, decision_id=made.decision_id, detail=made.detail)
        return made

    def _with_count(self, now: float, count: int) -> PoolHead:
        """Return the head with the largest request that is still believed in, and this one."""
        head = self.head
        passed = max(0.0, now - head.as_of) if head.as_of else 0.0
        decayed = 1.0 + (head.largest_count - 1.0) * 0.5 ** (passed / HALF_LIFE_S)
        return replace(head, largest_count=max(decayed, float(count)), as_of=now)

    def confirm(self, request_id: str) -> OrderResult:
        """Let a reservation last until its containers are released; a confirmed one stays so.

        UnknownName for a request that was never made, StateConflict for one that holds nothing any more.
        """

        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            found = book.reservations.get(request_id)
            if found is not None and found.stage is Stage.CONFIRMED:
                return OrderResult("it was confirmed before", True, found), None
            lapsed, notes = self._lapse(book, now)
            if found is None or request_id in lapsed:
                # What lapsed is given back by the next write; memory is dropped with this error.
                self._known(request_id)
                raise StateConflict("request_id", request_id, "it lapsed, was cancelled or released: request again")
            confirmed = book.start(found, now)
            notes.append(self.event(now, Reason.PLACEMENT_CONFIRMED, f"{request_id} is confirmed", request_id))
            change = Change(reservations={**lapsed, request_id: confirmed}, notes=notes)
            return OrderResult("confirmed", False, confirmed), change

        return self.transact(work)

    def cancel(self, request_id: str) -> OrderResult:
        """Give back what a reservation holds that was not confirmed; one that holds nothing stays so.

        UnknownName for a request that was never made, StateConflict for a confirmed one.
        """

        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            found = book.reservations.get(request_id)
            if found is None:
                self._known(request_id)
                return OrderResult("it holds nothing any more", True), None
            if found.stage is Stage.CONFIRMED:
                raise StateConflict("request_id", request_id, "it is confirmed: release its containers")
            ended = book.free(found, found.hosts, now, Cause.CANCELLED)
            detail = f"{request_id} is cancelled: {len(found.hosts)} containers of {found.application} are given back"
            note = self.event(now, Reason.PLACEMENT_CANCELLED, detail, request_id, [ended])
            released = tuple(sorted(map(int, found.hosts)))
            answer = OrderResult("cancelled", False, replace(found, released=released, hosts={}))
            return answer, Change(reservations={request_id: None}, notes=[note])

        return self.transact(work)

    def release(self, request_id: str, containers: Collection[int] | None = None) -> OrderResult:
        """Take containers of a confirmed reservation off their hosts, all that are named or (None) all there are.

        What was released before stays so. UnknownName for a request or container that never was, StateConflict for one
        that is not confirmed or was lost; then nothing is released.
        """

        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            found = book.reservations.get(request_id)
            if found is None:
                self._known(request_id)
                return OrderResult("it holds nothing any more", True), None
            if found.stage is not Stage.CONFIRMED:
                raise StateConflict("request_id", request_id, "it is not confirmed: cancel it, or confirm it first")
            named = {int(index) for index in found.hosts} if containers is None else set(containers)
            wanted = sorted(named - set(found.released))
            if named and not wanted:
                return OrderResult("released before", True, found), None
            _check_released(found, wanted)
            gone = {str(index): found.hosts[str(index)] for index in wanted}
            ended = book.free(found, gone, now, Cause.RELEASED)
            left = {index: host for index, host in found.hosts.items() if index not in gone}
            after = replace(found, hosts=left, released=tuple(sorted({*found.released, *wanted})))
            if left:
                after = book.take(after)
            detail = f"{len(gone)} containers of {found.application} are released, {len(left)} are left"
            note = self.event(now, Reason.CONTAINERS_RELEASED, detail, request_id, [ended])
            head = replace(self.head, sums=tuple(book.cluster.lives.sums.tolist()))
            change = Change(head, reservations={request_id: after if left else None}, notes=[note])
            return OrderResult("released", False, after), change

        return self.transact(work)

    def move(self, request_id: str, container: int, host: str) -> OrderResult:
        """Record that a container of a confirmed reservation now runs on another host, such as by a plan to repack.

        UnknownName for a request, container or host that is none; StateConflict where the host cannot take it.
        """

        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            found = book.reservations.get(request_id)
            if found is None or found.stage is not Stage.CONFIRMED:
                self._known(request_id)
                raise StateConflict("request_id", request_id, "it is not confirmed, or holds nothing any more")
            _check_released(found, [container])
            target, before = book.host(host), found.hosts[str(container)]
            if before == host:
                return OrderResult("it runs there already", True, found), None
            app = book.cluster.application(found.application)
            book.touched = True
            # Judged while it still runs where it was, as a plan does.
            book.cluster.place(target, app)
            book.cluster.release(book.cluster.host(before), app)
            book.cluster.lives.move((request_id, container), target, now)
            moved = tuple(sorted({*found.moved, container}))
            after = replace(found, hosts={**found.hosts, str(container): host}, moved=moved)
            after = book.take(after)
            detail = f"{request_id} {container} of {found.application} moved from {before} to {host}"
            note = self.event(now, Reason.CONTAINER_MOVED, detail, request_id)
            return OrderResult("moved", False, after), Change(reservations={request_id: after}, notes=[note])

        return self.transact(work)

    def _lapse(self, book: Book, now: float) -> tuple[dict[str, Reservation | None], list[Event]]:
        """Free what was not confirmed in time: the changed reservations, and what to say of them.

        Their time is what passed on this process's monotonic clock since it first saw them. A wall clock that is set
        ends no reservation; a restart begins the wait anew.
        """
        at = self.clock.monotonic()
        gone: dict[str, Reservation | None] = {}
        notes = []
        waiting = list(book.unconfirmed.values())
        # Of those alone: what is confirmed waits no more, however long the process runs.
        self._first_seen = {one.key: self._first_seen.get(one.key, at) for one in waiting}
        for one in waiting:
            if at - self._first_seen[one.key] <= self.settings.confirm_within_s:
                continue
            ended = book.free(one, one.hosts, now, Cause.LAPSED)
            gone[one.request_id] = None
            detail = f"{one.request_id} was not confirmed in time: {len(one.hosts)} containers are given back"
            notes.append(self.event(now, Reason.PLACEMENT_LAPSED, detail, one.request_id, [ended]))
        if gone:
            self.head = replace(self.head, lapsed=self.head.lapsed + len(gone))
        return gone, notes

    # Hosts

    def join(self, host: HostRecord) -> OrderResult:
        """Bring in a host, or bring back one that failed; StateConflict for one that is there."""
        check_id("host", host.name)
        check_capacity(*host.capacity)

        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            index = book.find(host.name)
            if index is not None and not book.cluster.failed[index]:
                known = book.record_of(host.name)
                if known.rated in (None, host.rated) and (known.rack, known.label) == (host.rack, host.label):
                    return OrderResult("it is there already", True, host=known), None
                raise StateConflict("host", host.name, "another host of this name is in the pool: fail it first")
            was = book.records.get(host.name)
            record = host if was is None or was.origin is Origin.API else replace(host, origin=was.origin)
            return self._with_host(book, record, now, f"{host.name} joins with {record.capacity}")

        return self.transact(work)

    def drain(self, host: str) -> OrderResult:
        """Let no new container on a host; those on it stay."""
        return self._ordered(host, HostState.DRAINING, "takes no more containers")

    def resume(self, host: str) -> OrderResult:
        """Let containers on a drained host again."""
        return self._ordered(host, HostState.UP, "takes containers again")

    def _ordered(self, name: str, state: HostState, words: str) -> OrderResult:
        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            before = _not_failed(book, name)
            record = replace(before, state=state, ordered=state is HostState.DRAINING, surplus=False)
            if record == before:
                return OrderResult(f"it {words} already", True, host=before), None
            return self._with_host(book, record, now, f"{name} {words}")

        return self.transact(work)

    def resize(self, host: str, capacity: Vector) -> OrderResult:
        """Change what a host has, below what it holds too: then it is over-committed and takes nothing."""
        check_capacity(*capacity)

        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            before = _not_failed(book, host)
            if before.capacity == capacity:
                return OrderResult("it has that capacity already", True, host=before), None
            record = replace(before, capacity=capacity, rated=before.rated or before.capacity)
            return self._with_host(book, record, now, f"{host} has {capacity}, it had {before.capacity}")

        return self.transact(work)

    def _with_host(self, book: Book, record: HostRecord, now: float, detail: str) -> tuple[OrderResult, Change]:
        book.put(record)
        note = self.event(now, Reason.HOST_CHANGED, detail, record.name)
        return OrderResult(detail, False, host=record), Change(hosts={record.name: record}, notes=[note])

    def fail(self, host: str) -> OrderResult:
        """Take a host out; each of its containers is placed anew before any other request, or lost."""

        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            before = book.record_of(host)
            if before.state is HostState.FAILED:
                return OrderResult("it has failed before", True, host=before), None
            return self._failed(book, before, now)

        return self.transact(work)

    def _failed(self, book: Book, before: HostRecord, now: float, *, kept: bool = True) -> tuple[OrderResult, Change]:
        """Return what became of a host that failed; kept: whether its record stays, else it is forgotten."""
        head, held = self.head, book.containers_of(before.name)
        record = replace(before, state=HostState.FAILED)
        book.put(record)
        moves, policies, replaced = list[Move](), list[str](), list[str]()
        hosts: dict[str, HostRecord | None] = {before.name: record if kept else None}
        for reservation, index in held:
            began = reservation.at if reservation.began is None else reservation.began
            book.cluster.declare(reservation.lifetime_s, now, began)
            key = (reservation.request_id, index)
            chosen, reopened = self._place(book, reservation.application, [key], partial=False)
            hosts |= reopened
            for one in reopened.values():
                book.put(one)
            policies.append(chosen.policy.name)
            replaced += filter(None, [chosen.replaced])
            host = book.cluster.hosts[chosen.choices[0].host].name if chosen.choices else None
            moves.append(Move(reservation.request_id, index, reservation.application, before.name, host))
        gone: dict[str, list[str]] = {}
        for move in moves:
            if move.host is None:
                gone.setdefault(move.request_id, []).append(str(move.index))
        ended = [
            book.ended(book.reservations[name], containers, now, Cause.HOST_FAILED) for name, containers in gone.items()
        ]
        changed = _moved(book, moves)
        made: list[Made] = []
        detail, reason = f"{before.name} failed", Reason.HOST_FAILED
        if moves:
            lost = sum(move.host is None for move in moves)
            detail += f": {len(moves) - lost} of its containers are placed again, {lost} found no host"
            head = replace(head, decisions=head.decisions + 1, replaced=head.replaced + len(replaced))
            reason = Reason.CONTAINERS_LOST if lost else Reason.HOST_FAILED
            decision_id, policy = f"{self.name}-p{head.decisions}", ", ".join(dict.fromkeys(policies))
            made = [MoveDecision(decision_id, self.name, now, before.name, tuple(moves), reason, detail, policy)]
        notes = [self.event(now, reason, detail, before.name, ended)]
        if replaced:
            why = f"{replaced[0]} (for {len(replaced)} of {len(moves)} containers of {before.name})"
            notes.append(self.event(now, Reason.POLICY_REPLACED, why, before.name))
        if not kept:
            book.records.pop(before.name, None)
        change = Change(head, hosts=hosts, reservations=changed, made=made, notes=notes)
        return OrderResult("failed", False, host=record, moves=tuple(moves)), change

    def follow(
        self,
        changed: Mapping[str, HostRecord],
        gone: Iterable[str],
        epoch: int,
        known: Mapping[str, HostRecord] | None = None,
    ) -> tuple[Move, ...]:
        """Take in what became of a fleet's VMs: those new or changed, and those that AWS no longer lists; Fenced.

        known: the hosts from which `changed` follows. One that an operator has changed since stays as it is.
        """

        def work(book: Book, now: float) -> tuple[None, Change | None]:
            taken = {
                name: record
                for name, record in changed.items()
                if known is None or book.records.get(name) == known.get(name)
            }
            if not taken:
                return None, None
            # In the order in which a start anew has them.
            for _, record in sorted(taken.items()):
                book.put(record)
            detail = f"{len(taken)} VMs of the fleet joined or changed: {', '.join(sorted(taken)[:8])}"
            return None, Change(hosts=taken, notes=[self.event(now, Reason.HOST_CHANGED, detail)])

        if changed:
            self.transact(work, epoch=epoch)
        moves: list[Move] = []
        for name in gone:

            def lost(book: Book, now: float, name: str = name) -> tuple[OrderResult | None, Change | None]:
                if name not in book.records:
                    return None, None
                return self._failed(book, book.records[name], now, kept=False)

            found = self.transact(lost, epoch=epoch)
            moves += found.moves if found is not None else ()
        self._may_go = False
        return tuple(moves)

    def follow_rate(self, rate: float, epoch: int) -> None:
        """Let the cores of hosts be divided by another rate, as soon as inventory and fleet are read; Fenced."""

        def work(book: Book, now: float) -> tuple[None, Change | None]:
            if self.head.rate == rate:
                return None, None
            detail = f"hosts have their cores / {rate:g}, as {self.settings.oversubscription_pool} reserves {rate:.0%}"
            return None, Change(replace(self.head, rate=rate), notes=[self.event(now, Reason.HOST_CHANGED, detail)])

        self.transact(work, epoch=epoch)

    # The inventory

    def adopt(self, document: Mapping[str, Any], digest: str, epoch: int, *, hosts_elsewhere: bool = False) -> bool:
        """Work by another inventory from now on; return whether it is another one.

        hosts_elsewhere: a fleet's VMs are hosts too, so that it may list none, and what applications need of hosts is
        not checked against its own. ConfigurationError with every wrong field, BadInput where what runs keeps it from
        being followed, or where its hosts cannot be; Fenced.
        """
        warnings = parse_instance(document, "inventory", hosts_elsewhere=hosts_elsewhere)[1]

        def work(book: Book, now: float) -> tuple[tuple[bool, Book | None], Change | None]:
            if self.head.inventory == digest:
                return (False, None), None
            whole = merged(book, document)
            instance = parse_instance(whole, "inventory", hosts_elsewhere=True)[0]
            conflicts = book.document_conflicts(instance)
            if conflicts:
                raise BadInput("inventory_file", digest, "; ".join(conflicts))
            same_file = digest.partition("/")[0] == self.head.inventory.partition("/")[0]
            hosts = changed_hosts(book, instance, same_file=same_file)
            state = PoolState(self.head, None, whole, {**book.records, **hosts}, book.reservations, book.over_http)
            detail = (
                f"inventory {digest}: {len(instance.hosts)} types of hosts, {len(instance.applications)} applications"
            )
            note = self.event(now, Reason.INVENTORY_CHANGED, "; ".join([detail, *warnings]))
            # What cannot be a pool is refused here, before it is written.
            after = Book(state)
            head, opened = replace(self.head, inventory=digest), after.cluster.open_hosts
            return (True, after), Change(head, hosts=hosts, inventory=whole, notes=[note], open_hosts=opened)

        return self._replaced(work, epoch=epoch)

    def put_application(self, app: Application) -> OrderResult:
        """Bring in an application, or change what came over HTTP; the same again changes nothing.

        BadInput for what the inventory file could not say either, or what fits no host of the pool; UnknownName for an
        exclusion of none of its applications. StateConflict for an application of the file, or another size while
        containers of it run. Where containers run against a changed limit or exclusion, they keep running.
        """

        def work(book: Book, now: float) -> tuple[tuple[OrderResult, Book | None], Change | None]:
            entries = entries_of(book)
            check_source(book, app.name)
            check_fits(book, app)
            for other in sorted(app.excludes):
                if other == app.name:
                    raise BadInput("excludes", other, "an application cannot exclude itself: set its limit to 1")
                if other not in entries:
                    raise UnknownName("excludes", other, "the pool has no application of this name: put it first")
            entry = application_document(app)
            if entries.get(app.name) == entry:
                return (OrderResult(f"{app.name} is so already", True), None), None
            if app.name not in entries and len(book.over_http) >= MOST_APPLICATIONS:
                raise StateConflict("application", app.name, f"{MOST_APPLICATIONS} came over HTTP: delete some")
            cores, memory, disk = app.demand
            verb = "changes" if app.name in entries else "comes"
            done = f"{app.name} {verb} over HTTP: {counted(cores, 'core')}, {memory} GiB and {disk} GB for a container"
            entries[app.name] = entry
            return self._with_applications(book, now, entries, app.name, done, book.over_http | {app.name})

        return self._replaced(work)

    def delete_application(self, name: str) -> OrderResult:
        """Forget an application that came over HTTP; UnknownName.

        StateConflict for one of the file, while containers of it run or are reserved, and while others name it.
        """

        def work(book: Book, now: float) -> tuple[tuple[OrderResult, Book | None], Change | None]:
            entries = entries_of(book)
            if name not in entries:
                raise UnknownName("application", name, "the pool has no application of this name")
            check_source(book, name)
            naming = sorted(one for one, entry in entries.items() if name in entry.get("excludes", ()))
            if naming:
                raise StateConflict("application", name, f"{', '.join(naming)} exclude it: change them first")
            held = book.containers(name)
            if held:
                raise StateConflict("application", name, f"{held} containers of it run or are reserved")
            del entries[name]
            done = f"{name} is deleted over HTTP"
            return self._with_applications(book, now, entries, name, done, book.over_http - {name})

        return self._replaced(work)

    def _with_applications(
        self, book: Book, now: float, entries: Mapping[str, Any], name: str, detail: str, over_http: frozenset[str]
    ) -> tuple[tuple[OrderResult, Book], Change]:
        """Return the pool with these applications, and its write; StateConflict where what runs forbids it."""
        before = book.document or {"version": VERSION, "name": self.name, "host_types": []}
        document = {**before, "applications": list(entries.values())}
        instance, _ = parse_instance(document, "inventory", hosts_elsewhere=True)
        conflicts = book.document_conflicts(instance)
        if conflicts:
            raise StateConflict("application", name, "; ".join(conflicts))
        note = self.event(now, Reason.INVENTORY_CHANGED, detail, name)
        after = Book(PoolState(self.head, None, document, book.records, book.reservations, over_http))
        return (OrderResult(detail), after), Change(inventory=document, over_http=over_http, notes=[note])

    # Orders of operators, and the turn of the agent that leads

    def switch(self, policy: str, owner: str, reason: str) -> OrderResult:
        """Let another policy decide from now on, in every agent, "" for those of the settings; BadInput."""
        if policy:
            try:
                self.chooser.check(policy)
            except (BadInput, ConfigurationError) as error:
                raise BadInput("policy", policy, str(error)) from None

        def work(book: Book, now: float) -> tuple[OrderResult, Change | None]:
            before = self.head.switch
            if (before.policy if before else "") == policy:
                return OrderResult("it decides already", True), None
            made = Switch(policy, owner, reason, now) if policy else None
            detail = f"{owner}: {policy or 'the policy of the settings'} decides from now on: {reason}"
            note = self.event(now, Reason.POLICY_SWITCHED, detail)
            return OrderResult(detail), Change(replace(self.head, switch=made), notes=[note])

        return self.transact(work)

    def lapse(self, epoch: int) -> None:
        """Give back what was reserved and not confirmed in time; Fenced when the epoch is over."""

        def work(book: Book, now: float) -> tuple[None, Change | None]:
            lapsed, notes = self._lapse(book, now)
            gone = book.forget()
            if not lapsed and not gone:
                return None, None
            return None, Change(hosts=gone, reservations=lapsed, notes=notes)

        self.transact(work, epoch=epoch)

    def note(self, made: Sequence[Made], notes: Sequence[Event], epoch: int) -> None:
        """Write decisions and events of the turn, numbered here; Fenced when the epoch is over."""

        def work(book: Book, now: float) -> tuple[None, Change | None]:
            head = replace(self.head, decisions=self.head.decisions + len(made))
            numbered = [
                replace(one, decision_id=f"{self.name}-p{self.head.decisions + k}") for k, one in enumerate(made, 1)
            ]
            return None, Change(head, made=numbered, notes=notes)

        self.transact(work, epoch=epoch)

    def alarms(self) -> tuple[Event, ...]:
        """Return what a person should look into since the last call; what requests meet is one alarm of the pool."""
        events = [self._notes.popleft() for _ in range(len(self._notes))]
        return tuple(replace(one, about="") if one.reason in OF_REQUESTS else one for one in events)


def _check_released(found: Reservation, wanted: Sequence[int]) -> None:
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


def _not_failed(book: Book, host: str) -> HostRecord:
    record = book.record_of(host)
    if record.state is HostState.FAILED:
        raise StateConflict("host", host, "it has failed: let it join again")
    return record


def _moved(book: Book, moves: Iterable[Move]) -> dict[str, Reservation | None]:
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
        changed[move.request_id] = book.take(one)
    for name, after in list(changed.items()):
        if after is not None and not after.hosts:
            book.drop(name)
            changed[name] = None
    return changed
