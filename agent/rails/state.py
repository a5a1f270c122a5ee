"""What the loop remembers between minutes, per fleet, and how it is carried over a step of the wall clock.

It lives in the ledger and survives a restart. No deadline vanishes with a step, and none lasts longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from domain.clock import BothTimes
from domain.decisions import Direction, Intent, Reason
from domain.observed import GroupIdentity

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

    All of them). failing: it had, and they ended before they were in service.
    """

    vm_type: str
    zone: str
    until: float
    length_s: float
    failing: bool = False

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
class RefusalMark:
    """A VM may not go, as was found `times` times; it is not asked for again before `until`."""

    vm: str
    reason: Reason
    times: int
    until: float
    length_s: float

    def active(self, now: float) -> bool:
        """Return whether the mark still holds; a clock set back cannot prolong it beyond its length."""
        return 0.0 < self.until - now <= self.length_s


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
class GuardState:
    """The memory of the guards of one subject: shortages of VM types, and things whose changes keep failing."""

    capacity: tuple[CapacityMark, ...] = ()
    breakers: tuple[Breaker, ...] = ()

    def shifted(self, step_s: float) -> GuardState:
        """Return the state with every stored time moved by `step_s`, the seconds by which the clock was set."""
        return GuardState(
            tuple(replace(m, until=m.until + step_s) for m in self.capacity),
            tuple(replace(b, open_until=b.open_until + step_s) if b.open_until else b for b in self.breakers),
        )

    def not_ahead(self, now: float) -> GuardState:
        """Return the state with no time further ahead than its length allows."""
        return GuardState(
            tuple(replace(m, until=min(m.until, now + m.length_s)) for m in self.capacity),
            tuple(replace(b, open_until=min(b.open_until, now + b.length_s)) for b in self.breakers),
        )


