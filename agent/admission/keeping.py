"""What a service holds of its cluster in memory: the book as the ledger has it, read again when others wrote to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from agent.admission.book import Book
from agent.admission.deployments import Deployment, lapsed
from agent.admission.rules import ClusterRules
from agent.ledger.admission import AdmissionStore, Change, ClusterCounts, Moved
from domain.decisions import Event, Reason
from domain.errors import LedgerUnavailable
from domain.rules.admission.policies import unused_budget

TRIES: Final = 50
"""Times that what another process wrote meanwhile is read again; each takes some milliseconds."""
AGENT: Final = ""
"""The fleet under which what happens to clusters stands in the journal."""

T = TypeVar("T")


class Keeping:
    """One cluster's book and counts, and the revision of the ledger that they are of. Not safe between threads."""

    def __init__(self, rules: ClusterRules, store: AdmissionStore) -> None:
        self.rules, self.store = rules, store
        self.revision = 0
        self.counts = ClusterCounts()
        self._book: Book | None = None
        self._dropped: Book | None = None

    def book(self) -> Book:
        """Return what is inside as the ledger has it now."""
        if self._book is not None and self.store.revision(self.rules.name) != self.revision:
            self.drop()
        if self._book is None:
            inside = self.store.inside(self.rules.name)
            self.revision, self.counts = inside.revision, inside.counts
            self._book = Book(self.rules, inside.deployments)
            if self._dropped is not None:
                self._book.adopt(*self._dropped.arrays())
                self._dropped = None
        self._book.unused_budget = unused_budget(self.rules.sla, self.counts.failures_ever, self.counts.requests_ever)
        return self._book

    def drop(self, *, futures: bool = True) -> None:
        """Have what is inside read from the ledger again; unless said otherwise futures outlive it where they hold."""
        self._dropped = (self._book or self._dropped) if futures else None
        self._book = None

    def work_by(self, rules: ClusterRules) -> None:
        """Go by other rules of the same cluster from now on."""
        self.rules = rules
        if self._book is not None:
            self._book.rules = rules

    def tried(self, work: Callable[[Book], T]) -> T:
        """Do work that writes; do it again on what there is now when another process wrote meanwhile."""
        for _ in range(TRIES):
            try:
                return work(self.book())
            except Moved:
                self.drop()
        raise LedgerUnavailable(f"cluster {self.rules.name} is written by others all the time: try again")

    def write(self, change: Change) -> None:
        """Write to the ledger what is in the book already, or will be; Moved when another process wrote meanwhile."""
        self.revision = self.store.write(self.rules.name, self.revision, change)
        self.counts = change.counts

    def lapses(self, book: Book, now: float) -> tuple[list[Deployment], list[Event]]:
        """Return those that were admitted and did not start in time, without their cores, and what to say of them."""
        late = [d for d in book.inside() if d.lapses_at is not None and d.lapses_at < now]
        notes = []
        for deployment in late:
            detail = f"admitted to {self.rules.name} by {deployment.decision_id}, it did not start in time"
            notes.append(Event(AGENT, now, Reason.ADMISSION_LAPSED, detail, deployment.deployment_id))
        return [lapsed(deployment) for deployment in late], notes
