"""Under which rails a policy is rehearsed: the agent's own, or only those that the published experiment had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.autoscaling.snapshot.queue_fold import EPISODE_GAP_S
from agent.rails.base import RailLimits
from domain.errors import BadInput
from simulator.autoscaling.reference import SimulationConfig
from simulator.autoscaling.reference.configuration import RemovalChoice, RemovalMode

UNLIMITED = 1_000_000


@dataclass(frozen=True, slots=True)
class RailSet:
    """Rails and what goes with them.

    limits: of the rails. grace_s: how long after a minute's end it is decided on. sample_interval_s: how often VMs
    report. idle_more_s: added to the time after which a VM counts as idle for long. drains: whether removed VMs finish
    their jobs, the one with the least to lose first, instead of going at once, the newest first. measured_before:
    whether rules on CPU decide at once, by what the first VMs measured before; if not, once a minute has passed.
    episode_gap_s: so long idle at the minimum, a fleet begins a new live episode, with an empty memory.
    """

    limits: RailLimits
    grace_s: float
    sample_interval_s: float
    idle_more_s: float
    drains: bool
    measured_before: bool
    episode_gap_s: float

    def world(self, config: SimulationConfig) -> SimulationConfig:
        """Return the simulated world under these rails; it has no cool-down of its own, for the rails keep it."""
        changed = replace(config, cooldown_s=0.0)
        if self.drains:
            least = RemovalChoice.LEAST_WORK_LOST
            changed = replace(changed, removal_mode=RemovalMode.DRAIN, removal_choice=least)
        return changed


PAPER = RailSet(
    RailLimits(
        min_coverage=0.0,
        max_age_s=3600.0,
        hold_bins=UNLIMITED,
        sick_share=1.0,
        sick_count=UNLIMITED,
        max_step_out=UNLIMITED,
        max_step_in=UNLIMITED,
        cooldown_out_s=0.0,
        cooldown_in_s=0.0,
        in_periods=1,
        min_lifetime_s=0.0,
        max_reversals=UNLIMITED,
        capacity_memory_s=0.0,
        breaker_failures=UNLIMITED,
        count_booting=False,
    ),
    grace_s=0.0,
    sample_interval_s=60.0,
    idle_more_s=60.0,
    drains=False,
    measured_before=False,
    episode_gap_s=float(UNLIMITED),
)
"""Bounds, minimum and cool-down only. A minute is decided on at its very end, from one reading taken then: the world
in which `trimtab simulate` plays the training presets, so that the two can be compared. A VM found idle by the only
reading of a minute may have fallen idle anywhere in it, hence a minute more until it counts as idle for long. A trace
is one episode, however long its pauses."""

DEFAULT = RailSet(
    RailLimits(),
    grace_s=5.0,
    sample_interval_s=10.0,
    idle_more_s=0.0,
    drains=True,
    measured_before=True,
    episode_gap_s=EPISODE_GAP_S,
)
"""The agent's own, with readings every ten seconds and VMs that are drained."""

RAIL_SETS: Mapping[str, RailSet] = {"paper": PAPER, "default": DEFAULT}


def rail_set(name: str, cooldown_s: float | None = None) -> RailSet:
    """Return the rails of that name, with another cool-down per group and direction where one is given, or BadInput."""
    if name not in RAIL_SETS:
        raise BadInput("--rails", name, f"choose one of {', '.join(RAIL_SETS)}")
    chosen = RAIL_SETS[name]
    if cooldown_s is None:
        return chosen
    return replace(chosen, limits=replace(chosen.limits, cooldown_out_s=cooldown_s, cooldown_in_s=cooldown_s))
