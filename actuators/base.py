"""The contract of an actuator: observe the groups, apply an intent, follow it until it is final.

Every call that changes something goes through `change`, which checks a permit right before the request is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

from collectors.aws import AwsSession
from domain.decisions import Event, Intent, Outcome, Reason
from domain.errors import CloudError, FailureClass, TrimtabError
from domain.fleet import Fleet
from domain.observed import Observed


class Act(StrEnum):
    """The kind of a changing call, which decides what may stop it.

    launch: raise a group's size. give_back: lower it to the VMs that are there. remove: terminate a VM and lower the
    size. replace: terminate a VM at the same size. heartbeat: keep a draining VM alive. let_go: end the drain of a VM.
    protect, unprotect: set or take off scale-in protection. mark: write a group's tags. publish: put a parameter.
    """

    LAUNCH = "launch"
    LOWER_DESIRED = "give_back"
    REMOVE = "remove"
    REPLACE = "replace"
    HEARTBEAT = "heartbeat"
    COMPLETE_HOOK = "let_go"
    PROTECT = "protect"
    UNPROTECT = "unprotect"
    MARK = "mark"
    PUBLISH = "publish"


KEEPING: Final = frozenset((Act.HEARTBEAT, Act.PROTECT))
"""Each of these only keeps a VM that works; made late, or in a group that is not managed, it does no harm either."""


@dataclass(frozen=True, slots=True)
class ChangingCall:
    """A call about to be made. subject: the fleet, cluster or pool. group: its key. vm: the one it is about, if any."""

    act: Act
    subject: str
    group: str
    intent: Intent | None = None
    vm: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call is not made. over: the intent is given up; otherwise it stays open and is tried again."""

    reason: Reason
    detail: str
    over: bool = True


Permit = Callable[[ChangingCall], Refusal | None]
"""Returns why a changing call may not be made now, None when it may; raises LedgerUnavailable when that is unknown."""


class Held(TrimtabError):
    """A permit refused a changing call; nothing was sent."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.detail)


def change(
    session: AwsSession, permit: Permit, call: ChangingCall, service: str, operation: str, /, **parameters: Any
) -> None:
    """Make a call that changes something, once, if the permit lets it; raises Held, CloudError or Fenced."""
    refusal = permit(call)
    if refusal is not None:
        raise Held(refusal)
    session.mutate(service, operation, **parameters)


def is_contended(error: CloudError) -> bool:
    """Return whether AWS put one VM off because another activity is at it; other VMs may well be changed."""
    return error.failure is FailureClass.UNAVAILABLE and error.code == "ScalingActivityInProgress"


@runtime_checkable
class Protects(Protocol):
    """An actuator that knows whose scale-in protection a VM has."""

    @property
    def ours(self) -> Collection[str]:
        """The VMs whose protection is this agent's, which it may take off."""
        ...


class Actuator(Protocol):
    """Acts on groups. Never raises for a failed call: the outcome, or the observation's failures, record it."""

    def observe(self, fleets: Sequence[Fleet], now: float) -> Observed:
        """Read every group of the fleets in as few calls as possible.

        With several agents it is called twice a turn, for fleets that this agent leads and for those without a leader.
        """
        ...

    def apply(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Carry out the intent, once; `follow` completes IN_PROGRESS and UNKNOWN outcomes later."""
        ...

    def follow(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Settle an open intent from what AWS shows now.

        Scaling activities since the intent, instances, deadline; retry only what is still undone.
        """
        ...

    def clock_stepped(self, step_s: float) -> None:
        """Carry times kept in memory over a step of the wall clock by `step_s` seconds."""
        ...

    def tend(
        self, fleet: Fleet, observed: Observed, busy_cores: Mapping[str, float | None], now: float, permit: Permit
    ) -> tuple[Event, ...]:
        """Care for VMs between decisions: heartbeat or complete drains, protect busy VMs and unprotect idle ones.

        busy_cores: per VM id, busy cores as last reported (None = no fresh report). Where the fence cannot be read, it
        returns the events before that.
        """
        ...
