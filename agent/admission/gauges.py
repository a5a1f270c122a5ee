"""What a cluster is like now, as numbers for metrics and for whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Gauges:
    """A cluster at `at` (epoch seconds); its futures as they were last computed.

    worst_slack_cores: by band, the least room that the rule leaves for those inside. safe: whether the rule holds for
    them alone; if not, it fails first `unsafe_from_hours` ahead. sla_budget_used: refused requests for more cores
    against those that the SLA allows, this month; above 1 the promise is broken.
    """

    cluster: str
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


def month_of(at: float) -> float:
    """Return the first moment of the calendar month, UTC, in epoch seconds."""
    day = datetime.fromtimestamp(at, UTC)
    return datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()
