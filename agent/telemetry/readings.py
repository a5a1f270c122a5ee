"""Reads, when somebody asks, every metric that is a value of now: from the board, the inputs and the ledger."""

from __future__ import annotations

import platform
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping

import structlog

from agent.autoscaling.spending import DAY_S, dollars_per_hour
from agent.autoscaling.state import PauseScope
from agent.telemetry.values import LabelValues
from agent.view.board import Standing
from agent.view.view import AgentView, installed_version
from domain.errors import LedgerError
from domain.fleet import Fleet, Group
from domain.snapshot import GroupSnapshot, Snapshot

log = structlog.get_logger(__name__)

SIZE_EVERY_S = 60.0

Reading = tuple[str, LabelValues, float]
"""A metric's name without the prefix, the values of its labels, and its value."""


class Readings:
    """Reads the agent; what the ledger would have to tell is left out while it cannot be read."""

    def __init__(self, view: AgentView) -> None:
        self._view = view
        self._parts = view.parts
        self._lock = threading.Lock()
        self._size: tuple[float, float | None] | None = None

    def read(self) -> Mapping[str, Mapping[LabelValues, float]]:
        """Return value by label values by full name."""
        found: dict[str, dict[LabelValues, float]] = defaultdict(dict)
        standing = self._parts.board.read()
        for source in (
            self._agent(standing),
            self._fleets(standing),
            self._inputs(),
            self._clusters(),
            self._pools(),
            self._ledger(),
        ):
            try:
                for name, labels, value in source:
                    found[f"trimtab_{name}"][labels] = value
            except LedgerError as error:
                log.warning("metrics_without_ledger", detail=str(error))
        return found

    def _agent(self, standing: Standing) -> Iterator[Reading]:
        settings, health = self._parts.settings, self._view.health()
        yield "build_info", (installed_version(), platform.python_version()), 1.0
        yield "mode", (settings.mode.value,), 1.0
        yield "started_timestamp_seconds", (), standing.started_at
        yield "healthy", (), health.ok
        yield "ready", (), self._view.readiness().ready
        yield "stopping", (), standing.stopping
        yield "leader", (), standing.leader
        yield "leader_epoch", (), standing.epoch
        for part in standing.problems:
            yield "problem", (part,), 1.0
        yield "ticks_rescued_total", (), standing.rescued_turns
        yield "ticks_overran_total", (), standing.overran_turns
        yield "tick_interval_seconds", (), settings.tick_interval_s
        if standing.turned_at is not None:
            yield "last_tick_timestamp_seconds", (), standing.turned_at
        yield "last_tick_age_seconds", (), health.last_turn_age_s
        yield "ledger_usable", (), not standing.ledger_failure

    def _fleets(self, standing: Standing) -> Iterator[Reading]:
        for fleet in self._parts.fleets():
            snapshot = standing.snapshots.get(fleet.name)
            if snapshot is None or len(snapshot.groups) != len(fleet.groups):
                continue
            decision = standing.last_decisions.get(fleet.name)
            decided = decision.desired if decision is not None else ()
            for k, (group, seen) in enumerate(zip(fleet.groups, snapshot.groups, strict=True)):
                yield from _group(fleet, group, seen)
                if len(decided) == len(fleet.groups):
                    yield "group_decided", (fleet.name, group.key, group.vm_type.name), decided[k]
            yield from _minute(fleet, snapshot)

    def _inputs(self) -> Iterator[Reading]:
        yield "series", (), self._parts.series()
        for place, unknown in self._parts.unknown_vms().items():
            yield "unknown_vms", place, unknown.waiting
            yield "unknown_vms_refused_total", place, unknown.refused
        for key, refused in self._parts.claims().items():
            yield "claims_refused_total", key, refused.count
        for name, health in self._parts.collectors().items():
            yield "collector_successes_total", (name,), health.successes
            yield "collector_failures_total", (name,), health.failures
            yield "collector_overruns_total", (name,), health.overruns
            yield "collector_skipped_total", (name,), health.skipped
            yield "collector_refused_samples_total", (name,), health.refused
            if health.last_success_at is not None:
                yield "collector_last_success_timestamp_seconds", (name,), health.last_success_at
            if health.last_duration_s is not None:
                yield "collector_last_duration_seconds", (name,), health.last_duration_s
        intake = self._parts.intake()
        yield "listener_lines_accepted_total", (), intake.accepted
        for reason, count in intake.rejected.items():
            yield "listener_lines_rejected_total", (reason,), count
        yield "listener_open_connections", (), intake.connections_open
        yield "listener_connections_opened_total", (), intake.connections_total
        yield "listener_connections_refused_total", (), intake.connections_refused
        yield "listener_connections_idled_out_total", (), intake.connections_idled_out
        yield "listener_connections_displaced_total", (), intake.connections_displaced
        yield "listener_connections_foreign_total", (), intake.connections_foreign
        yield "listener_datagrams_total", (), intake.datagrams
        yield "listener_datagrams_foreign_total", (), intake.datagrams_foreign
        for (family, outcome), count in self._parts.aws_calls().items():
            service, _, kind = family.partition(" ")
            yield "aws_calls_total", (service, kind, outcome), count

    def _clusters(self) -> Iterator[Reading]:
        for name, service in self._parts.clusters.items():
            gauges = service.gauges(self._parts.now())
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

    def _pools(self) -> Iterator[Reading]:
        for name, pool in self._parts.pools.items():
            view = pool.view()
            counts, decision = view.counts, view.decision
            yield "oversub_decisions_total", (name,), counts.decisions
            yield "oversub_requests_total", (name,), counts.requests
            yield "oversub_fallback_total", (name,), counts.fallbacks
            yield "oversub_shield_interventions_total", (name,), counts.interventions
            yield "oversub_rejects_total", (name,), counts.rejects
            yield "oversub_drift_alarms_total", (name,), counts.drift_alarms
            yield "oversub_hot_machine_hours_total", (name,), counts.hot_machine_hours
            yield "oversub_predicted_hot_hours_total", (name,), counts.expected_hot_hours
            yield "oversub_realised_hot_hours_total", (name,), counts.realised_hot_hours
            yield "oversub_clipped_samples_total", (name,), view.clipped
            yield "oversub_rejected_samples_total", (name,), view.rejected_samples
            if decision is None:
                continue
            risk = decision.risk
            yield "oversub_violation_ratio", (name,), risk.violation
            yield "oversub_expected_hot_hours", (name,), risk.expected_hot_hours
            yield "oversub_hot_hours_seen", (name,), risk.hot_hours_seen
            yield "oversub_machines_used", (name,), risk.machines_used
            yield "oversub_machines_without", (name,), risk.machines_without
            yield "oversub_frozen", (name,), decision.frozen
            yield "oversub_rolled_back", (name,), decision.rolled_back
            yield "oversub_decision_seconds", (name,), decision.evaluation_us / 1e6
            for row in decision.subscribers:
                yield "oversub_rate", (name, row.subscriber), row.rate
                yield "oversub_saved_cores", (name, row.subscriber), row.saved_cores

    def _ledger(self) -> Iterator[Reading]:
        ledger, now = self._parts.ledger, self._parts.now()
        size = self._ledger_size()
        if size is not None:
            yield "ledger_size_bytes", (), size
        open_intents = ledger.open_intents()
        for fleet in self._parts.fleets():
            name, state, controls = fleet.name, ledger.loop_state(fleet.name), ledger.controls(fleet.name)
            yield "open_intents", (name,), sum(intent.fleet == name for intent in open_intents)
            yield "cost_today_dollars", (name,), state.spend.dollars if now < state.spend.day_start + DAY_S else 0.0
            held = {pause.scope for pause in controls.pauses if pause.active(now)}
            for scope in PauseScope:
                yield "paused", (name, scope), scope in held
            yield "pinned", (name,), controls.pin is not None and controls.pin.active(now)
            broken = {breaker.group for breaker in state.breakers if breaker.open_until > now}
            for group in fleet.groups:
                yield "circuit_open", (name, group.key), group.key in broken

    def _ledger_size(self) -> float | None:
        with self._lock:
            now = self._parts.monotonic()
            if self._size is None or now - self._size[0] >= SIZE_EVERY_S:
                self._size = (now, self._parts.ledger.size_bytes())
            return self._size[1]


