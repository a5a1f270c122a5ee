"""Realistic records for the ledger's tests and benchmark: decisions as the loop makes them, of any size."""

import numpy as np

from agent.autoscaling.decide import DecisionInputs, DecisionResult
from agent.rails.base import RailLimits
from agent.rails.state import Change, Cooldown, LoopState
from domain.controls import Controls
from domain.decisions import (
    Decision,
    Direction,
    Intent,
    Mode,
    Outcome,
    Proposal,
    RailEffect,
    Reason,
    Status,
    Verdict,
)
from domain.fleet import Fleet, Group, VmType
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot

START = 1_795_209_000.0
RAILS = (
    "finite",
    "staleness",
    "sickness",
    "pause",
    "bounds",
    "step",
    "cooldown",
    "warm_up",
    "flap_guard",
    "budget",
    "capacity",
    "breaker",
    "leader",
    "mode",
)
TYPES = (
    VmType("m5a.large", 2, 8.0, 0.086),
    VmType("m5a.xlarge", 4, 16.0, 0.172),
    VmType("m5a.2xlarge", 8, 32.0, 0.344),
)


def fleet_of(name: str) -> Fleet:
    groups = (Group(f"workers_{t.cores}", f"trimtab-{name}-{t.cores}", t, 1, 10) for t in TYPES)
    return Fleet(name, tuple(groups), f"https://queue.example/{name}")


def snapshot_of(fleet: Fleet, at: float, rng: np.random.Generator) -> Snapshot:
    groups = tuple(
        GroupSnapshot(
            key=group.key,
            requested=5,
            in_service=5,
            warm=5,
            booting=0,
            overdue=0,
            draining=0,
            silent=0,
            unhealthy=0,
            idle_long=1,
            mature=5,
            minimum=1,
            maximum=10,
            zones=("us-east-1a", "us-east-1b"),
            removable=tuple(f"i-{int(n):017x}" for n in rng.integers(0, 2**60, 3)),
            cpu_mean=float(rng.random()),
            ram_mean=float(rng.random()),
            busy_cores=float(rng.random() * 10),
        )
        for group in fleet.groups
    )
    queue = QueueSnapshot(int(rng.integers(0, 50)), 12, 1000, 15, float(rng.random() * 60), 55.25)
    return Snapshot(
        fleet.name,
        at - 3.0,
        at,
        groups,
        queue,
        coverage=1.0,
        age_s=3.125,
        cpu_mean=float(rng.random()),
        cpu_p90=float(rng.random()),
        ram_mean=float(rng.random()),
        ram_p90=float(rng.random()),
        obs7=tuple(float(x) for x in rng.random(9)),
        obs_v2=tuple(float(x) for x in rng.random(24)),
    )


def intent_of(decision_id: str, fleet: str, group: str, *, at: float = START, epoch: int = 1) -> Intent:
    return Intent(f"{decision_id}-{group}", decision_id, fleet, group, Direction.OUT, 5, 7, (), epoch, at, at + 600.0)


def outcome_of(intent: Intent, status: Status, reason: Reason, *, achieved: int = 0, at: float = START + 5) -> Outcome:
    return Outcome(intent.intent_id, status, reason, 2, achieved, at, f"{achieved} of 2")


def made(
    number: int,
    fleet: str = "web",
    *,
    at: float | None = None,
    groups: tuple[str, ...] = (),
    epoch: int = 1,
    seed: int = 7,
) -> tuple[DecisionInputs, DecisionResult]:
    """The decision of minute `number`: it acts on `groups`, or on nothing."""
    rng = np.random.default_rng(seed + number)
    managed = fleet_of(fleet)
    now = START + 60.0 * number if at is None else at
    decision_id = f"{fleet}-{number:08d}"
    before = LoopState(
        decisions=number,
        cooldowns=(Cooldown("workers_2", Direction.IN, now + 120.0, 300.0),),
        in_streak={"workers_2": 1, "workers_4": 0},
        changes=(Change("workers_2", Direction.OUT, now - 600.0),),
        known_desired={group.key: 5 for group in managed.groups},
    )
    snapshot = snapshot_of(managed, now, rng)
    inputs = DecisionInputs(
        decision_id, now, managed, snapshot, before, Controls(), RailLimits(), Mode.ACT, True, epoch, "queue-rule"
    )
    desired = tuple(7 if group.key in groups else 5 for group in managed.groups)
    reason = Reason.QUEUE_GREW if groups else Reason.QUEUE_COVERED
    proposal = Proposal(fleet, "queue-rule", desired, reason, "12 jobs wait and 15 cores are free")
    decision = Decision(
        decision_id,
        fleet,
        now,
        Mode.ACT,
        proposal,
        tuple(RailEffect(rail, Verdict.PASSED, desired, desired) for rail in RAILS),
        desired,
        reason,
        "no change: the queue is covered" if not groups else "scale out by 2",
        tuple(intent_of(decision_id, fleet, group, at=now, epoch=epoch) for group in groups),
    )
    return inputs, DecisionResult(decision, LoopState(decisions=number + 1, known_desired=before.known_desired))
