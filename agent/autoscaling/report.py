"""The report of one minute of all fleets, as a part of the report of the turn."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from agent.kernel.turn import Condition, Severity, TurnReport
from domain.decisions import Decision, Event, Intent, Outcome, Reason, Status, Verdict
from domain.snapshot import Snapshot
from domain.subject import fleet_subject

OUTCOMES: Mapping[Reason, Severity] = MappingProxyType(
    {
        Reason.CREDENTIALS: Severity.CRITICAL,
        Reason.PERMANENT_FAILURE: Severity.WARNING,
        Reason.OVERDUE: Severity.WARNING,
    }
)
"""Reasons of ended intents that are alarms."""

HELD: Mapping[Reason, Severity] = MappingProxyType(
    {
        Reason.CLOUD_UNREADABLE: Severity.CRITICAL,
        Reason.GROUP_UNSUPPORTED: Severity.CRITICAL,
        Reason.STALE_INPUT: Severity.WARNING,
        Reason.LOW_COVERAGE: Severity.WARNING,
        Reason.SAFE_FLOOR: Severity.CRITICAL,
        Reason.FLEET_SICK: Severity.WARNING,
        Reason.CIRCUIT_OPEN: Severity.WARNING,
        Reason.OVER_BUDGET: Severity.WARNING,
    }
)
"""Reasons of decisions or rails that are alarms while they last."""

OF_A_START = (Reason.STALE_INPUT, Reason.LOW_COVERAGE)
"""Reasons that a start explains: no alarms in a minute that this process did not listen to as a whole."""

HELD_BY_INPUT: Final = frozenset(
    {Reason.STALE_INPUT, Reason.LOW_COVERAGE, Reason.SAFE_FLOOR, Reason.CLOUD_UNREADABLE, Reason.CREDENTIALS}
)
"""Reasons of decisions that a wrong clock makes: readings look old or yet to come, and AWS refuses its signatures."""


@dataclass(frozen=True, slots=True)
class MinuteReport:
    """The records of one minute; `failure` is why it ended early, when the ledger could not be used.

    results: intents with their outcomes. failure_reason: of the failure's alarm. unread: fleets whose groups AWS did
    not show, where nothing was decided for them. partial: fleets whose minute began before this process listened.
    """

    at: float
    snapshots: tuple[Snapshot, ...] = ()
    decisions: tuple[Decision, ...] = ()
    results: tuple[tuple[Intent, Outcome], ...] = ()
    events: tuple[Event, ...] = ()
    failure: str | None = None
    failure_reason: Reason = Reason.LEDGER_UNAVAILABLE
    unread: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of `results`."""
        return tuple(outcome for _, outcome in self.results)


def with_fleets(report: TurnReport, minute: MinuteReport) -> TurnReport:
    """Return the report of a turn with the records of its minute."""
    decisions = minute.decisions
    undecided = tuple(one.fleet for one in decisions if one.reason is Reason.CLOUD_UNREADABLE)
    latest = max(decisions, key=lambda one: one.at, default=None)
    unread = (*undecided, *minute.unread)
    return replace(
        report,
        events=(*report.events, *minute.events),
        results=(*report.results, *minute.results),
        conditions=(*report.conditions, *conditions(minute)),
        counts=(*report.counts, *counts(minute)),
        # A minute that failed before its first reading leaves open whether AWS can be read.
        unread=unread if decisions or minute.snapshots or unread or minute.failure is None else report.unread,
        blind=bool(decisions) and all(one.reason in HELD_BY_INPUT for one in decisions),
        latest=report.latest if latest is None else f"{_utc(latest.at)} {latest.fleet}: {latest.sentence}",
        failure=minute.failure,
        failure_reason=minute.failure_reason,
    )


def conditions(minute: MinuteReport) -> Iterator[Condition]:
    """Yield the causes of alarms in a minute's decisions, which last, and in its ended intents."""
    for decision in minute.decisions:
        excused = OF_A_START if decision.fleet in minute.partial else ()
        texts = {decision.reason: decision.sentence}
        texts.update({e.reason: e.detail or decision.sentence for e in decision.effects if e.reason is not None})
        for reason, text in texts.items():
            if reason in HELD and reason not in excused:
                yield Condition(fleet_subject(decision.fleet), reason, HELD[reason], text)
    for intent, outcome in minute.results:
        if outcome.status.final and (severity := OUTCOMES.get(outcome.reason)) is not None:
            subject = fleet_subject(intent.fleet)
            yield Condition(subject, outcome.reason, severity, outcome.detail, intent.group, lasting=False)


def counts(minute: MinuteReport) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield the increments of a minute's counters."""
    for decision in minute.decisions:
        fleet = decision.fleet
        yield "trimtab_decisions_total", (fleet, decision.reason), 1.0
        yield "trimtab_policy_failures_total", (fleet,), len(decision.policy_failures)
        for effect in decision.effects:
            if effect.verdict is not Verdict.PASSED:
                yield "trimtab_rail_effects_total", (fleet, effect.rail, effect.verdict, effect.reason or ""), 1.0
        for intent in decision.intents:
            yield "trimtab_intents_total", (fleet, intent.group, intent.direction), 1.0
    for intent, outcome in minute.results:
        if outcome.status is not Status.IN_PROGRESS:
            yield "trimtab_outcomes_total", (intent.fleet, intent.group, outcome.status, outcome.reason), 1.0


def _utc(at: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(at))
