"""The dry run's sections on admission and oversubscription: the real agent on a virtual clock, turn by turn an hour.

Admission: deployments request to enter a cluster, and the real gate admits them or not. The owners of the groups
create, tag, resize and delete them through the API of a fresh fake AWS; the agent knows only what AWS shows it.
Oversubscription: nine days of a pool whose rates fall, then a surge, then a rollback. The VMs report by Graphite lines
into the sink of the agent's listener, an allocator requests the rate of every new VM, and a fake AWS holds the
parameter.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from agent.admission.gate.records import ADMISSION, PENDING, REQUESTED, group_records
from agent.admission.part import AdmissionPart
from agent.admission.store import AdmissionStore
from agent.autoscaling.part import AutoscalingPart
from agent.oversubscription.part import OversubscriptionPart
from agent.oversubscription.pool import Pool
from agent.oversubscription.records import RateRequest, Vm
from agent.rehearsal.scenario import (
    AGENT_KEY,
    LEDGER,
    ORIGIN,
    OWNER_KEY,
    SECRET,
    ZONES,
    aws_client,
    aws_environment,
    shown_path,
    shown_program,
)
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.settings import load_settings
from collectors.tagged_groups import CLUSTER
from domain.clock import VirtualClock
from domain.decisions import Event, Reason
from domain.rules.admission.population import POPULATIONS, Population
from domain.samples import PREFIX, VmMetric
from domain.units import HOUR_S
from simulator.aws.client import CloudControl
from simulator.aws.process import start_process

STAGING: Final = "staging"
"""The cluster."""
HOURS_SHOWN: Final = 24
QUOTA: Final = "L-1216C47A"
QUOTA_CORES: Final = 256
VM_TYPE: Final = "m5a.xlarge"
VM_CORES: Final = 4
LARGEST: Final = 60
DEPLOYMENTS_PER_HOUR: Final = 1.5
PRESET: Final = "T"
LAST_TURNS: Final = 2
"""One that reads the final sizes of the last groups, one that reads their tags."""
SHORTAGE_S: Final = 2.0 * HOUR_S

RESEARCH: Final = "research"
"""The pool."""
NINE_DAYS_H: Final = 216
SURGE_AT, SURGE_H = 204, 5
MACHINES: Final = 12
MACHINE_CORES, MACHINE_MEMORY_GB = 48.0, 384.0
PARAMETER: Final = f"/trimtab/oversubscription/{RESEARCH}"
SIZES, SHARES = (2.0, 4.0, 8.0), (0.4, 0.4, 0.2)
INVENTORY_HEADER: Final = "vm,subscriber,machine,cores,memory_gb,network_gbit,rate"
LIFE_H: Final = 40.0
VMS_PER_HOUR: Final = 1.2
READINGS_PER_HOUR: Final = 4
LASTING: Final = frozenset({Reason.MACHINE_HOT, Reason.MACHINE_WARM})
LEVELS: Final[Mapping[str, tuple[float, float]]] = {
    "web": (0.20, 0.08),
    "batch": (0.30, 0.10),
    "guests": (0.15, 0.05),
}
"""Mean and spread of usage by subscriber; guests are external, and never oversubscribed."""
SURGE: Final = 0.8

OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionResult(ABC):
    """The result of a section, and where to ask about it. examples: the id of the last decision of each kind."""

    kind: ClassVar[str]
    question: ClassVar[str]
    """What `next_command` answers."""

    hours: int
    examples: Mapping[str, str]
    ledger: str
    program: str = field(default_factory=shown_program)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": self.kind, **asdict(self), "next": [self.next_command()]}

    def next_command(self) -> str:
        """Return a command that explains a decision, as it is typed where this one was."""
        return f"{shlex.quote(self.program)} explain {self.explained()} --ledger {shlex.quote(self.ledger)}"

    def explained(self) -> str:
        """Return the id of the decision to explain."""
        return next(iter(self.examples.values()), "last")

    @abstractmethod
    def sentence(self) -> str:
        """Return the result in one sentence."""


@contextmanager
def agent_at(
    start: float, directory: Path, endpoint: str, mode: str, given: Mapping[str, str]
) -> Iterator[tuple[Agent, VirtualClock]]:
    """Run an agent with these settings, as environment variables, on a virtual clock, for the block."""
    clock = VirtualClock(start)
    settings = load_settings({**aws_environment(directory, endpoint, mode), **given})
    with assembled(settings, clock, AwsKeys(AGENT_KEY, SECRET)) as agent:
        yield agent, clock


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionResult(SectionResult):
    """The result of the section on admission, by reason: deployments refused, examples and what they say.

    advised: the decisions that the agent in observe mode only advised; those deployments stay pending.
    """

    kind = "admission"
    question = "why one was refused"

    cluster: str
    capacity_cores: int
    asked: int
    admitted: int
    refused: Mapping[str, int]
    advised: Mapping[str, int]
    waiting: int
    peak_cores: int
    scale_outs: int
    scale_outs_refused: int
    details: Mapping[str, str]

    def refusals(self) -> list[tuple[str, str, str]]:
        """Return reason, decision and its sentence, of one refusal of each kind."""
        reasons = sorted({*self.refused, *self.advised} - {Reason.ADMITTED.value})
        return [(reason, self.examples[reason], self.details[reason]) for reason in reasons]

    def explained(self) -> str:
        """Return the id of a refusal, where there is one."""
        refusals = self.refusals()
        return refusals[0][1] if refusals else super(AdmissionResult, self).explained()

    def sentence(self) -> str:
        """Return the result in one sentence."""
        waiting = f"; {self.waiting} still wait" if self.waiting else ""
        if self.advised:
            waiting += f", as the agent only observes; its advice: {_counted(self.advised)}"
        return (
            f"{self.hours} hours of the cluster {self.cluster} of {self.capacity_cores} vCPUs: of {self.asked} "
            f"deployments, {self.admitted} were admitted, {sum(self.refused.values())} refused "
            f"({_counted(self.refused)}){waiting}; at most {self.peak_cores} vCPUs were in use; of {self.scale_outs} "
            f"requests to scale out, AWS refused {self.scale_outs_refused}"
        )


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "none"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment that requests admission: its name, the VMs it begins with, and its parameters (rates per hour)."""

    name: str
    vms: int
    core_death_rate: float
    scale_out_rate: float
    extra_cores: float
    shutdown_rate: float


