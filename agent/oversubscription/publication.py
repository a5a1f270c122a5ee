"""What is published of a pool's rates, and how far that has come: written before it is done (§13)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agent.oversubscription.records import HourDecision
from domain.decisions import Direction, Intent

LARGEST_VALUE: Final = 8192
"""Characters of the largest parameter that Parameter Store holds."""
GIVEN_UP_S: Final = 7200.0


class Step(StrEnum):
    """writing: the value is to be put, or whether it was is not known. settled: nothing is left to do."""

    WRITING = "writing"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Publication:
    """The latest value of a pool's parameter. told: the reason last written to the journal, with its detail."""

    pool: str
    number: int
    step: Step
    decision_id: str
    parameter: str
    value: str
    epoch: int
    at: float
    told: str = ""

    @property
    def open(self) -> bool:
        """Whether something is left to do."""
        return self.step is Step.WRITING

    @property
    def intent(self) -> Intent:
        """The intent to put the value."""
        return Intent(
            intent_id=f"{self.pool}.rates.{self.number}",
            decision_id=self.decision_id,
            fleet=self.pool,
            group=self.parameter,
            direction=Direction.REPLACE,
            before=1,
            target=1,
            victims=(),
            epoch=self.epoch,
            created_at=self.at,
            deadline_at=self.at + GIVEN_UP_S,
        )


def value_of(decision: HourDecision) -> str:
    """Return what the parameter shall hold: the rates of an hour, and which decision they come from."""
    rates = {one.subscriber: one.rate for one in decision.subscribers}
    closed: Sequence[str] = decision.closed
    held = {"pool": decision.pool, "decision": decision.decision_id, "at": decision.at, "rates": rates}
    if closed:
        held["closed"] = list(closed)
    return json.dumps(held, separators=(",", ":"))
