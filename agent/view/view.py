"""The agent as others may see it: the one read-only view behind the HTTP interface, the page and the metrics."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from agent.autoscaling.known_fleets import fleet_names, one_fleet
from agent.autoscaling.ports import TickReport
from agent.autoscaling.status import FleetStatus, fleet_status, fleet_statuses
from agent.ledger import DecisionRecord, JournalEntry, Kind
from agent.settings.effective import plain, values
from agent.settings.names import name_of
from agent.view.board import Standing
from agent.view.model_watch import PROBLEM as MODEL_PROBLEM
from agent.view.parts import AgentParts, Check
from agent.view.records import (
    AgentStatus,
    CollectorStatus,
    DecisionPage,
    Health,
    InputStatus,
    JournalPage,
    JournalRow,
    ListedDecision,
    ListenerStatus,
    Readiness,
    VmReport,
)
from domain.decisions import Reason
from domain.errors import LedgerReplaced, LedgerUnavailable

INTERVALS_TO_LIVE = 3
"""So many intervals may pass without a turn before the agent counts as dead."""

PROBE_EVERY_S = 15.0
REPORTING_WITHIN_INTERVALS = 6


class AgentView:
    """Answers what status, decisions, fleets and inputs are; any thread may ask.

    It reads the ledger, so every method but `health`, `inputs`, `vms` and `settings` raises LedgerUnavailable when that
    cannot be read.
    """

    def __init__(self, parts: AgentParts) -> None:
        self.parts = parts
        self._lock = threading.Lock()
        self._turned_at = parts.monotonic()
        self._unreadable: dict[str, str] = {}
        self._probe: tuple[float, str] | None = None
        parts.board.listen(self._note_turn)

    def _note_turn(self, standing: Standing, report: TickReport) -> None:
        self._turned_at = self.parts.monotonic()
        # A turn that decided nothing says nothing on whether AWS can be read.
        if report.decisions:
            self._unreadable = {d.fleet: d.sentence for d in report.decisions if d.reason is Reason.CLOUD_UNREADABLE}

    # The agent

    def health(self) -> Health:
        """Say whether the loop turns: the last turn ended less than three intervals ago, on the monotonic clock."""
        age_s = self.parts.monotonic() - self._turned_at
        limit_s = INTERVALS_TO_LIVE * self.parts.settings.tick_interval_s
        if age_s > limit_s:
            return Health(False, f"the loop stands still: no turn has ended for {age_s:.0f} s", age_s, limit_s)
        if not self.parts.alive():
            return Health(
                False,
                f"the loop stands still: no turn has begun in time, {age_s:.0f} s since one ended",
                age_s,
                limit_s,
            )
        return Health(True, f"the loop turns; the last turn ended {age_s:.0f} s ago", age_s, limit_s)

    def readiness(self) -> Readiness:
        """Say whether the agent can do its work; a standby is ready when it could take over."""
        standing = self.parts.board.read()
        checks = (
            self._turning(standing),
            self._ledger_writable(),
            self._cloud_readable(standing),
            model_check(standing),
            *(check() for check in self.parts.checks),
        )
        role = "leader" if standing.leader else "standby"
        return Readiness(all(check.ok for check in checks) and not standing.stopping, role, checks)

    def _turning(self, standing: Standing) -> Check:
        health = self.health()
        if standing.stopping:
            return Check("loop", False, "the agent is stopping")
        if standing.turned_at is None:
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
            return "the ledger is gone, or another or an older copy is in its place (`trimtab status` says more)"
        except LedgerUnavailable:
            return "the ledger cannot be written"
        return ""

    def _cloud_readable(self, standing: Standing) -> Check:
        if standing.turned_at is None:
            return Check("aws", False, "AWS was not read yet")
        if failing := sorted(self._unreadable):
            return Check("aws", False, f"AWS could not be read in the last turn for: {', '.join(failing)}")
        return Check("aws", True, "every fleet could be read in the last turn")

    def status(self) -> AgentStatus:
        """Return the agent's status with that of every fleet."""
        standing, now = self.parts.board.read(), self.parts.now()
        return AgentStatus(
            at=now,
            version=installed_version(),
            mode=self.parts.settings.mode.value,
            tick_interval_s=self.parts.settings.tick_interval_s,
            started_at=standing.started_at,
            last_turn_at=standing.turned_at,
            last_turn_duration_s=standing.last_duration_s,
            turns=standing.turns,
            failed_turns=standing.failed_turns,
            rescued_turns=standing.rescued_turns,
            overran_turns=standing.overran_turns,
            leader=standing.leader,
            epoch=standing.epoch,
            stopping=standing.stopping,
            ledger_failure=standing.ledger_failure,
            problems=dict(standing.problems),
            fleets=self.fleets(now),
        )

    # Fleets

    def fleet_names(self) -> tuple[str, ...]:
        """Return every fleet that is managed, configured or known to the ledger, by name."""
        managed = [fleet.name for fleet in self.parts.fleets()]
        return fleet_names(self.parts.ledger, [*managed, *self.parts.settings.fleets])

    def fleets(self, now: float | None = None) -> tuple[FleetStatus, ...]:
        """Return the status of every fleet."""
        at = self.parts.now() if now is None else now
        return fleet_statuses(self.parts.ledger, self.fleet_names(), at)

    def fleet(self, name: str) -> FleetStatus:
        """Return a fleet's status; BadInput names the fleets there are."""
        return fleet_status(self.parts.ledger, one_fleet(name, self.fleet_names()), self.parts.now())

    def vms(self, name: str) -> tuple[VmReport, ...]:
        """Return which VMs of a fleet report, by group and VM; BadInput names the fleets managed now."""
        managed = {fleet.name: fleet for fleet in self.parts.fleets()}
        fleet = managed[one_fleet(name, sorted(managed))]
        fresh_after = self.parts.now() - REPORTING_WITHIN_INTERVALS * self.parts.settings.sample_interval_s
        reports = []
        for group, vms in self.parts.vms(fleet).items():
            for vm in sorted(vms):
                at = self.parts.newest_sample(fleet.name, group, vm)
                reports.append(VmReport(group, vm, at is not None and at >= fresh_after, at))
        return tuple(reports)

    # What happened

    def decisions(
        self,
        fleet: str | None = None,
        *,
        before_seq: int | None = None,
        limit: int = 50,
        changed_only: bool = False,
    ) -> DecisionPage:
        """Return decisions recorded before `before_seq` (None: up to now), the newest first."""
        rows = self.parts.ledger.decisions_before(before_seq, fleet=fleet, limit=limit, changed_only=changed_only)
        listed = tuple(ListedDecision(row.seq, row.decision) for row in rows)
        return DecisionPage(listed, listed[-1].seq if len(listed) == limit else None)

    def decision(self, decision_id: str) -> DecisionRecord:
        """Return everything about a decision; BadInput names the ids around one that is not there."""
        return self.parts.ledger.decision(decision_id)

    def journal(
        self, since_seq: int = 0, *, fleet: str | None = None, kind: Kind | None = None, limit: int = 100
    ) -> JournalPage:
        """Return journal rows after `since_seq` in order, of one fleet and kind or of all.

        A page may hold fewer rows than `limit` although more follow: go on from `next_since_seq` until it stays.
        """
        entries = self.parts.ledger.journal(since_seq, fleet=fleet, limit=limit)
        rows = tuple(_journal_row(e) for e in entries if kind in (None, e.kind))
        return JournalPage(rows, entries[-1].seq if entries else since_seq)

    def newest_seq(self) -> int:
        """Return the number of the journal's newest row, 0 when it has none."""
        return self.parts.ledger.newest_seq()

    def latest(
        self, kinds: Sequence[Kind], *, up_to_seq: int, fleets: Sequence[str] | None = None, limit: int = 20
    ) -> tuple[JournalRow, ...]:
        """Return the newest journal rows of these kinds up to `up_to_seq`, the newest first; long past ones never."""
        entries = self.parts.ledger.latest(kinds, up_to_seq=up_to_seq, fleets=fleets, limit=limit)
        return tuple(_journal_row(entry) for entry in entries)

    # Inputs and settings

    def inputs(self) -> InputStatus:
        """Return how collectors and listener fare."""
        intake = self.parts.intake()
        return InputStatus(
            tuple(
                CollectorStatus(
                    name=name,
                    ok=not health.last_error and health.last_success_at is not None,
                    successes=health.successes,
                    failures=health.failures,
                    overruns=health.overruns,
                    skipped=health.skipped,
                    refused=health.refused,
                    last_success_at=health.last_success_at,
                    last_duration_s=health.last_duration_s,
                    last_error=health.last_error,
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

    def settings(self) -> tuple[tuple[str, str], ...]:
        """Return every effective setting by the name of its environment variable; secrets are masked."""
        return tuple((name_of(path), plain(value)) for path, value in values(self.parts.settings))


def _journal_row(entry: JournalEntry) -> JournalRow:
    return JournalRow(entry.seq, entry.at, entry.fleet, entry.kind.value, entry.ref, entry.reason, entry.body)


def installed_version() -> str:
    """Return the version of the installed distribution, `unknown` when it runs from a bare checkout."""
    try:
        return version("trimtab")
    except PackageNotFoundError:
        return "unknown"


def model_check(standing: Standing) -> Check:
    """Say which model is held ready. A refused one does not make the agent unready: another decides in its place."""
    refusal = standing.problems.get(MODEL_PROBLEM)
    if refusal:
        instead = f"{standing.model[:12]} stays" if standing.model else "the rules stand in"
        return Check("model", True, f"refused, {instead}: {refusal}")
    return Check("model", True, f"{standing.model[:12]} is ready" if standing.model else "none is set")
