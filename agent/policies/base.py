"""The contract of an autoscaling policy: a pure function of one snapshot and its own memory."""

from __future__ import annotations

from typing import Protocol

from agent.state import Memory
from domain.decisions import Proposal
from domain.fleet import Fleet
from domain.snapshot import Snapshot


class Policy(Protocol):
    """Proposes sizes. No I/O, no clock: the same fleet, snapshot and memory always give the same proposal and memory."""

    @property
    def name(self) -> str:
        """Name and version as they stand in the ledger, for example `queue-rule` or a model file's SHA-256."""
        ...

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Return the proposal and the memory for the next minute; PolicyFailure when the snapshot lacks an input it needs."""
        ...