class Demand:
    """Draws deployments from a seed: those that arrive in an hour, and how those inside change in it.

    They follow the model that the cluster assumes (admission specification §2), in whole VMs; an hour is one step.
    """

    def __init__(self, population: Population, vm_cores: int, arrivals_per_hour: float, seed: int) -> None:
        self._population, self._vm_cores, self._arrivals = population, vm_cores, arrivals_per_hour
        self._random = np.random.default_rng([seed, 7])
        self._count = 0

    def arrivals(self) -> list[Deployment]:
        """Return the deployments that arrive in the next hour."""
        return [self._deployment() for _ in range(int(self._random.poisson(self._arrivals)))]

    def desired(self, one: Deployment, vms: int) -> int:
        """Return how many VMs a deployment with `vms` wants an hour later, 0 when it has ended."""
        if self._random.random() < -math.expm1(-one.shutdown_rate):
            return 0
        left = int(self._random.binomial(vms, math.exp(-one.core_death_rate)))
        if left == 0:
            return 0
        return left + sum(self._request(one.extra_cores) for _ in range(int(self._random.poisson(one.scale_out_rate))))

    def _deployment(self) -> Deployment:
        law, random = self._population, self._random
        mu = float(random.gamma(law.mu_shape, 1.0 / law.mu_rate))
        lam = float(random.gamma(law.lam_shape, 1.0 / law.lam_rate))
        extra = float(random.gamma(law.sig_shape, 1.0 / law.sig_rate))
        self._count += 1
        vms = self._request(extra)
        return Deployment(f"batch-{self._count:02d}", vms, mu, lam * mu**law.power, extra, mu / law.lifetimes)

    def _request(self, extra_cores: float) -> int:
        """Return a request of 1 + Poisson(extra) cores as VMs, rounded up."""
        return math.ceil((1 + int(self._random.poisson(extra_cores))) / self._vm_cores)


