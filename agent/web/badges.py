"""What stands beside a fleet's name: whether it is acted on, and what keeps it from being."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent.autoscaling.state import PauseScope
from agent.autoscaling.status import FleetStatus
from agent.web.text import clock_time
from domain.decisions import Mode, Reason


class Tone(StrEnum):
    """How much a badge wants to be seen."""

    ON = "on"
    PLAIN = "plain"
    HELD = "held"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Badge:
    """A word or two, its tone, and a sentence that says more."""

    text: str
    tone: Tone
    detail: str


def badges(fleet: FleetStatus, mode: str, now: float) -> tuple[Badge, ...]:
    """Return a fleet's badges, its mode first; `mode` is the agent's, for a fleet not yet decided on."""
    shown = [_mode(fleet.mode or mode)]
    if fleet.leader is False:
        shown.append(Badge("not leader", Tone.HELD, "another agent leads; this one only watches"))
    if fleet.last_tick_at is None:
        shown.append(Badge("no decision yet", Tone.PLAIN, "nothing was ever decided for this fleet"))
    for pause in fleet.pauses:
        what = "paused" if pause.scope is PauseScope.ALL else f"scale-{pause.scope} paused"
        end = "until resumed" if pause.until is None else f"until {clock_time(pause.until, now)} UTC"
        shown.append(Badge(what, Tone.HELD, f"by {pause.owner}, {end}: {pause.reason}"))
    if fleet.pin is not None:
        sizes = ", ".join(f"{key} {size}" for key, size in fleet.pin.desired.items())
        end = clock_time(fleet.pin.until, now)
        shown.append(Badge("pinned", Tone.HELD, f"at {sizes} by {fleet.pin.owner} until {end} UTC: {fleet.pin.reason}"))
    if fleet.last_decision is not None and fleet.last_decision.reason == Reason.CLOUD_UNREADABLE:
        shown.append(Badge("AWS unreadable", Tone.BAD, fleet.last_decision.sentence))
    elif fleet.last_decision is not None and fleet.last_decision.reason == Reason.GROUP_UNSUPPORTED:
        shown.append(Badge("not managed", Tone.BAD, fleet.last_decision.sentence))
    elif fleet.stale_minutes:
        missing = ", ".join(fleet.last_decision.absent) if fleet.last_decision is not None else ""
        shown.append(Badge(f"holding {fleet.stale_minutes} min", Tone.HELD, f"absent: {missing or 'enough reports'}"))
    if opened := [breaker.group for breaker in fleet.breakers if breaker.open]:
        shown.append(Badge("breaker open", Tone.BAD, f"left alone after repeated failures: {', '.join(opened)}"))
    return tuple(shown)


def _mode(mode: str) -> Badge:
    if mode == Mode.ACT:
        return Badge("ACT", Tone.ON, "decides and does it")
    return Badge("OBSERVE", Tone.PLAIN, "decides and records; nothing in AWS is changed")
