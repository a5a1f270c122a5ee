"""Operators' controls of a subject of any decision: pauses, for fleets a pinned size, and windows of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class PauseScope(StrEnum):
    """The direction that a pause holds."""

    ALL = "all"
    IN = "in"
    OUT = "out"


HELD: Final[Mapping[PauseScope, str]] = {
    PauseScope.ALL: "every change",
    PauseScope.IN: "scale-in",
    PauseScope.OUT: "scale-out",
}
"""The changes that a pause of each scope holds, in words."""


@dataclass(frozen=True, slots=True)
class Pause:
    """An operator's hold on one direction or both; `until` None means until resumed."""

    scope: PauseScope
    owner: str
    reason: str
    since: float
    until: float | None = None

    def active(self, now: float) -> bool:
        """Return whether it holds at `now`."""
        return self.until is None or now < self.until

    def end(self, time_text: Callable[[float], str]) -> str:
        """Return its end as a phrase; time_text: of a time in epoch seconds."""
        return "until resumed" if self.until is None else f"until {time_text(self.until)}"


@dataclass(frozen=True, slots=True)
class Pin:
    """An operator's fixed size: desired capacity per group key, always with an end."""

    desired: Mapping[str, int]
    owner: str
    reason: str
    since: float
    until: float

    def active(self, now: float) -> bool:
        """Return whether it holds at `now`."""
        return now < self.until


@dataclass(frozen=True, slots=True)
class Controls:
    """The controls in force for one fleet."""

    pauses: tuple[Pause, ...] = ()
    pin: Pin | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """One opening of a window of a fleet's schedule, from `start` until before `end`, epoch seconds.

    zone: time zone of its times. once: it does not come again. minimum, maximum: VMs of the whole fleet. policy: that
    decides meanwhile, "" for the fleet's own. pause: the direction that is held.
    """

    name: str
    start: float
    end: float
    zone: str = "UTC"
    once: bool = False
    minimum: int | None = None
    maximum: int | None = None
    policy: str = ""
    pause: PauseScope | None = None
