"""The hosts of a pool: they join, drain, change and fail by order, follow an inventory, and follow a fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from agent.placement.applications import merged
from agent.placement.book import Book, HostView, listed_in
from agent.placement.records import (
    Changed,
    HostRecord,
    HostState,
    Move,
    MoveDecision,
    Origin,
    PoolHead,
    Reservation,
    check_capacity,
    check_id,
)
from agent.placement.shared import SharedBook
from agent.placement.state import Change, Made, PoolState
from domain.decisions import Event, Reason
from domain.errors import BadInput, StateConflict
from domain.rules.placement.instance import Instance, Vector, parse_instance

WORKED_BY: Final = ("version", "host_types", "applications", "snapshot")
"""What of an inventory the ledger keeps: all of it was checked."""


class PoolHosts:
    """One pool's hosts; every method may be called from any thread and raises LedgerUnavailable."""

    def __init__(self, shared: SharedBook) -> None:
        self.shared = shared

    def all(self) -> list[HostView]:
        """Return every host."""
        with self.shared.lock:
            return self.shared.current().hosts()

    def records(self) -> dict[str, HostRecord]:
        """Return the hosts of which something is recorded."""
        with self.shared.lock:
            return dict(self.shared.current().records)

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

        return self.shared.transact(work)

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

        return self.shared.transact(work)

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

        return self.shared.transact(work)

    def fail(self, name: str) -> Changed:
        """Take a host out; each of its containers is placed anew before any other request, or lost."""

        def work(book: Book, now: float) -> tuple[Changed, Change | None]:
            before = book.record_of(name)
            if before.state is HostState.FAILED:
                return Changed("it has failed before", True, host=before), None
            return self._failed(book, before, now, self.shared.head)

        return self.shared.transact(work)

    def _failed(
        self, book: Book, before: HostRecord, now: float, head: PoolHead, *, kept: bool = True
    ) -> tuple[Changed, Change]:
        """Return what became of a host that failed; kept: whether its record stays, else it is forgotten."""
        held = book.containers_of(before.name)
        record = replace(before, state=HostState.FAILED)
        book.put(record)
        moves, policies, replaced = list[Move](), list[str](), list[str]()
        for reservation, index in held:
            application, chooser = reservation.application, self.shared.chooser
            chosen = chooser.place(book.cluster, application, 1, partial=False, spare=book.spare)
            policies.append(chosen.policy.name)
            replaced += filter(None, [chosen.replaced])
            host = book.cluster.hosts[chosen.choices[0].host].name if chosen.choices else None
            moves.append(Move(reservation.request_id, index, reservation.application, before.name, host))
        changed = self._moved(book, moves)
        made: list[Made] = []
        detail = f"{before.name} failed"
        if moves:
            lost = sum(move.host is None for move in moves)
            detail += f": {len(moves) - lost} of its containers are placed again, {lost} found no host"
            head = replace(head, decisions=head.decisions + 1, replaced=head.replaced + len(replaced))
            reason = Reason.CONTAINERS_LOST if lost else Reason.HOST_FAILED
            decision_id = f"{self.shared.name}-p{head.decisions}"
            policy = ", ".join(dict.fromkeys(policies))
            made.append(
                MoveDecision(decision_id, self.shared.name, now, before.name, tuple(moves), reason, detail, policy)
            )
        reason = made[0].reason if made else Reason.HOST_FAILED
        notes = [Event(self.shared.name, now, reason, detail, before.name)]
        if replaced:
            why = f"{replaced[0]} (for {len(replaced)} of {len(moves)} containers of {before.name})"
            notes.append(Event(self.shared.name, now, Reason.POLICY_REPLACED, why, before.name))
        if not kept:
            book.records.pop(before.name, None)
        hosts = {before.name: record if kept else None}
        change = Change(self.shared.next(head), hosts=hosts, reservations=changed, made=made, notes=notes)
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
        note = Event(self.shared.name, now, Reason.HOST_CHANGED, detail, record.name)
        return Changed(detail, False, host=record), Change(
            self.shared.next(self.shared.head), hosts={record.name: record}, notes=[note]
        )

    def forget(self, book: Book) -> dict[str, HostRecord | None]:
        """Return the hosts that left the inventory and hold nothing any more."""
        gone: dict[str, HostRecord | None] = {}
        for name, record in book.records.items():
            index = book.find(name)
            of_inventory = record.origin is Origin.INVENTORY and book.listed(name) is None
            if of_inventory and (index is None or not book.cluster.containers[index]):
                gone[name] = None
        for name in gone:
            book.remove(name)
        return gone

    def adopt(self, document: Mapping[str, Any], digest: str, epoch: int, *, hosts_elsewhere: bool = False) -> bool:
        """Work by another inventory from now on; return whether it is another one.

        hosts_elsewhere: a fleet's VMs are hosts too, so that it may list none, and what applications need of hosts is
        not checked against its own. ConfigurationError with every wrong field, BadInput where what runs keeps it from
        being followed, or where its hosts cannot be; Fenced.
        """
        warnings = parse_instance(document, "inventory", hosts_elsewhere=hosts_elsewhere)[1]

        def work(book: Book, now: float) -> tuple[Book | None, Change | None]:
            if self.shared.head.inventory == digest:
                return None, None
            whole = merged(book, {key: document[key] for key in WORKED_BY if key in document})
            instance = parse_instance(whole, "inventory", hosts_elsewhere=True)[0]
            conflicts = book.document_conflicts(instance)
            if conflicts:
                raise BadInput("inventory_file", digest, "; ".join(conflicts))
            hosts = _followed(book, instance)
            state = PoolState(
                *(self.shared.head, None, whole, {**book.records, **hosts}, book.reservations, book.over_http)
            )
            detail = (
                f"inventory {digest}: {len(instance.hosts)} types of hosts, {len(instance.applications)} applications"
            )
            notes = [Event(self.shared.name, now, Reason.INVENTORY_CHANGED, "; ".join([detail, *warnings]))]
            head = self.shared.next(replace(self.shared.head, inventory=digest))
            # What cannot be a pool is refused here, before it is written.
            return Book(state), Change(head, hosts=hosts, inventory=whole, notes=notes)

        with self.shared.lock:
            book = self.shared.transact(work, epoch=epoch)
            if book is not None:
                self.shared.become(book)
            return book is not None

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
        moves: list[Move] = []
        if changed:

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
                notes = [Event(self.shared.name, now, Reason.HOST_CHANGED, detail)]
                return None, Change(self.shared.next(self.shared.head), hosts=taken, notes=notes)

            self.shared.transact(work, epoch=epoch)
        for name in gone:

            def lost(book: Book, now: float, name: str = name) -> tuple[Changed | None, Change | None]:
                if name not in book.records:
                    return None, None
                return self._failed(book, book.records[name], now, self.shared.head, kept=False)

            found = self.shared.transact(lost, epoch=epoch)
            moves += found.moves if found is not None else ()
        return tuple(moves)


def _followed(book: Book, instance: Instance) -> dict[str, HostRecord]:
    """Return the hosts with a record, or with containers, that a new inventory changes.

    One that it does not list drains. One that it lists for the first time, again, or otherwise than before has the size
    and label that it says; whether operators drained it or it failed stays.
    """
    kinds = {kind.name: kind for kind in instance.hosts}
    held = {name for one in book.reservations.values() for name in one.hosts.values()}
    changed: dict[str, HostRecord] = {}
    for name in sorted(held | set(book.records)):
        record, was, now = book.record_of(name), book.listed(name), listed_in(kinds, name)
        if record.origin is Origin.FLEET or (was is None and now is None):
            continue
        if now is None:
            if record.origin is Origin.INVENTORY and record.state is HostState.UP:
                changed[name] = replace(record, state=HostState.DRAINING)
        elif was is None or (was.capacity, was.label) != (now.capacity, now.label):
            back = record.state is HostState.DRAINING and not record.ordered
            changed[name] = replace(
                record,
                capacity=now.capacity,
                rated=now.capacity,
                label=now.label,
                origin=Origin.INVENTORY,
                state=HostState.UP if back else record.state,
            )
    return changed
