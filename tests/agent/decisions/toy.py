"""A decision that the product does not know: how many tokens a subject may hand out next, from what fleets wait for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from pydantic import BaseModel

from agent.decisions import store
from agent.decisions.checks import CheckResult, ok
from agent.decisions.guards import held_by_pause
from agent.decisions.metrics import Reading, Section, gauge
from agent.decisions.part import Part, Turn
from agent.decisions.store import Record
from agent.decisions.turn import TickReport
from agent.ledger import journal
from domain.decisions import Direction, Event, Reason


class TokenSettings(BaseModel):
    """TRIMTAB_TOKENS__TOKENS: handed out in each turn."""

    tokens: int = 3


class TokensPart(Part):
    """One subject, `desk`: it hands out tokens unless it is paused, or a fleet still waits for cores."""

    name = "tokens"
    subject_word = "desk"
    settings_model = TokenSettings
    sections = (Section("Tokens", (gauge("tokens_given", "tokens of the newest decision", "desk"),)),)

    def subjects(self) -> tuple[str, ...]:
        return ("desk",)

    def turn(self, turn: Turn) -> TickReport:
        capacity = self.host.capacity("autoscaling", "web")
        pending = capacity.pending if capacity is not None else 0.0
        paused = held_by_pause(self.controls("desk"), (Direction.OUT,), turn.now) is not None
        tokens = 0 if paused or pending else self.own_settings().tokens
        number = self.decisions.newest_number(self.name, "desk") + 1
        why = "paused" if paused else f"{pending:g} cores are pending"
        body = {"tokens": tokens, "sentence": f"{tokens} tokens: {why}", "reason": "paused" if paused else "accepted"}
        made = Record(f"desk-t{number}", self.name, "desk", turn.now, json.dumps(body).encode(), number=number)
        event = Event("desk", turn.now, Reason.ACCEPTED, made.decision_id, made.decision_id)
        with self.host.ledger.database.write() as connection:
            store.add(connection, [made])
            journal.add(connection, [journal.event_row(event)])
        return replace(turn.report, events=(*turn.report.events, event))

    def readings(self) -> Iterator[Reading]:
        newest = self.decisions.newest(self.name, "desk", limit=1)
        yield "tokens_given", ("desk",), json.loads(newest[0].body)["tokens"] if newest else 0

    @classmethod
    def preflight(cls, settings: object, session: object) -> Iterator[CheckResult]:
        yield ok("tokens", "the desk needs nothing")
