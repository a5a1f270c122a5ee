"""The agent as others may see it: the one read-only view behind the HTTP interface, the page and the metrics.

Its records are frozen; the OpenAPI description is made from them too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from agent.kernel.decision import Check, Explanation
from agent.kernel.parts import Parts
from agent.kernel.store import DecisionStore, Record
from agent.kernel.turn import TurnReport
from agent.ledger import JournalEntry, Kind, Ledger
from agent.settings import Settings
from agent.view.board import ServiceBoard, ServiceState
from collectors.base import CollectorHealth
from collectors.intake import IntakeCounters, RefusedClaim
from collectors.vm_names import UnknownVms
from domain.errors import LedgerReplaced, LedgerUnavailable
from domain.subject import Subject

INTERVALS_TO_LIVE = 3
"""So many intervals may pass without a turn before the agent counts as dead."""

PROBE_EVERY_S = 15.0


@dataclass(frozen=True, slots=True)
class AgentParts:
    """A running agent from outside; every function may be called from any thread at any time.

    now: epoch seconds. monotonic: seconds that never step. parts: of every decision. claims: readings that were not
    believed. unknown_vms: VMs that no inventory shows, by subject and group key. collectors, intake, aws_calls: the
    counters of collectors, listener and AWS session. alive: whether the loop turns, as the watchdog sees it. checks:
    further conditions of readiness.
    """

    settings: Settings
    board: ServiceBoard
    ledger: Ledger
    now: Callable[[], float]
    monotonic: Callable[[], float]
    parts: Parts
    collectors: Callable[[], Mapping[str, CollectorHealth]]
    intake: Callable[[], IntakeCounters]
    aws_calls: Callable[[], Mapping[tuple[str, str], int]]
    alive: Callable[[], bool] = lambda: True
    checks: tuple[Callable[[], Check], ...] = ()
    claims: Callable[[], Mapping[tuple[Subject, str, str], RefusedClaim]] = dict
    unknown_vms: Callable[[], Mapping[tuple[Subject, str], UnknownVms]] = dict


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the loop turns: seconds since the last turn ended, how many are too many, and a sentence."""

    ok: bool
    detail: str
    last_turn_age_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the agent can do its work, whether it leads or stands by, and each condition."""

    ready: bool
    role: str
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class ListedDecision:
    """A decision in a list: whose it is, its sentence and reason, and the guards that changed it."""

    id: str
    decision: str
    subject: str
    at: float
    reason: str
    sentence: str
    guards: tuple[Mapping[str, str], ...]
    changed: bool


@dataclass(frozen=True, slots=True)
class DecisionPage:
    """Decisions, the newest first; give `next_before` as `before` for older ones, None at the end."""

    decisions: tuple[ListedDecision, ...]
    next_before: str | None


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One row of the journal: a decision, intent, outcome, event or change of settings, as it was recorded.

    fleet: the subject's name where it is a fleet.
    """

    seq: int
    at: float
    decision: str
    subject: str
    fleet: str | None
    kind: str
    ref: str
    reason: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JournalPage:
    """Journal rows in order; give `next_since_seq` as `since_seq` for what came after, at any later time."""

    events: tuple[JournalRow, ...]
    next_since_seq: int


@dataclass(frozen=True, slots=True)
class CollectorStatus:
    """How a collector has fared; `ok` is whether its last collection succeeded. Counts are since the start."""

    name: str
    ok: bool
    successes: int
    failures: int
    overruns: int
    skipped: int
    refused: int
    last_success_at: float | None
    last_duration_s: float | None
    last_error: str


@dataclass(frozen=True, slots=True)
class ListenerStatus:
    """What the Graphite listener took and refused since the start, with the last refused line of each reason."""

    accepted: int
    rejected: Mapping[str, int]
    examples: Mapping[str, str]
    connections_open: int
    connections_opened: int
    connections_refused: int
    connections_idled_out: int
    connections_displaced: int
    connections_foreign: int
    datagrams: int
    datagrams_foreign: int


@dataclass(frozen=True, slots=True)
class InputStatus:
    """The collectors and the listener."""

    collectors: tuple[CollectorStatus, ...]
    listener: ListenerStatus


