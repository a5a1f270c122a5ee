"""A cluster's admissions: requests are decided and events recorded, each in one transaction (specification §10).

Everything it answers is in the ledger before the answer: a process that dies in between, and starts again, knows as
much as it would have. Its memory holds the ledger's state and the futures computed from it, nothing else.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import structlog

from agent.admission.book import Book, dropped, ended, law_in, named_prior
from agent.admission.deployments import NOT_INSIDE, NOT_TAKEN_IN, Deployment, Stage, applied, lapsed, reserved
from agent.admission.records import (
    AdmissionDecision,
    AdmissionRequest,
    DeploymentEvent,
    EventKind,
    EventResult,
    PriorSource,
    check_event,
)
from agent.admission.rule import (
    EffectiveRules,
    Shadow,
    decide,
    effective,
    first_unsafe,
    worst_slack,
)
from agent.admission.settings import LEARNED, SUBJECTS, champion_of, cluster_model_in, rules_of
from agent.admission.state import ADMISSION, AdmissionStore, Change, ClusterCounts, month_of
from agent.admission.view import sentence
from agent.kernel.decision import CapacityOf, ContainerRoom, RoomOf, Services
from agent.kernel.leads import Led
from agent.kernel.transaction import Conflict, retried
from agent.ledger import Ledger
from agent.models.directory import ModelsDirectory
from agent.settings import Settings
from domain.clock import Clock
from domain.decisions import Event, Mode, Reason
from domain.errors import BadInput, StateConflict, TrimtabError, UnknownName
from domain.rules.admission.cluster import ClusterRules
from domain.rules.admission.names import Name, Tally, check_name
from domain.rules.admission.policies import unused_budget
from domain.subject import Subject

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gauges(Led):
    """A cluster at `at` (epoch seconds); its futures as they were last computed.

    mode: `act` where asking takes a deployment in, `observe` where the answer is advice and takes nothing in.
    worst_slack_cores: by band, the least room that the rule leaves for those inside. safe: whether the rule holds for
    them alone; if not, it fails first `unsafe_from_hours` ahead. sla_budget_used: refused requests for more cores
    against the share allowed by the SLA, this month; above 1 the promise is broken.
    """

    cluster: str
    mode: Mode
    at: float
    capacity_cores: int
    policy: str
    config_hash: str
    total_cores: int
    live: int
    reserved: int
    decisions: int
    safe: bool
    unsafe_from_hours: float | None
    worst_slack_cores: Mapping[str, float]
    requests_month_to_date: int
    failures_month_to_date: int
    sla: float
    sla_budget_used: float


class AdmissionService:
    """One cluster's admissions; every method may be called from any thread.

    mode: whether `answer` admits or only advises. Every method raises LedgerUnavailable when the ledger cannot be
    used: then nothing was decided and nothing taken. Several processes may serve one cluster on a shared ledger: each
    reads the cluster again once another one wrote it. deferred: returns the cores that deferred jobs hold on the
    cluster's machines. room: returns the room of the pool that places its deployments, None without one.
    """

    def __init__(
        self,
        rules: ClusterRules,
        store: AdmissionStore,
        clock: Clock,
        mode: Mode = Mode.ACT,
        deferred: Callable[[], float] = lambda: 0.0,
        room: Callable[[], ContainerRoom | None] = lambda: None,
    ) -> None:
        self.mode, self.deferred, self.room, self.rules = mode, deferred, room, rules
        self._effective = effective(rules)
        self._store, self._clock = store, clock
        self._lock = threading.RLock()
        # What is inside, as of this revision of the ledger; None is read again. The futures of a dropped book are kept.
        self._current: Book | None = None
        self._dropped: Book | None = None
        self._revision, self._counts = 0, ClusterCounts()
        # By deployment and decision, when this process first saw the reservation: monotonic seconds.
        self._first_seen: dict[tuple[str, str], float] = {}
        self._shadow: Shadow | None = None
        # Read by the loop, which must not wait for the lock.
        self._alarms: deque[Event] = deque()

    # Requests

    def answer(
        self, requests: Sequence[AdmissionRequest], *, advice: bool | None = None
    ) -> tuple[AdmissionDecision, ...]:
        """Decide on deployments in this order, each knowing those admitted before it; all are recorded or none.

        advice: decide on each as if it alone asked, and record that as advice: nothing is taken
        in, no request id used. Advice that equals the deployment's newest one is not recorded again: then that one is
        the answer. A request that was decided on, while the agent acted, gets that decision. None: as the mode has it.

        StateConflict when a request id belongs to another request.
        """
        advised = self.mode is Mode.OBSERVE if advice is None else advice
        deferred = math.ceil(self.deferred())
        room = self.room()
        with self._lock:
            if deferred != self._effective.deferred:
                self._effective = effective(self.rules, deferred)
            force = replace(self._effective, room=room)
            answers, made = self._transact(lambda book: self._answer(book, force, requests, advice=advised))
        for one in made:
            log.info(
                "advice" if one.advice else "admission",
                cluster=one.cluster,
                decision=one.decision_id,
                deployment=one.deployment_id,
                cores=one.cores,
                reason=one.reason,
                detail=one.detail,
            )
            if one.reason is Reason.REJECTED_UNSAFE and not one.advice:
                self._alarms.append(Event(Subject(ADMISSION, one.cluster), one.at, one.reason, one.detail))
        return answers

    def _answer(
        self, book: Book, force: EffectiveRules, requests: Sequence[AdmissionRequest], *, advice: bool
    ) -> tuple[tuple[AdmissionDecision, ...], list[AdmissionDecision]]:
        now = self._clock.now()
        changed, notes = self._lapses(book, now)
        counts = self._counts
        answers: list[AdmissionDecision] = []
        made: list[AdmissionDecision] = []
        try:
            for deployment in changed:
                book.put(deployment)
            for request in requests:
                before = self._decided_before(book, request, () if advice else made)
                if before is not None:
                    answers.append(before)
                    continue
                number, shadow = counts.decisions + 1, None
                if self._shadow is not None:
                    shadow = self._shadow.answer(book, force, request, now)
                decision, curves = decide(book, force, request, f"{self.rules.name}-a{number}", now)
                request_id = "" if advice else decision.request_id
                decision = replace(decision, request_id=request_id, advice=advice, shadow=shadow)
                before = self._same_advice(decision, made) if advice else None
                if before is not None:
                    answers.append(before)
                    continue
                if decision.admit and not advice:
                    until = now + force.rules.start_within_s
                    inside = reserved(request, now, decision.decision_id, until, law_in(decision.prior))
                    book.put(inside, curves)
                    changed.append(inside)
                counts = replace(counts, decisions=number)
                made.append(decision)
                answers.append(decision)
                reason = Reason.OBSERVE_MODE if advice else decision.reason
                notes.append(
                    Event(Subject(ADMISSION, decision.cluster), now, reason, sentence(decision), decision.decision_id)
                )
            if made or changed:
                self._write(Change(counts, changed, (), made, notes))
        except BaseException:
            if changed:
                # They are in memory by now, and not in the ledger.
                self._drop()
            raise
        return tuple(answers), made

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
                remedy = f"it belongs to {found.cores} cores of {found.deployment_id} ({found.decision_id})"
                raise StateConflict("request_id", request.request_id, remedy)
            return found
        known = book.known.get(request.deployment_id)
        if known is None or known.stage is not Stage.RESERVED:
            return None
        asked = (request.cores, request.observations, request.label, request.owner)
        if (known.cores, known.priors, known.label, known.owner) != asked:
            return None
        same = next((decision for decision in made if decision.decision_id == known.decision_id), None)
        return same or self._store.decision(known.decision_id)

    def _same_advice(self, advice: AdmissionDecision, made: Sequence[AdmissionDecision]) -> AdmissionDecision | None:
        """Return the newest advice on the same deployment where the result is the same, else None."""
        before = next((decision for decision in reversed(made) if decision.deployment_id == advice.deployment_id), None)
        before = before or next(iter(self._store.newest(self.rules.name, 1, advice.deployment_id)), None)
        if before is None:
            return None
        first, second = (
            (one.advice, one.deployment_id, one.cores, one.reason, one.config_hash) for one in (before, advice)
        )
        return before if first == second else None

    # Events

    def observe(self, events: Sequence[DeploymentEvent]) -> tuple[EventResult, ...]:
        """Record events in this order: all of them or, when one cannot be used, none.

        BadInput names the field: an unknown deployment, a time before the deployment's last one, a size beyond the
        cluster, an id that was used for another event. Sizes that do not add up are put right, with an alarm.
        """
        with self._lock:
            answers, repairs = self._transact(lambda book: self._observe(book, events))
        for repair in repairs:
            log.warning("sizes_repaired", deployment=repair.about, detail=repair.detail)
        self._alarms += repairs
        return answers

    def _observe(self, book: Book, events: Sequence[DeploymentEvent]) -> tuple[tuple[EventResult, ...], list[Event]]:
        now = self._clock.now()
        for event in events:
            there = book.known.get(event.deployment_id)
            check_event(event, now, None if there is None else there.last_at)
        name, not_inside = self.rules.name, NOT_INSIDE if self.mode is Mode.ACT else NOT_TAKEN_IN
        before = self._store.events(name, {event.event_id for event in events})
        late, notes = self._lapses(book, now)
        changed = {deployment.deployment_id: deployment for deployment in late}
        counts, taken, repairs = self._counts, list[DeploymentEvent](), list[Event]()
        tallies: dict[Name, Tally | None] = {}
        answers: list[EventResult] = []
        for event in events:
            known = changed.get(event.deployment_id) or book.known.get(event.deployment_id)
            first = before.get(event.event_id)
            if first is not None:
                check_same(first, event)
                cores = known.cores if known else 0
                answers.append(EventResult(event.event_id, event.deployment_id, cores, already_seen=True))
                continue
            result = applied(known, event, not_inside=not_inside)
            check_size(event, result.deployment.cores, self.rules.capacity_cores)
            changed[event.deployment_id] = result.deployment
            tallies |= ended(self.rules, book.tallies | tallies, known, result.deployment, event)
            before[event.event_id] = event
            taken.append(event)
            counts = counted(counts, event)
            if result.repaired:
                detail = f"{name}: {result.repaired}"
                repairs.append(Event(Subject(ADMISSION, name), now, Reason.SIZES_REPAIRED, detail, event.deployment_id))
            cores = result.deployment.cores
            answers.append(EventResult(event.event_id, event.deployment_id, cores, repaired=result.repaired))
        if changed:
            tallies |= dropped(book.tallies | tallies)
            self._write(Change(counts, list(changed.values()), taken, (), [*notes, *repairs], tallies))
            book.work_with(tallies)
        for deployment in changed.values():
            book.put(deployment)
        mended = book.mends()
        if mended is not None:
            detail = f"{name}: the total was {mended[0]}, the sizes add up to {mended[1]}"
            repairs.append(Event(Subject(ADMISSION, name), now, Reason.SIZES_REPAIRED, detail))
        return tuple(answers), repairs

    # What is inside

    def prior_of(self, owner: str, label: str) -> PriorSource:
        """Return the basis of a forecast for these names now, whether or not labels decide.

        BadInput for a name that cannot be, or without one.
        """
        for field, name in (("owner", owner), ("label", label)):
            check_name(field, name)
        if not (owner or label):
            raise BadInput("label", label, "give a label, an owner, or both")
        with self._lock:
            return named_prior(self._book(), owner, label, self._clock.now())

    def newest(self, limit: int = 20, deployment_id: str | None = None) -> tuple[AdmissionDecision, ...]:
        """Return the newest decisions, of one deployment or of all."""
        return self._store.newest(self.rules.name, limit, deployment_id)

    def deployments(self) -> tuple[Deployment, ...]:
        """Return those inside, by id, as last reported."""
        with self._lock:
            return tuple(sorted(self._book().inside(), key=lambda found: found.deployment_id))

    def deployment(self, deployment_id: str) -> Deployment | None:
        """Return a deployment, also one that ended; None for an unknown one."""
        with self._lock:
            return self._book().known.get(deployment_id)

    def refresh(self, *, all_of_them: bool = False) -> int:
        """Compute the futures that are out of date, so that the next decision need not; return how many there were.

        Those of a model on probation too.
        """
        with self._lock:
            book, now = self._book(), self._clock.now()
            if self._shadow is not None:
                self._shadow.refresh(book, now)
            return book.refresh(now, all_of_them=all_of_them)

    def try_out(self, model: str, rules: ClusterRules | None) -> None:
        """Evaluate other rules as a shadow from now on, which changes no answer; None: no longer.

        model: the SHA-256 of their file, which is on probation.
        """
        with self._lock:
            held = self._shadow
            if rules is None or held is None or held.model != model:
                self._shadow = None if rules is None else Shadow(model, rules)

    @property
    def on_probation(self) -> str:
        """The SHA-256 of the file on probation, "" for none."""
        return "" if self._shadow is None else self._shadow.model

    def resize(self, capacity_cores: int) -> None:
        """Work with another capacity from now on, such as a quota that was raised; BadInput for an invalid one."""
        with self._lock:
            self.rules = replace(self.rules, capacity_cores=capacity_cores)
            self._effective = effective(self.rules)

    def gauges(self, now: float) -> Gauges:
        """Return the cluster's figures now; futures are those of the last decision or `refresh`."""
        with self._lock:
            book, rules, counts = self._book(), self.rules, self._counts
            if month_of(now) > counts.month:
                counts = replace(counts, month=month_of(now), requests=0, failures=0)
            if self._effective.deferred:
                self._effective = effective(rules)
            unsafe = first_unsafe(book, rules)
            stages = [deployment.stage for deployment in book.inside()]
            return Gauges(
                cluster=rules.name,
                mode=self.mode,
                at=now,
                capacity_cores=rules.capacity_cores,
                policy=rules.text,
                config_hash=self._effective.config_hash,
                total_cores=book.total,
                live=stages.count(Stage.LIVE),
                reserved=stages.count(Stage.RESERVED),
                decisions=counts.decisions,
                safe=unsafe < 0,
                unsafe_from_hours=float(book.horizons_h[unsafe]) if unsafe >= 0 else None,
                worst_slack_cores=worst_slack(book, rules),
                requests_month_to_date=counts.requests,
                failures_month_to_date=counts.failures,
                sla=rules.sla,
                sla_budget_used=counts.failures / (rules.sla * counts.requests) if counts.requests else 0.0,
            )

    def alarms(self) -> tuple[Event, ...]:
        """Return the alarms since the last call."""
        return tuple(self._alarms.popleft() for _ in range(len(self._alarms)))

    def forget(self, before: float) -> None:
        """Remember those no longer that ended before this time, as the ledger does with its history."""
        with self._lock:
            self._book().forget(before)

    # The transaction

    def _book(self) -> Book:
        if self._current is not None and self._store.revision(self.rules.name) != self._revision:
            self._drop()
        book = self._current
        if book is None:
            inside = self._store.inside(self.rules.name)
            self._revision, self._counts = inside.revision, inside.counts
            book = self._current = Book(self.rules, inside.deployments, inside.tallies)
            self._first_seen = self._with_new(book.inside())
            if self._dropped is not None:
                book.adopt(*self._dropped.arrays())
                self._dropped = None
        book.unused_budget = unused_budget(self.rules.sla, self._counts.failures_ever, self._counts.requests_ever)
        return book

    def _drop(self) -> None:
        """Have the deployments read from the ledger again; futures that still hold are kept."""
        self._dropped = self._current or self._dropped
        self._current = None

    def _transact(self, work: Callable[[Book], T]) -> T:
        """Do work that writes; again on the new state when another process wrote meanwhile."""

        def attempt() -> T:
            try:
                return work(self._book())
            except Conflict:
                self._drop()
                raise

        return retried(f"cluster {self.rules.name}", attempt)

    def _write(self, change: Change) -> None:
        """Write a change of the book to the ledger; Conflict when another process wrote meanwhile."""
        self._revision = self._store.write(self.rules.name, self._revision, change)
        self._counts = change.counts
        self._first_seen |= self._with_new(change.deployments)

    def _lapses(self, book: Book, now: float) -> tuple[list[Deployment], list[Event]]:
        """Return admitted deployments that did not start in time, without their cores, and an event for each.

        Their time is measured on this process's monotonic clock from when it first saw them. A wall clock that is set,
        or that differs from that of the agent which admitted them, ends no reservation; a restart begins the wait
        again.
        """
        at = self._clock.monotonic()
        late = [d for d in book.inside() if d.reserved_s is not None and at - self._seen_at(d, at) > d.reserved_s]
        notes = []
        for deployment in late:
            detail = f"admitted to {self.rules.name} by {deployment.decision_id}, it did not start in time"
            notes.append(
                Event(
                    Subject(ADMISSION, self.rules.name), now, Reason.ADMISSION_LAPSED, detail, deployment.deployment_id
                )
            )
        return [lapsed(deployment) for deployment in late], notes

    def _with_new(self, deployments: Iterable[Deployment]) -> dict[tuple[str, str], float]:
        """Return when reservations were first seen: now, unless they were seen before."""
        at = self._clock.monotonic()
        return {
            (one.deployment_id, one.decision_id): self._seen_at(one, at)
            for one in deployments
            if one.stage is Stage.RESERVED
        }

    def _seen_at(self, deployment: Deployment, otherwise: float) -> float:
        return self._first_seen.get((deployment.deployment_id, deployment.decision_id), otherwise)


