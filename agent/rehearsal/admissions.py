"""The dry run's section on admission: deployments request to enter a cluster, and the real gate admits them or not.

The owners of the groups create, tag, resize and delete them through the API of a fresh fake AWS; the agent knows only
what AWS shows it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent.admission.decision import AdmissionPart
from agent.admission.gate.records import ADMISSION, ADMITTED, PENDING, REQUESTED, group_records
from agent.admission.state import AdmissionStore
from agent.rehearsal.scenario import (
    LEDGER,
    ORIGIN,
    OWNER_KEY,
    ZONES,
    aws_client,
    shown_path,
)
from agent.rehearsal.sections import OnEvent, Section, SectionResult, agent_at, cloud_at
from agent.service.assembly import Agent
from collectors.tagged_groups import CLUSTER
from domain.decisions import Reason
from domain.rules.admission.population import POPULATIONS, Population
from domain.units import HOUR_S
from simulator.aws.client import CloudControl

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

    def notes(self) -> list[str]:
        """Return one refusal of each kind, with what its decision says."""
        return [f"{reason}, for example {decision}: {detail}" for reason, decision, detail in self.refusals()]

    def refusals(self) -> list[tuple[str, str, str]]:
        """Return reason, decision and its sentence, of one refusal of each kind."""
        reasons = sorted({*self.refused, *self.advised} - {Reason.ADMITTED.value})
        return [(reason, self.examples[reason], self.details[reason]) for reason in reasons]

    def explained(self) -> str:
        """Return the id of a refusal, where there is one."""
        refusals = self.refusals()
        return refusals[0][1] if refusals else super(AdmissionResult, self).explained()

    def brief(self) -> str:
        """Return the result in a line, with its figure."""
        return (
            f"{self.admitted} of {self.asked} deployments admitted, peak {self.peak_cores} of {self.capacity_cores} "
            f"vCPUs ({self.hours} h)"
        )


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
            wanted = self.demand.desired(one, serving) if answer == ADMITTED and serving else 0
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

    Raises RuntimeError when this process already serves a simulated AWS, ConfigurationError for wrong settings,
    LedgerUnavailable when the directory is in use.
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
    with cloud_at(start, seed) as endpoint:
        control = CloudControl(endpoint)
        control.set_quota(QUOTA, QUOTA_CORES)
        template = {"ImageId": "ami-12c6146b", "InstanceType": VM_TYPE}
        aws_client("ec2", endpoint, OWNER_KEY).create_launch_template(
            LaunchTemplateName=VM_TYPE, LaunchTemplateData=template
        )
        groups = aws_client("autoscaling", endpoint, OWNER_KEY)
        owners = Owners(groups, control, Demand(POPULATIONS[PRESET], VM_CORES, DEPLOYMENTS_PER_HOUR, seed))
        with agent_at(start, directory, endpoint, mode, given) as (agent, clock):
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


SECTION = Section(
    play_admissions,
    shown=frozenset(
        {
            Reason.ADMITTED,
            Reason.REJECTED_FEASIBILITY,
            Reason.REJECTED_PLACEMENT,
            Reason.REJECTED_RULE,
            Reason.REJECTED_UNSAFE,
            Reason.REJECTED_INPUT,
            Reason.NO_CAPACITY,
            Reason.OBSERVE_MODE,
        }
    ),
    in_lines=frozenset({Reason.ADMITTED}),
    acts_only=True,
)
