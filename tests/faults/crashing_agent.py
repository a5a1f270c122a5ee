"""The real agent in a process of its own, which kills itself with SIGKILL at the n-th step of what it does.

Steps are what a crash may fall between: right before a request leaves, right after its answer arrived, right before and
right after a write to the ledger is made durable. Product code knows nothing of it: botocore's own events and the one
method by which SQLAlchemy commits tell the steps.

`python -m tests.faults.crashing_agent` is a nursery: it imports everything once, then for each start it is asked for it
forks an agent, which talks over the same pipe until it ends or dies. `Nursery` is the other end of the pipe.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.loaders
from sqlalchemy.engine.default import DefaultDialect

from agent.autoscaling.decision import AutoscalingPart
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.settings import Settings
from collectors.intake import IntakeCounters, LineReader
from domain.clock import VirtualClock
from domain.decisions import Mode
from tests.faults.world import AGENT_KEY, GRACE_S, Plan, World

ROOT = Path(__file__).parents[2]
SERVICES = (("autoscaling", 3), ("autoscaling", 1), ("ec2", 3), ("sqs", 1))
"""The clients that a turn of the loop uses, by service and attempts."""


class Died(Exception):
    """The agent killed itself in the middle of a turn."""


# The agent's side


@dataclass
class Steps:
    """Counts and names the steps; at the one that it is told to, the process dies as by `kill -9`."""

    kill_at: int | None = None
    taken: list[str] = field(default_factory=list)

    def take(self, name: str) -> None:
        """One more step."""
        self.taken.append(name)
        if len(self.taken) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch_calls(self, agent: Agent) -> None:
        """Count every request of the agent, before it leaves and after it is answered."""
        for service, attempts in SERVICES:
            events = agent.session.client(service, attempts).meta.events
            events.register("before-send", functools.partial(self._on_call, "send"))
            events.register("response-received", functools.partial(self._on_call, "answer"))

    def _on_call(self, moment: str, event_name: str, **_: object) -> None:
        self.take(f"{moment} {event_name.rsplit('.', 1)[1]}")

    def watch_commits(self) -> None:
        """Count every commit that makes something durable, before and after it."""
        commit: Callable[[DefaultDialect, Any], None] = DefaultDialect.do_commit
        changes: dict[int, int] = {}

        def watched(dialect: DefaultDialect, connection: Any) -> None:
            driver = connection.driver_connection
            if driver.total_changes == changes.get(id(driver), 0):
                commit(dialect, connection)
                return
            changes[id(driver)] = driver.total_changes
            self.take("before commit")
            commit(dialect, connection)
            self.take("after commit")

        DefaultDialect.do_commit = watched  # type: ignore[method-assign]


def live(order: Mapping[str, Any], pipe: Pipe) -> None:
    """Be an agent: start as the settings say, then turn whenever told to, until told to stop."""
    steps, clock = Steps(order["kill_at"]), VirtualClock(order["now"])
    steps.watch_commits()
    settings = Settings(**order["settings"])
    with assembled(settings, clock, AwsKeys(AGENT_KEY, "simulated")) as agent:
        steps.watch_calls(agent)
        reader = LineReader(agent.part(AutoscalingPart).series, IntakeCounters(), clock.now)
        pipe.say({"steps": steps.taken})
        while (order := pipe.hear() or {}).get("now"):
            clock.advance(order["now"] - clock.now())
            reader.feed(order["lines"].encode())
            if order["armed"]:
                steps.kill_at, steps.taken = order["kill_at"], []
            before = len(steps.taken)
            report = agent.part(AutoscalingPart).loop.turn(clock.now())
            pipe.say({"steps": steps.taken[before:], "failure": report.failure})


def nurse() -> None:
    """Fork an agent for each order to start one, and say how it ended."""
    files = botocore.loaders.JSONFileLoader
    files.load_file = functools.cache(files.load_file)  # type: ignore[method-assign]
    pipe = Pipe(os.dup(0), os.dup(1))
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    while (order := pipe.hear()) is not None:
        child = os.fork()
        if child == 0:
            try:
                live(order, pipe)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        pipe.say({"ended": os.waitstatus_to_exitcode(status)})


@dataclass
class Pipe:
    """Messages as JSON behind their length; nothing is read ahead, so that two processes may take turns on one pipe."""

    reading: int
    writing: int

    def say(self, message: Mapping[str, Any]) -> None:
        """Send one message."""
        body = json.dumps(message).encode()
        data = struct.pack(">I", len(body)) + body
        while data:
            data = data[os.write(self.writing, data) :]

    def hear(self) -> dict[str, Any] | None:
        """Return the next message, None when there will be no more."""
        head = self._take(4)
        if head is None:
            return None
        body = self._take(struct.unpack(">I", head)[0])
        message: dict[str, Any] | None = None if body is None else json.loads(body)
        return message

    def _take(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            more = os.read(self.reading, size - len(data))
            if not more:
                return None
            data += more
        return data


# The test's side


class Nursery:
    """Starts agents that die when told to; one at a time."""

    def __init__(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.crashing_agent"],
            cwd=ROOT,
            env={**environment, "AWS_EC2_METADATA_DISABLED": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipe = Pipe(self._process.stdout.fileno(), self._process.stdin.fileno())

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Order a start or a turn and return the answer; Died when the agent killed itself instead."""
        self._pipe.say(order)
        answer = self._pipe.hear()
        if answer is None or answer.get("ended") == 1:
            raise AssertionError("the agent failed; what it said stands on standard error")
        if answer.get("ended") == -signal.SIGKILL:
            raise Died
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60.0)
        self._process.stdout.close()