def _group(fleet: Fleet, group: Group, seen: GroupSnapshot) -> Iterator[Reading]:
    labels = (fleet.name, group.key, group.vm_type.name)
    yield "group_requested", labels, seen.requested
    yield "group_observed", labels, seen.in_service
    yield "group_warm", labels, seen.warm
    yield "group_booting", labels, seen.booting
    yield "group_overdue", labels, seen.overdue
    yield "group_draining", labels, seen.draining
    yield "group_silent", labels, seen.silent
    yield "group_unhealthy", labels, seen.unhealthy
    yield "group_minimum", labels, seen.minimum
    yield "group_maximum", labels, seen.maximum


def _minute(fleet: Fleet, snapshot: Snapshot) -> Iterator[Reading]:
    """Return what the fleet's last minute was like; what was absent is left out, never shown as zero."""
    queue = snapshot.queue
    found: dict[str, float | None] = {
        "cpu_ratio": snapshot.cpu_mean,
        "ram_ratio": snapshot.ram_mean,
        "queue_waiting_jobs": queue.waiting if queue else None,
        "queue_running_jobs": queue.running if queue else None,
        "queue_submitted_jobs": queue.submitted if queue else None,
        "queue_oldest_wait_seconds": queue.oldest_wait_s if queue else None,
        "cost_dollars_per_hour": dollars_per_hour(fleet, snapshot.requested),
        "coverage_ratio": snapshot.coverage,
        "newest_sample_age_seconds": snapshot.age_s,
        "newest_vm_sample_age_seconds": snapshot.vm_age_s,
        "newest_queue_sample_age_seconds": snapshot.queue_age_s,
        "stale_minutes": snapshot.stale_bins,
    }
    for name, value in found.items():
        if value is not None:
            yield name, (fleet.name,), value
