"""The faults of a dry run: what is injected when, and which reasons the ledger must hold afterwards, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent.autoscaling.policies.ppo_lstm import names_model
from agent.ledger.journal import JournalEntry, Kind
from agent.rehearsal.scenario import AGENT_KEY
from domain.decisions import Reason
from domain.errors import BadInput
from domain.units import MINUTE_S
from simulator.aws.client import CloudControl, ControlError

NO_VM = ""
"""The subject of a fault that concerns no VM in particular."""

LARGEST = "m5a.2xlarge"
SPOT_AT = 40.75
"""A quarter of a minute before the minute is over: the turn that reads the notification comes 21 s after it."""
OF_THE_INTERRUPTED_VM = (Reason.DRAINING, Reason.DRAINED)
"""After a spot interruption, these count only for the VM that was interrupted."""
OF_THE_QUEUE_RULE = (Reason.QUEUE_GREW, Reason.QUEUE_COVERED)
OF_A_SHORTAGE = (Reason.NO_CAPACITY, Reason.CAPACITY_LOST, Reason.CAPACITY_FALLBACK, Reason.CAPACITY_RETURNED)


@dataclass(frozen=True, slots=True)
class FaultTarget:
    """What faults act on: the fake AWS, its interruption queue, the site's metrics (seconds lost), the busiest VM."""

    control: CloudControl
    interruption_queue_url: str
    lose_metrics: Callable[[float], None]
    busiest: Callable[[], str | None]


Inject = Callable[[FaultTarget], str | None]
"""Injects a fault and returns the VM concerned (or NO_VM), or None when it is not possible yet."""


class Lack(StrEnum):
    """What a simulated fleet lacks during a fault: VMs of a type, measurements, AWS's answers, or one of its VMs."""

    VMS = "vms"
    MEASUREMENTS = "measurements"
    ANSWERS = "answers"
    ONE_VM = "one vm"


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """A fault as simulated fleets meet it: what they lack from one second of the hour to another.

    vm_type: of which AWS has none.
    """

    lack: Lack
    since_s: float
    until_s: float
    vm_type: str = ""

    def during(self, now_s: float) -> bool:
        """Return whether it lasts at this second."""
        return self.since_s <= now_s < self.until_s


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: injected from this minute on, as soon as `inject` succeeds; `title` is shown on the screen.

    responses: the text to show for each reason with which the agent responds to this fault. lack, minutes, vm_type: the
    same for simulated fleets; None where it costs a fleet nothing, as a call that is made again does.
    """

    minute: float
    title: str
    inject: Inject
    responses: Mapping[Reason, str] = field(default_factory=dict)
    lack: Lack | None = None
    minutes: float = 0.0
    vm_type: str = ""

    def simulated(self) -> SimulatedFault | None:
        """Return the fault as simulated fleets meet it."""
        if self.lack is None:
            return None
        since_s = self.minute * MINUTE_S
        return SimulatedFault(self.lack, since_s, since_s + self.minutes * MINUTE_S, self.vm_type)


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was injected: when (epoch seconds), and into which VM."""

    fault: Fault
    at: float
    vm: str


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """A named sequence of faults and the reasons the ledger must hold afterwards, each after the one before it.

    phases: reasons by the minute at whose end they must be there; a run that ends before does not require them. A
    fallback is not among them: a burst that takes the whole fleet leaves no other type.
    """

    name: str
    faults: tuple[Fault, ...]
    phases: tuple[tuple[float, tuple[Reason, ...]], ...]

    def required(self, minutes: float = math.inf) -> tuple[Reason, ...]:
        """Return the reasons that a run of so many minutes requires, in their order."""
        return tuple(reason for by, reasons in self.phases if by <= minutes for reason in reasons)

    def simulated(self) -> tuple[SimulatedFault, ...]:
        """Return the faults as simulated fleets meet them."""
        met = (fault.simulated() for fault in self.faults)
        return tuple(fault for fault in met if fault is not None)


def _of_aws(kind: str, **how: Any) -> Inject:
    def inject(target: FaultTarget) -> str:
        target.control.add_fault(kind, **how)
        return NO_VM

    return inject