@dataclass(frozen=True, slots=True)
class LoopState:
    """One fleet's memory.

    decisions: how many were made (their number is the decision's id). in_streak: per group key, minutes in a row in
    which scale-in was proposed. interrupted: VM ids with a spot notice not yet
    acted on, with its time. seen_interruptions: VM ids whose interruption was already acted on, with the time.
    known_desired: per group key what we last asked or adopted, to tell drift. memory: the live policy's own state.
    shadow_memories: that of each shadow by its name.
    protected: VM ids whose scale-in protection is, or is about to be, ours. busy: further VM ids that were busy by
    their last report. submitted_seen: the job source's counter as last read. submitted_in_episode: jobs submitted
    since the live episode began. last_busy_at: when something last ran or waited. vm_reported_at: time of the newest
    report of any VM. intent_times: per id of an open intent, when it was made and its deadline, where the clock was set
    since. former_calls: what a former leader may still change. put_back: per group key, the size before its late call.
    What is known per VM (first seen, warm, idle since) is kept by the aggregator and is rebuilt from what the VMs
    report. unsupported: why a group of the fleet
    cannot be managed, "" while all can.
    refusals: VMs that may not go. identities: per group key, the group that was last observed.
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
    busy: tuple[str, ...] = ()
    submitted_seen: float | None = None
    submitted_in_episode: float = 0.0
    last_busy_at: float | None = None
    last_bin_end: float | None = None
    vm_reported_at: float | None = None
    intent_times: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    former_calls: tuple[FormerCall, ...] = ()
    put_back: Mapping[str, int] = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    shadow_memories: Mapping[str, Memory] = field(default_factory=dict)
    policy: str = ""
    unsupported: str = ""
    refusals: tuple[RefusalMark, ...] = ()
    identities: Mapping[str, GroupIdentity] = field(default_factory=dict)

    @property
    def guards(self) -> GuardState:
        """The memory that the guards of every decision have."""
        return GuardState(self.capacity, self.breakers)


def without_group(state: LoopState, key: str) -> LoopState:
    """Return the state without what was remembered of one group, which is no longer there.

    Cool-downs, changes and what it costs stay: they bound how fast a fleet may change, whichever groups it has.
    """
    return replace(
        state,
        in_streak={name: n for name, n in state.in_streak.items() if name != key},
        breakers=tuple(one for one in state.breakers if one.group != key),
        known_desired={name: n for name, n in state.known_desired.items() if name != key},
        former_calls=tuple(one for one in state.former_calls if one.group != key),
        put_back={name: n for name, n in state.put_back.items() if name != key},
    )


def shifted(state: LoopState, step_s: float, open_intents: Sequence[Intent] = ()) -> LoopState:
    """Return the state with every stored time moved by `step_s`, the seconds by which the wall clock was set.

    Intents stand in the ledger as they were opened; where the open ones are on the new clock is part of the state.
    """
    times = {intent.intent_id: _times(intent, state) for intent in open_intents}
    guards = state.guards.shifted(step_s)
    return replace(
        state,
        cooldowns=tuple(replace(c, until=c.until + step_s) for c in state.cooldowns),
        changes=tuple(replace(c, at=c.at + step_s) for c in state.changes),
        capacity=guards.capacity,
        refusals=tuple(replace(m, until=m.until + step_s) for m in state.refusals),
        breakers=guards.breakers,
        spend=replace(state.spend, at=state.spend.at + step_s) if state.spend.at else state.spend,
        interrupted={vm: at + step_s for vm, at in state.interrupted.items()},
        seen_interruptions={vm: at + step_s for vm, at in state.seen_interruptions.items()},
        last_busy_at=None if state.last_busy_at is None else state.last_busy_at + step_s,
        last_bin_end=None,
        vm_reported_at=None if state.vm_reported_at is None else state.vm_reported_at + step_s,
        former_calls=tuple(replace(call, at=call.at + step_s) for call in state.former_calls),
        intent_times={name: (created + step_s, deadline + step_s) for name, (created, deadline) in times.items()},
    )


def not_ahead(state: LoopState, open_intents: Sequence[Intent], now: float) -> LoopState:
    """Return the state with no time further ahead than it can be, as when the clock was set back while no agent ran.

    Then the step was not seen: what rests begins its rest anew, and what happened counts as having happened now. A step
    forward in such a time cannot be distinguished from the time passing.
    """
    ahead = {
        intent.intent_id: (now, now + deadline - created)
        for intent in open_intents
        for created, deadline in [_times(intent, state)]
        if created > now
    }
    guards = state.guards.not_ahead(now)
    return replace(
        state,
        cooldowns=tuple(replace(c, until=min(c.until, now + c.length_s)) for c in state.cooldowns),
        changes=tuple(replace(c, at=min(c.at, now)) for c in state.changes),
        capacity=guards.capacity,
        refusals=tuple(replace(m, until=min(m.until, now + m.length_s)) for m in state.refusals),
        breakers=guards.breakers,
        spend=replace(state.spend, at=min(state.spend.at, now)),
        interrupted={vm: min(at, now) for vm, at in state.interrupted.items()},
        seen_interruptions={vm: min(at, now) for vm, at in state.seen_interruptions.items()},
        last_busy_at=None if state.last_busy_at is None else min(state.last_busy_at, now),
        last_bin_end=None if state.last_bin_end is None or state.last_bin_end > now else state.last_bin_end,
        vm_reported_at=None if state.vm_reported_at is None else min(state.vm_reported_at, now),
        former_calls=tuple(replace(call, at=min(call.at, now)) for call in state.former_calls),
        intent_times={**state.intent_times, **ahead},
    )


def on_this_clock(intent: Intent, state: LoopState) -> Intent:
    """Return an open intent with its times as the clock now reads, however often it was set since."""
    created_at, deadline_at = _times(intent, state)
    return replace(intent, created_at=created_at, deadline_at=deadline_at)


def _times(intent: Intent, state: LoopState) -> tuple[float, float]:
    return state.intent_times.get(intent.intent_id, (intent.created_at, intent.deadline_at))


class Ages:
    """How long each intent has been there by the clock that is never set, whatever the wall clock says."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def age_s(self, intent: Intent, now: float, monotonic: float) -> float:
        """Return the seconds since the intent was made; one of an earlier process is as old as it then looked."""
        since = self._since.setdefault(intent.intent_id, monotonic - max(0.0, now - intent.created_at))
        return monotonic - since

    def keep(self, intent_ids: frozenset[str]) -> None:
        """Forget all but these."""
        self._since = {name: since for name, since in self._since.items() if name in intent_ids}


def late_s(began: BothTimes, now: float, monotonic: float) -> float:
    """Return the seconds since a turn began, by the clock that shows more of them; one alone may have stood still."""
    return max(0.0, now - began.now, monotonic - began.monotonic)
