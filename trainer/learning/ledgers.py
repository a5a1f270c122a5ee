"""Reads a ledger: how every record is opened, and how a subject or a span without one is refused.

The mappings are `recorded` and `minutes` of fleets, `clusters`, `pools` and `placements`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from agent.ledger import Ledger
from domain.errors import BadInput

T = TypeVar("T")


class NoRecord(BadInput):
    """Nothing is recorded of a subject that can be learnt from; the agent may record it in time."""


def ledger_url(source: str) -> str:
    """Return the URL of a ledger that is given as a URL or as a SQLite file."""
    return source if "://" in source else f"sqlite:///{Path(source).absolute()}"


def reading(source: str) -> AbstractContextManager[Ledger]:
    """Return a ledger, open for reading; source: a SQLite file or a URL. LedgerUnavailable."""
    return Ledger.open(ledger_url(source), read_only=True)


def check_known(option: str, name: str, known: Sequence[str], ledger: Ledger, kind: str) -> None:
    """Raise BadInput for a subject that a ledger does not have; kind: of subject or record, for an empty ledger."""
    if name not in known:
        raise BadInput(option, name, f"ledger {ledger.place} has {', '.join(known) or f'no {kind}'}")


def none_in_span(option: str, name: str, place: str, unit: str, remedy: str = "") -> NoRecord:
    """Return the refusal of a span without a record; unit: of the record."""
    return NoRecord(option, name, f"ledger {place} has no {unit} of it in this span: {remedy}widen --since and --until")


@dataclass(frozen=True, slots=True)
class LedgerRows(Generic[T]):
    """Rows of a ledger, which each iteration reads again; the ledger is open during an iteration."""

    source: str
    read: Callable[[Ledger], Iterator[T]]

    def __iter__(self) -> Iterator[T]:
        with reading(self.source) as ledger:
            yield from self.read(ledger)
