"""The metrics of one running agent, for whoever asks: Prometheus as text, Graphite as lines.

What turns, requests and writes of the ledger did is counted as they end; what is a value of now is read when asked.
"""

from __future__ import annotations

import platform
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from agent.kernel.metrics import Kind, LabelValues, Metric, Reading
from agent.kernel.turn import TurnReport
from agent.telemetry.catalogue import own_metrics
from agent.view.board import ServiceState
from agent.view.view import AgentView, installed_version
from collectors.sender import GraphiteSender
from domain.decisions import Reason, Status
from domain.errors import LedgerError

log = structlog.get_logger(__name__)

MOST_LABEL_SETS = 2000
"""Of one metric; further label sets are counted under `other`, which bounds the memory."""

OTHER = "other"
LEFT_OUT = frozenset({"trimtab_build_info"})
"""Metrics without a meaningful number, which Graphite does not get."""
SIZE_EVERY_S = 60.0
COUNTED_EVENTS = (Reason.LEARNING_OVERDUE, Reason.PROMOTION_ROLLED_BACK, Reason.SELF_TUNING_FAILED)
"""Events whose first one an alert rule must see."""


class Telemetry:
    """Counts turns, requests and ledger writes, reads the rest when asked, and shows exactly the catalogue."""

    def __init__(self, view: AgentView) -> None:
        self.values = Values()
        self._readings = Readings(view)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Catalogue(self))
        ProcessCollector(registry=self._registry)
        parts = view.parts
        sections = [section for part in parts.parts for section in part.sections]
        self._metrics = (*own_metrics(), *(metric for section in sections for metric in section.metrics))
        self._begin()
        # Before it is counted: a fleet may have been found in the turn in which something happens to it.
        parts.board.listen(lambda state, report: self._begin())
        parts.board.listen(TurnCounter(self.values, parts.monotonic, parts.settings.tick_interval_s))
        parts.ledger.watch_writes(self.count_write)

    def _begin(self) -> None:
        """Show at 0 what alert rules count: Prometheus sees no increase in a counter that begins at 1."""
        for part in self._readings.parts:
            for subject in part.managed():
                for reason in COUNTED_EVENTS:
                    self.values.count("trimtab_events_total", part.name, subject, reason, by=0.0)
            for subject, group in part.groups():
                self.values.count("trimtab_outcomes_total", subject, group, Status.FAILED, Reason.NO_CAPACITY, by=0.0)

    def exposition(self) -> bytes:
        """Return every metric in Prometheus's text format."""
        return generate_latest(self._registry)

    def count_request(self, method: str, route: str, status: int, duration_s: float) -> None:
        """Count a request that was answered."""
        self.values.count("trimtab_http_requests_total", method, route, str(status))

    def count_write(self, duration_s: float, is_written: bool) -> None:
        """Count a transaction of the ledger."""
        self.values.observe("trimtab_ledger_write_duration_seconds", duration_s)
        if not is_written:
            self.values.count("trimtab_ledger_write_failures_total")

    def samples(self) -> Iterator[tuple[str, LabelValues, float]]:
        """Return name, label values and value of all but the process's metrics; histograms as count and sum."""
        for family in self.families():
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    yield sample.name, tuple(sample.labels.values()), sample.value

    def families(self) -> Iterator[Family]:
        """Return the catalogue with its values, as prometheus_client takes it."""
        read, counted = self._readings.read(), self.values.families()
        for metric in self._metrics:
            found = None if metric.name in read else counted.get(metric.name)
            yield found or _family(metric, read.get(metric.name, {}))


class _Catalogue(Collector):
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def collect(self) -> Iterable[Family]:
        return self._telemetry.families()


def _family(metric: Metric, values: Mapping[LabelValues, float]) -> Family:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(metric.name, metric.meaning, labels=metric.labels)
    for labels, value in sorted(values.items()):
        family.add_metric(labels, float(value))
    return family


