"""The service that decides which deployments a cluster takes, and hears what becomes of them (specification §10).

Everything it answers is in the ledger before the answer: a process that dies in between, and starts again, knows as
much as it would have. What it holds in memory is only what the ledger has, with the futures computed from it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from agent.admission.answer import CachedBook, Shadow, answer_all, log_decisions, observe_all
from agent.admission.book import Book
from agent.admission.deployments import NOT_INSIDE, NOT_TAKEN_IN, Deployment, Stage
from agent.admission.labels import named_prior
from agent.admission.records import (
    AdmissionDecision,
    AdmissionRequest,
    DeploymentEvent,
    PriorSource,
    Taken,
)
from agent.admission.rule import first_unsafe, kept_for_uncertainty, worst_slack
from agent.admission.settings import LEARNED, SUBJECTS, champion_of, cluster_model_in, rules_of
from agent.admission.state import AdmissionStore, ClusterCounts, month_of
from agent.kernel.part import CapacityOf, Services
from agent.ledger import Ledger
from agent.models.directory import ModelsDirectory, Subject
from agent.settings import Settings
from domain.clock import Clock
from domain.decisions import Event, Mode
from domain.errors import BadInput, TrimtabError, UnknownName
from domain.rules.admission.cluster import ClusterRules
from domain.rules.admission.names import check_name


@dataclass(frozen=True, slots=True)
class Gauges:
    """A cluster at `at` (epoch seconds); its futures as they were last computed.

    mode: `act` where asking takes a deployment in, `observe` where the answer is advice and takes nothing in.
    worst_slack_cores: by band, the least room that the rule leaves for those inside. safe: whether the rule holds for
    them alone; if not, it fails first `unsafe_from_hours` ahead. sla_budget_used: refused requests for more cores
    against those that the SLA allows, this month; above 1 the promise is broken. uncertainty_cores: those that the rule
    keeps free a day ahead as sizes are uncertain, and their share of these and the cores taken; None for a rule
    without standard deviations.
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
    uncertainty_cores: float | None = None
    uncertainty_share: float | None = None


def gauges_of(book: Book, counts: ClusterCounts, mode: Mode, now: float) -> Gauges:
    """Return what a cluster is like now."""
    rules = book.rules
    if month_of(now) > counts.month:
        counts = replace(counts, month=month_of(now), requests=0, failures=0)
    unsafe = first_unsafe(book)
    kept = kept_for_uncertainty(book)
    stages = [deployment.stage for deployment in book.inside()]
    return Gauges(
        cluster=rules.name,
        mode=mode,
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
        uncertainty_cores=kept,
        uncertainty_share=None if kept is None else kept / (kept + book.total) if kept else 0.0,
    )


