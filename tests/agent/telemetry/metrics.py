"""Every metric on /metrics."""

from agent.kernel.metrics import Metric
from agent.telemetry.catalogue import sections


def all_metrics() -> tuple[Metric, ...]:
    """Return every metric on /metrics."""
    return tuple(metric for section in sections() for metric in section.metrics)