def counted(counts: ClusterCounts, event: DeploymentEvent) -> ClusterCounts:
    """Return the counts with a request for more cores; in a month's counts one of a month that is over is left out."""
    if event.kind not in (EventKind.SCALED, EventKind.REFUSED):
        return counts
    refused = event.kind is EventKind.REFUSED
    ever = (counts.requests_ever + 1, counts.failures_ever + refused)
    counts = replace(counts, requests_ever=ever[0], failures_ever=ever[1])
    month = month_of(event.time)
    if month < counts.month:
        return counts
    if month > counts.month:
        counts = replace(counts, month=month, requests=0, failures=0)
    return replace(counts, requests=counts.requests + 1, failures=counts.failures + refused)


def check_same(first: DeploymentEvent, event: DeploymentEvent) -> None:
    """Raise StateConflict when the id of an event that was taken comes with something else."""
    if first != event:
        remedy = f"it was used for another event ({first.kind.value} of {first.deployment_id} at {first.time!r})"
        raise StateConflict("event_id", event.event_id, remedy)


def check_size(event: DeploymentEvent, after: int, capacity_cores: int) -> None:
    """Raise StateConflict when the event would leave its deployment larger than the cluster."""
    if after > capacity_cores:
        remedy = (
            f"{event.deployment_id} would have {after} cores, more than the whole cluster of {capacity_cores}: "
            "correct the capacity, or report the right size"
        )
        raise StateConflict("cores", event.cores, remedy)