class AdmissionService:
    """One cluster's admissions; every method may be called from any thread.

    mode: whether `answer_all` admits or only advises. Every method raises LedgerUnavailable when the ledger cannot be
    used: then nothing was decided and nothing taken. Several processes may serve one cluster on a shared ledger: who
    finds that another wrote reads again. deferred: returns the cores that deferred jobs hold on the cluster's machines.
    """

    def __init__(
        self,
        rules: ClusterRules,
        store: AdmissionStore,
        clock: Clock,
        mode: Mode = Mode.ACT,
        deferred: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.mode, self.deferred, self._rules = mode, deferred, rules
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._cached = CachedBook(rules, store, clock)
        # Read by the loop, which must not wait for whoever holds the lock.
        self._alarms: deque[Event] = deque()

    @property
    def rules(self) -> ClusterRules:
        """The rules that it goes by now, on the whole cluster."""
        return self._rules

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
        return self._answered(requests, advice=False)

    def advise(self, request: AdmissionRequest) -> AdmissionDecision:
        """Advise on one deployment; see `advise_all`."""
        return self.advise_all([request])[0]

    def advise_all(self, requests: Sequence[AdmissionRequest]) -> tuple[AdmissionDecision, ...]:
        """Say what `admit` would decide on each now, and record it as advice: nothing is taken in, no request id used.

        What comes to the same as the deployment's newest advice is not recorded again: then that one is the answer. A
        request that was decided on, while the agent acted, gets that decision. BadInput as with `admit_all`.
        """
        return self._answered(requests, advice=True)

    def observe(self, event: DeploymentEvent) -> Taken:
        """Take in one event; see `observe_all`."""
        return self.observe_all([event])[0]

    def observe_all(self, events: Sequence[DeploymentEvent]) -> tuple[Taken, ...]:
        """Take in events in this order: all of them or, when one cannot be used, none.

        BadInput names the field: an unknown deployment, a time before the deployment's last one, a size beyond the
        cluster, an id that was used for something else. Sizes that do not add up are put right, with an alarm.
        """
        not_inside = NOT_INSIDE if self.mode is Mode.ACT else NOT_TAKEN_IN
        with self._lock:
            answers, repairs = self._cached.transact(
                lambda book: observe_all(self._cached, book, events, self._clock.now(), not_inside=not_inside)
            )
        self._alarms += repairs
        return answers

    def explain(self, decision_id: str) -> AdmissionDecision:
        """Return a decision as it was recorded; UnknownName when there is none of that id here."""
        found = self._store.decision(decision_id)
        if found.cluster != self.rules.name:
            raise UnknownName("decision_id", decision_id, f"it belongs to the cluster {found.cluster}")
        return found

    def prior_of(self, owner: str, label: str) -> PriorSource:
        """Return what a newcomer with these names would be judged by now, whether or not labels decide.

        BadInput for a name that cannot be, or without one.
        """
        for field, name in (("owner", owner), ("label", label)):
            check_name(field, name)
        if not (owner or label):
            raise BadInput("label", label, "give a label, an owner, or both")
        with self._lock:
            return named_prior(self._cached.book(), owner, label, self._clock.now())

    def newest(self, limit: int = 20, deployment_id: str | None = None) -> tuple[AdmissionDecision, ...]:
        """Return the newest decisions, of one deployment or of all."""
        return self._store.newest(self.rules.name, limit, deployment_id)

    def deployments(self) -> tuple[Deployment, ...]:
        """Return those inside, by id, as last reported."""
        with self._lock:
            return tuple(sorted(self._cached.book().inside(), key=lambda found: found.deployment_id))

    def deployment(self, deployment_id: str) -> Deployment | None:
        """Return what is known of a deployment, one that ended too; None when nothing is."""
        with self._lock:
            return self._cached.book().known.get(deployment_id)

    def refresh(self, *, all_of_them: bool = False) -> int:
        """Compute the futures that are out of date, so that the next decision need not; return how many there were.

        Those of a model on probation too.
        """
        with self._lock:
            book, now = self._cached.book(), self._clock.now()
            if self._cached.shadow is not None:
                self._cached.shadow.refresh(book, now)
            return book.refresh(now, all_of_them=all_of_them)

    def try_out(self, model: str, rules: ClusterRules | None) -> None:
        """Ask other rules beside those that decide from now on, which changes no answer; None: no longer.

        model: the SHA-256 of the file on probation that they are of.
        """
        with self._lock:
            held = self._cached.shadow
            if rules is None or held is None or held.model != model:
                self._cached.shadow = None if rules is None else Shadow(model, rules)

    @property
    def on_probation(self) -> str:
        """The SHA-256 of the file whose rules are asked beside those that decide, "" for none."""
        return "" if self._cached.shadow is None else self._cached.shadow.model

    def resize(self, capacity_cores: int) -> None:
        """Work with another capacity from now on, such as a quota that was raised; BadInput when it is none."""
        with self._lock:
            self._rules = replace(self._rules, capacity_cores=capacity_cores)
            self._cached.work_by(self._rules)

    def gauges(self, now: float) -> Gauges:
        """Return what the cluster is like now; futures are those of the last decision or `refresh`."""
        with self._lock:
            book = self._cached.book()
            return gauges_of(book, self._cached.counts, self.mode, now)

    def now(self) -> float:
        """Return the time by the service's clock, in epoch seconds."""
        return self._clock.now()

    def alarms(self) -> tuple[Event, ...]:
        """Return what a person should look into since the last call."""
        return tuple(self._alarms.popleft() for _ in range(len(self._alarms)))

    def forget(self, before: float) -> None:
        """Remember those no longer that ended before this time, as the ledger does with its history."""
        with self._lock:
            self._cached.book().forget(before)

    def _answered(self, requests: Sequence[AdmissionRequest], *, advice: bool) -> tuple[AdmissionDecision, ...]:
        for request in requests:
            if request.cluster != self.rules.name:
                raise BadInput("cluster", request.cluster, f"this is the cluster {self.rules.name}")
        cached, held = self._cached, math.ceil(self.deferred())
        with self._lock:
            if held:
                cached.work_by(without(self._rules, held), held)
            try:
                answers, made = cached.transact(
                    lambda book: answer_all(cached, book, requests, self._clock.now(), advice=advice)
                )
            finally:
                if held:
                    cached.work_by(self._rules)
        self._alarms += log_decisions(made)
        return answers


def without(rules: ClusterRules, cores: int) -> ClusterRules:
    """Return the rules of a cluster of which something else holds so many cores; one core stays, as rules need one."""
    limit = None if rules.threshold_cores is None else max(0.0, rules.threshold_cores - cores)
    return replace(rules, capacity_cores=max(1, rules.capacity_cores - cores), threshold_cores=limit)


log = structlog.get_logger(__name__)


class Clusters(Services[AdmissionService]):
    """Services by the name of their cluster; any thread may use them."""

    word = "cluster"

    def alarms(self) -> tuple[Event, ...]:
        """Return what a person should look into since the last call."""
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
    settings: Settings, ledger: Ledger, clock: Clock, capacity: CapacityOf = lambda decision, subject: None
) -> Clusters:
    """Return the clusters that the settings describe, on this ledger; capacity: what other parts know."""

    def held_by(pools: Sequence[str]) -> float:
        return sum(found.reserved for pool in pools if (found := capacity("deferral", pool)) is not None)

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
        )
    return Clusters(services)
