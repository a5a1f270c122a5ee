"""The dry run's section on admission: deployments ask a cluster to come in, and the real gate lets them or not.

A fresh fake AWS on a virtual clock, an hour between two turns of the real agent. The owners of the groups make them,
tag them, resize and delete them through AWS's API, as people would; the agent knows nothing but what AWS shows it.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import boto3

from agent.admission.gate.records import ADMISSION, PENDING, REQUESTED
from agent.rehearsal.admission_demand import Demand, Newcomer
from agent.rehearsal.cloud import AGENT_KEY, OWNER_KEY, REGION, SECRET, ZONES
from agent.rehearsal.run import LEDGER, shown_path, shown_program
from agent.rehearsal.scenario import ORIGIN
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.settings import load_settings
from collectors.clusters import CLUSTER
from domain.clock import VirtualClock
from domain.decisions import Event, Reason
from domain.rules.admission.population import POPULATIONS
from simulator.aws.client import CloudControl
from simulator.aws.process import start_process

NAME: Final = "staging"
HOURS: Final = 24
HOUR_S: Final = 3600.0
QUOTA: Final = "L-1216C47A"
QUOTA_CORES: Final = 256
VM_TYPE: Final = "m5a.xlarge"
VM_CORES: Final = 4
LARGEST: Final = 60
ARRIVALS_PER_HOUR: Final = 1.5
PRESET: Final = "T"
TURNS_TO_SETTLE: Final = 2
"""One that finds the last groups at their size, one that finds their tags."""
SHORTAGE_S: Final = 2.0 * HOUR_S


@dataclass(frozen=True, slots=True)
class Admissions:
    """What came of the section. examples: the id of a decision of each reason, the last of its kind.

    advised: what the agent, while it only observes, would have answered, by reason; those deployments wait.
    """

    cluster: str
    hours: int
    capacity_cores: int
    asked: int
    admitted: int
    refused: Mapping[str, int]
    advised: Mapping[str, int]
    waiting: int
    peak_cores: int
    scale_outs: int
    scale_outs_refused: int
    examples: Mapping[str, str]
    details: Mapping[str, str]
    ledger: str
    program: str

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": "admission", **asdict(self), "next": [self.next_command()]}

    def refusals(self) -> list[tuple[str, str, str]]:
        """Return reason, decision and its sentence, of one refusal of each kind."""
        reasons = sorted({*self.refused, *self.advised} - {Reason.ADMITTED.value})
        return [(reason, self.examples[reason], self.details[reason]) for reason in reasons]

    def next_command(self) -> str:
        """Return a command that tells why somebody was refused, as it is typed where this one was."""
        ids = [decision_id for _, decision_id, _ in self.refusals()] or list(self.examples.values()) or ["last"]
        return f"{shlex.quote(self.program)} explain {ids[0]} --ledger {shlex.quote(self.ledger)}"

    def sentence(self) -> str:
        """Return what happened in one sentence."""
        reasons = _counted(self.refused)
        waiting = f"; {self.waiting} still wait" if self.waiting else ""
        if self.advised:
            waiting += f", as the agent only observes; its advice: {_counted(self.advised)}"
        return (
            f"{self.hours} hours before the cluster {self.cluster} of {self.capacity_cores} vCPUs: {self.asked} "
            f"deployments asked, {self.admitted} came in, {sum(self.refused.values())} were refused ({reasons})"
            f"{waiting}; at most {self.peak_cores} vCPUs were taken; of {self.scale_outs} requests for more, "
            f"AWS refused {self.scale_outs_refused}"
        )


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "none"


@dataclass(slots=True)
class Owners:
    """Who owns the groups: each does with its own what its deployment needs, and notices what AWS did not give."""

    groups: Any
    control: CloudControl
    demand: Demand
    inside: dict[str, Newcomer] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def arrive(self) -> None:
        """Make the groups of those who arrive in this hour."""
        for one in self.demand.arrivals():
            tags = {CLUSTER: NAME, ADMISSION: PENDING, REQUESTED: str(one.vms)}
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

    def live(self) -> None:
        """Let an hour pass inside: grow, shrink, end; what was refused goes away."""
        described = self._described()
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
            # The look-alike counts no quota: AWS's answer to what exceeds it is made here.
            self.control.add_fault("capacity", instance_type=VM_TYPE, duration_s=SHORTAGE_S)
        if wanted != desired:
            size = min(wanted, LARGEST)
            self.groups.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=size)

    def _described(self) -> dict[str, Any]:
        pages = self.groups.get_paginator("describe_auto_scaling_groups").paginate()
        return {group["AutoScalingGroupName"]: group for page in pages for group in page["AutoScalingGroups"]}


def settings_of(directory: Path, endpoint: str, mode: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the section's settings as the environment variables an operator would set."""
    cluster = f"TRIMTAB_CLUSTERS__{NAME}__"
    values = {
        "TRIMTAB_MODE": mode,
        "TRIMTAB_STATE_DIRECTORY": str(directory),
        "TRIMTAB_LISTENER__PORT": "0",
        "TRIMTAB_AWS__REGION": REGION,
        "TRIMTAB_AWS__ENDPOINT_URL": endpoint,
        "TRIMTAB_AWS__CALLS_PER_MINUTE": "1000",
        f"{cluster}CAPACITY_CORES": str(QUOTA_CORES),
        f"{cluster}TAGGED_GROUPS": "true",
        f"{cluster}QUOTA_CODE": QUOTA,
        f"{cluster}PRESET": PRESET,
    }
    chosen = {name: value for name, value in overrides.items() if name.startswith(("TRIMTAB_CLUSTERS", "TRIMTAB_AWS"))}
    return values | chosen


