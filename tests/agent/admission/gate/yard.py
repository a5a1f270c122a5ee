"""A cluster of groups on the simulated cloud, the gate before it, and short words for what tests do over and over.

yard.ask("batch-a", 2); yard.turn(); assert yard.desired("batch-a") == 2; assert yard.tags("batch-a")[...] == "admitted"
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.admission.cluster import AdmissionService
from agent.admission.deployments import Deployment
from agent.admission.gate.gate import Gate
from agent.admission.gate.records import GroupRecord, group_records
from agent.admission.records import AdmissionDecision, DeploymentEvent
from agent.admission.settings import ClusterSettings
from agent.admission.state import AdmissionStore
from agent.kernel.leads import Leads
from agent.ledger import Ledger
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.decisions import Event, Intent, Mode, Outcome
from domain.fleet import Fleet
from domain.rules.admission.cluster import ClusterRules, PolicyKind
from domain.rules.admission.population import POPULATIONS
from simulator.aws.client import CloudControl
from simulator.aws.lifecycle import Delays
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World

AGENT = "agent"
CLUSTER = "gpu"
TYPES = {"m5a.large": 2, "m5a.xlarge": 4, "m5a.2xlarge": 8}


@dataclass
class Plan:
    """How the cluster is set up: cores, a rule by present cores (the simplest to foretell), where its size is read."""

    cores: int = 32
    threshold: float | None = None
    terms: ClusterSettings = field(default_factory=lambda: ClusterSettings(capacity_cores=1))
    mode: Mode = Mode.ACT
    start_within_s: float = 3600.0
    read_timeout_s: float = 30.0
    """Long, as it passes on the wall: a busy machine must not look like an AWS that does not answer."""
    busy_timeout_s: float = 5.0
    """How long a write waits for another process's."""


