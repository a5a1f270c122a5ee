"""Which subjects this process leads, and which agent leads each subject, under which epochs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from agent.ledger import Ledger
from agent.ledger.leases import Lease
from domain.errors import LedgerUnavailable
from domain.subject import Subject


@dataclass(frozen=True, slots=True)
class Leads:
    """The epochs under which a process leads, by subject. every: the epoch of all subjects, on a SQLite ledger.

    others: the subjects of other live agents by the last roster, which this process does not measure. They stay when
    the ledger cannot be reached.
    """

    epochs: Mapping[Subject, int] = field(default_factory=dict)
    every: int | None = None
    others: Set[Subject] = field(default=frozenset(), compare=False)

    def of(self, subject: Subject) -> int | None:
        """Return the epoch of a subject, None where this process does not lead it."""
        return self.epochs.get(subject) if self.every is None else self.every

    @property
    def numbers(self) -> tuple[int, ...]:
        """The epochs, each of one subject or of all."""
        return tuple(self.epochs.values()) if self.every is None else (self.every,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """A view of a subject with the agent that leads it and the epoch, on a shared ledger; None where none is known."""

    led_by: str | None = None
    epoch: int | None = None


V = TypeVar("V", bound=Led)


def with_leaders(ledger: Ledger, decision: str, views: Mapping[str, V]) -> list[V]:
    """Return views of subjects of a decision, by name, with their leaders."""
    leases: Mapping[Subject, Lease] = {}
    if ledger.shared:
        with contextlib.suppress(LedgerUnavailable):
            leases = ledger.roster().leases
    led = {name: leases.get(Subject(decision, name)) for name in views}
    return [
        view if (lease := led[name]) is None else replace(view, led_by=lease.agent, epoch=lease.epoch)
        for name, view in views.items()
    ]