class _Collected:
    """Takes the place of the world's line reader: keeps what was reported until the next turn."""

    def __init__(self) -> None:
        self.lines = b""

    def feed(self, chunk: bytes) -> None:
        self.lines += chunk


class CrashWorld(World):
    """A world whose agent is another process.

    After each death another agent is started at once and turns a minute later. `steps` are those of each turn since
    `arm`, of turns that came to an end.
    """

    def __init__(self, directory: Path, plan: Plan, nursery: Nursery) -> None:
        self._directory, self._nursery = directory, nursery
        self._kill_at: list[int] = []
        self._armed = False
        self.deaths = 0
        self.steps: list[list[str]] = []
        super().__init__(directory, plan)

    def arm(self, *kill_at: int) -> None:
        """Let the agent die at the first of these steps from here on, the one after it at the second, and so on.

        The steps of an agent that is started after a death count from its start.
        """
        self._kill_at, self._armed, self.steps = list(kill_at), True, []

    def turn(self, minutes: int = 1) -> None:
        """Let minutes pass and have the agent turn after each; it is started again when it dies."""
        for _ in range(minutes):
            self.pass_minute()
            order = {"now": self.clock.now(), "lines": self._reader.lines.decode(), "armed": self._armed}
            if self._armed:
                order["kill_at"] = self._kill_at.pop(0) if self._kill_at else None
            self._reader.lines, self._armed = b"", False
            try:
                answer = self._nursery.ask(order)
            except Died:
                self.deaths += 1
                self._start_agent()
            else:
                assert answer["failure"] is None
                self.steps.append(answer["steps"])

    def close(self) -> None:
        """End everything."""
        self._stop_agent()
        self.running.stop()

    def _start_agent(self) -> None:
        self._reader, self.stranger = _Collected(), _Collected()
        while True:
            kill_at = self._kill_at.pop(0) if self._kill_at else None
            order = {"settings": self._settings(), "now": self.clock.now(), "kill_at": kill_at}
            try:
                self._nursery.ask(order)
            except Died:
                self.deaths += 1
            else:
                return

    def _stop_agent(self) -> None:
        assert self._nursery.ask({"stop": True}) == {"ended": 0}

    def _settings(self) -> dict[str, Any]:
        limits = dataclasses.asdict(self.plan.limits)
        del limits["spares"]  # no setting
        del limits["safe_floor"]
        return {
            "mode": Mode.ACT,
            "state_directory": str(self._directory),
            "grace_s": GRACE_S,
            "protect_busy": self.plan.protect_busy,
            "interruption_queue_url": self.notices,
            "listener": {"port": 0},
            "aws": {
                "region": "us-east-1",
                "endpoint_url": self.running.endpoint,
                "connect_timeout_s": 1.0,
                "read_timeout_s": self.plan.read_timeout_s,
                "calls_per_minute": 10_000,
            },
            "fleets": {
                "web": {
                    "queue_rule": {"horizon_s": 120.0},
                    "idle_s": self.plan.idle_s,
                    "rails": limits,
                    "groups": {
                        group.key: {
                            "name": group.name,
                            "vm_type": group.vm_type.name,
                            "cores": group.vm_type.cores,
                            "memory_gb": group.vm_type.memory_gb,
                            "price_per_hour": group.vm_type.price_per_hour,
                            "min": group.minimum,
                            "max": group.maximum,
                        }
                        for group in self.plan.groups
                    },
                }
            },
        }


if __name__ == "__main__":
    nurse()
