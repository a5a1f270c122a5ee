"""The active alarms: computed from conditions and events, turn by turn, without input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from agent.kernel.part import Severity
from agent.kernel.parts import kinds
from agent.kernel.turn import TickReport
from domain.decisions import Reason
from domain.subject import AGENT, Subject, fleet_subject

Key = tuple[Subject, Reason, str]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alarm: since when, how often, and whether it is resolved. about: a group, VM or request of the subject."""

    subject: Subject
    reason: Reason
    about: str
    severity: Severity
    text: str
    since: float
    count: int = 1
    resolved: bool = False

    @property
    def key(self) -> Key:
        """Alarms with the same key are the same alarm."""
        return self.subject, self.reason, self.about

    @property
    def sentence(self) -> str:
        """One line for people."""
        state = "over" if self.resolved else self.severity
        where = f"{self.subject.path} {self.about}".strip() or "agent"
        return f"[{state}] {where}: {self.reason}: {self.text}"


EVENTS: Mapping[Reason, Severity] = MappingProxyType(
    {
        Reason.INTERNAL_ERROR: Severity.CRITICAL,
        Reason.CREDENTIALS: Severity.CRITICAL,
        Reason.PERMANENT_FAILURE: Severity.WARNING,
        Reason.CLOCK_JUMP: Severity.WARNING,
        Reason.CLOCK_WRONG: Severity.CRITICAL,
        Reason.SENDER_REFUSED: Severity.WARNING,
        Reason.CLAIM_REFUSED: Severity.WARNING,
        Reason.REMOVAL_REFUSED: Severity.WARNING,
        Reason.INPUT_CONFLICT: Severity.WARNING,
        Reason.LAUNCHES_FAILING: Severity.WARNING,
        Reason.NOT_DRAINED: Severity.WARNING,
        Reason.LEARNING_OVERDUE: Severity.WARNING,
        Reason.PROMOTION_ROLLED_BACK: Severity.WARNING,
    }
)
"""The agent's own events that are alarms, beside those of its parts; they end when the event has not occurred for the
quiet time."""

FAILURES = (Reason.LEDGER_UNAVAILABLE, Reason.LEDGER_REPLACED, Reason.LEDGER_FOREIGN, Reason.ACCOUNT_FOREIGN)
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
"""Reasons of decisions or rails that are alarms while they last."""

HEARD = (Reason.STALE_INPUT, Reason.LOW_COVERAGE)
"""Those that a start makes by itself: no alarms in a minute that this process did not listen to as a whole."""


def conditions(report: TickReport) -> dict[Key, Alarm]:
    """Return the alarms in this turn's decisions and in its failure, by key."""
    found: dict[Key, Alarm] = {}
    if report.failure:
        alarm = Alarm(AGENT, report.failure_reason, "", Severity.CRITICAL, report.failure, report.at)
        found[alarm.key] = alarm
    for decision in report.decisions:
        excused = HEARD if decision.fleet in report.partial else ()
        texts = {decision.reason: decision.sentence}
        texts.update({e.reason: e.detail or decision.sentence for e in decision.effects if e.reason is not None})
        for reason, text in texts.items():
            if reason in HELD and reason not in excused:
                alarm = Alarm(fleet_subject(decision.fleet), reason, "", HELD[reason], text, report.at)
                found[alarm.key] = alarm
    return found


def occurrences(report: TickReport) -> dict[Key, Alarm]:
    """Return the alarms in this turn's events and ended intents, by key."""
    found: dict[Key, Alarm] = {}
    severities = {**EVENTS, **{reason: severity for kind in kinds() for reason, severity in kind.alarms.items()}}
    for event in report.events:
        if (severity := severities.get(event.reason)) is not None:
            alarm = Alarm(event.subject, event.reason, event.about, severity, event.detail, event.at)
            found[alarm.key] = alarm
    for intent, outcome in report.results:
        if outcome.status.final and outcome.reason in OUTCOMES:
            severity = OUTCOMES[outcome.reason]
            alarm = Alarm(
                fleet_subject(intent.fleet), outcome.reason, intent.group, severity, outcome.detail, outcome.at
            )
            found[alarm.key] = alarm
    return found


@dataclass(frozen=True, slots=True)
class _Entry:
    alarm: Alarm
    sent_at: float
    seen_at: float
    lasting: bool


class AlarmBook:
    """The active alarms; a turn returns those to send: new, still active after `repeat_s`, or resolved.

    A condition ends when a turn no longer shows it, an event when it has not occurred for `quiet_s`.
    """

    def __init__(self, repeat_s: float = 3600.0, quiet_s: float = 1800.0) -> None:
        self._repeat_s, self._quiet_s = repeat_s, quiet_s
        self._entries: dict[Key, _Entry] = {}

    @property
    def active(self) -> tuple[Alarm, ...]:
        """The active alarms, the oldest first."""
        return tuple(sorted((entry.alarm for entry in self._entries.values()), key=lambda alarm: alarm.since))

    def turn(self, report: TickReport) -> tuple[Alarm, ...]:
        """Update from a turn; return the alarms to send."""
        now = report.at
        due: list[Alarm] = []
        for found, lasting in ((conditions(report), True), (occurrences(report), False)):
            for key, alarm in found.items():
                due += self._occurred(key, alarm, now, lasting)
        for key, entry in list(self._entries.items()):
            # A turn that failed may show no decisions: earlier conditions may still hold.
            unseen = entry.seen_at < now and (not report.failure or key[1] in FAILURES)
            over = unseen if entry.lasting else now - entry.seen_at >= self._quiet_s
            if over:
                del self._entries[key]
                due.append(replace(entry.alarm, resolved=True))
        return tuple(due)

    def _occurred(self, key: Key, alarm: Alarm, now: float, lasting: bool) -> list[Alarm]:
        known = self._entries.get(key)
        if known is None:
            self._entries[key] = _Entry(alarm, now, now, lasting)
            return [alarm]
        again = replace(alarm, since=known.alarm.since, count=known.alarm.count + 1)
        is_due = now - known.sent_at >= self._repeat_s
        self._entries[key] = _Entry(again, now if is_due else known.sent_at, now, lasting)
        return [again] if is_due else []
