"""Policies that do what no policy should: raise, hang, or answer with what is no proposal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent.rails.state import Memory
from domain.decisions import Origin, Proposal, Reason
from domain.fleet import Fleet
from domain.snapshot import Snapshot

Answer = Callable[[Fleet, Snapshot], Any]


@dataclass
class Misbehaving:
    """Answers with whatever it is given; the memory too, when that is not None."""

    answer: Answer
    memory: Any = None
    name: str = "learned"
    seen: list[Memory] = field(default_factory=list)

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        self.seen.append(memory)
        answer = self.answer(fleet, snapshot)
        return answer, memory if self.memory is None else self.memory


def proposing(desired: Any, **more: Any) -> Answer:
    about: dict[str, Any] = {"reason": Reason.LEARNED, "detail": "thought hard"} | more
    return lambda fleet, snapshot: Proposal(**({"fleet": fleet.name, "policy": "learned", "desired": desired} | about))


def in_turn(*answers: Answer) -> Answer:
    """Answer with the first at the first call, with the second at the second, and so on."""
    left = iter(answers)

    def answer(fleet: Fleet, snapshot: Snapshot) -> Any:
        return next(left)(fleet, snapshot)

    return answer


def raising(fleet: Fleet, snapshot: Snapshot) -> Any:
    raise ZeroDivisionError("division by zero")


def quitting(fleet: Fleet, snapshot: Snapshot) -> Any:
    raise SystemExit(3)


NONSENSE: dict[str, tuple[Answer, Any, str]] = {
    "raises": (raising, None, "learned raised ZeroDivisionError: division by zero"),
    "ends its thread": (quitting, None, "learned ended its thread with SystemExit: 3"),
    "returns nothing": (lambda fleet, snapshot: None, None, "learned returned None: a proposal was expected"),
    "nan": (proposing((float("nan"), 1, 1)), None, "learned proposed (nan, 1, 1): sizes must be whole numbers"),
    "infinite": (proposing((float("inf"), 1, 1)), None, "learned proposed (inf, 1, 1): sizes must be whole numbers"),
    "a fraction": (proposing((1.5, 1, 1)), None, "learned proposed (1.5, 1, 1): sizes must be whole numbers"),
    "negative": (proposing((-1, 1, 1)), None, "learned proposed (-1, 1, 1): sizes must be whole numbers"),
    "beyond reason": (proposing((10**30, 1, 1)), None, "learned proposed (1000000000000000000000000000000, 1, 1)"),
    "too short": (proposing((1, 1)), None, "learned proposed (1, 1) for 3 groups"),
    "too long": (proposing((1, 1, 1, 1)), None, "learned proposed (1, 1, 1, 1) for 3 groups"),
    "no sizes": (proposing(None), None, "learned proposed None for 3 groups"),
    "another fleet": (proposing((1, 1, 1), fleet="batch"), None, "learned proposed sizes for the fleet 'batch'"),
    "poses as an operator": (proposing((9, 9, 9), origin=Origin.PIN), None, "learned gave its proposal out as a"),
    "poses as the floor": (proposing((9, 9, 9), origin=Origin.FLOOR), None, "learned gave its proposal out as a"),
    "no text": (proposing((1, 1, 1), detail="\ud800"), None, "learned returned a detail that is"),
    "no reason": (proposing((1, 1, 1), reason="because"), None, "learned gave 'because' as its reason"),
    "remembers nan": (proposing((1, 1, 1)), {"h": (float("nan"),)}, "learned returned the memory {'h': (nan,)}"),
    "remembers anything": (proposing((1, 1, 1)), [1, 2], "learned returned the memory [1, 2]"),
}
