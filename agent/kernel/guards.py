"""The guards that hold a change of any decision: pause, circuit breaker, leader and mode, on a subject's controls.

A fleet's changes pass all rails of `agent.rails.order` on its sizes. What is not a fleet is asked here, as it is.

A permit asks once more right before a call is sent. A decision and its call may lie apart: AWS throttles, another agent
takes over, a process is stopped and continues minutes later. So each call reads the operators' controls and the circuit
breakers again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from actuators.base import Act, ChangingCall, Permit, Refusal
from agent.rails.circuit_breaker import held_open
from agent.rails.permissions import holding, pause_sentence
from agent.rails.state import Breaker, GuardState, late_s
from domain.clock import BothTimes, Clock
from domain.controls import Controls, PauseScope
from domain.decisions import Direction, Mode, Reason

FRESH_S: Final = 120.0
"""What a turn has read is acted on for so long: two minutes, after which the next turn has read it anew."""
_HELD_BY: Final[Mapping[Act, tuple[Direction, ...]]] = {
    Act.LAUNCH: (Direction.OUT,),
    Act.REMOVE: (Direction.IN,),
    Act.REPLACE: (Direction.OUT, Direction.IN),
    Act.LOWER_DESIRED: (Direction.IN,),
    Act.UNPROTECT: (Direction.IN,),
    Act.MARK: (Direction.OUT,),
    Act.PUBLISH: (Direction.OUT,),
}
"""Which pauses hold an act. Not named: a drain that AWS has begun comes to its end under any pause."""


@dataclass(frozen=True, slots=True)
class Held:
    """Why a change may not be made now, by the guard that holds it."""

    guard: str
    reason: Reason
    detail: str


def held_by_pause(controls: Controls, directions: Collection[Direction], now: float) -> Held | None:
    """Return the hold of an active pause of one of the directions, None when none holds."""
    pause = holding(controls, directions, now)
    return None if pause is None else Held("pause", Reason.PAUSED, pause_sentence(pause, now))


def held_by_breaker(thing: str, breakers: Sequence[Breaker], now: float, *, trials: int | None = None) -> Held | None:
    """Return the hold of a thing whose changes keep failing, None when it may be tried.

    trials: failures in a row from which on a change must be a trial of one; None when this change is one already.
    """
    why = held_open(breakers, thing, now, trials)
    return None if why is None else Held("circuit_breaker", Reason.CIRCUIT_OPEN, why)


def held_by_mode(mode: Mode) -> Held | None:
    """Return the hold of observe mode, None in act mode."""
    if mode is Mode.ACT:
        return None
    return Held("mode", Reason.OBSERVE_MODE, "observe mode: act mode would do this")


def refused_by_pause(act: Act, controls: Controls, now: float) -> Refusal | None:
    """Return the refusal of an act that a pause holds, None when none does.

    Giving back capacity that AWS does not launch takes no VM: only a pause of everything holds it.
    """
    if act is Act.LOWER_DESIRED:
        controls = replace(controls, pauses=tuple(p for p in controls.pauses if p.scope is PauseScope.ALL))
    stopped = held_by_pause(controls, _HELD_BY.get(act, ()), now)
    return None if stopped is None else Refusal(stopped.reason, stopped.detail)


def refused_by_breaker(group: str, breakers: tuple[Breaker, ...], now: float) -> Refusal | None:
    """Return the refusal of a call on a group whose circuit breaker is open, None when it is not."""
    stopped = held_by_breaker(group, breakers, now)
    return None if stopped is None else Refusal(stopped.reason, stopped.detail)


def unmeasured_permit(
    now: float, clock: Clock, controls: Callable[[str], Controls], memory: Callable[[str], GuardState]
) -> Permit:
    """Return the permit of a turn that begins at `now` and rests on no minute: of admissions, of published rates.

    controls, memory: by the name of the cluster or pool. What is refused stays open, until its own deadline.
    """
    began = BothTimes(clock.now(), clock.monotonic())

    def permit(call: ChangingCall) -> Refusal | None:
        passed_s = late_s(began, clock.now(), clock.monotonic())
        if passed_s > FRESH_S:
            return late_refusal(passed_s)
        at, intent = now + passed_s, call.intent
        if intent is not None and call.act is Act.LAUNCH and at >= intent.deadline_at:
            return Refusal(Reason.OVERDUE, f"{intent.intent_id} was not sent before its deadline")
        refusal = refused_by_pause(call.act, controls(call.subject), at)
        if refusal is None and call.act is not Act.LOWER_DESIRED:
            refusal = refused_by_breaker(call.group, memory(call.subject).breakers, at)
        return None if refusal is None else replace(refusal, over=False)

    return permit


def late_refusal(passed_s: float) -> Refusal:
    """Return the refusal of a call that rests on what was read so many seconds ago."""
    detail = (
        f"not sent: it is based on a reading of {passed_s:.0f} s ago (at most {FRESH_S:.0f} s); the next "
        "turn reads again"
    )
    return Refusal(Reason.STALE_INPUT, detail, over=False)
