"""A small world for the loop: the simulated cloud on a virtual clock, VMs that report, the real agent between.

world.submit(40); world.tick(); assert world.last.reason is Reason.QUEUE_GREW; assert world.mutations == [...]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from actuators.autoscaling_group import AutoScalingActuator
from actuators.drift import DriftRule
from agent.autoscaling.fleets import ManagedFleet
from agent.autoscaling.loop import Loop
from agent.autoscaling.policies.base import Policy
from agent.autoscaling.policies.fallback import Proposer, evaluate_within
from agent.autoscaling.policies.registry import inputs_needed
from agent.autoscaling.report import MinuteReport
from agent.autoscaling.snapshot.aggregate import AggregationSettings, Aggregator
from agent.autoscaling.snapshot.series import SeriesStore
from agent.autoscaling.state import FleetStore
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from agent.ledger.journal import JournalEntry, Kind
from agent.rails.base import RailLimits
from collectors.aws import AwsOptions, AwsSession
from collectors.intake import IntakeCounters, LineReader
from collectors.interruptions import InterruptionQueue
from collectors.inventory import Inventory
from domain.clock import VirtualClock
from domain.decisions import Decision, Event, Mode, Outcome, Reason
from domain.fleet import Fleet, Group, VmType
from domain.samples import QueueMetric, QueueSeries, Sample, VmMetric, VmSeries
from domain.snapshot import Snapshot
from simulator.aws.api_groups import describe_groups
from simulator.aws.client import CloudControl
from simulator.aws.lifecycle import Delays
from simulator.aws.process import RunningCloud, start_in_thread
from tests.graphite_lines import format_line

START = 1_795_209_000.0 // 60.0 * 60.0
AGENT_KEY = "agent"
OWNER_KEY = "owner"
GRACE_S = 5.0
QUEUE_RULE = "queue-rule:horizon_s=120,job_core_s=120"

S = VmType("m5a.large", 2, 8.0, 0.086)
M = VmType("m5a.xlarge", 4, 16.0, 0.172)
L = VmType("m5a.2xlarge", 8, 32.0, 0.344)
REPORTING = ("InService", "Terminating:Wait", "Warmed:Pending:Wait")
SMALL = Group("small", "workers-s", S, 1, 10)
MEDIUM = Group("medium", "workers-m", M, 0, 10)
LARGE = Group("large", "workers-l", L, 0, 10)
QUICK = RailLimits(
    cooldown_out_s=0.0,
    cooldown_in_s=0.0,
    in_periods=1,
    min_lifetime_s=0.0,
    max_step_out=10,
    max_step_in=10,
    max_reversals=60,
    max_replacements_percent=50.0,
    spares=10,
)
"""Limits that hold nothing back, for tests about something else."""


class AgentClock:
    """The clock of the agent's host: the world's true time, plus what the host is wrong by."""

    def __init__(self, true: VirtualClock) -> None:
        self._true = true
        self.error_s = 0.0

    def now(self) -> float:
        """What the host takes for the time."""
        return self._true.now() + self.error_s

    def monotonic(self) -> float:
        """Seconds that have passed, whatever the host takes for the time."""
        return self._true.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass for all the world."""
        self._true.sleep(seconds)

    def step(self, seconds: float) -> None:
        """Set the host's clock, as an operator or NTP does."""
        self.error_s += seconds


@dataclass
class Plan:
    """What a world is made of; `batch` are the groups of a second fleet of that name, at their minimum."""

    groups: tuple[Group, ...] = (SMALL, MEDIUM, LARGE)
    sizes: tuple[int, ...] = (1, 0, 0)
    batch: tuple[Group, ...] = ()
    limits: RailLimits = QUICK
    policy: str = QUEUE_RULE
    known: Mapping[str, Policy] = field(default_factory=dict)
    mode: Mode = Mode.ACT
    drift: DriftRule = DriftRule.ADOPT
    hook: bool = True
    protect_busy: bool = False
    unprotect_new: bool = False
    idle_s: float = 120.0
    deadline_s: float = 5.0
    read_timeout_s: float = 30.0
    """Long, as it passes on the wall: a busy machine must not look like an AWS that does not answer."""
    read_attempts: int = 1
    interruptions: bool = True
    ledger_url: str = ""
    needed: tuple[str, ...] | None = None


