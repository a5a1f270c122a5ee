"""What one decision keeps in the ledger beside its rows in `decisions`: what is forgotten of it, and how it numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

LEARNING: Final = "learning"
"""What learning needs, which is kept longer than the decisions."""


def _no_rows(connection: Connection, before: float, most: int) -> int:
    return 0


def _no_numbers(connection: Connection) -> int:
    return 0


def _no_counter(connection: Connection, first: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class StoredState:
    """What a decision keeps; `name` is the decision.

    forget: removes up to so many rows older than a time and
    returns how many there were. newest_number: the largest number that a counter of its own has given, 0 without one.
    number_from: lets these counters continue above a number, after a restore.
    """

    name: str
    forget: Callable[[Connection, float, int], int] = _no_rows
    newest_number: Callable[[Connection], int] = _no_numbers
    number_from: Callable[[Connection, int], None] = _no_counter
