"""What a service holds of its cluster in memory: the book as the ledger has it, read again when others wrote to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from agent.admission.book import Book
from agent.admission.deployments import Deployment, Stage, lapsed
from agent.admission.rules import ClusterRules
from agent.ledger.admission import AdmissionStore, Change, ClusterCounts, Moved
from domain.clock import Clock
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

    def __init__(self, rules: ClusterRules, store: AdmissionStore, clock: Clock) -> None:
        self.rules, self.store = rules, store
        self._clock = clock
        # By deployment and decision, when this process first saw the reservation: monotonic seconds.
        self._first_seen: dict[tuple[str, str], float] = {}
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
            self._first_seen = self._with_new(self._book.inside())
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
        self._first_seen |= self._with_new(change.deployments)

    def lapses(self, book: Book, now: float) -> tuple[list[Deployment], list[Event]]:
        """Return those that were admitted and did not start in time, without their cores, and what to say of them.

        Their time is what passed on this process's monotonic clock since it first saw them. A wall clock that is set,
        or that differs from that of the agent which admitted them, ends no reservation; a restart begins the wait anew.
        """
        at = self._clock.monotonic()
        late = [d for d in book.inside() if d.reserved_s is not None and at - self._seen_at(d, at) > d.reserved_s]
        notes = []
        for deployment in late:
            detail = f"admitted to {self.rules.name} by {deployment.decision_id}, it did not start in time"
            notes.append(Event(AGENT, now, Reason.ADMISSION_LAPSED, detail, deployment.deployment_id))
        return [lapsed(deployment) for deployment in late], notes

    def _with_new(self, deployments: Iterable[Deployment]) -> dict[tuple[str, str], float]:
        """Return when those that are reserved were first seen: now, unless they were seen before."""
        at = self._clock.monotonic()
        return {_key(one): self._seen_at(one, at) for one in deployments if one.stage is Stage.RESERVED}

    def _seen_at(self, deployment: Deployment, otherwise: float) -> float:
        return self._first_seen.get(_key(deployment), otherwise)


def _key(deployment: Deployment) -> tuple[str, str]:
    return deployment.deployment_id, deployment.decision_id
