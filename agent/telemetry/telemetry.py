"""The metrics of one running agent, for whoever asks: Prometheus as text, Graphite as lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from agent.telemetry.catalogue import Kind, Metric, own_metrics
from agent.telemetry.readings import Readings
from agent.telemetry.turns import TurnCounter
from agent.telemetry.values import LabelValues, Values
from agent.view.view import AgentView


class Telemetry:
    """Counts turns, requests and ledger writes, reads the rest when asked, and shows exactly the catalogue."""

    def __init__(self, view: AgentView) -> None:
        self.values = Values()
        self._readings = Readings(view)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Catalogue(self))
        ProcessCollector(registry=self._registry)
        parts = view.parts
        parts.board.listen(TurnCounter(self.values, parts.monotonic, parts.settings.tick_interval_s))
        parts.ledger.watch_writes(self.count_write)

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
        values = self._all()
        for metric in own_metrics():
            for labels, value in values.get(metric.name, {}).items():
                yield metric.name, labels, float(value)
        for name, distribution in self.values.distributions().items():
            yield f"{name}_count", (), float(distribution.count)
            yield f"{name}_sum", (), distribution.total

    def families(self) -> Iterator[Family]:
        """Return the catalogue with its values, as prometheus_client takes it."""
        values, distributions = self._all(), self.values.distributions()
        for metric in own_metrics():
            if metric.kind is Kind.HISTOGRAM:
                found = distributions[metric.name]
                buckets = [("+Inf" if math.isinf(le) else repr(le), count) for le, count in found.buckets]
                yield HistogramMetricFamily(metric.name, metric.meaning, buckets=buckets, sum_value=found.total)
            else:
                yield _family(metric, values.get(metric.name, {}))

    def _all(self) -> dict[str, Mapping[LabelValues, float]]:
        return {**self.values.counts(), **self._readings.read()}


class _Catalogue(Collector):
    """What prometheus_client asks for the families."""

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