class Clusters(Services[AdmissionService]):
    """Services by the name of their cluster; any thread may use them."""

    word = "cluster"

    def alarms(self) -> tuple[Event, ...]:
        """Return the alarms since the last call."""
        return tuple(event for service in self.values() for event in service.alarms())

    def forget(self, before: float) -> None:
        """Remember those no longer that ended before this time."""
        for service in self.values():
            service.forget(before)

    def refresh(self) -> int:
        """Compute the futures that are out of date in every cluster; return how many there were."""
        return sum(service.refresh() for service in self.values())


def try_out(clusters: Clusters, settings: Settings) -> None:
    """Have every cluster ask the model that is on probation for it, and no other; one that is refused is logged."""
    models = ModelsDirectory(settings.models_directory, settings.promotion_key)
    try:
        named = models.probationers()
    except TrimtabError as error:
        log.error("model_refused", detail=str(error))
        return
    for name, service in clusters.items():
        subject = Subject("admission", name)
        one = named.get(subject)
        if one is None or name not in SUBJECTS.of(settings):
            service.try_out("", None)
            continue
        model = Path(one.model).stem
        if service.on_probation == model:
            continue
        try:
            models.check_probationer(subject, one)
            held = cluster_model_in(models.file_of(one.model), models.read(one.model).content)
            learned = SUBJECTS.of(settings)[name].model_copy(update={"rule": LEARNED})
            service.try_out(model, rules_of(name, learned, held))
            log.info("model_on_probation", cluster=name, detail=held.rule)
        except TrimtabError as error:
            service.try_out("", None)
            log.error("model_refused", cluster=name, detail=str(error))