class World:
    """The cloud, its clock, its VMs, and the agent."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self.plan, self.directory = plan, directory
        self.clock = VirtualClock(START)
        self.agent_clock = AgentClock(self.clock)
        self.running: RunningCloud = start_in_thread(self.clock, seed=7, delays=Delays(launch_s=(50.0, 50.0)))
        self.control = CloudControl(self.running.endpoint)
        self.owner = self._client("autoscaling")
        self.sqs = self._client("sqs")
        self.notices = self.sqs.create_queue(QueueName="interruptions")["QueueUrl"]
        self.fleet = Fleet("web", plan.groups)
        self.fleets = (self.fleet, Fleet("batch", plan.batch)) if plan.batch else (self.fleet,)
        self._make_groups()
        self._ledger_url = plan.ledger_url or f"sqlite:///{directory / 'ledger.db'}"
        self.cpu: float | None = 0.5
        self.busy: dict[str, float] = {}
        self.silent: set[str] = set()
        self.silent_seconds: frozenset[int] = frozenset()
        self.vm_clock_error_s = 0.0
        self.queue_reports = True
        self.noise: Callable[[float], bytes] = _no_noise
        self.copies = 1
        self.batch_waiting = 0
        self.waiting = 0
        self.running_jobs = 0
        self.submitted = 0
        self.reports: list[MinuteReport] = []
        self.mode = plan.mode
        try:
            self._start_agent()
        except BaseException:
            # Else each test after it fails for the cloud that still runs.
            self.running.stop()
            raise
        self._calls_before = len(self.control.calls())

    # What tests do

    def submit(self, jobs: int) -> None:
        """Put jobs on the queue, as far as the agent's measurements tell."""
        self.waiting += jobs
        self.submitted += jobs

    def tick(self, minutes: int = 1) -> MinuteReport:
        """Let minutes pass, VMs reporting, and turn the loop after each."""
        for _ in range(minutes):
            self.pass_minute()
            self.reports.append(self.loop.turn(self.agent_clock.now()))
        return self.reports[-1]

    def pass_minute(self) -> None:
        """Let one minute of the agent's clock pass: VMs in service report six times, the queue too; then the grace."""
        now = self.agent_clock.now()
        start = (now - GRACE_S) // 60.0 * 60.0 if self.reports or self._passed else now
        self._passed = True
        vms = [(key, vm) for key, vm, state in self.vms() if state in REPORTING]
        self.clock.advance(start + 60.0 + GRACE_S - now)
        true_start = start - self.agent_clock.error_s
        for second in range(10, 61, 10):
            if second not in self.silent_seconds:
                self._report(vms, true_start + second + self.vm_clock_error_s)
            self.stranger.feed(self.noise(true_start + second))

    def restart(self, mode: Mode | None = None) -> None:
        """End the agent's process and start another on the same ledger."""
        self.ledger.close()
        self.mode = mode or self.mode
        self._start_agent()

    def metric_gap(self, minutes: int) -> None:
        """Let minutes pass in which nothing is reported, the loop turning."""
        cpu, self.cpu, self.queue_reports = self.cpu, None, False
        self.tick(minutes)
        self.cpu, self.queue_reports = cpu, True

    def fault(self, kind: str, **about: Any) -> None:
        """Make a fault that only the agent's calls meet, except for capacity."""
        if kind != "capacity":
            about.setdefault("access_keys", [AGENT_KEY])
        self.control.add_fault(kind, **about)

    # What tests look at

    @property
    def last(self) -> Decision:
        """The last tick's decision for the fleet `web`."""
        return self.decision("web")

    def decision(self, fleet: str) -> Decision:
        """A fleet's decision in the last tick."""
        return next(decision for decision in self.reports[-1].decisions if decision.fleet == fleet)

    @property
    def events(self) -> list[Event]:
        """Every event in the ledger, in order."""
        return [
            Event(entry.subject, entry.at, Reason(entry.reason), str(entry.body["detail"]), entry.ref)
            for entry in self.journal
            if entry.kind is Kind.EVENT
        ]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every call of the agent, reading or changing, as AWS saw it."""
        return self.control.calls(access_key=AGENT_KEY)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every outcome so far."""
        return tuple(outcome for report in self.reports for outcome in report.outcomes)

    @property
    def snapshot(self) -> Snapshot:
        """The last tick's snapshot of the fleet `web`."""
        return next(snapshot for snapshot in self.reports[-1].snapshots if snapshot.fleet == "web")

    @property
    def mutations(self) -> list[tuple[str, str]]:
        """Operation and group of every control-plane call of the agent that could change something."""
        return [
            (call["operation"], str(call["params"].get("group") or call["params"].get("AutoScalingGroupName") or ""))
            for call in self.control.mutations(access_key=AGENT_KEY)
        ]

    def count(self, operation: str) -> int:
        """How often AWS saw this call of the agent."""
        return sum(name == operation for name, _ in self.mutations)

    @property
    def reasons(self) -> list[str]:
        """The reason of every journal row, in order."""
        return [entry.reason for entry in self.journal]

    @property
    def journal(self) -> list[JournalEntry]:
        """The whole journal."""
        return self.ledger.journal(limit=100_000)

    def desired(self) -> dict[str, int]:
        """Desired capacity per group key, as AWS holds it."""
        return {key: group["DesiredCapacity"] for key, group in self._described()}

    def vms(self, key: str | None = None) -> list[tuple[str, str, str]]:
        """Group key, id and lifecycle state of every VM, as AWS shows it."""
        return [
            (name, instance["InstanceId"], instance["LifecycleState"])
            for name, group in self._described()
            for instance in group["Instances"]
            if key in (None, name)
        ]

    def in_service(self, key: str) -> list[str]:
        """Ids of a group's VMs in service."""
        return [vm for _, vm, state in self.vms(key) if state == "InService"]

    def close(self) -> None:
        """End everything."""
        self.ledger.close()
        self.running.stop()

    # Underneath

    _passed = False

    def _described(self) -> list[tuple[str, dict[str, Any]]]:
        names = {group.name: group.key for fleet in self.fleets for group in fleet.groups}
        # What DescribeAutoScalingGroups answers, without the way over HTTP: tests look several times a minute.
        cloud = self.running.cloud
        now = cloud.settle()
        with cloud.lock:
            groups = describe_groups(cloud.region("us-east-1"), {"AutoScalingGroupNames": list(names)}, now)
        return [(names[group["AutoScalingGroupName"]], group) for group in groups["AutoScalingGroups"]]

    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.running.endpoint,
            region_name="us-east-1",
            aws_access_key_id=OWNER_KEY,
            aws_secret_access_key="simulated",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def _make_groups(self) -> None:
        machines = self._client("ec2")
        sizes = (*self.plan.sizes, *(group.minimum for group in self.plan.batch))
        for group, size in zip((*self.plan.groups, *self.plan.batch), sizes, strict=True):
            machines.create_launch_template(
                LaunchTemplateName=group.name,
                LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": group.vm_type.name},
            )
            self.owner.create_auto_scaling_group(
                AutoScalingGroupName=group.name,
                LaunchTemplate={"LaunchTemplateName": group.name, "Version": "$Latest"},
                MinSize=group.minimum,
                MaxSize=group.maximum,
                DesiredCapacity=size,
                AvailabilityZones=["us-east-1a", "us-east-1b"],
            )
            if self.plan.hook:
                self.owner.put_lifecycle_hook(
                    LifecycleHookName="drain",
                    AutoScalingGroupName=group.name,
                    LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
                    HeartbeatTimeout=180,
                    DefaultResult="CONTINUE",
                )
        machines.close()
        self.control.ready_now()

    def _start_agent(self) -> None:
        self.ledger = Ledger.open(self._ledger_url)
        epoch = self.epoch = self.ledger.take_epoch("test", self.agent_clock.now())
        options = AwsOptions(
            region="us-east-1",
            endpoint_url=self.running.endpoint,
            connect_timeout_s=1.0,
            read_timeout_s=self.plan.read_timeout_s,
            read_attempts=self.plan.read_attempts,
            calls_per_minute=10_000,
            access_key_id=AGENT_KEY,
            secret_access_key="simulated",
        )
        session = self.session = AwsSession(
            options, self.agent_clock, read_only=self.mode is Mode.OBSERVE, fence=lambda: self.ledger.check_epoch(epoch)
        )
        self.store = SeriesStore(watched=self.fleets)
        self.intake = IntakeCounters()
        self._reader = LineReader(self.store, self.intake, self.agent_clock.now)
        self.stranger = LineReader(self.store, self.intake, self.agent_clock.now)
        needed = self.plan.needed
        if needed is None:
            # Other policies need the queue here as well, as learned ones do.
            needed = inputs_needed("queue-rule") if self.plan.policy.startswith("queue-rule") else ("cpu", "queue")
        aggregation = AggregationSettings(
            limits=self.plan.limits, grace_s=GRACE_S, idle_s=self.plan.idle_s, needed=needed
        )
        managed = tuple(
            ManagedFleet(fleet, self.plan.limits, self.plan.policy, (), aggregation, self.plan.drift)
            for fleet in self.fleets
        )
        interruptions = InterruptionQueue(session, self.notices, self.agent_clock) if self.plan.interruptions else None
        store = FleetStore(self.ledger)
        states = [store.loop_state(fleet.name) for fleet in self.fleets]
        self.loop = Loop(
            fleets=managed,
            store=store,
            actuator=AutoScalingActuator(
                session,
                Inventory(session, unprotects_new=self.plan.unprotect_new),
                self.fleets,
                protect_busy=self.plan.protect_busy,
                owned_protection={vm for state in states for vm in state.protected},
                known_busy={vm for state in states for vm in state.busy},
            ),
            aggregator=Aggregator(self.store),
            proposer=Proposer(evaluate_within(self.plan.deadline_s), self.plan.known),
            clock=self.agent_clock,
            mode=self.mode,
            leads=Leads(every=epoch),
            protect_busy=self.plan.protect_busy,
            interruptions=interruptions if self.mode is Mode.ACT else None,
        )

    def _report(self, vms: Sequence[tuple[str, str]], at: float) -> None:
        lines = []
        fleets = {group.key: fleet.name for fleet in self.fleets for group in fleet.groups}
        taken_at = self.running.cloud.spot_actions
        if self.cpu is not None:
            for key, vm in vms:
                if vm in self.silent or at >= taken_at.get(vm, float("inf")):
                    continue
                busy = self.busy.get(vm, 0.0)
                readings = {
                    VmMetric.CPU_PERCENT: 100.0 * self.cpu,
                    VmMetric.RAM_PERCENT: 5.0,
                    VmMetric.BUSY_CORES: busy,
                    VmMetric.WORK_CORE_SECONDS: 60.0 * busy,
                }
                lines += [format_line(Sample(VmSeries(fleets[key], key, vm, m), v, at)) for m, v in readings.items()]
        if self.queue_reports:
            counts = {
                QueueMetric.WAITING: self.waiting,
                QueueMetric.RUNNING: self.running_jobs,
                QueueMetric.SUBMITTED_TOTAL: self.submitted,
            }
            lines += [format_line(Sample(QueueSeries("web", m), float(v), at)) for m, v in counts.items()]
        if self.queue_reports and self.plan.batch:
            counts = {QueueMetric.WAITING: self.batch_waiting, QueueMetric.RUNNING: 0}
            lines += [format_line(Sample(QueueSeries("batch", m), float(v), at)) for m, v in counts.items()]
        self._reader.feed("".join(lines).encode() * self.copies)


def _no_noise(at: float) -> bytes:
    return b""


MakeWorld = Callable[..., World]
"""Makes a world of a plan: the fixture `make_world`."""


def final_reasons(world: World) -> list[Reason]:
    """Reasons of the outcomes that ended an intent, in order."""
    return [outcome.reason for outcome in world.outcomes if outcome.status.final]
