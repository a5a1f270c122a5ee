"""The active alarms: computed from conditions and events, turn by turn, without input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from agent.kernel.parts import kinds
from agent.kernel.turn import Severity, TurnReport
from domain.decisions import Reason
from domain.subject import AGENT, Subject

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


def alarms(report: TurnReport, lasting: bool) -> dict[Key, Alarm]:
    """Return the alarms of a turn by key: its failure and lasting conditions, or its events and other conditions."""
    found = []
    if lasting and report.failure:
        found.append(Alarm(AGENT, report.failure_reason, "", Severity.CRITICAL, report.failure, report.at))
    if not lasting:
        severities = {**EVENTS, **{reason: severity for kind in kinds() for reason, severity in kind.alarms.items()}}
        found += [
            Alarm(event.subject, event.reason, event.about, severities[event.reason], event.detail, event.at)
            for event in report.events
            if event.reason in severities
        ]
    found += [
        Alarm(one.subject, one.reason, one.about, one.severity, one.text, report.at)
        for one in report.conditions
        if one.lasting is lasting
    ]
    return {alarm.key: alarm for alarm in found}


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

    def turn(self, report: TurnReport) -> tuple[Alarm, ...]:
        """Update from a turn; return the alarms to send."""
        now = report.at
        due: list[Alarm] = []
        for lasting in (True, False):
            for key, alarm in alarms(report, lasting).items():
                due += self._occurred(key, alarm, now, lasting)
        for key, entry in list(self._entries.items()):
            # A turn that failed, or ended before AWS was asked, shows no decisions: earlier conditions may still hold.
            shown = not report.failure and report.unread is not None
            unseen = entry.seen_at < now and (shown or key[1] in FAILURES)
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
