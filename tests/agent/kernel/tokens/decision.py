"""A decision that the product does not know: how many tokens a subject may hand out next, from what fleets wait for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

from fastapi import APIRouter
from pydantic import BaseModel

from agent.kernel.checks import CheckResult, ok
from agent.kernel.decision import Part, Turn
from agent.kernel.guards import held_by_pause
from agent.kernel.http import Body
from agent.kernel.metrics import Reading, Section, gauge
from agent.kernel.turn import Severity, TurnReport
from domain.decisions import Direction, Reason
from tests.agent.kernel.tokens.settings import SUBJECTS


class TokenSettings(BaseModel):
    """TRIMTAB_TOKENS__TOKENS: handed out in each turn."""

    tokens: int = 3


class TokenRequest(Body):
    """Tokens that an allocator asks for, with the names of who gets them."""

    names: list[str]


class TokensPart(Part):
    """The subject `desk`, and those of the settings: tokens unless it is paused, or a fleet still waits for cores."""

    name = "tokens"
    subject_word = "desk"
    id_letters = "t"
    settings_model = TokenSettings
    configured_in = SUBJECTS.name
    asks = ("*/requests",)
    lists = ("*/requests",)
    alarms = MappingProxyType({Reason.BUSY: Severity.WARNING})
    rehearsal = "tests.agent.kernel.tokens.section:SECTION"
    sections = (Section("Tokens", (gauge("tokens_given", "tokens of the newest decision", "desk"),)),)

    def subjects(self) -> tuple[str, ...]:
        return ("desk", *self.configured)

    def managed(self) -> tuple[str, ...]:
        return self.subjects()

    def router(self) -> APIRouter:
        router = APIRouter(prefix="/api/v1/tokens", tags=["tokens"])

        @router.post("/{desk}/requests")
        def request(desk: str, wanted: TokenRequest) -> dict[str, int]:
            return {"tokens": len(wanted.names)}

        @router.post("/{desk}/close")
        def close(desk: str) -> dict[str, str]:
            return {"closed": desk}

        return router

    def turn(self, turn: Turn) -> TurnReport:
        capacity = self.host.capacity("autoscaling", "web")
        pending = capacity.pending if capacity is not None else 0.0
        paused = held_by_pause(self.controls("desk"), (Direction.OUT,), turn.now) is not None
        tokens = 0 if paused or pending else self.own_settings().tokens
        why = "paused" if paused else f"{pending:g} cores are pending"
        body = {"tokens": tokens, "sentence": f"{tokens} tokens: {why}", "reason": "paused" if paused else "accepted"}
        event = self.record(turn, "desk", body)
        return replace(turn.report, events=(*turn.report.events, event))

    def readings(self) -> Iterator[Reading]:
        newest = self.decisions.newest(self.name, "desk", limit=1)
        yield "tokens_given", ("desk",), json.loads(newest[0].body)["tokens"] if newest else 0

    @classmethod
    def preflight(cls, settings: object, session: object) -> Iterator[CheckResult]:
        yield ok("tokens", "the desk needs nothing")