class AgentView:
    """Answers what status, decisions and inputs are; any thread may ask.

    It reads the ledger, so every method but `health` and `inputs` raises LedgerUnavailable when that
    cannot be read.
    """

    def __init__(self, parts: AgentParts) -> None:
        self.parts = parts
        self._lock = threading.Lock()
        self._turned_at = parts.monotonic()
        self._unreadable: tuple[str, ...] | None = None
        self._probe: tuple[float, str] | None = None
        self._store = DecisionStore(parts.ledger.database)
        parts.board.listen(self._note_turn)

    def _note_turn(self, state: ServiceState, report: TurnReport) -> None:
        self._turned_at = self.parts.monotonic()
        # A turn that ended before AWS was asked does not change what is known of AWS.
        if report.unread is not None:
            self._unreadable = report.unread

    # The agent

    def health(self) -> Health:
        """Say whether the loop turns: the last turn ended less than three intervals ago, on the monotonic clock."""
        age_s = self.parts.monotonic() - self._turned_at
        limit_s = INTERVALS_TO_LIVE * self.parts.settings.tick_interval_s
        if age_s > limit_s:
            return Health(False, f"the loop has stopped: no turn has ended for {age_s:.0f} s", age_s, limit_s)
        if not self.parts.alive():
            return Health(
                False,
                f"the loop has stopped: no turn has begun in time, {age_s:.0f} s since one ended",
                age_s,
                limit_s,
            )
        return Health(True, f"the loop turns; the last turn ended {age_s:.0f} s ago", age_s, limit_s)

    def readiness(self) -> Readiness:
        """Say whether the agent can do its work; a standby is ready when it could take over."""
        state = self.parts.board.read()
        checks = (
            self._turning(state),
            self._ledger_writable(),
            self._cloud_readable(state),
            *(check for part in self.parts.parts for check in part.checks()),
            *(check() for check in self.parts.checks),
        )
        role = "leader" if state.leader else "standby"
        return Readiness(all(check.ok for check in checks) and not state.stopping, role, checks)

    def _turning(self, state: ServiceState) -> Check:
        health = self.health()
        if state.stopping:
            return Check("loop", False, "the agent is stopping")
        if state.last_turn_at is None:
            return Check("loop", False, "the first turn has not ended yet")
        return Check("loop", health.ok, health.detail)

    def _ledger_writable(self) -> Check:
        with self._lock:
            now = self.parts.monotonic()
            if self._probe is None or now - self._probe[0] >= PROBE_EVERY_S:
                self._probe = (now, self._ledger_trouble())
            trouble = self._probe[1]
        return Check(
            "ledger", not trouble, f"{trouble}, so nothing is executed" if trouble else "decisions can be recorded"
        )

    def _ledger_trouble(self) -> str:
        try:
            self.parts.ledger.check_same()
            self.parts.ledger.check_writable()
        except LedgerReplaced:
            return "the ledger is missing or was replaced (details: `trimtab status`)"
        except LedgerUnavailable:
            return "the ledger cannot be written"
        return ""

    def _cloud_readable(self, state: ServiceState) -> Check:
        if state.last_turn_at is None or self._unreadable is None:
            return Check("aws", False, "AWS was not read yet")
        if failing := sorted(self._unreadable):
            return Check("aws", False, f"AWS could not be read in the last turn for: {', '.join(failing)}")
        return Check("aws", True, "every fleet could be read in the last turn")

    def status(self) -> dict[str, Any]:
        """Return what the agent knows of itself, as plain data, with the status of every subject by decision."""
        now = self.parts.now()
        parts = self.parts.parts
        by_part: dict[str, list[Mapping[str, Any]]] = {part.name: [] for part in parts}
        wanted = ((part, name) for part in parts for name in part.subjects())
        for one, status in parts.statuses(wanted, now):
            by_part[one.name].append(status.data)
        return {**self.agent(), "subjects": by_part}

    def agent(self) -> dict[str, Any]:
        """Return what the agent knows of itself alone, as plain data; reads no ledger."""
        now, settings = self.parts.now(), self.parts.settings
        state = asdict(self.parts.board.read())
        del state["latest"]
        return {
            "at": now,
            "version": installed_version(),
            "mode": settings.mode.value,
            "tick_interval_s": settings.tick_interval_s,
            **state,
        }

    # What happened

    def decisions(
        self,
        subject: str | None = None,
        *,
        decision: str | None = None,
        before: str | None = None,
        limit: int = 50,
        changed_only: bool = False,
    ) -> DecisionPage:
        """Return decisions of every kind made before the one with the id `before` (None: up to now), newest first.

        UnknownName when there is no decision with that id.
        """
        last = None if before is None else self.parts.parts.find(before)[1]
        found = self._store.newest(decision, subject, limit=limit, changed_only=changed_only, before=last)
        return DecisionPage(tuple(map(self.listed, found)), found[-1].decision_id if len(found) == limit else None)

    def listed(self, record: Record) -> ListedDecision:
        """Return a decision as lists show it; one whose package is not installed is shown by its id alone."""
        summary = self.parts.parts.summary(record)
        return ListedDecision(
            id=record.decision_id,
            decision=record.decision,
            subject=record.subject,
            at=record.at,
            reason=summary.reason,
            sentence=summary.sentence,
            guards=tuple({"guard": guard, "sentence": sentence} for guard, sentence in summary.guards),
            changed=record.changed,
        )

    def explain(self, decision_id: str) -> Explanation:
        """Return why a decision came out as it did; UnknownName when there is none of that id."""
        part, record = self.parts.parts.find(decision_id)
        return part.explain(record)

    def journal(
        self,
        since_seq: int = 0,
        *,
        decision: str | None = None,
        subject: str | None = None,
        kind: Kind | None = None,
        limit: int = 100,
    ) -> JournalPage:
        """Return journal rows after `since_seq` in order, of one decision, subject and kind or of all.

        A page may hold fewer rows than `limit` although more follow: go on from `next_since_seq` until it stays.
        """
        entries = self.parts.ledger.journal(since_seq, decision=decision, subject=subject, limit=limit)
        rows = tuple(_journal_row(e) for e in entries if kind in (None, e.kind))
        return JournalPage(rows, entries[-1].seq if entries else since_seq)

    def latest(
        self, kinds: Sequence[Kind], *, up_to_seq: int, subject: Subject | None = None, limit: int = 20
    ) -> tuple[JournalRow, ...]:
        """Return the newest journal rows of these kinds up to `up_to_seq`, the newest first; long past ones never.

        subject: only its own rows and those of the agent.
        """
        entries = self.parts.ledger.latest(kinds, up_to_seq=up_to_seq, subject=subject, limit=limit)
        return tuple(_journal_row(entry) for entry in entries)

    # Inputs

    def inputs(self) -> InputStatus:
        """Return how collectors and listener fare."""
        intake = self.parts.intake()
        return InputStatus(
            tuple(
                CollectorStatus(
                    name=name,
                    ok=not health.last_error and health.last_success_at is not None,
                    **asdict(health),
                )
                for name, health in sorted(self.parts.collectors().items())
            ),
            ListenerStatus(
                accepted=intake.accepted,
                rejected={reason.value: count for reason, count in intake.rejected.items()},
                examples={reason.value: line for reason, line in intake.examples.items() if line},
                connections_open=intake.connections_open,
                connections_opened=intake.connections_total,
                connections_refused=intake.connections_refused,
                connections_idled_out=intake.connections_idled_out,
                connections_displaced=intake.connections_displaced,
                connections_foreign=intake.connections_foreign,
                datagrams=intake.datagrams,
                datagrams_foreign=intake.datagrams_foreign,
            ),
        )


def _journal_row(entry: JournalEntry) -> JournalRow:
    return JournalRow(
        entry.seq,
        entry.at,
        entry.subject.decision,
        entry.subject.name,
        entry.subject.fields().get("fleet"),
        entry.kind.value,
        entry.ref,
        entry.reason,
        entry.body,
    )


def installed_version() -> str:
    """Return the version of the installed distribution, `unknown` when it runs from a bare checkout."""
    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "unknown"
