"""One turn of the loop as it proceeds: readings, the state of each fleet, and the part that the ledger has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import structlog

from agent.autoscaling.decide import DecisionInputs, DecisionResult
from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.minutes import MinuteMeasurements, Refusals
from agent.autoscaling.report import MinuteReport
from agent.autoscaling.snapshot.aggregate import BIN_S
from agent.autoscaling.state import FleetStore
from domain.clock import BothTimes
from domain.decisions import Event, Intent, Outcome, Reason
from domain.errors import Fenced, LedgerError, LedgerUnavailable, TrimtabError
from domain.fleet import Fleet
from domain.observed import Observed
from domain.subject import AGENT, fleet_subject

log = structlog.get_logger(__name__)

Made = tuple[DecisionInputs, DecisionResult]


class FleetTurn:
    """The readings of one turn, the state of each fleet as it changes, and the part that the ledger has.

    `write` is the only way to the ledger; `report` has the written part, however the turn ends. began: `now` and the
    monotonic time of the same moment. epochs: by fleet. numbers: of all subjects that the process leads. unrecorded:
    events of calls of the turn before, whose record the ledger refused.
    """

    def __init__(
        self,
        now: float,
        began: BothTimes,
        managed: Sequence[ManagedFleet],
        store: FleetStore,
        epochs: Mapping[str, int],
        numbers: Sequence[int],
        refusals: Refusals,
        unrecorded: Sequence[Event],
    ) -> None:
        self.now, self.began, self.epochs, self.numbers = now, began, epochs, numbers
        self._store, self._refusals = store, refusals
        self.managed = {one.fleet.name: one for one in managed}
        self.states = store.loop_states(list(self.managed))
        self._stored = dict(self.states)
        self.observed = Observed(now)
        self.measured: dict[str, MinuteMeasurements] = {}
        self.recreated: dict[tuple[str, str], str] = {}
        self.booting: dict[tuple[str, str], tuple[Intent, Outcome]] = {}
        self.superseded: list[tuple[Intent, Outcome]] = []
        self.events: list[Event] = list(unrecorded)
        self._facts = set(range(len(self.events)))
        self._written: set[int] = set()
        self._first_unwritten = 0
        self.made: list[Made] = []
        self.decided: set[str] = set()
        self._results: list[tuple[Intent, Outcome]] = []

    @property
    def fleets(self) -> list[Fleet]:
        """The fleets that are managed."""
        return [one.fleet for one in self.managed.values()]

    def note(self, fleet: str, reason: Reason, detail: str, about: str = "") -> None:
        """Add an event of a fleet, or of the agent for the name ""."""
        self.events.append(Event(fleet_subject(fleet) if fleet else AGENT, self.now, reason, detail, about))

    def write(
        self,
        made: Sequence[Made] = (),
        outcomes: Sequence[tuple[Intent, Outcome]] = (),
        fleet: str | None = None,
    ) -> None:
        """Write decisions and outcomes with the events and states that the ledger has not: all or nothing of it.

        fleet: only its events and its state, so that another's cannot refuse them.
        """
        states = self.states | {inputs.fleet.name: decided.state for inputs, decided in made} if made else self.states
        names = states if fleet is None else states.keys() & {fleet}
        changed = {name: states[name] for name in names if states[name] is not self._stored.get(name)}
        # Most events before this one are written: not each call looks at all of them.
        while self._first_unwritten in self._written:
            self._first_unwritten += 1
        fresh = {
            n: self.events[n]
            for n in range(self._first_unwritten, len(self.events))
            if n not in self._written and (fleet is None or self.events[n].subject.name == fleet)
        }
        if not (made or outcomes or changed or fresh):
            return
        touched = {*changed, *(inputs.fleet.name for inputs, _ in made), *(intent.fleet for intent, _ in outcomes)}
        epochs = {self.epochs[name] for name in touched if name in self.epochs} or self.numbers
        self._store.record(made, list(fresh.values()), changed, epochs, measured=self.measured, outcomes=outcomes)
        self._written |= fresh.keys()
        self._stored |= changed
        self.states |= changed
        self.made += made
        self.decided |= {inputs.fleet.name for inputs, _ in made}
        for intent, outcome in outcomes:
            self._results.append((intent, outcome))
            self._refusals.note(intent, outcome)

    def write_decisions(self, records: Sequence[Made]) -> None:
        """Write all decisions at once, or fleet by fleet when one of them cannot be stored.

        A fleet without a decision gets its state as it was before one: with the notices that are deleted after this.
        """
        try:
            self.write(records, self.superseded)
        except (LedgerUnavailable, Fenced):
            raise
        except TrimtabError:
            log.exception("record_failed")
        else:
            return
        for inputs, decided in records:
            name = inputs.fleet.name
            try:
                self.write([(inputs, decided)], [one for one in self.superseded if one[0].fleet == name], name)
            except (LedgerUnavailable, Fenced):
                raise
            except TrimtabError as error:
                detail = f"the decision could not be recorded, so it is not executed: {error}"
                self.note(name, Reason.INTERNAL_ERROR, detail)
        self.write()

    @contextlib.contextmanager
    def contained(self, logged: str, fleet: str, what: str, about: str = "") -> Iterator[None]:
        """Let an unexpected error end this block and no more: it is logged as `logged`, with an event of the fleet."""
        try:
            yield
        except (LedgerError, Fenced):
            raise
        except Exception as error:
            log.exception(logged, fleet=fleet, detail=what)
            self.note(fleet, Reason.INTERNAL_ERROR, f"{what}: {type(error).__name__}: {error}", about)

    @contextlib.contextmanager
    def calls(self) -> Iterator[None]:
        """Mark the events of this block as those of calls that were made: lost, they would not come again."""
        first = len(self.events)
        yield
        self._facts |= set(range(first, len(self.events)))

    @property
    def unrecorded(self) -> list[Event]:
        """Events of calls that the ledger has not; other events come again, for the state before them is stored."""
        return [one for n, one in enumerate(self.events) if n in self._facts - self._written]

    def report(self, listening_since: float) -> MinuteReport:
        """Return the recorded part of this turn; listening_since: when the process began to take readings."""
        return MinuteReport(
            self.now,
            tuple(inputs.snapshot for inputs, _ in self.made if inputs.snapshot is not None),
            tuple(decided.decision for _, decided in self.made),
            tuple(self._results),
            tuple(one for n, one in enumerate(self.events) if n in self._written),
            partial=tuple(
                inputs.fleet.name
                for inputs, _ in self.made
                if inputs.snapshot is not None and inputs.snapshot.bin_end - BIN_S < listening_since
            ),
        )