def _capacity_error(minutes: float, at: float) -> Fault:
    inject = _of_aws("capacity", instance_type=LARGEST, duration_s=MINUTE_S * minutes)
    responses = {Reason.CAPACITY_FALLBACK: "fallback", Reason.CAPACITY_RETURNED: "asked for again"}
    return Fault(at, f"no {LARGEST} for {minutes:.0f} min", inject, responses, Lack.VMS, minutes, LARGEST)


def _metric_gap(minutes: float, at: float) -> Fault:
    def inject(target: FaultTarget) -> str:
        target.lose_metrics(MINUTE_S * minutes)
        return NO_VM

    responses = {
        Reason.METRICS_LOST: "held",
        Reason.SAFE_FLOOR: "safe floor",
        Reason.METRICS_RETURNED: "measured again",
    }
    return Fault(at, f"no measurements for {minutes:.0f} min", inject, responses, Lack.MEASUREMENTS, minutes)


def _throttling(rate: float, minutes: float, at: float) -> Fault:
    """The agent's Auto Scaling calls are throttled; the workers' calls are not."""
    whose = {"services": ["autoscaling"], "access_keys": [AGENT_KEY]}
    inject = _of_aws("throttle", rate=rate, duration_s=MINUTE_S * minutes, **whose)
    calls = "every call" if rate == 1.0 else f"{rate:.0%} of the calls"
    responses = {Reason.CLOUD_UNREADABLE: "held", Reason.THROTTLED: "tried again", Reason.DONE: "done"}
    lack = Lack.ANSWERS if rate == 1.0 else None
    return Fault(at, f"{calls} throttled for {minutes:.0f} min", inject, responses, lack, minutes)


def _spot_interruption(at: float) -> Fault:
    def inject(target: FaultTarget) -> str | None:
        vm = target.busiest()
        if vm is not None:
            try:
                target.control.spot_notice([vm], queue=target.interruption_queue_url)
            except ControlError:  # The VM has just left.
                return None
        return vm

    responses = {Reason.SPOT_INTERRUPTION: "replaced", Reason.DRAINING: "drains", Reason.DRAINED: "drained"}
    return Fault(at, "spot notice for a VM", inject, responses, Lack.ONE_VM)


def _lost_responses(count: int, at: float) -> Fault:
    """The agent's next changes of a group take effect, but the responses to them are lost."""
    inject = _of_aws("timeout_after", count=count, operations=["SetDesiredCapacity"], access_keys=[AGENT_KEY])
    responses = {Reason.UNKNOWN_OUTCOME: "read back", Reason.DONE: "found done"}
    return Fault(at, f"the next {count} answers to a change get lost", inject, responses)


PLANS: tuple[FaultPlan, ...] = (
    FaultPlan(
        "story",
        (_capacity_error(8.0, 0.0), _metric_gap(3.0, 26.0), _spot_interruption(SPOT_AT)),
        (
            (15.0, (Reason.QUEUE_GREW, Reason.NO_CAPACITY, Reason.CAPACITY_LOST, Reason.DONE)),
            (25.0, (Reason.CAPACITY_RETURNED,)),
            (40.0, (Reason.METRICS_LOST, Reason.METRICS_RETURNED)),
            (60.0, (Reason.SPOT_INTERRUPTION, Reason.DRAINING, Reason.DRAINED)),
        ),
    ),
    FaultPlan("none", (), ((15.0, (Reason.QUEUE_GREW, Reason.DONE)), (60.0, (Reason.DRAINED,)))),
    FaultPlan(
        "throttle",
        (_throttling(1.0, 5.0, 8.0), _throttling(0.33, 10.0, 15.0)),
        ((15.0, (Reason.QUEUE_GREW, Reason.CLOUD_UNREADABLE)), (30.0, (Reason.QUEUE_COVERED,))),
    ),
    FaultPlan(
        "capacity",
        (_capacity_error(30.0, 0.0),),
        ((15.0, (Reason.QUEUE_GREW, Reason.NO_CAPACITY, Reason.CAPACITY_LOST, Reason.DONE)),),
    ),
    FaultPlan("gap", (_metric_gap(6.0, 12.0),), ((30.0, (Reason.METRICS_LOST, Reason.METRICS_RETURNED)),)),
    FaultPlan(
        "spot",
        (_spot_interruption(SPOT_AT),),
        ((60.0, (Reason.SPOT_INTERRUPTION, Reason.DRAINING, Reason.DRAINED)),),
    ),
    FaultPlan(
        "timeout", (_lost_responses(2, 0.0),), ((15.0, (Reason.QUEUE_GREW, Reason.UNKNOWN_OUTCOME, Reason.DONE)),)
    ),
)


