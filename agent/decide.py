"""One fleet's decision as a pure function: policy, shadow, rails and intents, from recorded inputs alone."""

from __future__ import annotations

from dataclasses import dataclass

from agent.rails.base import RailLimits
from agent.state import Controls, LoopState
from domain.decisions import Decision, Mode
from domain.fleet import Fleet
from domain.observed import ReadFailure
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """Everything one decision depends on; stored with it, so that replaying gives the same decision byte for byte.

    `cloud_failure` says why the fleet's groups could not be read this minute (then `snapshot` is None and nothing is
    decided).
    """

    decision_id: str
    now: float
    fleet: Fleet
    snapshot: Snapshot | None
    state: LoopState
    controls: Controls
    limits: RailLimits
    mode: Mode
    leader: bool
    epoch: int
    policy: str
    shadow: str | None = None
    in_flight: tuple[str, ...] = ()
    cloud_failure: ReadFailure | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision, and the loop state that follows from it."""

    decision: Decision
    state: LoopState
