"""Which subjects this process leads, and under which epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.subject import Subject


@dataclass(frozen=True, slots=True)
class Leads:
    """The epochs under which a process leads, by subject. every: the epoch of all subjects, on a SQLite ledger."""

    epochs: Mapping[Subject, int] = field(default_factory=dict)
    every: int | None = None

    def of(self, subject: Subject) -> int | None:
        """Return the epoch of a subject, None where this process does not lead it."""
        return self.epochs.get(subject) if self.every is None else self.every

    @property
    def numbers(self) -> tuple[int, ...]:
        """The epochs, each of one subject or of all."""
        return tuple(self.epochs.values()) if self.every is None else (self.every,)
