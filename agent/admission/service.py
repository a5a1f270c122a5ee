"""The service that decides which deployments a cluster takes, and hears what becomes of them (specification §10).

Everything it answers is in the ledger before the answer: a process that dies in between, and starts again, knows as
much as it would have. What it holds in memory is only what the ledger has, with the futures computed from it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agent.admission import snapshots
from agent.admission.deployments import NOT_INSIDE, NOT_TAKEN_IN, Deployment
from agent.admission.events import observe_all
from agent.admission.gauges import Gauges, gauges_of
from agent.admission.memory import Keeping
from agent.admission.records import (
    Accepted,
    AdmissionDecision,
    AdmissionRequest,
    AlreadySeen,
    DeploymentEvent,
    EventKind,
)
from agent.admission.requests import admit_all, advise_all, said
from agent.admission.rules import ClusterRules
from agent.ledger.admission import AdmissionStore, Change
from domain.clock import Clock
from domain.decisions import Event, Mode
from domain.errors import BadInput, UnknownName

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


class AdmissionService:
    """One cluster's admissions; every method may be called from any thread.

    mode: whether `answer_all` admits or only advises. Every method raises LedgerUnavailable when the ledger cannot be
    used: then nothing was decided and nothing taken. Several processes may serve one cluster on a shared ledger: who
    finds that another wrote reads again.
    """

    def __init__(self, rules: ClusterRules, store: AdmissionStore, clock: Clock, mode: Mode = Mode.ACT) -> None:
        self.mode = mode
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._keeping = Keeping(rules, store, clock)
        # Read by the loop, which must not wait for whoever holds the lock.
        self._alarms: deque[Event] = deque()

    @property
    def rules(self) -> ClusterRules:
        """The rules that it goes by now."""
        return self._keeping.rules

    def answer_all(self, requests: Sequence[AdmissionRequest]) -> tuple[AdmissionDecision, ...]:
        """Answer those who ask as the mode has it: `admit_all` where the agent acts, `advise_all` where it observes."""
        return self.admit_all(requests) if self.mode is Mode.ACT else self.advise_all(requests)

    def admit(self, request: AdmissionRequest) -> AdmissionDecision:
        """Decide on one deployment; see `admit_all`."""
        return self.admit_all([request])[0]

    def admit_all(self, requests: Sequence[AdmissionRequest]) -> tuple[AdmissionDecision, ...]:
        """Decide on deployments in this order, each knowing those admitted before it; all are recorded or none.

        An unusable value is answered by a decision too, REJECTED_INPUT, whose detail names the field. BadInput when a
        request names another cluster, or a request id that stands for something else.
        """
        self._check_cluster(requests)
        with self._lock:
            work = self._keeping.tried
            answers, made = work(lambda book: admit_all(self._keeping, book, requests, self._clock.now()))
        self._alarms += said(made)
        return answers

    def advise(self, request: AdmissionRequest) -> AdmissionDecision:
        """Advise on one deployment; see `advise_all`."""
        return self.advise_all([request])[0]

    def advise_all(self, requests: Sequence[AdmissionRequest]) -> tuple[AdmissionDecision, ...]:
        """Say what `admit` would decide on each now, and record it as advice: nothing is taken in, no request id used.

        What comes to the same as the deployment's newest advice is not recorded again: then that one is the answer. A
        request that was decided on, while the agent acted, gets that decision. BadInput as with `admit_all`.
        """
        self._check_cluster(requests)
        with self._lock:
            work = self._keeping.tried
            answers, made = work(lambda book: advise_all(self._keeping, book, requests, self._clock.now()))
        self._alarms += said(made)
        return answers

    def observe(self, event: DeploymentEvent) -> Accepted | AlreadySeen:
        """Take in one event; see `observe_all`."""
        return self.observe_all([event])[0]

    def observe_all(self, events: Sequence[DeploymentEvent]) -> tuple[Accepted | AlreadySeen, ...]:
        """Take in events in this order: all of them or, when one cannot be used, none.

        BadInput names the field: an unknown deployment, a time before the deployment's last one, a size beyond the
        cluster, an id that was used for something else. Sizes that do not add up are put right, and an alarm told.
        """
        not_inside = NOT_INSIDE if self.mode is Mode.ACT else NOT_TAKEN_IN
        with self._lock:
            answers, repairs = self._keeping.tried(
                lambda book: observe_all(self._keeping, book, events, self._clock.now(), not_inside=not_inside)
            )
        self._alarms += repairs
        return answers

    def explain(self, decision_id: str) -> AdmissionDecision:
        """Return a decision as it was recorded; UnknownName when there is none of that id here."""
        found = self._store.decision(decision_id)
        if found.cluster != self.rules.name:
            raise UnknownName("decision_id", decision_id, f"it belongs to the cluster {found.cluster}")
        return found

    def newest(self, limit: int = 20, deployment_id: str | None = None) -> tuple[AdmissionDecision, ...]:
        """Return the newest decisions, of one deployment or of all."""
        return self._store.newest(self.rules.name, limit, deployment_id)

    def deployments(self) -> tuple[Deployment, ...]:
        """Return those inside, by id, as they were last told of."""
        with self._lock:
            return tuple(sorted(self._keeping.book().inside(), key=lambda found: found.deployment_id))

    def deployment(self, deployment_id: str) -> Deployment | None:
        """Return what is known of a deployment, one that ended too; None when nothing is."""
        with self._lock:
            return self._keeping.book().known.get(deployment_id)

    def refresh(self, *, all_of_them: bool = False) -> int:
        """Compute the futures that are out of date, so that the next decision need not; return how many there were."""
        with self._lock:
            return self._keeping.book().refresh(self._clock.now(), all_of_them=all_of_them)

    def resize(self, capacity_cores: int) -> None:
        """Work with another capacity from now on, such as a quota that was raised; BadInput when it is none."""
        with self._lock:
            self._keeping.work_by(replace(self.rules, capacity_cores=capacity_cores))

    def gauges(self, now: float) -> Gauges:
        """Return what the cluster is like now; futures are those of the last decision or `refresh`."""
        with self._lock:
            book = self._keeping.book()
            return gauges_of(book, self._keeping.counts, self.mode, now)

    def now(self) -> float:
        """Return the time by the service's clock, in epoch seconds."""
        return self._clock.now()

    def alarms(self) -> tuple[Event, ...]:
        """Return what a person should look into since the last call."""
        return tuple(self._alarms.popleft() for _ in range(len(self._alarms)))

    def forget(self, before: float) -> None:
        """Remember those no longer that ended before this time, as the ledger does with its history."""
        with self._lock:
            self._keeping.book().forget(before)

    def snapshot(self, path: Path) -> Path:
        """Write what is inside, with the futures, to `path`.npz and `path`.json; return the latter's path."""
        with self._lock:
            book = self._keeping.book()
            # Whoever restores it adds up anew, and is to have the same sums.
            book.add_up()
            since = min((deployment.last_at for deployment in book.inside()), default=self._clock.now())
            events = self._store.events_since(self.rules.name, since)
            return snapshots.write(path, self.rules, self._keeping.counts, book, events, self._clock.now())

    def restore(self, path: Path) -> int:
        """Put a snapshot in the place of everything inside, in the ledger too; return how many deployments it holds.

        BadInput when it was written by another version or of another cluster, or when it is damaged. Decisions stay.
        """
        with self._lock:
            found = snapshots.read(path, self.rules.name)
            keeping = self._keeping
            keeping.book()
            counts = replace(found.counts, decisions=max(found.counts.decisions, keeping.counts.decisions))
            change = Change(counts, found.deployments, found.events)
            keeping.drop(futures=False)
            self._store.replace(self.rules.name, keeping.revision, change)
            book = keeping.book()
            # Futures of other rules or horizons are computed anew.
            if found.config_hash == self.rules.config_hash:
                book.adopt(found.ids, found.arrays)
            return len(found.deployments)

    def _check_cluster(self, requests: Sequence[AdmissionRequest]) -> None:
        for request in requests:
            if request.cluster != self.rules.name:
                raise BadInput("cluster", request.cluster, f"this is the cluster {self.rules.name}")
