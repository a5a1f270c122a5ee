"""A ledger filled by the real decision maths: a fleet of two groups, a queue that grows, and what AWS did of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent.autoscaling.decide import DecisionInputs, DecisionResult, decide
from agent.autoscaling.intents import state_after_outcome
from agent.autoscaling.policies.fallback import Proposer, evaluate_directly
from agent.autoscaling.policies.registry import policy_from_name
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.rails.base import RailLimits
from agent.rails.state import LoopState
from domain.decisions import CapacityShortage, Intent, Mode, Outcome, Reason, Status
from domain.errors import FailureClass
from domain.fleet import Fleet, Group, VmType
from domain.observed import ReadFailure
from domain.snapshot import GroupSnapshot, QueueSnapshot, Snapshot

START = 1_772_366_400.0
"""2026-03-01 12:00:00 UTC."""
POLICY = policy_from_name("queue-rule:horizon_s=120").name
SHADOW = policy_from_name("threshold:low=0.5").name


def fleet(name: str = "web") -> Fleet:
    small = Group("workers_s", f"{name}-small", VmType("m5a.large", 2, 8.0, 0.086), 1, 4)
    large = Group("workers_l", f"{name}-large", VmType("m5a.2xlarge", 8, 32.0, 0.344), 0, 3)
    return Fleet(name, (small, large))


def group(key: str, size: int, **changes: object) -> GroupSnapshot:
    seen = GroupSnapshot(
        key=key,
        requested=size,
        in_service=size,
        warm=size,
        booting=0,
        overdue=0,
        draining=0,
        silent=0,
        unhealthy=0,
        idle_long=0,
        mature=size,
        minimum=0,
        maximum=10,
        removable=tuple(f"i-{key}-{n}" for n in range(size)),
        cpu_mean=0.9 if size else None,
        ram_mean=0.4 if size else None,
        busy_cores=2.0 * size if size else None,
    )
    return replace(seen, **changes)


def snapshot(of: Fleet, sizes: Sequence[int], waiting: int, at: float, cpu: float | None = 0.9) -> Snapshot:
    return Snapshot(
        fleet=of.name,
        bin_end=at - 5.0,
        taken_at=at,
        groups=tuple(group(g.key, size, minimum=g.minimum) for g, size in zip(of.groups, sizes, strict=True)),
        queue=QueueSnapshot(waiting, 2, 40, 5, oldest_wait_s=30.0, job_core_s=60.0),
        coverage=1.0,
        age_s=3.0,
        due=sum(sizes),
        reported=sum(sizes),
        vm_age_s=8.0,
        queue_age_s=3.0,
        cpu_mean=cpu,
        cpu_mean_warmed_up=cpu,
        cpu_p90=cpu,
        ram_mean=0.4,
        ram_p90=0.5,
    )


@dataclass
class Recorder:
    """Decides minute by minute as the loop does, and records it."""

    ledger: Ledger
    fleet: Fleet
    policy: str = POLICY
    shadows: tuple[str, ...] = (SHADOW,)
    mode: Mode = Mode.ACT
    limits: RailLimits = RailLimits(safe_floor=(1, 0), in_periods=1)
    epoch: int = 1

    def minute(self, at: float, seen: Snapshot | None, **changes: object) -> DecisionResult:
        """Decide one minute on what was seen and record it."""
        state = changes.pop("state", None) or FleetStore(self.ledger).loop_state(self.fleet.name)
        assert isinstance(state, LoopState)
        inputs = DecisionInputs(
            decision_id=f"{self.fleet.name}-{state.decisions + 1}",
            now=at,
            fleet=self.fleet,
            snapshot=seen,
            state=state,
            controls=self.ledger.controls("autoscaling", self.fleet.name),
            limits=self.limits,
            mode=self.mode,
            leader=True,
            epoch=self.epoch,
            policy=self.policy,
            shadows=self.shadows,
            in_flight=tuple(intent.group for intent in self.ledger.open_intents(self.fleet.name)),
        )
        inputs = replace(inputs, **changes)
        decided = decide(inputs, Proposer(evaluate_directly))
        FleetStore(self.ledger).record([(inputs, decided)])
        return decided

    def outcome(self, intent: Intent, outcome: Outcome) -> None:
        """Record what came of an intent, with what it changes in the loop's state."""
        state = FleetStore(self.ledger).loop_state(self.fleet.name)
        after = state_after_outcome(state, intent, outcome, self.limits, outcome.at)
        FleetStore(self.ledger).record((), outcomes=[(intent, outcome)], states={self.fleet.name: after})


def story(path: Path, name: str = "web") -> str:
    """Record four minutes and return the ledger's URL.

    1: 36 jobs wait and two large VMs are asked for; one comes, for the other AWS has no capacity. 2: more jobs wait and
    the cool-down holds the large group. 3: AWS cannot be read. 4: a small VM is asked for and still under way.
    """
    url = f"sqlite:///{path}"
    with Ledger.open(url) as ledger:
        recorder = Recorder(ledger, fleet(name))
        recorder.epoch = ledger.take_epoch("test", START)
        first = recorder.minute(START, snapshot(recorder.fleet, (1, 0), 36, START))
        (large,) = first.decision.intents
        recorder.outcome(large, Outcome(large.intent_id, Status.IN_PROGRESS, Reason.ACCEPTED, 2, 0, START + 1))
        shortage = (CapacityShortage("m5a.2xlarge", "us-east-1b"),)
        said = "no m5a.2xlarge in us-east-1b"
        partial = Outcome(
            large.intent_id,
            Status.PARTIAL,
            Reason.NO_CAPACITY,
            asked=2,
            achieved=1,
            at=START + 45,
            detail=said,
            failure=FailureClass.CAPACITY,
            shortages=shortage,
        )
        recorder.outcome(large, partial)
        recorder.minute(START + 60, snapshot(recorder.fleet, (4, 1), 60, START + 60))
        unread = ReadFailure(FailureClass.THROTTLE, "Rate exceeded")
        recorder.minute(START + 120, None, cloud_failure=unread)
        last = recorder.minute(START + 180, snapshot(recorder.fleet, (1, 1), 22, START + 180))
        (small,) = last.decision.intents
        recorder.outcome(small, Outcome(small.intent_id, Status.IN_PROGRESS, Reason.ACCEPTED, 1, 0, START + 181))
    return url
