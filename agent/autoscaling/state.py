"""What the loop remembers between minutes, per fleet, and what operators have switched.

Both live in the ledger and survive a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from domain.decisions import Direction

Memory = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Cooldown:
    """No further change of the group in this direction until `until`.

    `length_s` bounds what is left if the clock was set back.
    """

    group: str
    direction: Direction
    until: float
    length_s: float

    def remaining_s(self, now: float) -> float:
        """Return the seconds left, never more than the whole length."""
        return min(self.length_s, max(0.0, self.until - now))


@dataclass(frozen=True, slots=True)
class CapacityMark:
    """AWS had no VM of this type in this zone; it is not asked again before `until` ("" = zone not named.

    All of them).
    """

    vm_type: str
    zone: str
    until: float
    length_s: float

    def active(self, now: float) -> bool:
        """Return whether the mark still holds; a clock set back cannot prolong it beyond its length."""
        return 0.0 < self.until - now <= self.length_s


@dataclass(frozen=True, slots=True)
class Breaker:
    """A group's circuit breaker: failures in a row, and until when it is open (0.0 = closed).

    Half-open once `open_until` has passed.
    """

    group: str
    failures: int = 0
    open_until: float = 0.0
    length_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """One accepted change of a group, for the reversal budget."""

    group: str
    direction: Direction
    at: float


@dataclass(frozen=True, slots=True)
class Spend:
    """Dollars spent since midnight UTC of the day that starts at `day_start`, accounted up to `at`."""

    day_start: float = 0.0
    dollars: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class FormerCall:
    """An open intent of an older epoch, whose call may still be on its way.

    target: the size that it sets. victims: the VMs that it terminates and that were in service. at: since when it is
    known.
    """

    group: str
    intent_id: str
    epoch: int
    target: int
    victims: tuple[str, ...]
    at: float


def puts_back(put_back: Mapping[str, int], group: str, current: int, asked: int) -> bool:
    """Return whether a change of the group leads back to the size before a late call, and not beyond."""
    size = put_back.get(group)
    return size is not None and min(current, size) <= asked <= max(current, size)


@dataclass(frozen=True, slots=True)
class LoopState:
    """One fleet's memory.

    decisions: how many were made (their number is the decision's id). in_streak: per group key, minutes in a row in
    which scale-in was proposed. interrupted: VM ids with a spot notice not yet
    acted on, with its time. seen_interruptions: VM ids whose interruption was already acted on, with the time.
    known_desired: per group key what we last asked or adopted, to tell drift. memory, shadow_memory: the policies' own
    state. protected: VM ids whose scale-in protection is, or is about to be, ours. submitted_seen: the job source's
    counter as last read. submitted_in_episode: jobs submitted since the live episode began. last_busy_at: when
    something last ran or waited. intent_times: per id of an open intent, when it was made and its deadline, where the
    clock was set since. former_calls: what a former leader may still change. put_back: per group key, the size before
    its late call. What is known per VM (first seen, warm, idle since) is kept by the aggregator and is
    rebuilt from what the VMs report. unsupported: why a group of the fleet cannot be managed, "" while all can.
    """

    decisions: int = 0
    cooldowns: tuple[Cooldown, ...] = ()
    in_streak: Mapping[str, int] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    capacity: tuple[CapacityMark, ...] = ()
    breakers: tuple[Breaker, ...] = ()
    spend: Spend = Spend()
    stale_bins: int = 0
    interrupted: Mapping[str, float] = field(default_factory=dict)
    seen_interruptions: Mapping[str, float] = field(default_factory=dict)
    known_desired: Mapping[str, int] = field(default_factory=dict)
    protected: tuple[str, ...] = ()
    submitted_seen: float | None = None
    submitted_in_episode: float = 0.0
    last_busy_at: float | None = None
    last_bin_end: float | None = None
    intent_times: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    former_calls: tuple[FormerCall, ...] = ()
    put_back: Mapping[str, int] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    shadow_memory: Memory = field(default_factory=dict)
    policy: str = ""
    unsupported: str = ""


class PauseScope(StrEnum):
    """Which direction a pause holds."""

    ALL = "all"
    IN = "in"
    OUT = "out"


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
    """What operators have switched for one fleet."""

    pauses: tuple[Pause, ...] = ()
    pin: Pin | None = None
