"""The contract of a rail.

A pure function from proposal and context to proposal and effect, in one fixed documented order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from agent.autoscaling.state import Controls, LoopState
from domain.decisions import Mode, Proposal, RailEffect
from domain.fleet import Fleet
from domain.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class RailLimits:
    """One fleet's limits, from its settings.

    min_coverage: share of warm VMs that must report. max_age_s: oldest usable newest sample. hold_bins: minutes held on
    absent input before the safe floor applies. safe_floor: desired per group then (max(current, floor)). sick_share,
    sick_count: no scale-in when more than this share, and at least this many VMs, are unhealthy, silent or overdue.
    max_step_out/in and *_percent: VMs of one group per decision, absolute and as a percentage of the current size (the
    larger of the two allows; 0 % = only the absolute one counts). cooldown_out_s, cooldown_in_s: per group and
    direction. boot_deadline_s: a VM that has not reported by then is overdue. stop_deadline_s: a removal that AWS has
    not begun by then is given up. max_replacements: interrupted VMs replaced per group and minute. in_periods:
    proposals in a row before scale-in. min_lifetime_s: younger VMs are not removed. max_reversals: changes of direction
    allowed per group in an hour. budget_per_hour, budget_per_day: dollars, None = no limit. capacity_memory_s: how long
    a (type, zone) shortage is remembered. breaker_failures: failures in a row that open the breaker; breaker_open_s:
    for how long at first, doubling to breaker_max_s. count_booting: take VMs that boot off the increases of a policy
    that had not counted them.
    """

    min_coverage: float = 0.5
    max_age_s: float = 150.0
    hold_bins: int = 3
    safe_floor: tuple[int, ...] = ()
    sick_share: float = 0.45
    sick_count: int = 3
    max_step_out: int = 5
    max_step_in: int = 2
    max_step_out_percent: float = 0.0
    max_step_in_percent: float = 0.0
    cooldown_out_s: float = 300.0
    cooldown_in_s: float = 300.0
    boot_deadline_s: float = 300.0
    stop_deadline_s: float = 180.0
    max_replacements: int = 3
    in_periods: int = 3
    min_lifetime_s: float = 300.0
    max_reversals: int = 4
    budget_per_hour: float | None = None
    budget_per_day: float | None = None
    capacity_memory_s: float = 600.0
    breaker_failures: int = 3
    breaker_open_s: float = 300.0
    breaker_max_s: float = 1800.0
    count_booting: bool = True


@dataclass(frozen=True, slots=True)
class RailContext:
    """Everything a rail may look at. `in_flight` are the keys of groups with an open intent.

    `leader` whether this process holds the epoch.
    """

    now: float
    fleet: Fleet
    snapshot: Snapshot
    state: LoopState
    controls: Controls
    limits: RailLimits
    mode: Mode
    leader: bool
    in_flight: tuple[str, ...] = ()


class Power(StrEnum):
    """What a rail may do.

    Only refuse (an admission is all or nothing), also shrink a change, or also set another size.
    """

    VETO = "veto"
    SHRINK = "shrink"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Rail:
    """A named rail, what it may do, and the function that does it."""

    name: str
    power: Power
    apply: Callable[[Proposal, RailContext], tuple[Proposal, RailEffect]]