def play_admissions(
    directory: Path,
    seed: int,
    mode: str,
    overrides: Mapping[str, str],
    tell: Callable[[Event], None],
    *,
    hours: int = HOURS,
    start: float = ORIGIN + HOUR_S,
) -> Admissions:
    """Live the hours and return what came of them; `tell` hears of everything that happened to the cluster.

    Raises RuntimeError when the fake AWS does not start, ConfigurationError for wrong settings, LedgerUnavailable when
    the directory is in use.
    """
    clock = VirtualClock(start)
    with _fake_aws(start, seed) as (endpoint, control, groups):
        settings = load_settings(settings_of(directory, endpoint, mode, overrides))
        owners = Owners(groups, control, Demand(POPULATIONS[PRESET], VM_CORES, ARRIVALS_PER_HOUR, seed))
        with assembled(settings, clock, AwsKeys(AGENT_KEY, SECRET)) as agent:
            peak = 0
            for _ in range(hours):
                owners.arrive()
                for event in agent.turn().events:
                    tell(event)
                peak = max(peak, agent.clusters[NAME].gauges(clock.now()).total_cores)
                control.advance(HOUR_S)
                clock.advance(HOUR_S)
                owners.live()
            for _ in range(TURNS_TO_SETTLE):
                for event in agent.turn().events:
                    tell(event)
            return _reckoned(agent, hours, peak, clock.now(), shown_path(directory / LEDGER))


@contextmanager
def _fake_aws(start: float, seed: int) -> Iterator[tuple[str, CloudControl, Any]]:
    with start_process(["--virtual", repr(start), "--seed", str(seed)]) as process:
        control = CloudControl(process.endpoint)
        control.set_quota(QUOTA, QUOTA_CORES)
        make: Callable[..., Any] = boto3.client
        keys = {"aws_access_key_id": OWNER_KEY, "aws_secret_access_key": SECRET}
        about = {"endpoint_url": process.endpoint, "region_name": REGION, **keys}
        template = {"ImageId": "ami-12c6146b", "InstanceType": VM_TYPE}
        make("ec2", **about).create_launch_template(LaunchTemplateName=VM_TYPE, LaunchTemplateData=template)
        yield process.endpoint, control, make("autoscaling", **about)


def _reckoned(agent: Agent, hours: int, peak: int, now: float, ledger: str) -> Admissions:
    service = agent.clusters[NAME]
    said = service.newest(10_000)
    decisions = [decision for decision in said if not decision.advice]
    refused = [decision for decision in decisions if not decision.admit]
    answered = {decision.deployment_id for decision in decisions}
    advice = {one.deployment_id: one for one in reversed(said) if one.advice and one.deployment_id not in answered}
    gauges = service.gauges(now)
    told = agent.ledger.admission.events_since(NAME, 0.0)
    kinds = Counter(event.kind.value for event in told)
    open_ones = sum(record.open for record in agent.ledger.gate.records().values())
    newest = {decision.reason.value: decision for decision in reversed(said)}
    return Admissions(
        cluster=NAME,
        hours=hours,
        capacity_cores=gauges.capacity_cores,
        asked=len(decisions) + len(advice),
        admitted=len(decisions) - len(refused),
        refused=dict(Counter(decision.reason.value for decision in refused)),
        advised=dict(Counter(decision.reason.value for decision in advice.values())),
        waiting=open_ones + len(advice),
        peak_cores=peak,
        scale_outs=kinds["scaled"] + kinds["refused"],
        scale_outs_refused=kinds["refused"],
        examples={reason: decision.decision_id for reason, decision in newest.items()},
        details={reason: decision.detail for reason, decision in newest.items()},
        ledger=ledger,
        program=shown_program(),
    )
