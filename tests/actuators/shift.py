"""One shift at the console: a simulated cloud, a fleet on it, the actuator under test, and short words for both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from actuators.autoscaling_group import AutoScalingActuator
from actuators.base import Act, ChangingCall, Refusal
from actuators.drain import DrainSettings
from collectors.aws import AwsOptions, AwsSession
from collectors.inventory import Inventory
from domain.clock import VirtualClock
from domain.decisions import Direction, Event, Intent, Outcome
from domain.fleet import Fleet, Group, VmType
from domain.observed import GroupObserved, Observed
from simulator.aws.client import CloudControl
from simulator.aws.lifecycle import Delays
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World
from tests.waiting import until

AGENT = "AKIATRIMTABAGENT0002"
ONLOOKER = "AKIATRIMTABLOOKS0003"
TYPES = (
    VmType("m5a.large", 2, 8.0, 0.086),
    VmType("m5a.xlarge", 4, 16.0, 0.172),
    VmType("m5a.2xlarge", 8, 32.0, 0.344),
)
FLEET = Fleet(
    "web",
    (
        Group("s", "web-s", TYPES[0], 0, 10),
        Group("m", "web-m", TYPES[1], 0, 10),
        Group("l", "web-l", TYPES[2], 0, 10),
    ),
)


@dataclass
class Shift:
    """Everything a test needs; `tick` lets a minute pass and follows an intent as the loop would."""

    world: World
    clock: VirtualClock
    actuator: AutoScalingActuator = field(init=False)
    session: AwsSession = field(init=False)
    inventory: Inventory = field(init=False)
    onlooker: AwsSession = field(init=False)
    sessions: list[AwsSession] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    refusals: dict[Act, Refusal] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options = AwsOptions(
            "us-east-1", self.world.running.endpoint, access_key_id=ONLOOKER, secret_access_key="simulated"
        )
        self.onlooker = AwsSession(options, self.clock, read_only=True)
        self.sessions.append(self.onlooker)
        self.start_agent()

    def start_agent(
        self,
        *,
        read_only: bool = False,
        fence: Any = None,
        read_attempts: int = 1,
        read_timeout_s: float = 30.0,
        **about: Any,
    ) -> None:
        """Start an agent's process over: nothing of the old one's memory is left."""
        options = AwsOptions(
            region="us-east-1",
            endpoint_url=self.world.running.endpoint,
            read_timeout_s=read_timeout_s,
            read_attempts=read_attempts,
            access_key_id=AGENT,
            secret_access_key="simulated",
        )
        self.session = AwsSession(options, self.clock, read_only=read_only, fence=fence)
        self.sessions.append(self.session)
        self.inventory = Inventory(self.session)
        about.setdefault("drain", lambda fleet: DrainSettings(deadline_s=900.0, notice_s=30.0))
        self.actuator = AutoScalingActuator(self.session, self.inventory, (FLEET,), **about)

    def permit(self, call: ChangingCall) -> Refusal | None:
        """Refuse the acts that the test names, and nothing else."""
        return self.refusals.get(call.act)

    @property
    def now(self) -> float:
        return self.clock.now()

    @property
    def control(self) -> CloudControl:
        return self.world.control

    def mutations_soon(self, count: int) -> list[tuple[str, str]]:
        """Wait for the log to hold that many: AWS logs a held call when it lets go of it."""
        until(lambda: len(self.mutations) >= count)
        return self.mutations

    @property
    def mutations(self) -> list[tuple[str, str]]:
        """What the agent changed or tried to, as AWS logged it: (operation, the size or VM it was about)."""
        calls = self.control.mutations(access_key=AGENT)
        return [(call["operation"], _about(call["params"])) for call in calls]

    def intent(self, direction: Direction, group: str = "s", **about: Any) -> Intent:
        """Return an intent of now, as the loop would have recorded it."""
        seen = self.observe().groups[f"web-{group}"]
        victims = tuple(about.pop("victims", ()))
        before = about.pop("before", seen.desired)
        shrink = len(victims) if direction is Direction.IN else 0
        number = next(self.numbers)
        return Intent(
            intent_id=f"i{number}",
            decision_id=f"web-{number}",
            fleet="web",
            group=group,
            direction=direction,
            before=before,
            target=about.pop("target", before - shrink),
            victims=victims,
            epoch=1,
            created_at=self.now,
            deadline_at=self.now + about.pop("deadline_s", 600.0),
        )

    def observe(self) -> Observed:
        return self.actuator.observe([FLEET], self.now)

    def group(self, key: str = "s") -> GroupObserved:
        """The state of the cloud."""
        return Inventory(self.onlooker).fresh(f"web-{key}", self.now)

    def serving(self, key: str = "s") -> list[str]:
        return [instance.vm for instance in self.group(key).serving]

    def apply(self, intent: Intent) -> Outcome:
        return self.actuator.apply(intent, self.observe(), self.now, self.permit)

    def follow(self, intent: Intent) -> Outcome:
        return self.actuator.follow(intent, self.observe(), self.now, self.permit)

    def tick(self, intent: Intent, seconds: float = 60.0) -> Outcome:
        self.control.advance(seconds)
        return self.follow(intent)

    def settle(self, intent: Intent, outcome: Outcome, most_ticks: int = 15) -> Outcome:
        """Follow the intent minute by minute to its end."""
        for _ in range(most_ticks):
            if outcome.status.final:
                return outcome
            outcome = self.tick(intent)
        return outcome

    def tend(self, busy: Mapping[str, float | None], seconds: float = 60.0) -> list[tuple[str, str]]:
        """Let time pass, tend, and return what happened as (reason, subject)."""
        return [(event.reason.value, event.about) for event in self.tend_events(busy, seconds)]

    def tend_events(self, busy: Mapping[str, float | None], seconds: float = 60.0) -> tuple[Event, ...]:
        self.control.advance(seconds)
        return self.actuator.tend(FLEET, self.observe(), busy, self.now, self.permit)

    def kill_at(self, event: str, operation: str) -> None:
        """Let the agent die at a botocore event of an operation, such as `before-send` or `after-call`."""

        def die(**_: Any) -> None:
            raise Killed

        events = self.session.client("autoscaling").meta.events
        events.register(f"{event}.auto-scaling.{operation}", die)


class Killed(BaseException):
    """The end of a process: no handler of the code under test catches it."""


@contextmanager
def running_shift() -> Iterator[Shift]:
    """Serve a fresh cloud with the fleet on it, its VMs in service."""
    clock = VirtualClock(START)
    running = start_in_thread(clock, seed=7, delays=Delays(launch_s=(50.0, 50.0), terminate_s=(15.0, 15.0)))
    world = World(running, CloudControl(running.endpoint))
    try:
        for group in FLEET.groups:
            world.template(group.name, group.vm_type.name)
            world.group(
                group.name,
                size=(0, 2, 10),
                LaunchTemplate={"LaunchTemplateName": group.name, "Version": "$Latest"},
                AvailabilityZones=["us-east-1a", "us-east-1b"],
            )
        world.control.ready_now()
        made = Shift(world, clock)
        yield made
        for session in made.sessions:
            session.close()
    finally:
        world.close()


def _about(params: Mapping[str, str]) -> str:
    for name in ("DesiredCapacity", "InstanceId"):
        if name in params:
            return str(params[name])
    return ",".join(value for key, value in sorted(params.items()) if key.startswith("InstanceIds"))
