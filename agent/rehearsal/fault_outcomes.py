"""How each fault of a story was met, as far as the loop has told: held, fallback to another type, drained."""

from __future__ import annotations

from dataclasses import dataclass

from agent.autoscaling.ports import TickReport
from agent.rehearsal.story import Struck
from domain.decisions import Decision, Direction, Reason
from domain.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Answered:
    """A fault that struck, and in words what has become of it, in order."""

    struck: Struck
    words: tuple[str, ...] = ()


class Answers:
    """Watches the turns of the loop for what answers each fault."""

    def __init__(self) -> None:
        self._faults: list[tuple[Struck, dict[Reason, str]]] = []
        self._types: list[str] = []

    def struck(self, fault: Struck) -> None:
        """Take a fault that has just struck."""
        self._faults.append((fault, {}))

    def watch(self, fleet: Fleet, report: TickReport) -> None:
        """Take a turn of the loop."""
        for fault, words in self._faults:
            for reason, about in _told(report):
                if reason in fault.beat.met and reason not in words and fault.vm in ("", about):
                    words[reason] = fault.beat.met[reason]
            for decision in report.decisions:
                self._types += [name for name in fallback_types(fleet, decision) if name not in self._types]
                if self._types and Reason.CAPACITY_FALLBACK in fault.beat.met:
                    to = ", ".join(self._types)
                    words[Reason.CAPACITY_FALLBACK] = f"{fault.beat.met[Reason.CAPACITY_FALLBACK]} to {to}"

    def told(self) -> tuple[Answered, ...]:
        """Return the faults in the order in which they struck."""
        return tuple(Answered(fault, tuple(words.values())) for fault, words in self._faults)


def _told(report: TickReport) -> list[tuple[Reason, str]]:
    told = [(event.reason, event.subject) for event in report.events]
    told += [(decision.reason, "") for decision in report.decisions if decision.reason is not Reason.CAPACITY_FALLBACK]
    told += [(outcome.reason, "") for outcome in report.outcomes]
    return told


def fallback_types(fleet: Fleet, decision: Decision) -> list[str]:
    """Return the types that a decision asks for in place of one that AWS does not have."""
    moved = [effect for effect in decision.effects if effect.reason is Reason.CAPACITY_FALLBACK]
    acting = {intent.group for intent in decision.intents if intent.direction is Direction.OUT}
    return [
        group.vm_type.name
        for k, group in enumerate(fleet.groups)
        if group.key in acting and any(effect.after[k] > effect.before[k] for effect in moved)
    ]
