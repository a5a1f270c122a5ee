"""Sends the agent's own metrics to Graphite after each turn, under a prefix of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from agent.autoscaling.ports import TickReport
from agent.telemetry.telemetry import Telemetry
from agent.telemetry.values import LabelValues
from agent.view.board import Standing
from collectors.sender import GraphiteSender

LEFT_OUT = frozenset({"trimtab_build_info"})
"""Says nothing as a number."""


class SelfMetrics:
    """A listener of the board; sending never waits, what Graphite does not take in time is dropped and counted."""

    def __init__(self, telemetry: Telemetry, sender: GraphiteSender, prefix: str, now: Callable[[], float]) -> None:
        self._telemetry = telemetry
        self._sender = sender
        self._prefix = prefix
        self._now = now
        self._counted = (0, 0)

    def __call__(self, standing: Standing, report: TickReport) -> None:
        """Send every metric as of now."""
        self._count()
        at = self._now()
        for path, value in lines(self._telemetry, self._prefix):
            self._sender.send(path, value, at)

    def _count(self) -> None:
        values, counters = self._telemetry.values, self._sender.counters
        sent, dropped = counters.sent, counters.dropped
        values.count("trimtab_self_metrics_sent_total", by=sent - self._counted[0])
        values.count("trimtab_self_metrics_dropped_total", by=dropped - self._counted[1])
        self._counted = (sent, dropped)


def lines(telemetry: Telemetry, prefix: str) -> Iterator[tuple[str, float]]:
    """Return path and value of every metric: prefix, name without `trimtab_`, and the values of its labels."""
    for name, labels, value in telemetry.samples():
        if name not in LEFT_OUT:
            yield path(prefix, name, labels), value


def path(prefix: str, name: str, labels: LabelValues) -> str:
    """Return the Graphite path of a metric; what a path segment may not hold becomes `_`."""
    segments = [name.removeprefix("trimtab_"), *labels]
    return ".".join([prefix, *(re.sub(r"[^A-Za-z0-9_-]", "_", segment) or "none" for segment in segments)])