@dataclass(slots=True)
class Owners:
    """The owners of the groups: each resizes or deletes its group as its deployment requires."""

    groups: Any
    control: CloudControl
    demand: Demand
    inside: dict[str, Deployment] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def create_arrivals(self) -> None:
        """Create the groups of the deployments that arrive in this hour."""
        for one in self.demand.arrivals():
            tags = {CLUSTER: STAGING, ADMISSION: PENDING, REQUESTED: str(one.vms)}
            self.groups.create_auto_scaling_group(
                AutoScalingGroupName=one.name,
                LaunchTemplate={"LaunchTemplateName": VM_TYPE, "Version": "$Latest"},
                MinSize=0,
                MaxSize=max(LARGEST, one.vms),
                DesiredCapacity=0,
                AvailabilityZones=list(ZONES),
                Tags=[{"Key": key, "Value": value, "PropagateAtLaunch": False} for key, value in tags.items()],
            )
            self.inside[one.name] = one

    def change(self) -> None:
        """Let an hour of changes happen: groups grow, shrink and end, and those that were refused are deleted."""
        pages = self.groups.get_paginator("describe_auto_scaling_groups").paginate()
        described = {group["AutoScalingGroupName"]: group for page in pages for group in page["AutoScalingGroups"]}
        for name, one in list(self.inside.items()):
            group = described[name]
            answer = next((tag["Value"] for tag in group["Tags"] if tag["Key"] == ADMISSION), PENDING)
            if answer == PENDING:
                continue
            serving = sum(vm["LifecycleState"] == "InService" for vm in group["Instances"])
            wanted = self.demand.desired(one, serving) if answer == "admitted" and serving else 0
            if wanted:
                self._resize(name, group["DesiredCapacity"], serving, wanted)
            else:
                self.groups.delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
                del self.inside[name]
                self.sizes.pop(name, None)

    def _resize(self, name: str, desired: int, serving: int, wanted: int) -> None:
        self.sizes[name] = serving
        if wanted > serving and (sum(self.sizes.values()) + wanted - serving) * VM_CORES > QUOTA_CORES:
            # The fake AWS does not enforce quotas: the error for a request beyond the quota is injected here.
            self.control.add_fault("capacity", instance_type=VM_TYPE, duration_s=SHORTAGE_S)
        if wanted != desired:
            self.groups.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=min(wanted, LARGEST))


def play_admissions(
    directory: Path,
    seed: int,
    mode: str,
    overrides: Mapping[str, str],
    on_event: OnEvent,
    *,
    hours: int = HOURS_SHOWN,
    start: float = ORIGIN + HOUR_S,
) -> AdmissionResult:
    """Run the hours and return the result; `on_event` is called with every event of the cluster.

    Raises RuntimeError when the fake AWS does not start, ConfigurationError for wrong settings, LedgerUnavailable when
    the directory is in use.
    """
    cluster = f"TRIMTAB_CLUSTERS__{STAGING}__"
    given = {
        "TRIMTAB_AWS__CALLS_PER_MINUTE": "1000",
        f"{cluster}CAPACITY_CORES": str(QUOTA_CORES),
        f"{cluster}TAGGED_GROUPS": "true",
        f"{cluster}QUOTA_CODE": QUOTA,
        f"{cluster}PRESET": PRESET,
        **{name: text for name, text in overrides.items() if name.startswith(("TRIMTAB_CLUSTERS", "TRIMTAB_AWS"))},
    }
    with start_process(["--virtual", repr(start), "--seed", str(seed)]) as process:
        control = CloudControl(process.endpoint)
        control.set_quota(QUOTA, QUOTA_CORES)
        template = {"ImageId": "ami-12c6146b", "InstanceType": VM_TYPE}
        aws_client("ec2", process.endpoint, OWNER_KEY).create_launch_template(
            LaunchTemplateName=VM_TYPE, LaunchTemplateData=template
        )
        groups = aws_client("autoscaling", process.endpoint, OWNER_KEY)
        owners = Owners(groups, control, Demand(POPULATIONS[PRESET], VM_CORES, DEPLOYMENTS_PER_HOUR, seed))
        with agent_at(start, directory, process.endpoint, mode, given) as (agent, clock):
            peak = 0
            for _ in range(hours):
                owners.create_arrivals()
                for event in agent.turn().events:
                    on_event(event)
                peak = max(peak, agent.part(AdmissionPart).clusters[STAGING].gauges(clock.now()).total_cores)
                control.advance(HOUR_S)
                clock.advance(HOUR_S)
                owners.change()
            for _ in range(LAST_TURNS):
                for event in agent.turn().events:
                    on_event(event)
            return _admissions(agent, hours, peak, clock.now(), shown_path(directory / LEDGER))


