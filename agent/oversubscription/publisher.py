"""Puts a pool's rates where allocators read them: through the rails, written down before, read back when in doubt.

| killed                            | finds                          | does                                |
|-----------------------------------|--------------------------------|-------------------------------------|
| before the record                 | newest hour not published      | writes the record, puts the value   |
| before PutParameter               | open record, another value     | puts the value                      |
| after it, before the outcome      | open record, this very value   | no call that changes: closes it     |
| after the outcome                 | settled record                 | nothing                             |
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any, Final

from actuators.base import Held, Permit
from actuators.outcomes import Report
from actuators.values import Parameters
from agent.kernel.guards import held_by_breaker, held_by_mode, held_by_pause, unmeasured_permit
from agent.ledger import Ledger
from agent.oversubscription.pool import Pool
from agent.oversubscription.records import HourDecision, Publication, Step
from agent.oversubscription.state import OVERSUBSCRIPTION, publications
from agent.rails.base import RailLimits
from agent.rails.circuit_breaker import record_outcome
from agent.rails.state import GuardState
from domain.clock import Clock, WallClock
from domain.controls import Controls
from domain.decisions import Direction, Event, Mode, Outcome, Reason, Status
from domain.errors import CloudError
from domain.subject import Subject

LARGEST_VALUE: Final = 8192
"""Characters of the largest parameter that Parameter Store holds."""


class Publisher:
    """Publishes one pool's rates to a parameter."""

    def __init__(
        self,
        pool: Pool,
        parameter: str,
        parameters: Parameters,
        ledger: Ledger,
        mode: Mode,
        limits: RailLimits,
        clock: Clock | None = None,
    ) -> None:
        self._pool, self._parameter, self._parameters = pool, parameter, parameters
        self._records, self._mode, self._limits = publications(ledger), mode, limits
        self._controls, self._clock = partial(ledger.controls, OVERSUBSCRIPTION), clock or WallClock()
        self._reported: tuple[Reason, str] | None = None

    def turn(self, now: float, epoch: int, controls: Controls) -> tuple[Event, ...]:
        """Publish what the newest hour decided, unless it is; returns what happened. Raises LedgerError or Fenced."""
        permit = unmeasured_permit(now, self._clock, self._controls, self._records.memory)
        decision = self._pool.hour
        if decision is None:
            return ()
        record = self._records.latest(self._pool.rules.name)
        done = record is not None and not record.open
        if record is not None and done and record.decision_id == decision.decision_id:
            return ()
        value = value_of(decision)
        if len(value) > LARGEST_VALUE:
            detail = f"the rates take {len(value)} characters, a parameter holds {LARGEST_VALUE}: use Graphite or HTTP"
            return self._report(now, epoch, Reason.PERMANENT_FAILURE, detail)
        stopped = self._stopped(now, controls)
        if stopped is not None:
            return self._report(now, epoch, *stopped)
        if record is not None and record.open and self._mode is Mode.ACT:
            read = self._read_back(record, now, epoch)
            if read is not None:
                return read
        number = record.number + 1 if record is not None else 1
        begun = Publication(
            self._pool.rules.name, number, Step.WRITING, decision.decision_id, self._parameter, value, epoch, now
        )
        self._records.write({begun.pool: begun}, epoch=epoch)
        return self._put(begun, now, epoch, permit)

    def _read_back(self, record: Publication, now: float, epoch: int) -> tuple[Event, ...] | None:
        """Settle an open record whose value is there; None when it is to be put again, or a newer one instead."""
        try:
            there = self._parameters.get(record.parameter)
        except CloudError as error:
            return self._ended(record, Report(record.intent, now).after(error, 0, ""), now, epoch)
        if there != record.value:
            return None
        return self._ended(record, Report(record.intent, now).done("read back"), now, epoch)

    def _put(self, record: Publication, now: float, epoch: int, permit: Permit) -> tuple[Event, ...]:
        report = Report(record.intent, now)
        try:
            self._parameters.put(record.pool, record.parameter, record.value, permit)
        except Held as stopped:
            return self._ended(record, report.refused(stopped.refusal, 0), now, epoch)
        except CloudError as error:
            return self._ended(record, report.after(error, 0, ""), now, epoch)
        return self._ended(record, report.done("put"), now, epoch)

    def _ended(self, record: Publication, outcome: Outcome, now: float, epoch: int) -> tuple[Event, ...]:
        """Record an outcome; a permanent failure closes the record, and a newer decision is put in its place."""
        done = outcome.status is Status.DONE
        reason = Reason.RATES_PUBLISHED if done else outcome.reason
        detail = f"{record.decision_id} to {record.parameter}: {'done' if done else outcome.detail}"
        # The detail of a failure differs each time; a new reason makes a new event.
        recorded = f"{reason}" if not done else f"{reason} {record.decision_id}"
        events = () if record.told == recorded else (self._event(now, reason, detail),)
        after = replace(record, step=Step.SETTLED if outcome.status.final else Step.WRITING, told=recorded)
        name = record.pool
        memory = self._records.memory(name)
        rails: dict[str, GuardState] = {}
        if outcome.status.final:
            breakers = record_outcome(memory.breakers, record.parameter, outcome, self._limits, now)
            if breakers != memory.breakers:
                rails[name] = replace(memory, breakers=breakers)
        if not done and outcome.status.final:
            after = replace(after, decision_id="")
        self._records.write({name: after}, events, rails, epoch=epoch)
        self._reported = None
        return events

    def _stopped(self, now: float, controls: Controls) -> tuple[Reason, str] | None:
        breakers = self._records.memory(self._pool.rules.name).breakers
        stopped = (
            held_by_pause(controls, (Direction.OUT,), now)
            or held_by_breaker(self._parameter, breakers, now)
            or held_by_mode(self._mode)
        )
        return None if stopped is None else (stopped.reason, f"the rates are not published: {stopped.detail}")

    def _report(self, now: float, epoch: int, reason: Reason, detail: str) -> tuple[Event, ...]:
        if self._reported == (reason, detail):
            return ()
        events = (self._event(now, reason, detail),)
        self._records.write({}, events, epoch=epoch)
        self._reported = (reason, detail)
        return events

    def _event(self, now: float, reason: Reason, detail: str) -> Event:
        name = self._pool.rules.name
        return Event(Subject(OVERSUBSCRIPTION, name), now, reason, f"{name}: {detail}")


def value_of(decision: HourDecision) -> str:
    """Return the value of the parameter: the rates of an hour, and the decision that they come from."""
    rates = {one.subscriber: one.rate for one in decision.subscribers}
    data: dict[str, Any] = {"pool": decision.pool, "decision": decision.decision_id, "at": decision.at, "rates": rates}
    if decision.closed:
        data["closed"] = list(decision.closed)
    return json.dumps(data, separators=(",", ":"))
