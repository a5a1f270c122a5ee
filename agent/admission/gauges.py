"""What a cluster is like now, as numbers for metrics and for whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from agent.admission.book import Book
from agent.admission.decision import first_unsafe, worst_slack
from agent.admission.deployments import Stage
from agent.ledger.admission import ClusterCounts
from domain.decisions import Mode


@dataclass(frozen=True, slots=True)
class Gauges:
    """A cluster at `at` (epoch seconds); its futures as they were last computed.

    mode: `act` where asking takes a deployment in, `observe` where the answer is advice and takes nothing in.
    worst_slack_cores: by band, the least room that the rule leaves for those inside. safe: whether the rule holds for
    them alone; if not, it fails first `unsafe_from_hours` ahead. sla_budget_used: refused requests for more cores
    against those that the SLA allows, this month; above 1 the promise is broken.
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


def gauges_of(book: Book, counts: ClusterCounts, mode: Mode, now: float) -> Gauges:
    """Return what a cluster is like now."""
    rules = book.rules
    if month_of(now) > counts.month:
        counts = replace(counts, month=month_of(now), requests=0, failures=0)
    unsafe = first_unsafe(book)
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
    )


def month_of(at: float) -> float:
    """Return the first moment of the calendar month, UTC, in epoch seconds."""
    day = datetime.fromtimestamp(at, UTC)
    return datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()
