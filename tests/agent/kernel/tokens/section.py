"""The toy's section of the dry run: some hours, in which tokens are counted and nothing else happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.rehearsal.scenario import LEDGER, ORIGIN
from agent.rehearsal.sections import OnEvent, Section, SectionResult
from domain.decisions import Event, Reason
from domain.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensResult(SectionResult):
    """How many tokens were handed out."""

    kind = "tokens"
    question = "why so many"

    tokens: int

    def brief(self) -> str:
        return f"{self.hours} hours of the desk: {self.tokens} tokens"


def play(directory: Path, seed: int, mode: str, overrides: Mapping[str, str], on_event: OnEvent) -> TokensResult:
    on_event(Event(Subject("tokens", "desk"), ORIGIN, Reason.ACCEPTED, f"a token of seed {seed}"))
    on_event(Event(Subject("tokens", "desk"), ORIGIN, Reason.BUSY, "worth no line"))
    return TokensResult(hours=2, tokens=6, examples={"last": "desk-t2"}, ledger=str(directory / LEDGER))


SECTION = Section(play, shown=frozenset({Reason.ACCEPTED}))
