"""The service that decides which deployments a cluster takes, and hears what becomes of them (specification §10).

Everything it answers is in the ledger before the answer: a process that dies in between, and starts again, knows as
much as it would have. What it holds in memory is only what the ledger has, with the futures computed from it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import structlog

from agent.admission import snapshots
from agent.admission.answering import advised, check_same, check_size, counted, decided, same_advice, told
from agent.admission.book import Book
from agent.admission.checking import check_event
from agent.admission.deciding import first_unsafe, worst_slack
from agent.admission.deployments import Deployment, Stage, applied, lapsed
from agent.admission.gauges import Gauges, month_of
from agent.admission.records import (
    Accepted,
    AdmissionDecision,
    AdmissionRequest,
    AlreadySeen,
    DeploymentEvent,
    EventKind,
)
from agent.admission.rules import ClusterRules
from agent.ledger.admission import AdmissionStore, Change, ClusterCounts, Moved
from domain.clock import Clock
from domain.decisions import Event, Reason
from domain.errors import BadInput, LedgerUnavailable
from domain.rules.admission.policies import unused_budget

__all__ = [
    "Accepted",
    "AdmissionDecision",
    "AdmissionRequest",
    "AdmissionService",
    "AlreadySeen",
    "DeploymentEvent",
    "EventKind",
    "Gauges",
]

log = structlog.get_logger(__name__)

TRIES: Final = 50
"""Times that what another process wrote meanwhile is read again; each takes some milliseconds."""
AGENT: Final = ""
"""The fleet under which what happens to clusters stands in the journal."""

T = TypeVar("T")


class AdmissionService:
    """One cluster's admissions; every method may be called from any thread.

    Every method raises LedgerUnavailable when the ledger cannot be used: then nothing was decided and nothing taken.
    Several processes may serve one cluster on a shared ledger: who finds that another wrote reads again.
    """

    def __init__(self, rules: ClusterRules, store: AdmissionStore, clock: Clock) -> None:
        self.rules = rules
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._book: Book | None = None
        self._revision = 0
        self._counts = ClusterCounts()
        # Read by the loop, which must not wait for whoever holds the lock.
        self._alarms: deque[Event] = deque()
        self._dropped: Book | None = None

    def admit(self, request: AdmissionRequest) -> AdmissionDecision:
        """Decide on one deployment; see `admit_all`."""
        return self.admit_all([request])[0]

    def admit_all(self, requests: Sequence[AdmissionRequest]) -> tuple[AdmissionDecision, ...]:
        """Decide on deployments in this order, each knowing those admitted before it; all are recorded or none.

        An unusable value is answered by a decision too, REJECTED_INPUT, whose detail names the field. BadInput when a
        request names another cluster, or a request id that stands for something else.
        """
        for request in requests:
            if request.cluster != self.rules.name:
                raise BadInput("cluster", request.cluster, f"this is the cluster {self.rules.name}")
        return self._tried(lambda book: self._admit_all(book, requests))

    def advise(self, request: AdmissionRequest) -> AdmissionDecision:
        """Say what `admit` would decide now, and record it as advice: nothing is taken in, its request id is not used.

        What comes to the same as the deployment's newest advice is not recorded again: then that one is the answer.
        """
        if request.cluster != self.rules.name:
            raise BadInput("cluster", request.cluster, f"this is the cluster {self.rules.name}")
        return self._tried(lambda book: self._advise(book, replace(request, request_id="")))

    def observe(self, event: DeploymentEvent) -> Accepted | AlreadySeen:
        """Take in one event; see `observe_all`."""
        return self.observe_all([event])[0]

    def observe_all(self, events: Sequence[DeploymentEvent]) -> tuple[Accepted | AlreadySeen, ...]:
        """Take in events in this order: all of them or, when one cannot be used, none.

        BadInput names the field: an unknown deployment, a time before the deployment's last one, a size beyond the
        cluster, an id that was used for something else. Sizes that do not add up are put right, and an alarm told.
        """
        return self._tried(lambda book: self._observe_all(book, events))

    def explain(self, decision_id: str) -> AdmissionDecision:
        """Return a decision as it was recorded; BadInput when there is none of that id here."""
        found = self._store.decision(decision_id)
        if found.cluster != self.rules.name:
            raise BadInput("decision_id", decision_id, f"it belongs to the cluster {found.cluster}")
        return found

    def newest(self, limit: int = 20, deployment_id: str | None = None) -> tuple[AdmissionDecision, ...]:
        """Return the newest decisions, of one deployment or of all."""
        return self._store.newest(self.rules.name, limit, deployment_id)

    def deployments(self) -> tuple[Deployment, ...]:
        """Return those inside, by id, as they were last told of."""
        with self._lock:
            return tuple(sorted(self._loaded().inside(), key=lambda found: found.deployment_id))

    def deployment(self, deployment_id: str) -> Deployment | None:
        """Return what is known of a deployment, one that ended too; None when nothing is."""
        with self._lock:
            return self._loaded().known.get(deployment_id)

    def refresh(self, *, all_of_them: bool = False) -> int:
        """Compute the futures that are out of date, so that the next decision need not; return how many there were."""
        with self._lock:
            return self._loaded().refresh(self._clock.now(), all_of_them=all_of_them)

    def resize(self, capacity_cores: int) -> None:
        """Work with another capacity from now on, such as a quota that was raised; BadInput when it is none."""
        with self._lock:
            self.rules = replace(self.rules, capacity_cores=capacity_cores)
            if self._book is not None:
                self._book.rules = self.rules

    def gauges(self, now: float) -> Gauges:
        """Return what the cluster is like now; futures are those of the last decision or `refresh`."""
        with self._lock:
            book, counts, rules = self._loaded(), self._counts, self.rules
            if month_of(now) > counts.month:
                counts = replace(counts, month=month_of(now), requests=0, failures=0)
            unsafe = first_unsafe(book)
            stages = [deployment.stage for deployment in book.inside()]
            return Gauges(
                cluster=rules.name,
                at=now,
                capacity_cores=rules.capacity_cores,
                policy=rules.text,
                config_hash=rules.config_hash,
                total_cores=book.total,
                live=stages.count(Stage.LIVE),
                reserved=stages.count(Stage.RESERVED),
                decisions=counts.decisions,
                safe=unsafe < 0,
                unsafe_from_hours=float(book.horizons_h[unsafe]) if unsafe >= 0 else None,
                worst_slack_cores=worst_slack(book),
                requests_month_to_date=counts.requests,
                failures_month_to_date=counts.failures,
                sla=rules.sla,
                sla_budget_used=counts.failures / (rules.sla * counts.requests) if counts.requests else 0.0,
            )

    def now(self) -> float:
        """Return the time by the service's clock, in epoch seconds."""
        return self._clock.now()

    def alarms(self) -> tuple[Event, ...]:
        """Return what a person should look into since the last call."""
        return tuple(self._alarms.popleft() for _ in range(len(self._alarms)))

    def forget(self, before: float) -> None:
        """Remember those no longer that ended before this time, as the ledger does with its history."""
        with self._lock:
            self._loaded().forget(before)

    def snapshot(self, path: Path) -> Path:
        """Write what is inside, with the futures, to `path`.npz and `path`.json; return the latter's path."""
        with self._lock:
            book = self._loaded()
            # Whoever restores it adds up anew, and is to have the same sums.
            book.add_up()
            since = min((deployment.last_at for deployment in book.inside()), default=self._clock.now())
            events = self._store.events_since(self.rules.name, since)
            return snapshots.write(path, self.rules, self._counts, book, events, self._clock.now())

    def restore(self, path: Path) -> int:
        """Put a snapshot in the place of everything inside, in the ledger too; return how many deployments it holds.

        BadInput when it was written by another version or of another cluster, or when it is damaged. Decisions stay.
        """
        with self._lock:
            found = snapshots.read(path, self.rules.name)
            self._loaded()
            revision = self._revision
            counts = replace(found.counts, decisions=max(found.counts.decisions, self._counts.decisions))
            change = Change(counts, found.deployments, found.events)
            self._book = self._dropped = None
            self._store.replace(self.rules.name, revision, change)
            book = self._loaded()
            # Futures of other rules or horizons are computed anew.
            if found.config_hash == self.rules.config_hash:
                book.adopt(found.ids, found.arrays)
            return len(found.deployments)

    # How it is done

    def _loaded(self) -> Book:
        """Return what is inside as the ledger has it now."""
        book = self._read()
        book.unused_budget = unused_budget(self.rules.sla, self._counts.failures_ever, self._counts.requests_ever)
        return book

    def _read(self) -> Book:
        if self._book is not None and self._store.revision(self.rules.name) != self._revision:
            self._drop()
        if self._book is None:
            inside = self._store.inside(self.rules.name)
            self._revision, self._counts = inside.revision, inside.counts
            self._book = Book(self.rules, inside.deployments)
            if self._dropped is not None:
                self._book.adopt(*self._dropped.arrays())
                self._dropped = None
        return self._book

    def _drop(self) -> None:
        """Have what is inside read from the ledger again; futures outlive it where they still hold."""
        self._dropped = self._book or self._dropped
        self._book = None

    def _tried(self, work: Callable[[Book], T]) -> T:
        with self._lock:
            for _ in range(TRIES):
                try:
                    return work(self._loaded())
                except Moved:
                    self._drop()
        raise LedgerUnavailable(f"cluster {self.rules.name} is written by others all the time: try again")

    def _lapses(self, book: Book, now: float) -> tuple[list[Deployment], list[Event]]:
        """Return those that were admitted and did not start in time, without their cores, and what to say of them."""
        late = [d for d in book.inside() if d.lapses_at is not None and d.lapses_at < now]
        notes = []
        for deployment in late:
            detail = f"admitted to {self.rules.name} by {deployment.decision_id}, it did not start in time"
            notes.append(Event(AGENT, now, Reason.ADMISSION_LAPSED, detail, deployment.deployment_id))
        return [lapsed(deployment) for deployment in late], notes

    # Admissions

    def _admit_all(self, book: Book, requests: Sequence[AdmissionRequest]) -> tuple[AdmissionDecision, ...]:
        now = self._clock.now()
        changed, notes = self._lapses(book, now)
        counts = self._counts
        answers: list[AdmissionDecision] = []
        made: list[AdmissionDecision] = []
        try:
            for deployment in changed:
                book.put(deployment)
            for request in requests:
                decision = self._decided_before(book, request, made)
                if decision is None:
                    counts = replace(counts, decisions=counts.decisions + 1)
                    decision = decided(book, request, f"{self.rules.name}-a{counts.decisions}", now)
                    made.append(decision)
                    notes.append(Event(AGENT, now, decision.reason, told(decision), decision.decision_id))
                    if decision.admit:
                        changed.append(book.known[decision.deployment_id])
                answers.append(decision)
            if made or changed:
                self._write(Change(counts, changed, (), made, notes))
        except BaseException:
            if changed:
                # Those who are in memory by now are not in the ledger.
                self._drop()
            raise
        self._tell(made)
        return tuple(answers)

    def _advise(self, book: Book, request: AdmissionRequest) -> AdmissionDecision:
        now = self._clock.now()
        gone, notes = self._lapses(book, now)
        counts = replace(self._counts, decisions=self._counts.decisions + 1)
        try:
            for deployment in gone:
                book.put(deployment)
            decision = advised(book, request, f"{self.rules.name}-a{counts.decisions}", now)
            before = self._store.newest(self.rules.name, 1, decision.deployment_id)
            if before and same_advice(before[0], decision):
                if gone:
                    self._write(Change(self._counts, gone, notes=notes))
                return before[0]
            notes.append(Event(AGENT, now, Reason.OBSERVE_MODE, told(decision), decision.decision_id))
            self._write(Change(counts, gone, (), [decision], notes))
        except BaseException:
            if gone:
                self._drop()
            raise
        self._tell([decision])
        return decision

    def _tell(self, made: Sequence[AdmissionDecision]) -> None:
        for decision in made:
            log.info(
                "advice" if decision.advice else "admission",
                cluster=decision.cluster,
                decision=decision.decision_id,
                deployment=decision.deployment_id,
                cores=decision.cores,
                reason=decision.reason,
                detail=decision.detail,
            )
            if decision.reason is Reason.REJECTED_UNSAFE and not decision.advice:
                self._alarms.append(Event(AGENT, decision.at, decision.reason, decision.detail, decision.cluster))

    def _decided_before(
        self, book: Book, request: AdmissionRequest, made: Sequence[AdmissionDecision]
    ) -> AdmissionDecision | None:
        """Return the decision that this request got already, None for a new one."""
        if request.request_id:
            same = next((decision for decision in made if decision.request_id == request.request_id), None)
            found = same or self._store.decision_of_request(self.rules.name, request.request_id)
            if found is None:
                return None
            if (found.deployment_id, found.cores) != (request.deployment_id, request.cores):
                remedy = f"it stands for {found.cores} cores of {found.deployment_id} ({found.decision_id})"
                raise BadInput("request_id", request.request_id, remedy)
            return found
        known = book.known.get(request.deployment_id)
        if known is None or known.stage is not Stage.RESERVED:
            return None
        if (known.cores, known.priors) != (request.cores, request.observations):
            return None
        same = next((decision for decision in made if decision.decision_id == known.decision_id), None)
        return same or self._store.decision(known.decision_id)

    # Events

    def _observe_all(self, book: Book, events: Sequence[DeploymentEvent]) -> tuple[Accepted | AlreadySeen, ...]:
        now = self._clock.now()
        for event in events:
            check_event(event, now)
        before = self._store.events(self.rules.name, {event.event_id for event in events})
        late, notes = self._lapses(book, now)
        changed = {deployment.deployment_id: deployment for deployment in late}
        counts, taken, repairs = self._counts, list[DeploymentEvent](), list[Event]()
        answers: list[Accepted | AlreadySeen] = []
        for event in events:
            known = changed.get(event.deployment_id) or book.known.get(event.deployment_id)
            first = before.get(event.event_id)
            if first is not None:
                check_same(first, event)
                answers.append(AlreadySeen(event.event_id, event.deployment_id, known.cores if known else 0))
                continue
            result = applied(known, event)
            check_size(event, result.deployment.cores, self.rules.capacity_cores)
            changed[event.deployment_id] = result.deployment
            before[event.event_id] = event
            taken.append(event)
            counts = counted(counts, event)
            if result.repaired:
                detail = f"{self.rules.name}: {result.repaired}"
                repairs.append(Event(AGENT, now, Reason.SIZES_REPAIRED, detail, event.deployment_id))
            cores = result.deployment.cores
            answers.append(Accepted(event.event_id, event.deployment_id, cores, result.repaired))
        if changed:
            self._write(Change(counts, list(changed.values()), taken, (), [*notes, *repairs]))
        for deployment in changed.values():
            book.put(deployment)
        mended = book.mends()
        if mended is not None:
            detail = f"{self.rules.name}: the total was {mended[0]}, the sizes add up to {mended[1]}"
            repairs.append(Event(AGENT, now, Reason.SIZES_REPAIRED, detail, self.rules.name))
        for repair in repairs:
            log.warning("sizes_repaired", deployment=repair.subject, detail=repair.detail)
        self._alarms += repairs
        return tuple(answers)

    def _write(self, change: Change) -> None:
        self._revision = self._store.write(self.rules.name, self._revision, change)
        self._counts = change.counts
