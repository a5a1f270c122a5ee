"""Kills the gate's process with SIGKILL, again and again, and says what of the cluster is not as without any death.

A seeded story: owners tag groups; groups grow, shrink and go; after each act some minutes pass. In each minute
one process turns the gate once. It may die: at a step of what it does (right before a call that changes something
leaves, right after its answer, right before or after a commit), or whenever it happens to be. Another follows at once.

The cloud is a process of its own and outlives all of them, and so does the ledger's file. Nothing else does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.admission.gate.records import group_records
from domain.clock import VirtualClock
from domain.units import HOUR_S
from simulator.aws.client import CloudControl
from simulator.aws.process import start_process
from tests import shared_descriptions
from tests.agent.admission.gate.yard import TYPES, Plan, Yard, watch
from tests.simulator.aws.world import START, World

CLOUD = ("--virtual", str(START), "--seed", "7", "--launch-delay", "50:50", "--terminate-delay", "15:15")
SCARCE = "m5a.2xlarge"
SETTLE_MINUTES = 4
RAISE = "SetDesiredCapacity"
A_TURN_S = 60.0
IN_FLIGHT_S = 0.1
"""What had left a process when it died has arrived after this time; no start takes less."""


@dataclass
class FarYard(Yard):
    """A yard whose cloud is another process."""

    endpoint: str = ""

    def __post_init__(self) -> None:
        cloud: Any = SimpleNamespace(endpoint=self.endpoint, stop=lambda: None)
        self.world = World(cloud, CloudControl(self.endpoint))
        self.clock = VirtualClock(self.world.control.now())
        self.mode = self.plan.mode
        self.start()


@dataclass(frozen=True)
class Death:
    """When a process dies: at the first step of that name, at its n-th step, or after a time, whichever is given."""

    step: str = ""
    number: int = 0
    after_s: float = 0.0


@dataclass
class Steps:
    """Counts the steps of a turn and ends the process, as `kill -9` does, at the one that was chosen."""

    death: Death
    count: int = 0

    def step(self, name: str) -> None:
        self.count += 1
        if name == self.death.step or self.count == self.death.number:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Telling:
    """A story told once: the cloud, the ledger's directory, and how the gate's processes are to die."""

    endpoint: str
    directory: Path
    deaths: list[list[Death]]
    """Of each minute, in order; none once they are used up."""
    plan: Plan = field(default_factory=lambda: Plan(cores=64))
    died: Counter[str] = field(default_factory=Counter)
    minute: int = 0

    def yard(self) -> FarYard:
        return FarYard(self.directory, self.plan, endpoint=self.endpoint)

    def pass_minutes(self, minutes: int) -> None:
        """Let time pass; in each minute the gate is turned until a process lives to the end of the turn."""
        control = CloudControl(self.endpoint)
        for _ in range(minutes):
            control.advance(60.0)
            for death in self.deaths[self.minute] if self.minute < len(self.deaths) else ():
                if self._turn(death):
                    self.died[death.step or ("any step" if death.number else "any time")] += 1
            if self._turn(Death()):
                raise RuntimeError("a process died that nobody had killed")
            self.minute += 1

    def _turn(self, death: Death) -> bool:
        """Let one process turn the gate; return whether it died."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(reading)
                yard = self.yard()
                watch(yard, Steps(death).step)
                os.write(writing, b"!")
                yard.gate.turn(yard.clock.now(), yard.epoch)
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        with os.fdopen(reading, "rb") as ready:
            ready.read(1)
        if death.after_s:
            time.sleep(death.after_s)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                raise RuntimeError("the gate failed: see its traceback above")
            return False
        time.sleep(IN_FLIGHT_S)
        return True


def tell(telling: Telling, seed: int, acts: int) -> dict[str, Any]:
    """Tell the story of a seed and return what is left when it is over."""
    dice = random.Random(seed)
    with open_yard(telling) as yard:
        for vm_type in TYPES:
            yard.world.template(vm_type, vm_type)
        yard.world.control.add_fault("capacity", instance_type=SCARCE)
        # What describes AWS is read here, once: each process of the gate is a fork of this one.
        for service in ("autoscaling", "ec2"):
            yard.session.client(service)
    names: list[str] = []
    for _ in range(acts):
        with open_yard(telling) as yard:
            act(yard, dice, names)
        telling.pass_minutes(SETTLE_MINUTES)
    telling.pass_minutes(SETTLE_MINUTES)
    with open_yard(telling) as yard:
        return ending(yard, names)


