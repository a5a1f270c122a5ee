"""The holds of a fleet and its changes in progress: one list for the status, the page and its badges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from agent.kernel.text import counted, duration_text
from agent.rails.permissions import paused_by, pinned_by
from agent.rails.schedule import coming_text
from domain.controls import PauseScope

if TYPE_CHECKING:
    from agent.autoscaling.view import FleetStatus


class Tone(StrEnum):
    """How much a badge wants to be seen."""

    ON = "on"
    PLAIN = "plain"
    HELD = "held"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Hold:
    """A word or two, a phrase with owner, sizes and end, and the tone of its badge, None for a line alone."""

    word: str
    detail: str
    tone: Tone | None = None


def holds(fleet: FleetStatus, now: float) -> Iterator[Hold]:
    """Yield pauses, the pin, windows, open intents, breakers, capacity marks and cool-downs, as of `now`."""
    for pause in fleet.pauses:
        word = "paused" if pause.scope is PauseScope.ALL else f"scale-{pause.scope} paused"
        yield Hold(word, paused_by(pause, now), Tone.HELD)
    if (pin := fleet.pin) is not None:
        sizes = ", ".join(f"{key} {size}" for key, size in pin.desired.items())
        yield Hold("pinned", f"at {sizes} {pinned_by(pin, now)}", Tone.HELD)
    for one in fleet.windows:
        tone = None if one.start > now else Tone.PLAIN if one.pause is None else Tone.HELD
        yield Hold(f"window {one.name}", coming_text(one, now), tone)
    for intent in fleet.open_intents:
        since, what = duration_text(now - intent.created_at), f"{intent.group} {intent.before} -> {intent.target}"
        yield Hold("in progress", f"{what} ({intent.direction}), {intent.intent_id}, for {since}")
    for breaker in fleet.breakers:
        failures = counted(breaker.failures, "failure")
        if breaker.open:
            more = duration_text(breaker.open_until - now)
            yield Hold("breaker open", f"{breaker.group}: {failures} in a row, left alone for {more} more", Tone.BAD)
        elif breaker.failures:
            yield Hold("breaker", f"{breaker.group}: {failures} in a row")
    for mark in fleet.capacity_marks:
        more = duration_text(mark.until - now)
        yield Hold("no capacity", f"{mark.vm_type} in {mark.zone or 'any zone'}, not requested for {more}")
    cooling = [f"{c.group} scale-{c.direction} for {duration_text(c.remaining_s(now))}" for c in fleet.cooldowns]
    if cooling:
        yield Hold("cooling down", ", ".join(cooling))