def clusters_of(
    settings: Settings,
    ledger: Ledger,
    clock: Clock,
    capacity: CapacityOf = lambda decision, subject: None,
    room: RoomOf = lambda pool, application: None,
) -> Clusters:
    """Return the clusters that the settings describe, on this ledger; capacity, room: of other parts."""

    def held_by(pools: Sequence[str]) -> float:
        return sum(found.reserved for pool in pools if (found := capacity("deferral", pool)) is not None)

    def room_in(pool: str, application: str) -> ContainerRoom:
        try:
            found = room(pool, application)
        except UnknownName as error:
            return ContainerRoom(0, 1, f"the pool {pool} does not know {application}: {error.remedy}")
        return found or ContainerRoom(0, 1, f"the pool {pool} is not there: describe it, or leave placement_pool out")

    models = ModelsDirectory(settings.models_directory, settings.promotion_key)
    services = {}
    for name, cluster in SUBJECTS.of(settings).items():
        model = None
        if cluster.rule == LEARNED:
            try:
                model = champion_of(models, name)
                origin = f"forced: {model.forced}" if model.forced else "promoted"
                log.info("model_ready", cluster=name, detail=f"{model.rule}, {origin}")
            except TrimtabError as error:
                # What was promoted may be damaged or gone: the other settings stand in for it.
                log.error("model_refused", cluster=name, detail=str(error))
        elif cluster.population_file is not None:
            log.info("model_ready", cluster=name, detail=f"{cluster.population_file}, forced: the settings name it")
        services[name] = AdmissionService(
            rules_of(name, cluster, model),
            AdmissionStore(ledger),
            clock,
            settings.mode,
            partial(held_by, cluster.deferrals),
            partial(room_in, cluster.placement_pool, cluster.placement_application)
            if cluster.placement_pool and cluster.placement_application
            else lambda: None,
        )
    return Clusters(services)
