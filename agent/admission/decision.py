"""What admission brings to the agent: clusters that deployments ask to come into, and the gate before them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog

from agent.admission.settings import SUBJECTS
from agent.admission.state import ADMISSION, EVENTS_KEPT, KEPT, AdmissionStore
from agent.kernel.decision import (
    Capacity,
    Card,
    Chore,
    Explanation,
    Host,
    ModelSummary,
    Part,
    Status,
    Summary,
    Turn,
)
from agent.kernel.metrics import Section, counter, gauge
from agent.kernel.store import Record
from agent.kernel.turn import Severity, TurnReport
from agent.ledger import codec
from domain.decisions import Event, Reason
from domain.errors import TrimtabError
from domain.subject import Subject, fleet_subject
from domain.units import DAY_S

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import APIRouter

    from agent.admission.cluster import Clusters
    from agent.admission.gate.gate import Gate
    from agent.kernel.checks import Account, CheckResult
    from agent.kernel.metrics import Reading
    from agent.settings import Settings

log = structlog.get_logger(__name__)

FUTURES_EVERY_S: Final = 30.0
NEWEST: Final = 10


class AdmissionPart(Part):
    """The clusters of one agent."""

    name = ADMISSION
    subject_word = "cluster"
    id_letters = "a"
    order = 20
    kept = KEPT
    kept_beside = (EVENTS_KEPT,)
    configured_in = SUBJECTS.name
    model_suffixes = (".json", ".toml")
    learns = True
    asks = ("requests", "requests/batch", "deployments/events", "deployments/*/events")
    lists = ("requests/batch", "deployments/events")
    rehearsal = "agent.rehearsal.admissions:SECTION"
    sections = (
        Section(
            "Admission",
            (
                gauge("cluster_capacity_cores", "Capacity of a cluster.", "cluster"),
                gauge(
                    "cluster_taken_cores", "Cores of deployments that are live, or admitted and not started.", "cluster"
                ),
                gauge(
                    "cluster_deployments", "Deployments that are live, or admitted and not started.", "cluster", "stage"
                ),
                gauge(
                    "cluster_safe",
                    "1 while the rule holds for the present deployments; 0: nothing is admitted.",
                    "cluster",
                ),
                gauge(
                    "cluster_slack_cores",
                    "Least slack of the rule in a band of future time; below 0 the rule is violated.",
                    "cluster",
                    "band",
                ),
                gauge("cluster_scale_outs_month_to_date", "Scale-out requests in the calendar month (UTC).", "cluster"),
                gauge(
                    "cluster_failures_month_to_date",
                    "Scale-out requests refused in the calendar month (UTC).",
                    "cluster",
                ),
                gauge(
                    "cluster_sla_budget_used_ratio",
                    "Refused scale-outs as a ratio of the SLA's limit; above 1 the SLA is violated.",
                    "cluster",
                    unit="ratio",
                ),
                counter("admissions", "Decisions on admission since the start of the ledger.", "cluster"),
            ),
        ),
    )
    alarms = MappingProxyType(
        {
            Reason.REJECTED_UNSAFE: Severity.WARNING,
            Reason.SIZES_REPAIRED: Severity.WARNING,
        }
    )

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.store = AdmissionStore(host.ledger)
        self._clusters: Clusters | None = None
        self.gate: Gate | None = None

    @property
    def clusters(self) -> Clusters:
        """The services of the clusters that the settings describe, made when first asked for."""
        if self._clusters is None:
            from agent.admission.cluster import Clusters, clusters_of

            host = self.host
            settings = host.settings
            self._clusters = (
                Clusters({})
                if settings is None
                else clusters_of(settings, host.ledger, host.clock, host.capacity, host.room)
            )
        return self._clusters

    def capacity(self, subject: str) -> Capacity | None:
        """Return the cores that are free in a cluster, and those of deployments that were admitted and run not yet."""
        if subject not in self.configured:
            return None
        service = self.clusters[subject]
        inside = service.deployments()
        reserved = sum(one.cores for one in inside if one.reserved_s is not None)
        free = service.rules.capacity_cores - sum(one.cores for one in inside) - service.deferred()
        return Capacity(float(free), reserved=float(reserved))

    # In the daemon

    def start(self, stack: ExitStack) -> None:
        """Make the clusters, and the gate where groups are tagged into one."""
        from agent.admission.gate.gate import gate_of

        host = self.host
        if self.configured and host.settings is not None and host.session is not None:
            self.gate = gate_of(host.settings, host.session, host.ledger, self.clusters, host.clock)

    def turn(self, turn: Turn) -> TurnReport:
        """Turn the gate after the fleets, which it asks for what AWS had no VM for."""
        report = turn.report
        if self.gate is not None and all(turn.leads.of(one) is not None for one in self._gated()):
            events = self.gate.turn(turn.now, turn.leads, self.host.groups(), report.results)
            report = replace(report, events=(*report.events, *events))
        return report

    def _gated(self) -> list[Subject]:
        clusters = {} if self.host.settings is None else SUBJECTS.of(self.host.settings)
        return [Subject(self.name, name) for name, cluster in sorted(clusters.items()) if cluster.tagged_groups]

    def couples(self) -> Iterator[tuple[Subject, Subject]]:
        """Yield each cluster with its pools, and all clusters of the gate with one another and with all fleets.

        The gate reads shortages of AWS from the fleets' turn of the same minute.
        """
        clusters = {} if self.host.settings is None else SUBJECTS.of(self.host.settings)
        for name, cluster in clusters.items():
            if cluster.placement_pool is not None:
                yield Subject(self.name, name), Subject("placement", cluster.placement_pool)
            for pool in cluster.deferrals:
                yield Subject(self.name, name), Subject("deferral", pool)
        fleets = {fleet_subject(fleet) for fleet, _ in self.host.groups()}
        for one in self._gated():
            for other in (*self._gated(), *fleets):
                yield one, other

    def events(self, now: float) -> tuple[Event, ...]:
        """Return what a person should look into since the last call."""
        return self.clusters.alarms() if self.configured else ()

    def chores(self) -> Iterable[Chore]:
        """Return the computing of futures that requests will need."""
        if self.configured:
            yield Chore("futures", FUTURES_EVERY_S, self._renew_futures)

    def _renew_futures(self) -> None:
        """Compute what admissions will ask for before they ask; without a ledger it is left for the next time.

        A model on probation is taken up first, or let go.
        """
        from agent.admission.cluster import try_out

        settings = self.host.settings
        assert settings is not None, "there are clusters"
        try:
            try_out(self.clusters, settings)
            self.clusters.forget(self.host.clock.now() - settings.ledger.retention_days * DAY_S)
            self.clusters.refresh()
        except TrimtabError as error:
            log.warning("futures_not_renewed", detail=str(error))

    # For people and programs

    def readings(self) -> Iterator[Reading]:
        """Yield every cluster's gauges."""
        now = self.host.clock.now()
        for name, service in (self.clusters if self.configured else {}).items():
            gauges = service.gauges(now)
            yield "cluster_capacity_cores", (name,), gauges.capacity_cores
            yield "cluster_taken_cores", (name,), gauges.total_cores
            yield "cluster_deployments", (name, "live"), gauges.live
            yield "cluster_deployments", (name, "reserved"), gauges.reserved
            yield "cluster_safe", (name,), gauges.safe
            for band, slack in gauges.worst_slack_cores.items():
                yield "cluster_slack_cores", (name, band), slack
            yield "cluster_scale_outs_month_to_date", (name,), gauges.requests_month_to_date
            yield "cluster_failures_month_to_date", (name,), gauges.failures_month_to_date
            yield "cluster_sla_budget_used_ratio", (name,), gauges.sla_budget_used
            yield "admissions_total", (name,), gauges.decisions

    def status(self, subject: str, now: float) -> Status:
        """Return a cluster's cores, room by band, the month's promise and its newest decisions."""
        if subject not in self.configured:
            return super().status(subject, now)
        from agent.admission.view import cluster_lines

        service = self.clusters[subject]
        service.refresh()
        gauges, newest = service.gauges(now), service.newest(NEWEST)
        data = {**codec.plain(gauges), "newest": [codec.plain(decision) for decision in newest]}
        return Status(
            subject,
            (*cluster_lines(gauges, newest), *(f"  {line}" for line in self.held(subject, now))),
            data,
        )

    def card(self, subject: str, now: float) -> Card | None:
        """Return a cluster's card: cores taken, room, and whether its rule holds."""
        if subject not in self.configured:
            return None
        from agent.admission.view import cluster_card

        service = self.clusters[subject]
        paused = any(pause.active(now) for pause in self.controls(subject).pauses)
        return cluster_card(service.gauges(now), service.newest(1), paused=paused)

    def router(self) -> APIRouter:
        """Return the routes of admission."""
        from agent.admission.api import create_router

        return create_router(self.clusters, self.host)

    def summary(self, record: Record) -> Summary:
        """Return an admission in one line."""
        from agent.admission.records import AdmissionDecision
        from agent.admission.view import sentence

        made = codec.decode(AdmissionDecision, record.body)
        return Summary(sentence(made), made.reason.value)

    def explain(self, record: Record) -> Explanation:
        """Return the rule, the time with the least room, and the deployments that fill it."""
        from agent.admission.records import AdmissionDecision
        from agent.admission.view import admission_lines

        made = codec.decode(AdmissionDecision, record.body)
        return Explanation(tuple(admission_lines(made)), codec.plain(made))

    @classmethod
    def model(cls, path: Path) -> ModelSummary:
        """Return the rule and the population of a file; ModelRefused."""
        from agent.admission.settings import cluster_model_in

        model = cluster_model_in(path)
        return ModelSummary({"rule": model.rule, "population": dict(model.held)}, does=model.rule, limits=cls.name)

    @classmethod
    def preflight(cls, settings: Settings, account: Account) -> Iterator[CheckResult]:
        """Yield what was found about every cluster with a learned rule or of tagged groups."""
        from agent.admission.gate.requests import check_clusters, check_rules

        yield from check_rules(settings)
        yield from check_clusters(settings, account.session)