def _admissions(agent: Agent, hours: int, peak: int, now: float, ledger: str) -> AdmissionResult:
    service = agent.part(AdmissionPart).clusters[STAGING]
    made = service.newest(10_000)
    decisions = [decision for decision in made if not decision.advice]
    refused = [decision for decision in decisions if not decision.admit]
    decided = {decision.deployment_id for decision in decisions}
    advice = {one.deployment_id: one for one in reversed(made) if one.advice and one.deployment_id not in decided}
    kinds = Counter(event.kind.value for event in AdmissionStore(agent.ledger).events_since(STAGING, 0.0))
    newest = {decision.reason.value: decision for decision in reversed(made)}
    return AdmissionResult(
        cluster=STAGING,
        hours=hours,
        capacity_cores=service.gauges(now).capacity_cores,
        asked=len(decisions) + len(advice),
        admitted=len(decisions) - len(refused),
        refused=dict(Counter(decision.reason.value for decision in refused)),
        advised=dict(Counter(decision.reason.value for decision in advice.values())),
        waiting=sum(record.open for record in group_records(agent.ledger).read()[0].values()) + len(advice),
        peak_cores=peak,
        scale_outs=kinds["scaled"] + kinds["refused"],
        scale_outs_refused=kinds["refused"],
        examples={reason: decision.decision_id for reason, decision in newest.items()},
        details={reason: decision.detail for reason, decision in newest.items()},
        ledger=ledger,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OversubscriptionResult(SectionResult):
    """The result of the section on oversubscription."""

    kind = "oversubscription"
    question = "why a rate is what it is"

    pool: str
    machines: int
    requests: int
    saved_share: float
    lowest: Mapping[str, float]
    final: Mapping[str, float]
    shielded: int
    rejected: int
    happened: Mapping[str, int]
    hot_hours: int
    peak_machines: int
    published: str

    def sentence(self) -> str:
        """Return the result in one sentence."""
        lowest = ", ".join(f"{name} {rate:g}" for name, rate in self.lowest.items())
        final = ", ".join(f"{name} {rate:g}" for name, rate in self.final.items())
        return (
            f"{self.hours} hours of the pool {self.pool} of {self.machines} machines: {self.requests} rate requests, "
            f"{self.saved_share:.0%} of the cores were not reserved, the shield raised {self.shielded} rates; lowest "
            f"rates: {lowest}; a surge made {self.hot_hours} hours hot, after which the rates are: {final}; "
            f"published: {self.published or 'nothing'}"
        )


class Allocator:
    """Places the VMs: requests each rate, follows the response, and writes the inventory."""

    def __init__(self, agent: Agent, inventory: Path, clock: VirtualClock, seed: int) -> None:
        self.vms: dict[str, tuple[Vm, float]] = {}
        self._agent, self._inventory, self._clock = agent, inventory, clock
        self._draws = np.random.default_rng(seed)
        self._own: dict[str, float] = {}
        self._count = 0
        self._sink = agent.part(OversubscriptionPart).sink(agent.part(AutoscalingPart).series)

    @property
    def pool(self) -> Pool:
        """The agent's pool."""
        return self._agent.part(OversubscriptionPart).pools[RESEARCH]

    def play(self, hour: int) -> None:
        """Play an hour: VMs end, others arrive, each reports."""
        now = self._clock.now()
        self.vms = {name: held for name, held in self.vms.items() if held[1] > now}
        for subscriber in LEVELS:
            for _ in range(int(self._draws.poisson(VMS_PER_HOUR))):
                self._arrive(subscriber, now)
        rows = [
            f"{v.vm},{v.subscriber},{v.machine},{v.cores:g},{v.memory_gb:g},0,{v.rate:g}" for v, _ in self.vms.values()
        ]
        self._inventory.write_text("\n".join([INVENTORY_HEADER, *rows]) + "\n", "utf-8")
        self._report(hour, now)

    def touch(self) -> None:
        """Set the inventory's modification time to the virtual clock's."""
        now = self._clock.now()
        os.utime(self._inventory, (now, now))

    def _arrive(self, subscriber: str, now: float) -> None:
        self._count += 1
        cores = float(self._draws.choice(SIZES, p=SHARES))
        name = f"vm-{self._count}"
        request = RateRequest(RESEARCH, subscriber, cores, 4.0 * cores, 0.0, name, name, "dry run")
        response = self.pool.request(request)
        if not response.machine:
            return
        vm = Vm(name, subscriber, response.machine, cores, 4.0 * cores, 0.0, response.rate)
        self.vms[name] = (vm, now + HOUR_S * float(self._draws.exponential(LIFE_H)))
        self._own[name] = float(self._draws.normal())

    def _report(self, hour: int, now: float) -> None:
        surging = SURGE_AT <= hour < SURGE_AT + SURGE_H
        for step in range(READINGS_PER_HOUR):
            at = now + 60.0 + step * HOUR_S / (READINGS_PER_HOUR + 1)
            paths, values = [], []
            for vm, _ in self.vms.values():
                level, spread = LEVELS[vm.subscriber]
                own = 0.9 * self._own[vm.vm] + 0.4 * float(self._draws.normal())
                share = SURGE if surging and vm.subscriber != "guests" else level + spread * own
                paths.append(f"{PREFIX}.{RESEARCH}.{vm.subscriber}.{vm.vm}.{VmMetric.CPU_PERCENT}".encode())
                values.append(100.0 * min(max(share, 0.0), 1.0))
            self._sink.append(paths, values, [at] * len(paths), at)


def play_oversubscription(
    directory: Path,
    seed: int,
    mode: str,
    overrides: Mapping[str, str],
    on_event: OnEvent,
    *,
    hours: int = NINE_DAYS_H,
) -> OversubscriptionResult:
    """Run the hours and return the result; `on_event` is called with every event of the pool.

    Raises RuntimeError when the fake AWS does not start, ConfigurationError for wrong settings, LedgerUnavailable when
    the directory is in use.
    """
    start = ORIGIN // HOUR_S * HOUR_S
    inventory = directory / "inventory.csv"
    inventory.write_text(INVENTORY_HEADER + "\n", "utf-8")
    lowest = dict.fromkeys(LEVELS, 1.0)
    happened: Counter[str] = Counter()
    shown: set[tuple[Reason, str]] = set()
    pool = f"TRIMTAB_POOLS__{RESEARCH}__"
    given = {
        f"{pool}MACHINES": str(MACHINES),
        f"{pool}MACHINE_CORES": str(MACHINE_CORES),
        f"{pool}MACHINE_MEMORY_GB": str(MACHINE_MEMORY_GB),
        f"{pool}INVENTORY_FILE": str(inventory),
        f"{pool}PARAMETER": PARAMETER,
        f"{pool}SUBSCRIBERS__web__INTERNAL": "true",
        f"{pool}SUBSCRIBERS__batch__INTERNAL": "true",
        f"{pool}SUBSCRIBERS__guests__INTERNAL": "false",
        **{name: text for name, text in overrides.items() if name.startswith(pool)},
    }
    with (
        start_process(["--virtual", repr(start), "--seed", str(seed)]) as process,
        agent_at(start, directory, process.endpoint, mode, given) as (agent, clock),
    ):
        allocator = Allocator(agent, inventory, clock, seed)
        allocator.touch()
        agent.turn()
        for hour in range(hours):
            allocator.play(hour)
            clock.advance(HOUR_S if hour else HOUR_S + 60.0)
            allocator.touch()
            for event in agent.turn().events:
                happened[event.reason.value] += 1
                # A machine that stays hot has an event each hour; the first is shown.
                if (event.reason, event.subject) not in shown or event.reason not in LASTING:
                    on_event(event)
                shown.add((event.reason, event.subject))
            decision = allocator.pool.hour
            for row in decision.subscribers if decision is not None else ():
                lowest[row.subscriber] = min(lowest.get(row.subscriber, 1.0), row.rate)
        return _rates(agent, hours, lowest, happened, shown_path(directory / LEDGER))


def _rates(
    agent: Agent, hours: int, lowest: Mapping[str, float], happened: Counter[str], ledger: str
) -> OversubscriptionResult:
    pool = agent.part(OversubscriptionPart).pools[RESEARCH]
    view = pool.view()
    counts, decision = view.counts, view.decision
    record = view.publication
    published = json.loads(record.value)["decision"] if record is not None else ""
    newest = pool.store.newest(RESEARCH, 500, "request")
    examples = {"hour": decision.decision_id} if decision is not None else {}
    for one in reversed(newest):
        for reason in getattr(one, "reasons", ()):
            examples[str(reason)] = one.decision_id
    return OversubscriptionResult(
        pool=RESEARCH,
        hours=hours,
        machines=MACHINES,
        requests=counts.requests,
        saved_share=counts.saved_cores / counts.requested_cores if counts.requested_cores else 0.0,
        lowest=dict(lowest),
        final={row.subscriber: row.rate for row in decision.subscribers} if decision is not None else {},
        shielded=counts.interventions,
        rejected=counts.rejects,
        happened=dict(happened),
        hot_hours=counts.realised_hot_hours,
        peak_machines=counts.peak_machines,
        published=f"{published} in {PARAMETER}" if published else "",
        examples=examples,
        ledger=ledger,
    )