def plan_named(name: str) -> FaultPlan:
    """Return the fault plan; BadInput lists the names."""
    for plan in PLANS:
        if plan.name == name:
            return plan
    raise BadInput("--fault", name, f"choose one of: {', '.join(plan.name for plan in PLANS)}")


class FaultInjector:
    """Injects the faults of a plan when their minute has come."""

    def __init__(self, plan: FaultPlan) -> None:
        self._waiting = list(plan.faults)

    def advance(self, minute: float, now: float, target: FaultTarget) -> tuple[InjectedFault, ...]:
        """Inject what is due and return it. A fault that is not possible yet is tried again at the next call."""
        injected = []
        for fault in [fault for fault in self._waiting if fault.minute <= minute]:
            vm = fault.inject(target)
            if vm is not None:
                self._waiting.remove(fault)
                injected.append(InjectedFault(fault, now, vm))
        return tuple(injected)


def required_reasons(plan: FaultPlan, policy: str, minutes: float = math.inf) -> tuple[Reason, ...]:
    """Return the reasons that the ledger must hold under this policy after a run of so many minutes.

    A learned policy gives a reason of its own. Whether it requests the type that AWS has run out of is its choice: its
    action mask shows the shortage, and it can take another type before any rail does.
    """
    if not names_model(policy):
        return plan.required(minutes)
    required = (
        Reason.LEARNED if r in OF_THE_QUEUE_RULE else r for r in plan.required(minutes) if r not in OF_A_SHORTAGE
    )
    return tuple(dict.fromkeys(required))


@dataclass(frozen=True, slots=True)
class RecordedReason:
    """A reason in the ledger, when (epoch seconds), and its subject, such as a VM ("": none)."""

    reason: Reason
    at: float
    subject: str = ""


def missing(required: Sequence[Reason], recorded: Sequence[RecordedReason]) -> tuple[Reason, ...]:
    """Return the required reasons that the ledger does not hold in their order; within a turn any order will do.

    A reason that is absent does not hide those after it.
    """
    absent, since = [], float("-inf")
    interrupted = NO_VM
    for reason in required:
        subject = interrupted if reason in OF_THE_INTERRUPTED_VM else NO_VM
        found = next(
            (r for r in recorded if r.reason is reason and r.at >= since and subject in (NO_VM, r.subject)), None
        )
        if found is None:
            absent.append(reason)
            continue
        since = found.at
        if reason is Reason.SPOT_INTERRUPTION:
            interrupted = found.subject
    return tuple(absent)


def recorded_reasons(journal: Sequence[JournalEntry]) -> list[RecordedReason]:
    """Return every reason in the journal, those of the rails included.

    A fallback counts only where it led to an intent: one that another rail held in the same turn is left out.
    """
    acted = {entry.ref.rpartition(".")[0] for entry in journal if entry.kind is Kind.INTENT}
    recorded = []
    for entry in journal:
        reasons = [entry.reason]
        if entry.kind is Kind.DECISION:
            reasons += [effect["reason"] for effect in entry.body["effects"] if effect["reason"]]
            if entry.ref not in acted:
                reasons = [reason for reason in reasons if reason != Reason.CAPACITY_FALLBACK]
        known = dict.fromkeys(reason for reason in reasons if reason in Reason._value2member_map_)
        recorded += [RecordedReason(Reason(reason), entry.at, entry.ref) for reason in known]
    return recorded
