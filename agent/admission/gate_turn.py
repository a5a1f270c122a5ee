"""One turn of the gate: what was read, the records as they are now, and what is told of it, each thing once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from agent.admission.gate_effects import Effect
from agent.admission.gate_records import GroupRecord
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.rails.capacity_memory import record_shortage
from agent.rails.circuit_breaker import record_outcome
from agent.state import LoopState
from collectors.clusters import ClusterGroup
from domain.decisions import Event, Outcome, Reason

AGENT: Final = ""
"""The fleet under which what happens to clusters stands in the journal."""


@dataclass(slots=True)
class GateTurn:
    """What a turn works on, by group name, and what it has to tell. asked: pending groups that were decided on."""

    now: float
    epoch: int
    groups: Mapping[str, ClusterGroup]
    records: dict[str, GroupRecord]
    events: list[Event] = field(default_factory=list)
    asked: int = 0

    def has_group(self, record: GroupRecord) -> ClusterGroup | None:
        """Return the record's group if it is still in the record's cluster."""
        group = self.groups.get(record.group)
        return group if group is not None and group.cluster == record.cluster else None


class GateJournal:
    """Writes records and events of the gate. What was said last of a subject is not said again, until it changes."""

    def __init__(self, ledger: Ledger, limits: RailLimits) -> None:
        self._ledger, self._limits = ledger, limits
        self._said: dict[str, tuple[Reason, str]] = {}

    def write(self, turn: GateTurn, record: GroupRecord, effect: Effect | None = None) -> None:
        """Put a record in the place of its group's older one, with the event and the memory that come with it."""
        before = turn.records.get(record.group)
        goes_on = before is not None and (before.number, before.cluster) == (record.number, record.cluster)
        told = before.told if before is not None and goes_on else ""
        events: list[Event] = []
        if effect is not None and effect.reason is not None and effect.reason.value != told:
            told = effect.reason.value
            events = [self._event(turn, record.cluster, effect.reason, effect.detail, record.group)]
        record = replace(record, told=told)
        memories = self._memories(record, effect.outcome if effect is not None else None, turn.now)
        if record != before or memories:
            self._ledger.gate.write([record], events, memories, epoch=turn.epoch)
        turn.records[record.group] = record
        turn.events += events
        self._said.pop(_key(record.cluster, record.group), None)

    def begin(self, turn: GateTurn, record: GroupRecord, reason: Reason, detail: str) -> None:
        """Put the record of a decision in place; the decision itself is in the journal already, written with it."""
        record = replace(record, told=reason.value)
        self._ledger.gate.write([record], epoch=turn.epoch)
        turn.records[record.group] = record
        turn.events.append(self._event(turn, record.cluster, reason, f"{record.decision_id}: {detail}", record.group))
        self._said.pop(_key(record.cluster, record.group), None)

    def remember(self, turn: GateTurn, memories: Mapping[str, LoopState], step_s: float) -> None:
        """Write what the rails remember of clusters after the clock was set by `step_s` seconds, with an event each."""
        direction = "forward" if step_s > 0 else "back"
        told = f"the clock was set {direction} by {abs(step_s):.0f} s" if step_s else "the clock was set back"
        detail = f"{told}; stored times moved with it"
        events = [self._event(turn, name, Reason.CLOCK_JUMP, detail, name) for name in memories]
        self._ledger.gate.write((), events, memories, epoch=turn.epoch)
        turn.events += events

    def say(self, turn: GateTurn, cluster: str, subject: str, reason: Reason, detail: str) -> None:
        """Tell something of which no record is made."""
        if self._said.get(_key(cluster, subject)) == (reason, detail):
            return
        events = [self._event(turn, cluster, reason, detail, subject)]
        self._ledger.gate.write((), events, epoch=turn.epoch)
        self._said[_key(cluster, subject)] = (reason, detail)
        turn.events += events

    def over(self, cluster: str, subject: str) -> None:
        """Let what was said of a subject be said again when it comes back."""
        self._said.pop(_key(cluster, subject), None)

    def _event(self, turn: GateTurn, cluster: str, reason: Reason, detail: str, subject: str) -> Event:
        return Event(AGENT, turn.now, reason, f"{cluster}: {detail}", subject)

    def _memories(self, record: GroupRecord, outcome: Outcome | None, now: float) -> Mapping[str, LoopState]:
        """Return what the rails shall remember of an attempt that is over."""
        if outcome is None or not outcome.status.final:
            return {}
        memory = self._ledger.gate.memory(record.cluster)
        after = replace(
            memory,
            capacity=record_shortage(memory.capacity, outcome.shortages, now, self._limits),
            breakers=record_outcome(memory.breakers, record.group, outcome, self._limits, now),
        )
        return {} if after == memory else {record.cluster: after}


def _key(cluster: str, subject: str) -> str:
    return f"{cluster}/{subject}"
