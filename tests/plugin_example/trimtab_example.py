"""A package that plugs into Trimtab: a policy, a collector, an actuator and a decision, each with its own settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from agent.sdk import (
    Act,
    ActuatorHost,
    ActuatorKind,
    ChangingCall,
    CloudError,
    CollectorHost,
    CollectorKind,
    Decision,
    Direction,
    Event,
    Fenced,
    Fleet,
    Held,
    Intent,
    Inventory,
    Memory,
    Observation,
    Observed,
    Outcome,
    Part,
    Permit,
    Proposal,
    QueueMetric,
    QueueSeries,
    Reason,
    Report,
    Sample,
    Snapshot,
    achieved,
    change,
    spelled,
)


class SteadySettings(BaseModel):
    """TRIMTAB_STEADY__SIZE: VMs of each group."""

    size: int = Field(1, ge=0, le=1000)


@dataclass(frozen=True, slots=True)
class SteadyPolicy:
    """Keeps the same number of VMs in every group; its fields are its parameters."""

    settings_model: ClassVar[type[BaseModel]] = SteadySettings
    needs: ClassVar[tuple[str, ...]] = ("queue",)

    size: int = 1

    @property
    def name(self) -> str:
        """Name and parameters, which the ledger records and `trimtab replay` reads back."""
        return spelled("steady", self)

    def decide(self, fleet: Fleet, snapshot: Snapshot, memory: Memory) -> tuple[Proposal, Memory]:
        """Propose the size within each group's bounds."""
        desired = tuple(max(group.minimum, min(group.maximum, self.size)) for group in fleet.groups)
        return Proposal(fleet.name, self.name, desired, Reason.NOTHING_TO_DO, "the size of the settings"), memory


class BacklogSettings(BaseModel):
    """TRIMTAB_BACKLOG__WAITING: jobs reported as waiting; not set: nothing is reported."""

    waiting: float | None = Field(None, ge=0)


class BacklogCollector:
    """Reports a fixed number of waiting jobs for one fleet."""

    interval_s, timeout_s = 5.0, 1.0

    def __init__(self, fleet: str, waiting: float) -> None:
        self.name, self._fleet, self._waiting = f"backlog:{fleet}", fleet, waiting

    def collect(self, now: float) -> list[Sample]:
        """Return the queue as it is set."""
        values = {QueueMetric.WAITING: self._waiting, QueueMetric.RUNNING: 0.0}
        return [Sample(QueueSeries(self._fleet, metric), value, now) for metric, value in values.items()]


def backlog(host: CollectorHost) -> Iterator[BacklogCollector]:
    """Yield the collector of a fleet where the settings ask for one."""
    assert isinstance(host.own, BacklogSettings)
    if host.own.waiting is not None:
        yield BacklogCollector(host.fleet.name, host.own.waiting)


BACKLOG = CollectorKind(backlog, BacklogSettings)


class GrowOnly:
    """Raises desired capacities and never lowers one."""

    def __init__(self, host: ActuatorHost) -> None:
        self._session, self._inventory = host.session, Inventory(host.session)
        self._fleets = {fleet.name: fleet for fleet in host.fleets}

    def observe(self, fleets: Sequence[Fleet], now: float) -> Observed:
        """Read every group."""
        self._fleets = {fleet.name: fleet for fleet in fleets}
        return self._inventory.observe([group.name for fleet in fleets for group in fleet.groups], now)

    def apply(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Set the desired capacity, once; whatever stops the call becomes an outcome."""
        report, fleet = Report(intent, now), self._fleets[intent.fleet]
        group = fleet.groups[fleet.index(intent.group)]
        if intent.direction is not Direction.OUT:
            return report.ended(Reason.GROUP_UNSUPPORTED, 0, "this actuator removes no VM")
        call = ChangingCall(Act.LAUNCH, intent.fleet, intent.group, intent)
        size = {"AutoScalingGroupName": group.name, "DesiredCapacity": intent.target}
        try:
            change(self._session, permit, call, "autoscaling", "SetDesiredCapacity", **size)
        except Held as held:
            return report.refused(held.refusal, 0)
        except Fenced as fenced:
            return report.waiting(Reason.NOT_LEADER, 0, str(fenced))
        except CloudError as error:
            return report.after(error, 0, group.vm_type.name)
        return report.waiting(Reason.ACCEPTED, 0, f"{group.name} grows to {intent.target}")

    def follow(self, intent: Intent, observed: Observed, now: float, permit: Permit) -> Outcome:
        """Look for the VMs; send again what was not taken, until the deadline."""
        fleet = self._fleets[intent.fleet]
        seen = observed.groups.get(fleet.groups[fleet.index(intent.group)].name)
        done = achieved(intent, seen) if seen is not None else 0
        if seen is not None and len(seen.serving) >= intent.target:
            return Report(intent, now).done(f"{seen.name} holds {len(seen.serving)} VMs")
        if now >= intent.deadline_at:
            return Report(intent, now).ended(Reason.OVERDUE, done, "the VMs did not come in time")
        if seen is not None and seen.desired < intent.target:
            return self.apply(intent, observed, now, permit)
        return Report(intent, now).waiting(Reason.ACCEPTED, done, "the VMs are on their way")

    def clock_stepped(self, step_s: float) -> None:
        """Keep no times."""

    def tend(
        self, fleet: Fleet, observed: Observed, busy_cores: Mapping[str, float | None], now: float, permit: Permit
    ) -> tuple[Event, ...]:
        """Do nothing between decisions."""
        return ()


GROW_ONLY = ActuatorKind(GrowOnly)


class LunchSettings(BaseModel):
    """TRIMTAB_LUNCH__MENU: what is served."""

    menu: str = "soup"


class LunchPart(Part):
    """Decides in every turn what the table `kitchen` is served, nothing while it is paused."""

    name = "lunch"
    subject_word = "table"
    settings_model = LunchSettings

    def subjects(self) -> tuple[str, ...]:
        """Return the one table."""
        return ("kitchen",)

    def decide(self, subject: str, seen: Observation, previous: Mapping[str, Any]) -> Decision:
        """Serve what the settings name."""
        return Decision({"menu": seen.settings.menu}, str(seen.settings.menu))