@dataclass
class Yard:
    """Cloud, ledger and gate; `restart` ends the agent's process and starts another on the same ledger."""

    directory: Path
    plan: Plan
    world: World = field(init=False)
    clock: VirtualClock = field(init=False)
    gate: Gate = field(init=False)
    service: AdmissionService = field(init=False)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = VirtualClock(START)
        running = start_in_thread(self.clock, seed=7, delays=Delays(launch_s=(50.0, 50.0), terminate_s=(15.0, 15.0)))
        self.world = World(running, CloudControl(running.endpoint))
        for vm_type in TYPES:
            self.world.template(vm_type, vm_type)
        self.mode = self.plan.mode
        self.start()

    # The agent

    def start(self) -> None:
        url = f"sqlite:///{self.directory / 'ledger.db'}"
        self.ledger = Ledger.open(url, busy_timeout_s=self.plan.busy_timeout_s)
        self.epoch = self.ledger.take_epoch("test", self.clock.now())
        epoch = self.epoch
        options = AwsOptions(
            region="us-east-1",
            endpoint_url=self.world.running.endpoint,
            read_timeout_s=self.plan.read_timeout_s,
            read_attempts=1,
            calls_per_minute=10_000,
            access_key_id=AGENT,
            secret_access_key="simulated",
        )
        self.session = AwsSession(
            options,
            self.clock,
            read_only=self.mode is Mode.OBSERVE,
            fence=lambda: self.ledger.check_epoch(epoch),
        )
        rules = ClusterRules(
            name=CLUSTER,
            capacity_cores=self.plan.cores,
            population=POPULATIONS["T"],
            policy=PolicyKind.ZEROTH,
            threshold_cores=self.plan.threshold or self.plan.cores + 1.0,
            start_within_s=self.plan.start_within_s,
        )
        self.service = AdmissionService(rules, AdmissionStore(self.ledger), self.clock)
        terms = {CLUSTER: self.plan.terms}
        self.gate = Gate(self.session, self.ledger, {CLUSTER: self.service}, terms, self.mode, self.clock)

    def restart(self, mode: Mode | None = None) -> None:
        self.session.close()
        self.ledger.close()
        self.mode = mode or self.mode
        self.start()

    def turn(
        self, minutes: int = 1, fleets: Sequence[Fleet] = (), results: Sequence[tuple[Intent, Outcome]] = ()
    ) -> tuple[Event, ...]:
        """Let minutes pass, the gate turning after each; return what it told in them."""
        sized = {(fleet.name, group.key): group.name for fleet in fleets for group in fleet.groups}
        told: tuple[Event, ...] = ()
        for _ in range(minutes):
            self.world.control.advance(60.0)
            told += self.gate.turn(self.clock.now(), Leads(every=self.epoch), sized, results)
        self.events += told
        return told

    def close(self) -> None:
        self.session.close()
        self.ledger.close()
        self.world.close()

    # The owner of the groups

    def group(
        self,
        name: str,
        *,
        vms: int = 0,
        vm_type: str = "m5a.xlarge",
        largest: int = 10,
        tags: Mapping[str, str] | None = None,
        cluster: str = CLUSTER,
    ) -> str:
        """Make a group in the cluster, its VMs in service."""
        given = {"trimtab:cluster": cluster, **(tags or {})}
        self.world.group(
            name,
            size=(0, vms, largest),
            LaunchTemplate={"LaunchTemplateName": vm_type, "Version": "$Latest"},
            Tags=[{"Key": key, "Value": value, "PropagateAtLaunch": False} for key, value in given.items()],
        )
        if vms:
            self.world.control.ready_now(name)
        return name

    def ask(self, name: str, wanted: object, **about: Any) -> str:
        """Make a group that asks to come in with this many VMs."""
        tags = {"trimtab:admission": "pending", "trimtab:requested": str(wanted), **about.pop("tags", {})}
        return self.group(name, tags=tags, **about)

    def tag(self, name: str, **tags: str) -> None:
        """Set tags, `admission="pending"` for trimtab:admission."""
        self.world.groups.create_or_update_tags(
            Tags=[
                {
                    "ResourceId": name,
                    "ResourceType": "auto-scaling-group",
                    "Key": f"trimtab:{key}",
                    "Value": value,
                    "PropagateAtLaunch": False,
                }
                for key, value in tags.items()
            ]
        )

    def ask_again(self, name: str, vms: int) -> None:
        self.tag(name, admission="pending", requested=str(vms))

    # What there is to see

    def desired(self, name: str) -> int:
        return int(self.world.show(name)["DesiredCapacity"])

    def tags(self, name: str) -> dict[str, str]:
        """The tags by which the gate is asked and answers, without their prefix."""
        tags = {tag["Key"]: tag["Value"] for tag in self.world.show(name)["Tags"]}
        return {key.removeprefix("trimtab:"): value for key, value in tags.items() if key != "trimtab:cluster"}

    def answer(self, name: str) -> str:
        return self.tags(name)["admission"]

    @property
    def mutations(self) -> list[tuple[str, str]]:
        """Every call of the agent that could change something: operation, group."""
        calls = self.world.control.mutations(access_key=AGENT)
        return [(call["operation"], str(_group_of(call["params"]))) for call in calls]

    def known(self, name: str, number: int = 1) -> Deployment | None:
        """What the cluster knows of a group's deployment."""
        return self.service.deployment(f"{name}.{number}")

    def cores(self, name: str, number: int = 1) -> int:
        found = self.known(name, number)
        assert found is not None
        return found.cores

    @property
    def total(self) -> int:
        return sum(deployment.cores for deployment in self.service.deployments())

    def record(self, name: str) -> GroupRecord:
        return group_records(self.ledger).read()[0][name]

    def decisions(self) -> list[AdmissionDecision]:
        """Every decision, the oldest first."""
        return list(reversed(self.service.newest(100)))

    def told(self) -> list[DeploymentEvent]:
        """Every event that the cluster took in, in order."""
        return list(AdmissionStore(self.ledger).events_since(CLUSTER, 0.0))

    def kinds(self) -> list[tuple[str, str, int]]:
        return [(event.deployment_id, event.kind.value, event.cores) for event in self.told()]

    def reasons(self, subject: str) -> list[str]:
        """Reasons of the journal's rows about a group, in order."""
        return [entry.reason for entry in self.ledger.journal(limit=10_000) if entry.ref == subject]


def _group_of(params: Mapping[str, str]) -> str:
    found = params.get("AutoScalingGroupName") or next((v for k, v in sorted(params.items()) if "ResourceId" in k), "")
    return found


MakeYard = Callable[..., Yard]


def watch(yard: Yard, step: Callable[[str], None]) -> None:
    """Call `step` with the name of each step: right before and after a call that changes something, or a commit."""
    events = yard.session.client("autoscaling").meta.events
    for operation in ("SetDesiredCapacity", "CreateOrUpdateTags"):
        for event, name in (("before-send", f"send {operation}"), ("after-call", f"answer {operation}")):
            events.register(f"{event}.auto-scaling.{operation}", lambda name=name, **_: step(name))
    database: Any = yard.ledger.database
    write = database.write

    @contextmanager
    def counted() -> Iterator[Any]:
        step("before commit")
        with write() as connection:
            yield connection
        step("after commit")

    database.write = counted
