"""Which alarms are on: a pure account of conditions and events, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from agent.autoscaling.ports import TickReport
from domain.decisions import Reason


class Severity(StrEnum):
    """critical: nothing is being managed. warning: something is, but not as it should."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm: what it is about, since when, how often it came up, and whether it is over."""

    fleet: str
    reason: Reason
    subject: str
    severity: Severity
    text: str
    since: float
    count: int = 1
    resolved: bool = False

    @property
    def key(self) -> tuple[str, Reason, str]:
        """What makes it the same alarm."""
        return self.fleet, self.reason, self.subject

    @property
    def sentence(self) -> str:
        """One line for people."""
        state = "over" if self.resolved else self.severity
        where = f"{self.fleet} {self.subject}".strip() or "agent"
        return f"[{state}] {where}: {self.reason}: {self.text}"


EVENTS: Mapping[Reason, Severity] = MappingProxyType(
    {
        Reason.INTERNAL_ERROR: Severity.CRITICAL,
        Reason.CREDENTIALS: Severity.CRITICAL,
        Reason.PERMANENT_FAILURE: Severity.WARNING,
        Reason.POLICY_FAILED: Severity.WARNING,
        Reason.CAPACITY_LOST: Severity.WARNING,
        Reason.DRAIN_TIMED_OUT: Severity.WARNING,
        Reason.DRIFT_REPORTED: Severity.WARNING,
        Reason.LATE_CALL: Severity.WARNING,
        Reason.CLOCK_JUMP: Severity.WARNING,
        Reason.SENDER_REFUSED: Severity.WARNING,
        Reason.CLAIM_REFUSED: Severity.WARNING,
        Reason.REJECTED_UNSAFE: Severity.WARNING,
        Reason.SIZES_REPAIRED: Severity.WARNING,
        Reason.MACHINE_WARM: Severity.WARNING,
        Reason.MACHINE_HOT: Severity.CRITICAL,
        Reason.NO_MACHINE: Severity.WARNING,
        Reason.USAGE_DRIFTED: Severity.WARNING,
        Reason.RATES_FROZEN: Severity.WARNING,
        Reason.RATES_ROLLED_BACK: Severity.CRITICAL,
    }
)
"""Events that are alarms by themselves; they are over when they have not come up for the quiet time."""

FAILURES = (Reason.LEDGER_UNAVAILABLE, Reason.LEDGER_REPLACED, Reason.LEDGER_FOREIGN)
"""Reasons of a turn that executed nothing."""

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
"""Reasons of decisions or rails that are alarms for as long as they last."""


def conditions(report: TickReport) -> dict[tuple[str, Reason, str], Alarm]:
    """Return the alarms that lie in this turn's decisions and in the ledger, by key."""
    found: dict[tuple[str, Reason, str], Alarm] = {}
    if report.failure:
        alarm = Alarm("", report.failure_reason, "", Severity.CRITICAL, report.failure, report.at)
        found[alarm.key] = alarm
    for decision in report.decisions:
        said = {decision.reason: decision.sentence}
        said.update({e.reason: e.detail or decision.sentence for e in decision.effects if e.reason is not None})
        for reason, text in said.items():
            if reason in HELD:
                alarm = Alarm(decision.fleet, reason, "", HELD[reason], text, report.at)
                found[alarm.key] = alarm
    return found


def happened(report: TickReport) -> dict[tuple[str, Reason, str], Alarm]:
    """Return the alarms that lie in this turn's events and ended intents, by key."""
    found: dict[tuple[str, Reason, str], Alarm] = {}
    for event in report.events:
        if event.reason in EVENTS:
            alarm = Alarm(event.fleet, event.reason, event.subject, EVENTS[event.reason], event.detail, event.at)
            found[alarm.key] = alarm
    for outcome in report.outcomes:
        if outcome.status.final and outcome.reason in OUTCOMES:
            severity = OUTCOMES[outcome.reason]
            # An intent's id is <fleet>-<number>.<group>, as `agent.autoscaling.intents` makes it.
            decision_id, _, group = outcome.intent_id.rpartition(".")
            fleet = decision_id.rpartition("-")[0]
            alarm = Alarm(fleet, outcome.reason, group, severity, outcome.detail, outcome.at)
            found[alarm.key] = alarm
    return found


@dataclass(frozen=True, slots=True)
class _Entry:
    alarm: Alarm
    told_at: float
    seen_at: float
    lasting: bool


class AlarmBook:
    """Remembers which alarms are on; a turn gives those to tell now: new, still on after `repeat_s`, or over.

    A condition is over when a turn no longer shows it, an event when it has not come up for `quiet_s`.
    """

    def __init__(self, repeat_s: float = 3600.0, quiet_s: float = 1800.0) -> None:
        self._repeat_s, self._quiet_s = repeat_s, quiet_s
        self._entries: dict[tuple[str, Reason, str], _Entry] = {}

    @property
    def active(self) -> tuple[Alarm, ...]:
        """The alarms that are on, the oldest first."""
        return tuple(sorted((entry.alarm for entry in self._entries.values()), key=lambda alarm: alarm.since))

    def turn(self, report: TickReport) -> tuple[Alarm, ...]:
        """Take in a turn; return the alarms to tell now."""
        now = report.at
        tell: list[Alarm] = []
        for found, lasting in ((conditions(report), True), (happened(report), False)):
            for key, alarm in found.items():
                tell += self._came_up(key, alarm, now, lasting)
        for key, entry in list(self._entries.items()):
            # A turn that failed shows no decisions: what held before it may well hold on.
            unseen = entry.seen_at < now and (not report.failure or key[1] in FAILURES)
            over = unseen if entry.lasting else now - entry.seen_at >= self._quiet_s
            if over:
                del self._entries[key]
                tell.append(replace(entry.alarm, resolved=True))
        return tuple(tell)

    def _came_up(self, key: tuple[str, Reason, str], alarm: Alarm, now: float, lasting: bool) -> list[Alarm]:
        known = self._entries.get(key)
        if known is None:
            self._entries[key] = _Entry(alarm, now, now, lasting)
            return [alarm]
        again = replace(alarm, since=known.alarm.since, count=known.alarm.count + 1)
        due = now - known.told_at >= self._repeat_s
        self._entries[key] = _Entry(again, now if due else known.told_at, now, lasting)
        return [again] if due else []
