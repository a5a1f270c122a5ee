"""The rails of an admission: the same that hold a fleet's changes, as far as they concern one group that waits at 0.

All of them may only refuse: a deployment comes in at the size it asked for, or it waits. So what a rail would shrink is
held as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from agent.admission.gate.records import as_group
from agent.autoscaling.state import Controls, LoopState
from agent.rails import (
    bounds,
    capacity_memory,
    circuit_breaker,
    finite_and_schema,
    group_state,
    leader_epoch,
    mode,
    pause_and_pin,
)
from agent.rails.base import Rail, RailContext, RailLimits
from collectors.clusters import ClusterGroup
from domain.decisions import Mode, Proposal, RailEffect, Reason, Verdict
from domain.fleet import Fleet
from domain.snapshot import GroupSnapshot, Snapshot

POLICY: Final = "admission"
RAILS: Final[tuple[Rail, ...]] = (
    finite_and_schema.RAIL,
    pause_and_pin.RAIL,
    bounds.RAIL,
    capacity_memory.RAIL,
    group_state.RAIL,
    circuit_breaker.RAIL,
    leader_epoch.RAIL,
    mode.RAIL,
)
"""In the order of `agent.rails.order`; those that pace a fleet's growth have nothing to say of a first size."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pending group asks for: so many VMs of a type, each with so many cores."""

    vms: int
    vm_type: str
    vm_cores: int

    @property
    def cores(self) -> int:
        """Cores in all."""
        return self.vms * self.vm_cores


@dataclass(frozen=True, slots=True)
class Held:
    """Why a group may not be brought to its size now, in the words of the rail that holds it."""

    reason: Reason
    detail: str


def held(
    cluster: str,
    group: ClusterGroup,
    asked: Asked,
    state: LoopState,
    controls: Controls,
    limits: RailLimits,
    mode: Mode,
    now: float,
) -> Held | None:
    """Return what holds the group back, None when nothing does.

    controls: those of the cluster, which is paused as a fleet is; pins have no meaning here.
    """
    fleet = Fleet(cluster, (as_group(group.name, asked.vm_type, asked.vm_cores, max(asked.vms, group.maximum)),))
    context = RailContext(
        now=now,
        fleet=fleet,
        snapshot=_snapshot(cluster, group, now),
        state=state,
        controls=replace(controls, pin=None),
        limits=limits,
        mode=mode,
        leader=True,
    )
    proposal = Proposal(cluster, POLICY, (asked.vms,), Reason.ADMITTED)
    for rail in RAILS:
        after, effect = rail.apply(proposal, context)
        if effect.verdict is not Verdict.PASSED and after.desired != proposal.desired:
            return Held(effect.reason or Reason.ADMITTED, _why(effect))
    return None


def _why(effect: RailEffect) -> str:
    return f"rail {effect.rail}: {effect.detail}"


def _snapshot(cluster: str, group: ClusterGroup, now: float) -> Snapshot:
    seen = GroupSnapshot(
        key=group.name,
        requested=group.desired,
        in_service=group.vms,
        warm=group.vms,
        booting=0,
        overdue=0,
        draining=0,
        silent=0,
        unhealthy=0,
        idle_long=0,
        mature=0,
        minimum=group.minimum,
        maximum=group.maximum,
        suspended=group.suspended,
        zones=group.zones,
    )
    return Snapshot(cluster, now, now, (seen,), None, 1.0, 0.0)
