"""Audits a run: every decision explained, every change in the cloud intended, every intent final."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import pairwise

from agent.autoscaling.report import MinuteReport
from agent.ledger import Ledger
from agent.ledger.journal import JournalEntry, Kind
from benchmarks.troubled_cloud import SizeChange
from domain.controls import Pause
from domain.decisions import Decision, Direction, Intent, Mode, Reason, Verdict
from domain.fleet import Fleet

UNREAD = (Reason.CLOUD_UNREADABLE, Reason.GROUP_UNSUPPORTED)
CLOSED_WITHIN_S = 1800.0
EXAMPLES = 5


class Audit:
    """Looks at every tick's report, at what the ledger wrote, and at what changed in the cloud.

    `unexplained` counts what has no explanation, by kind; `examples` shows the first of each.
    """

    def __init__(self, fleets: Sequence[Fleet], ledger: Ledger) -> None:
        self.unexplained: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.reasons: Counter[str] = Counter()
        self.decisions = self.intents = self.size_changes = 0
        self._fleets, self._ledger = fleets, ledger
        self._key_of = {group.name: (fleet.name, group.key) for fleet in fleets for group in fleet.groups}
        self._open: dict[str, tuple[Intent, float]] = {}
        self.pauses: dict[str, Pause] = {}
        """By fleet the newest pause that an operator meant for it, and for no other subject of its name."""
        self._seq = ledger.newest_seq()

    def restarted(self, ledger: Ledger) -> None:
        """Go on with a new process of the agent: what it reports must still be what the ledger holds."""
        self._ledger = ledger

    def look(
        self,
        at: float,
        report: MinuteReport,
        changes: Sequence[SizeChange],
        owner: Collection[str] = (),
        *,
        is_refused: bool = False,
    ) -> None:
        """Check one tick; `at` never steps. changes: by the agent. owner: groups that another party resized.

        is_refused: the full disk ended the tick; its report holds the records before that.
        """
        if report.failure and not is_refused:
            self._flag("failed_tick", report.failure)
        if len(report.decisions) != len(self._fleets) and not is_refused:
            self._flag("missing_decision", f"{len(report.decisions)} of {len(self._fleets)} fleets were decided")
        known = {intent.intent_id: intent for intent, _ in self._open.values()}
        requested = {snapshot.fleet: snapshot.requested for snapshot in report.snapshots}
        for decision in report.decisions:
            self.decisions += 1
            self.reasons[decision.reason] += 1
            self._decision(decision, requested.get(decision.fleet))
            for intent in decision.intents:
                self.intents += 1
                known[intent.intent_id] = intent
                self._open[intent.intent_id] = (intent, at)
        for outcome in report.outcomes:
            if not outcome.detail:
                self._flag("outcome_without_a_sentence", outcome.intent_id)
            if outcome.status.final:
                self._open.pop(outcome.intent_id, None)
        # The outcome of a call may be what the full disk refused; the next tick follows its intent.
        recorded = known.keys() if is_refused else {outcome.intent_id for outcome in report.outcomes}
        self._changes(changes, known, recorded)
        self._events(report, {self._key_of[name] for name in owner})
        self._journal(report)
        for intent, since in list(self._open.values()):
            if at - since > intent.deadline_at - intent.created_at + CLOSED_WITHIN_S:
                self._flag("intent_never_closed", intent.intent_id)
                del self._open[intent.intent_id]

    def calls_without_intent(self) -> int:
        """Return how many changes of size no intent explains."""
        return self.unexplained["cloud_changed_without_an_intent"]

    def total(self) -> int:
        """Return how many things have no explanation."""
        return sum(self.unexplained.values())

    def _flag(self, kind: str, detail: str) -> None:
        self.unexplained[kind] += 1
        shown = self.examples.setdefault(kind, [])
        if len(shown) < EXAMPLES:
            shown.append(detail)

    def _decision(self, decision: Decision, requested: tuple[int, ...] | None) -> None:
        if not decision.sentence:
            self._flag("decision_without_a_sentence", decision.decision_id)
        pause = self.pauses.get(decision.fleet)
        is_paused = pause is not None and pause.active(decision.at)
        if decision.reason is Reason.PAUSED and not is_paused:
            self._flag("paused_by_another_subject", decision.sentence)
        if is_paused and any(intent.direction is not Direction.REPLACE for intent in decision.intents):
            self._flag("resized_in_a_pause", decision.sentence)
        if requested is None:
            if decision.desired or decision.intents or decision.reason not in UNREAD:
                self._flag("decided_without_a_reading", decision.sentence)
            return
        if decision.effects[0].before != decision.proposal.desired or decision.effects[-1].after != decision.desired:
            self._flag("changed_by_no_rail", f"{decision.decision_id}: {decision.sentence}")
        if any(a.after != b.before for a, b in pairwise(decision.effects)):
            self._flag("changed_between_rails", f"{decision.decision_id}: {decision.sentence}")
        for effect in decision.effects:
            is_changed = effect.before != effect.after
            if is_changed and (effect.verdict is Verdict.PASSED or effect.reason is None or not effect.detail):
                self._flag("rail_without_a_reason", f"{decision.decision_id}: {effect}")
        if decision.desired != decision.proposal.desired and decision.reason is decision.proposal.reason:
            reasons = {effect.reason for effect in decision.effects if effect.verdict is not Verdict.PASSED}
            if decision.reason not in reasons:
                self._flag("reason_of_the_proposal_for_another_size", f"{decision.decision_id}: {decision.sentence}")
        fleet = next(fleet for fleet in self._fleets if fleet.name == decision.fleet)
        moved = {g.key for g, a, b in zip(fleet.groups, requested, decision.desired, strict=True) if a != b}
        intended = {intent.group for intent in decision.intents}
        if decision.mode is Mode.ACT and not moved <= intended:
            self._flag("size_without_an_intent", f"{decision.decision_id}: {decision.sentence}")
        replaced = {intent.group for intent in decision.intents if intent.direction is Direction.REPLACE}
        if not intended - replaced <= moved:
            self._flag("intent_without_a_size", f"{decision.decision_id}: {decision.sentence}")

    def _changes(self, changes: Sequence[SizeChange], known: Mapping[str, Intent], reasons: Set[str]) -> None:
        for change in changes:
            self.size_changes += 1
            place = self._key_of[change.group]
            causes = [i.intent_id for i in known.values() if (i.fleet, i.group) == place and _explains(i, change)]
            if not causes:
                self._flag("cloud_changed_without_an_intent", str(change))
            elif reasons.isdisjoint(causes):
                self._flag("cloud_changed_without_an_outcome", str(change))

    def _events(self, report: MinuteReport, owner: Collection[tuple[str, str]]) -> None:
        for event in report.events:
            self.reasons[f"event {event.reason}"] += 1
            if not event.detail:
                self._flag("event_without_a_sentence", str(event))
            if event.reason is Reason.INTERNAL_ERROR:
                self._flag("internal_error", event.detail)
            is_drift = event.reason in (Reason.DRIFT_ADOPTED, Reason.DRIFT_REPORTED)
            if is_drift and (event.subject.name, event.about) not in owner:
                self.reasons["drift seen later"] += 1

    def _journal(self, report: MinuteReport) -> None:
        entries: list[JournalEntry] = []
        while found := self._ledger.journal(self._seq, limit=1000):
            entries += found
            self._seq = found[-1].seq
        written = {kind: {entry.ref for entry in entries if entry.kind is kind} for kind in Kind}
        if any(not entry.reason for entry in entries):
            self._flag("journal_row_without_a_reason", str(next(entry for entry in entries if not entry.reason)))
        for decision in report.decisions:
            if decision.decision_id not in written[Kind.DECISION]:
                self._flag("decision_not_written", decision.decision_id)
            for intent in decision.intents:
                if intent.intent_id not in written[Kind.INTENT]:
                    self._flag("intent_not_written", intent.intent_id)
        still = {intent.intent_id for intent in self._ledger.open_intents()}
        if still != self._open.keys():
            self._flag("open_intents_differ", f"ledger {sorted(still)}, reports {sorted(self._open)}")
            for intent_id in self._open.keys() - still:
                del self._open[intent_id]


def _explains(intent: Intent, change: SizeChange) -> bool:
    if change.vm is not None:
        return change.vm in intent.candidates
    is_asked = change.after == intent.target
    is_given_back = change.before == intent.target and intent.before <= change.after < change.before
    return intent.direction is Direction.OUT and (is_asked or is_given_back)
