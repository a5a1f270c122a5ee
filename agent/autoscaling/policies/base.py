"""The contract of an autoscaling policy: a pure function of one snapshot and its own memory."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Protocol

from agent.rails.state import Memory
from domain.decisions import Origin, Proposal, Reason
from domain.errors import PolicyFailure
from domain.fleet import Fleet
from domain.snapshot import Snapshot

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class InputAbsent(PolicyFailure):
    """The snapshot lacks an input that the policy needs; the fleet is held, no other policy is asked."""


class Policy(Protocol):
    """Proposes sizes. No I/O, no clock.

    The same fleet, snapshot and memory always give the same proposal and memory.
    """

    @property
    def name(self) -> str:
        """.

        Name and parameters as they stand in the ledger, for example `queue-rule:horizon_s=120`, or a model file's
        SHA-256.
        """
        ...

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Return the proposal and the memory for the next minute.

        InputAbsent when the snapshot lacks an input it needs.
        """
        ...


def spelled(name: str, policy: DataclassInstance) -> str:
    """Return `name:parameter=value,...` for a policy dataclass, which `registry.policy_from_name` reads back."""
    shown = ((f.name, getattr(policy, f.name)) for f in fields(policy))
    return f"{name}:" + ",".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in shown)


def hold(fleet: Fleet, snapshot: Snapshot, policy: str, reason: Reason, detail: str) -> Proposal:
    """Return the proposal to leave every group as it is requested now."""
    return Proposal(fleet.name, policy, snapshot.requested, reason, detail, origin=Origin.POLICY)


def clamp(fleet: Fleet, desired: tuple[int, ...]) -> tuple[int, ...]:
    """Return `desired` within each group's configured minimum and maximum."""
    return tuple(max(g.minimum, min(g.maximum, n)) for g, n in zip(fleet.groups, desired, strict=True))
