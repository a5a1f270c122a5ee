"""What a person or a program sees of a dry run where there is no terminal: lines, or JSON. See also `live_view`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TextIO

from agent.autoscaling.ports import TickReport
from agent.rehearsal.story import Struck
from domain.clock import Clock
from domain.decisions import Decision, Event, Outcome, Reason, Verdict
from domain.fleet import Fleet
from domain.snapshot import Snapshot

ROUTINE = frozenset({Reason.PROTECTED})
"""Events that are in the ledger but not worth a line."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One turn of the loop, and the dollars of rent so far."""

    fleet: Fleet
    report: TickReport
    rent: float


class Screen(Protocol):
    """Shows a dry run as it goes."""

    def workload(self, description: str) -> None:
        """Say what the jobs are and where they come from."""
        ...

    def check(self, what: str, detail: str) -> None:
        """One part is up."""
        ...

    def living(
        self, clock: Clock, start: float, minutes: int, policy: str, shadow: str | None
    ) -> AbstractContextManager[None]:
        """The simulated hour goes from `start`, while the block runs."""
        ...

    def beat(self, struck: Struck) -> None:
        """A fault struck."""
        ...

    def show(self, moment: Moment) -> None:
        """One turn is over."""
        ...

    def comparing(self) -> AbstractContextManager[None]:
        """The other fleets are being simulated, while the block runs."""
        ...


def clock_text(at: float) -> str:
    """Return hours, minutes and seconds (UTC) of a time in epoch seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def telling(decision: Decision, snapshot: Snapshot | None) -> bool:
    """Return whether the decision moved the fleet, was held by a rail, or could not be made."""
    moved = snapshot is None or decision.desired != snapshot.requested
    return moved or any(effect.verdict is not Verdict.PASSED for effect in decision.effects)


def notable(report: TickReport) -> tuple[list[Event], list[Decision], list[Outcome]]:
    """Return what is worth a line in this turn: events, telling decisions, and outcomes that are final or failures."""
    snapshots = {snapshot.fleet: snapshot for snapshot in report.snapshots}
    return (
        [event for event in report.events if event.reason not in ROUTINE],
        [decision for decision in report.decisions if telling(decision, snapshots.get(decision.fleet))],
        [outcome for outcome in report.outcomes if outcome.status.final or outcome.failure is not None],
    )


class LineScreen:
    """One line for each thing that happened, for logs and pipes; a decision held as the one before it has none."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._held: dict[str, tuple[Reason, tuple[int, ...]]] = {}

    def _say(self, line: str) -> None:
        self._out.write(line + "\n")
        self._out.flush()

    def workload(self, description: str) -> None:
        """Write it."""
        self._say(description)

    def check(self, what: str, detail: str) -> None:
        """Write the part and its address."""
        self._say(f"up: {what}: {detail}")

    @contextmanager
    def living(self, clock: Clock, start: float, minutes: int, policy: str, shadow: str | None) -> Iterator[None]:
        """Write what decides, and when."""
        self._say(f"{clock_text(start)} {minutes} min begin; policy {policy}, shadow {shadow or 'none'}")
        yield

    def beat(self, struck: Struck) -> None:
        """Write the fault."""
        self._say(f"{clock_text(struck.at)} FAULT {struck.beat.title}{f': {struck.vm}' if struck.vm else ''}")

    def show(self, moment: Moment) -> None:
        """Write what is worth a line."""
        events, decisions, outcomes = notable(moment.report)
        for event in events:
            self._say(f"{clock_text(event.at)} {event.fleet} {event.reason}: {event.detail}")
        for decision in decisions:
            if not decision.intents and self._held.get(decision.fleet) == (decision.reason, decision.desired):
                continue
            self._say(f"{clock_text(decision.at)} {decision.decision_id} {decision.sentence}")
        held = {d.fleet: (d.reason, d.desired) for d in decisions if not d.intents}
        self._held = held
        for outcome in outcomes:
            done = f"{outcome.achieved} of {outcome.asked}"
            self._say(f"{clock_text(outcome.at)} {outcome.intent_id} {outcome.status}, {done}: {outcome.detail}")
        if moment.report.failure:
            self._say(f"{clock_text(moment.report.at)} nothing was executed: {moment.report.failure}")

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Say nothing: it takes a second."""
        yield


class JsonScreen:
    """One JSON object a line: checks, faults; the ledger's own entries are written by the run when it is over."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def say(self, **entry: Any) -> None:
        """Write one object."""
        self._out.write(json.dumps(entry, sort_keys=True) + "\n")
        self._out.flush()

    def workload(self, description: str) -> None:
        """Write it."""
        self.say(kind="workload", detail=description)

    def check(self, what: str, detail: str) -> None:
        """Write the part and its address."""
        self.say(kind="up", what=what, detail=detail)

    @contextmanager
    def living(self, clock: Clock, start: float, minutes: int, policy: str, shadow: str | None) -> Iterator[None]:
        """Write what decides, and when."""
        self.say(kind="begin", at=start, minutes=minutes, policy=policy, shadow=shadow)
        yield

    def beat(self, struck: Struck) -> None:
        """Write the fault."""
        self.say(kind="fault", at=struck.at, detail=struck.beat.title, vm=struck.vm)

    def show(self, moment: Moment) -> None:
        """Write nothing: what happened is in the ledger."""

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Write nothing."""
        yield
