"""A pool's book as this process has it, which other processes change too: read, changed and written as one.

What is in memory is what the ledger has as of a head. Each piece of work reads the head, changes the book, and writes
the change under the head that it read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from agent.kernel.transaction import Conflict, retried
from agent.ledger import Ledger
from agent.placement.book import Book
from agent.placement.choosing import Chooser
from agent.placement.records import PoolHead, Reservation
from agent.placement.state import Change, PlacementStore
from domain.clock import Clock
from domain.decisions import Event, Reason
from domain.units import DAY_S

HALF_LIFE_S: Final = 14 * DAY_S
"""After so long half of the largest request's count above 1 is still believed in."""

T = TypeVar("T")


class SharedBook:
    """One pool's book and head; safe for any thread. chooser: is told the policy that operators switched to.

    head: as it was read or written last. alarms: what was recorded since they were taken.
    """

    def __init__(self, name: str, ledger: Ledger, clock: Clock, chooser: Chooser, confirm_within_s: float) -> None:
        self.name, self.clock, self.chooser = name, clock, chooser
        self.store = PlacementStore(ledger)
        self.lock = threading.RLock()
        self.head = PoolHead()
        self.alarms: deque[Event] = deque()
        self._confirm_within_s = confirm_within_s
        self._book: Book | None = None
        self._stored_is: bytes | None = None
        # By request and decision, when this process first saw the reservation: monotonic seconds.
        self._first_seen: dict[tuple[str, str], float] = {}

    def current(self) -> Book:
        """Return the pool as the ledger has it now."""
        stored = self.store.stored_head(self.name)
        if self._book is None or stored != self._stored_is:
            state = self.store.read(self.name)
            self._book, self.head, self._stored_is = Book(state), state.head, state.stored
            at = self.clock.monotonic()
            for one in self._book.unconfirmed.values():
                self._first_seen.setdefault(_key(one), at)
            self.chooser.switch(state.head.switch.policy if state.head.switch else "")
        return self._book

    def transact(
        self,
        work: Callable[[Book, float], tuple[T, Change | None]],
        *,
        epoch: int | None = None,
    ) -> T:
        """Do work on the book and write its change; again on the new state when another process wrote first."""
        with self.lock:
            return retried(f"pool {self.name}", lambda: self._attempt(work, epoch))

    def _attempt(self, work: Callable[[Book, float], tuple[T, Change | None]], epoch: int | None) -> T:
        try:
            book, now = self.current(), self.clock.now()
            answer, change = work(book, now)
            if change is not None:
                self._write(change, epoch)
        except BaseException as error:
            # Changes in memory are not in the ledger; a refusal before any change leaves the book as it is.
            if isinstance(error, Conflict) or (self._book is not None and self._book.touched):
                self._book = None
            raise
        if change is not None:
            self.alarms += change.notes
        return answer

    def _write(self, change: Change, epoch: int | None) -> None:
        self._stored_is = self.store.write(self.name, self._stored_is, change, epoch=epoch)
        self.head = change.head
        if self._book is not None:
            self._book.touched = False
        self.chooser.switch(change.head.switch.policy if change.head.switch else "")

    def next(self, head: PoolHead) -> PoolHead:
        """Return a head as the next write has it."""
        return replace(head, revision=self.head.revision + 1)

    def having_seen(self, now: float, count: int) -> PoolHead:
        """Return the head with the largest request that is still believed in, and this one."""
        head = self.head
        passed = max(0.0, now - head.as_of) if head.as_of else 0.0
        decayed = 1.0 + (head.largest_count - 1.0) * 0.5 ** (passed / HALF_LIFE_S)
        return replace(head, largest_count=max(decayed, float(count)), as_of=now)

    def lapse(self, book: Book, now: float) -> tuple[dict[str, Reservation | None], list[Event]]:
        """Free what was not confirmed in time: the changed reservations, and what to say of them.

        Their time is what passed on this process's monotonic clock since it first saw them. A wall clock that is set
        ends no reservation; a restart begins the wait anew.
        """
        at = self.clock.monotonic()
        gone: dict[str, Reservation | None] = {}
        notes = []
        waiting = list(book.unconfirmed.values())
        # Of those alone: what is confirmed waits no more, however long the process runs.
        self._first_seen = {_key(one): self._first_seen.get(_key(one), at) for one in waiting}
        for one in waiting:
            if at - self._first_seen[_key(one)] <= self._confirm_within_s:
                continue
            book.free(one, one.hosts)
            gone[one.request_id] = None
            detail = f"{one.request_id} was not confirmed in time: {len(one.hosts)} containers are given back"
            notes.append(Event(self.name, now, Reason.PLACEMENT_LAPSED, detail, one.request_id))
        if gone:
            self.head = replace(self.head, lapsed=self.head.lapsed + len(gone))
        return gone, notes

    def saw(self, one: Reservation) -> None:
        """Let the time of a reservation begin now."""
        self._first_seen[_key(one)] = self.clock.monotonic()

    def become(self, book: Book) -> None:
        """Take what was written last as this book, which is the same made anew."""
        with self.lock:
            self._book = book


def _key(one: Reservation) -> tuple[str, str]:
    return one.request_id, one.decision_id