class Values:
    """Counters and histograms of the catalogue, by name; a name that is not in it is a KeyError."""

    def __init__(self) -> None:
        metrics = own_metrics()
        self._lock = threading.Lock()
        self._counters = {
            metric.name: Counter(metric.name, metric.meaning, metric.labels, registry=None)
            for metric in metrics
            if metric.kind is Kind.COUNTER
        }
        self._histograms = {
            metric.name: Histogram(metric.name, metric.meaning, registry=None, buckets=metric.bounds)
            for metric in metrics
            if metric.kind is Kind.HISTOGRAM
        }
        self._labelled: dict[str, set[LabelValues]] = defaultdict(set)

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Add to a counter."""
        counter = self._counters[name]
        if labels:
            with self._lock:
                known = self._labelled[name]
                if labels not in known and len(known) >= MOST_LABEL_SETS:
                    labels = (OTHER,) * len(labels)
                known.add(labels)
            counter = counter.labels(*labels)
        counter.inc(by)

    def observe(self, name: str, value: float) -> None:
        """Add an observation to a histogram."""
        self._histograms[name].observe(value)

    def families(self) -> dict[str, Family]:
        """Return every counter and histogram, without the times at which they were made, which the catalogue lacks."""
        found = {}
        for name, metric in (self._counters | self._histograms).items():
            (family,) = metric.collect()
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            found[name] = family
        return found


class Readings:
    """Reads the agent; what the ledger would have to tell is left out while it cannot be read."""

    def __init__(self, view: AgentView) -> None:
        self._view = view
        self._parts = view.parts
        self.parts = view.parts.parts
        self._lock = threading.Lock()
        self._size: tuple[float, float | None] | None = None

    def read(self) -> Mapping[str, Mapping[LabelValues, float]]:
        """Return value by label values by full name."""
        found: dict[str, dict[LabelValues, float]] = defaultdict(dict)
        state = self._parts.board.read()
        sources: list[Callable[[], Iterable[Reading]]] = [
            partial(self._agent, state),
            self._inputs,
            self._ledger,
            *(part.readings for part in self._parts.parts),
            *(part.rounds.readings for part in self._parts.parts if part.rounds is not None),
        ]
        for source in sources:
            try:
                for name, labels, value in source():
                    found[f"trimtab_{name}"][labels] = value
            except LedgerError as error:
                log.warning("metrics_without_ledger", detail=str(error))
            except Exception:
                # One part's error must not hide the metrics of all others.
                log.exception("metrics_failed")
        return found

    def _agent(self, state: ServiceState) -> Iterator[Reading]:
        settings, health = self._parts.settings, self._view.health()
        yield "build_info", (installed_version(), platform.python_version()), 1.0
        yield "mode", (settings.mode.value,), 1.0
        yield "started_timestamp_seconds", (), state.started_at
        yield "healthy", (), health.ok
        yield "ready", (), self._view.readiness().ready
        yield "stopping", (), state.stopping
        yield "leader", (), state.leader
        yield "leader_epoch", (), state.epoch
        led = list(state.leaders.values())
        for name in set(led):
            yield "led_subjects", (name,), led.count(name)
        for part in state.problems:
            yield "problem", (part,), 1.0
        yield "ticks_rescued_total", (), state.rescued_turns
        yield "ticks_overran_total", (), state.overran_turns
        yield "tick_interval_seconds", (), settings.tick_interval_s
        if state.last_turn_at is not None:
            yield "last_tick_timestamp_seconds", (), state.last_turn_at
        yield "last_tick_age_seconds", (), health.last_turn_age_s
        yield "ledger_usable", (), not state.ledger_failure

    def _inputs(self) -> Iterator[Reading]:
        for (subject, group), unknown in self._parts.unknown_vms().items():
            yield "unknown_vms", (*subject, group), unknown.waiting
            yield "unknown_vms_refused_total", (*subject, group), unknown.refused
        for (subject, *place), refused in self._parts.claims().items():
            yield "claims_refused_total", (*subject, *place), refused.count
        for name, health in self._parts.collectors().items():
            for what in ("successes", "failures", "overruns", "skipped"):
                yield f"collector_{what}_total", (name,), getattr(health, what)
            yield "collector_refused_samples_total", (name,), health.refused
            if health.last_success_at is not None:
                yield "collector_last_success_timestamp_seconds", (name,), health.last_success_at
            if health.last_duration_s is not None:
                yield "collector_last_duration_seconds", (name,), health.last_duration_s
        intake = self._parts.intake()
        yield "listener_lines_accepted_total", (), intake.accepted
        for reason, count in intake.rejected.items():
            yield "listener_lines_rejected_total", (reason,), count
        for agent, lines in tuple(intake.forwarding.items()):
            yield "listener_lines_forwarded_total", (agent,), lines.forwarded
            yield "listener_lines_unforwarded_total", (agent,), lines.dropped
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

    def _ledger(self) -> Iterator[Reading]:
        size = self._ledger_size()
        if size is not None:
            yield "ledger_size_bytes", (), size

    def _ledger_size(self) -> float | None:
        with self._lock:
            now = self._parts.monotonic()
            if self._size is None or now - self._size[0] >= SIZE_EVERY_S:
                self._size = (now, self._parts.ledger.size_bytes())
            return self._size[1]


class TurnCounter:
    """A listener of the board."""

    def __init__(self, values: Values, monotonic: Callable[[], float], interval_s: float) -> None:
        self._values = values
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._last_at: float | None = None

    def __call__(self, state: ServiceState, report: TurnReport) -> None:
        """Count a turn that has just ended."""
        values, now = self._values, self._monotonic()
        began_at = now - state.last_turn_duration_s
        if self._last_at is not None:
            missed = round((began_at - self._last_at) / self._interval_s) - 1
            values.count("trimtab_ticks_missed_total", by=max(0, missed))
        self._last_at = began_at
        values.count("trimtab_ticks_total")
        values.observe("trimtab_tick_duration_seconds", state.last_turn_duration_s)
        if report.failure:
            values.count("trimtab_tick_failures_total")
        for name, labels, by in report.counts:
            values.count(name, *labels, by=by)
        for event in report.events:
            values.count("trimtab_events_total", *event.subject, event.reason)


class SelfMetrics:
    """A listener of the board; sending never waits, and lines that Graphite does not accept in time are counted."""

    def __init__(self, telemetry: Telemetry, sender: GraphiteSender, prefix: str, now: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self._sender = sender
        self._prefix = prefix
        self._now = now
        self._counted = (0, 0)

    def __call__(self, state: ServiceState, report: TurnReport) -> None:
        """Send every metric as of now."""
        self._count()
        at = self._now()
        for path, value in graphite_lines(self._telemetry, self._prefix):
            self._sender.send(path, value, at)

    def _count(self) -> None:
        values, counters = self._telemetry.values, self._sender.counters
        sent, dropped = counters.sent, counters.dropped
        values.count("trimtab_self_metrics_sent_total", by=sent - self._counted[0])
        values.count("trimtab_self_metrics_dropped_total", by=dropped - self._counted[1])
        self._counted = (sent, dropped)


def graphite_lines(telemetry: Telemetry, prefix: str) -> Iterator[tuple[str, float]]:
    """Return path and value of every metric: prefix, name without `trimtab_`, and the values of its labels."""
    for name, labels, value in telemetry.samples():
        if name not in LEFT_OUT:
            yield graphite_path(prefix, name, labels), value


def graphite_path(prefix: str, name: str, labels: LabelValues) -> str:
    """Return the Graphite path of a metric; invalid characters of a segment become `_`."""
    segments = [name.removeprefix("trimtab_"), *labels]
    return ".".join([prefix, *(re.sub(r"[^A-Za-z0-9_-]", "_", segment) or "none" for segment in segments)])