@contextmanager
def open_yard(telling: Telling) -> Iterator[FarYard]:
    """Open a yard for the owners of groups, closed before any process of the gate starts."""
    yard = telling.yard()
    try:
        yield yard
    finally:
        yard.close()


def act(yard: Yard, dice: random.Random, names: list[str]) -> None:
    """Do what owners do: mostly ask for a new group or two, now and then change one that is in."""
    kind = dice.choice(("ask", "ask", "ask", "again", "size", "end"))
    known = dice.choice(names) if names else ""
    number = dice.randint(1, 5)
    if kind == "ask" or not known:
        for _ in range(dice.randint(1, 2)):
            names.append(f"g{len(names):02d}")
            wanted: object = dice.choice((number, number, 30, "many"))
            yard.ask(names[-1], wanted, vm_type=dice.choice(("m5a.large", "m5a.xlarge", SCARCE)), largest=20)
    elif kind == "again":
        if not yard.world.show(known)["Instances"]:
            yard.world.desire(0, known)
            yard.ask_again(known, number)
    elif yard.answer(known) == "admitted":
        yard.world.desire(0 if kind == "end" else number, known)


def ending(yard: Yard, names: list[str]) -> dict[str, Any]:
    """Return groups, tags, decisions, events, belief and calls, as they are now."""
    told, inside = yard.told(), yard.service.deployments()
    return {
        "desired": [(name, yard.desired(name)) for name in names],
        "tags": [(name, sorted(yard.tags(name).items())) for name in names],
        "decisions": [
            (d.decision_id, d.deployment_id, d.cores, d.admit, d.reason.value, d.total_cores) for d in yard.decisions()
        ],
        "events": sorted((e.deployment_id, e.kind.value, e.cores, e.cores_after) for e in told),
        "belief": [repr(replace(each, since=0.0, last_at=0.0, core_hours=0.0)) for each in inside],
        "times": {
            **{f"{e.deployment_id} {e.kind} {e.cores}": e.time for e in told},
            **{f"{each.deployment_id} since": each.since for each in inside},
            **{f"{each.deployment_id} hours": each.core_hours / each.cores * HOUR_S for each in inside},
        },
        "open": sum(record.open for record in group_records(yard.ledger).read()[0].values()),
        "total": yard.total,
        "raises": sorted(Counter(name for operation, name in yard.mutations if operation == RAISE).items()),
    }


def differences(usual: dict[str, Any], crashed: dict[str, Any]) -> dict[str, Any]:
    """Return what is not alike; what a death delays, or a second turn in its minute brings forward, is a minute off."""
    wrong = {what: [usual[what], crashed[what]] for what in usual if what != "times" and usual[what] != crashed[what]}
    late = {
        what: [at, crashed["times"].get(what)]
        for what, at in usual["times"].items()
        if abs(crashed["times"].get(what, -1e9) - at) > A_TURN_S
    }
    return wrong | ({"times": late} if late else {})


def deaths_of(dice: random.Random, minutes: int) -> list[list[Death]]:
    """Return how the processes of each minute die: between intent and call, after it, with its record; later anyhow.

    Those who die at a time may have lived through the turn before it, the more of them the faster the machine.
    """
    found = [[Death(f"send {RAISE}"), Death(f"answer {RAISE}"), Death(number=1), Death(number=2)]]
    while len(found) < minutes:
        dies = dice.choice((0, 1, 1, 2))
        found.append([_any_death(dice) for _ in range(dies)])
    return found


def _any_death(dice: random.Random) -> Death:
    if dice.random() < 0.5:
        return Death(number=dice.randint(1, 8))
    return Death(after_s=dice.choice((0.15, 0.05)) * dice.random())


def main(directory: Path, seed: int, acts: int) -> None:
    """Tell the story of a seed without and with deaths and print what differs."""
    shared_descriptions.pytest_collection_finish()
    endings, died = [], Counter[str]()
    minutes = (acts + 1) * SETTLE_MINUTES
    for number, deaths in enumerate(([], deaths_of(random.Random(seed), minutes))):
        place = directory / str(number)
        place.mkdir()
        with start_process(CLOUD) as cloud:
            telling = Telling(cloud.endpoint, place, deaths)
            endings.append(tell(telling, seed, acts))
            died += telling.died
    usual, crashed = endings
    told = {"deaths": died.total(), "died": died, "wrong": differences(usual, crashed), "raises": usual["raises"]}
    print(json.dumps(told | {"decisions": len(usual["decisions"]), "events": len(usual["events"])}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
