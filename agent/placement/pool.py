"""One pool of hosts: containers are reserved on it, confirmed, cancelled and released; hosts come, drain, fail and go.

Everything it answers is in the ledger before the answer: a process that dies in between, and starts again, knows as
much as it would have. Several agents may serve one pool on a shared ledger: who finds that another wrote reads again
and decides again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from agent.kernel.guards import held_by_pause
from agent.ledger import Ledger
from agent.placement.answers import decision_on, refused_alarms, reservation_of
from agent.placement.applications import PoolApplications
from agent.placement.book import Book, Figures
from agent.placement.choosing import Chooser
from agent.placement.hosts import PoolHosts
from agent.placement.records import (
    Changed,
    HostState,
    Origin,
    PlacementDecision,
    PlaceRequest,
    PoolHead,
    Reservation,
    Stage,
    Switch,
    check_request,
    most_common,
)
from agent.placement.settings import PlacementSettings
from agent.placement.shared import SharedBook
from agent.placement.state import PLACEMENT, Change, Made
from domain.clock import Clock
from domain.decisions import Direction, Event, Mode, Reason
from domain.errors import BadInput, ConfigurationError, StateConflict, UnknownName
from domain.rules.placement.cluster import Cluster
from domain.rules.placement.instance import Instance

log = structlog.get_logger(__name__)

OF_REQUESTS: Final = (Reason.PLACEMENT_REFUSING, Reason.POLICY_REPLACED)
"""Alarms whose event names a decision: one for each of many requests would be as many notifications."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool now. problem: what a person should look into, "" for nothing. pending: cores that its fleet waits for.

    reserved: cores of containers that are not confirmed. policy: what decides, by name. training_distance: how far the
    last day's requests and the hosts lie from those that it was trained on, by part, from 0 to 1; empty where that is
    not known.
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
    training_distance: Mapping[str, float] = field(default_factory=dict)


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
        self.shared = SharedBook(name, ledger, clock, chooser, settings.confirm_within_s)
        self.store = self.shared.store
        self.hosts = PoolHosts(self.shared)
        self.applications = PoolApplications(self.shared)
        self.problem = ""
        """Why the inventory or the fleet cannot be read, "" when they can."""
        self.training_distance: Mapping[str, float] = {}
        """See PoolView; the turn of the agent that leads looks."""
        self._ledger, self._clock = ledger, clock
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
                    raise StateConflict("request_id", request.request_id, f"it belongs to {asked}: use another id")
                return before, None
            if request.request_id in book.reservations:
                remedy = "its containers still run, and its decision is older than the ledger keeps: use another id"
                raise StateConflict("request_id", request.request_id, remedy)
            held = held_by_pause(self._ledger.controls(PLACEMENT, self.name), (Direction.OUT,), now)
            if held is not None:
                raise StateConflict("pool", self.name, held.detail)
            book.app(request.application)
            changed, notes = self.shared.lapse(book, now)
            advice = self.mode is not Mode.ACT
            head = replace(self.shared.having_seen(now, request.count), decisions=self.shared.head.decisions + 1)
            book.cluster.largest = head.largest_count
            book.touched = True
            began = time.perf_counter()
            chosen = self.chooser.place(
                book.cluster, request.application, request.count, partial=request.partial, spare=book.spare
            )
            lasting_s = None if advice else self.settings.confirm_within_s
            made = decision_on(
                *(self.shared, book, request, chosen, now, head.decisions),
                confirm_within_s=lasting_s,
                pending=self.pending,
                began=began,
            )
            notes.append(Event(self.name, now, made.reason, made.detail, made.decision_id))
            if made.replaced:
                notes.append(Event(self.name, now, Reason.POLICY_REPLACED, made.replaced, made.decision_id))
                head = replace(head, replaced=head.replaced + 1)
            if advice:
                app = book.cluster.application(request.application)
                for choice in reversed(chosen.choices):
                    book.cluster.release(choice.host, app)
            elif made.containers:
                reservation = reservation_of(request, made)
                book.take(reservation)
                changed[request.request_id] = reservation
                self.shared.saw(reservation)
                head = replace(head, containers=head.containers + len(made.containers))
            if made.unplaced and not advice:
                why = most_common(made.infeasible)
                refusals = {**head.refusals, why: head.refusals.get(why, 0) + made.unplaced}
                head = replace(head, refused=head.refused + made.unplaced, refusals=refusals)
                notes += refused_alarms(book, made)
            return made, Change(self.shared.next(head), reservations=changed, made=(made,), notes=notes)

        asked = time.perf_counter()
        made = self.shared.transact(work)
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
            lapsed, notes = self.shared.lapse(book, now)
            if found is None or request_id in lapsed:
                # What lapsed is given back by the next write; memory is dropped with this error.
                self._known(request_id)
                raise StateConflict("request_id", request_id, "it lapsed, was cancelled or released: request again")
            confirmed = replace(found, stage=Stage.CONFIRMED)
            book.take(confirmed)
            notes.append(Event(self.name, now, Reason.PLACEMENT_CONFIRMED, f"{request_id} is confirmed", request_id))
            change = Change(
                self.shared.next(self.shared.head), reservations={**lapsed, request_id: confirmed}, notes=notes
            )
            return Changed("confirmed", False, confirmed), change

        return self.shared.transact(work)

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
            change = Change(self.shared.next(self.shared.head), reservations={request_id: None}, notes=[note])
            return Changed("cancelled", False, replace(found, released=_indices(found.hosts), hosts={})), change

        return self.shared.transact(work)

    def release(self, request_id: str, containers: Collection[int] | None = None) -> Changed:
        """Take containers of a confirmed reservation off their hosts, all that are named or (None) all there are.

        What was released before stays so. UnknownName for a request or container that never was, StateConflict for one
        that is not confirmed or was lost; then nothing is released.
        """

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            found = book.reservations.get(request_id)
            if found is None:
                self._known(request_id)
                return Changed("it holds nothing any more", True), None
            if found.stage is not Stage.CONFIRMED:
                raise StateConflict("request_id", request_id, "it is not confirmed: cancel it, or confirm it first")
            named = {int(index) for index in found.hosts} if containers is None else set(containers)
            wanted = sorted(named - set(found.released))
            if named and not wanted:
                return Changed("released before", True, found), None
            self._check_released(found, wanted)
            gone = {str(index): found.hosts[str(index)] for index in wanted}
            book.free(found, gone)
            left = {index: host for index, host in found.hosts.items() if index not in gone}
            after = replace(found, hosts=left, released=tuple(sorted({*found.released, *wanted})))
            if left:
                book.take(after)
            detail = f"{len(gone)} containers of {found.application} are released, {len(left)} are left"
            note = Event(self.name, now, Reason.CONTAINERS_RELEASED, detail, request_id)
            change = Change(
                self.shared.next(self.shared.head), reservations={request_id: after if left else None}, notes=[note]
            )
            return Changed("released", False, after), change

        return self.shared.transact(work)

    def move(self, request_id: str, container: int, host: str) -> Changed:
        """Record that a container of a confirmed reservation now runs on another host, such as by a plan to repack.

        UnknownName for a request, container or host that is none; StateConflict where the host cannot take it.
        """

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            found = book.reservations.get(request_id)
            if found is None or found.stage is not Stage.CONFIRMED:
                self._known(request_id)
                raise StateConflict("request_id", request_id, "it is not confirmed, or holds nothing any more")
            self._check_released(found, [container])
            target, before = book.host(host), found.hosts[str(container)]
            if before == host:
                return Changed("it runs there already", True, found), None
            app = book.cluster.application(found.application)
            book.touched = True
            # Judged while it still runs where it was, as a plan does.
            book.cluster.place(target, app)
            book.cluster.release(book.cluster.host(before), app)
            moved = tuple(sorted({*found.moved, container}))
            after = replace(found, hosts={**found.hosts, str(container): host}, moved=moved)
            book.take(after)
            detail = f"{request_id} {container} of {found.application} moved from {before} to {host}"
            note = Event(self.name, now, Reason.CONTAINER_MOVED, detail, request_id)
            change = Change(self.shared.next(self.shared.head), reservations={request_id: after}, notes=[note])
            return Changed("moved", False, after), change

        return self.shared.transact(work)

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

    def reservations(self) -> tuple[Reservation, ...]:
        """Return what is reserved or runs, by request id."""
        with self.shared.lock:
            return tuple(one for _, one in sorted(self.shared.current().reservations.items()))

    def reservation(self, request_id: str) -> tuple[PlacementDecision, Reservation | None]:
        """Return what was decided on a request, and what it holds now; UnknownName."""
        decision = self._known(request_id)
        with self.shared.lock:
            return decision, self.shared.current().reservations.get(request_id)

    def held_cores(self, origin: Origin) -> tuple[tuple[str, str, float], ...]:
        """Return name, label and cores that containers hold of each host of an origin that has not failed."""
        with self.shared.lock:
            book = self.shared.current()
            return tuple(
                (one.name, one.label, float(book.cluster.used[0][book.cluster.host(one.name)]))
                for one in book.records.values()
                if one.origin is origin and one.state is not HostState.FAILED
            )

    def cores_of(self) -> dict[str, int]:
        """Return the cores that one container of each application needs."""
        with self.shared.lock:
            return {one.name: one.demand[0] for one in self.shared.current().cluster.applications}

    def view(self) -> PoolView:
        """Return the pool now."""
        pending_cores = self.pending()
        with self.shared.lock:
            book = self.shared.current()
            held, unconfirmed = book.reservations, list(book.unconfirmed.values())
            problem = "; ".join(text for text in (self.problem, self.chooser.problems()) if text)
            return PoolView(
                self.name,
                self.mode,
                self._clock.now(),
                self.chooser.in_force.name,
                book.figures(),
                self.shared.head,
                len(held),
                len(unconfirmed),
                sum(self._cores(book, one) for one in unconfirmed),
                pending_cores,
                self.decision_ms,
                problem,
                self.training_distance,
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
            before = self.shared.head.switch
            if (before.policy if before else "") == policy:
                return Changed("it decides already", True), None
            made = Switch(policy, owner, reason, now) if policy else None
            detail = f"{owner}: {policy or 'the policy of the settings'} decides from now on: {reason}"
            note = Event(self.name, now, Reason.POLICY_SWITCHED, detail)
            return Changed(detail), Change(self.shared.next(replace(self.shared.head, switch=made)), notes=[note])

        return self.shared.transact(work)

    # In the turn of the agent that leads

    def lapse(self, epoch: int) -> None:
        """Give back what was reserved and not confirmed in time; Fenced when the epoch is over."""

        def work(book: Book, now: float) -> tuple[None, Change | None]:
            lapsed, notes = self.shared.lapse(book, now)
            gone = self.hosts.forget(book)
            if not lapsed and not gone:
                return None, None
            return None, Change(self.shared.next(self.shared.head), hosts=gone, reservations=lapsed, notes=notes)

        self.shared.transact(work, epoch=epoch)

    def note(self, made: Sequence[Made], notes: Sequence[Event], epoch: int) -> None:
        """Write decisions and events of the turn, numbered here; Fenced when the epoch is over."""

        def work(book: Book, now: float) -> tuple[None, Change | None]:
            head = replace(self.shared.head, decisions=self.shared.head.decisions + len(made))
            numbered = [
                replace(one, decision_id=f"{self.name}-p{self.shared.head.decisions + k}")
                for k, one in enumerate(made, 1)
            ]
            return None, Change(self.shared.next(head), made=numbered, notes=notes)

        self.shared.transact(work, epoch=epoch)

    def alarms(self) -> tuple[Event, ...]:
        """Return what a person should look into since the last call; what requests meet is one alarm of the pool."""
        events = [self.shared.alarms.popleft() for _ in range(len(self.shared.alarms))]
        return tuple(replace(one, subject="") if one.reason in OF_REQUESTS else one for one in events)

    def now(self) -> float:
        """Return the time by the pool's clock, in epoch seconds."""
        return self._clock.now()

    def snapshot(self) -> tuple[Cluster, Instance, tuple[Reservation, ...]]:
        """Return a copy of the cluster, the inventory it is of, and what is reserved or runs on it: of one moment."""
        with self.shared.lock:
            book = self.shared.current()
            return book.cluster.copy(), book.instance, tuple(book.reservations.values())

    def _known(self, request_id: str) -> PlacementDecision:
        found = self.store.decision(self.name, request_id)
        if found is None:
            raise UnknownName("request_id", request_id, f"the pool {self.name} has no request of this id")
        return found

    def _cores(self, book: Book, one: Reservation) -> int:
        return len(one.hosts) * book.cluster.applications[book.app(one.application)].demand[0]


def _indices(hosts: Mapping[str, str]) -> tuple[int, ...]:
    return tuple(sorted(int(index) for index in hosts))
