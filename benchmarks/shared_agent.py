"""One of several agents that share a PostgreSQL ledger: the daemon in a process of the benchmark `scale_agents`.

Its settings, schedule, leases, loop, actuator and ledger are the agent's own. Time is a `ScaledClock`. The cloud is in
memory and has the fleets of all agents: each change is appended to a file, from which the clouds of the other processes
take it up. VMs report to the agent that leads their fleet, as forwarded lines do; no line is parsed.
The task comes as JSON on standard input. What the process did goes to its records, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import psutil
import psycopg

from agent.autoscaling.state import FleetStore
from agent.kernel.decision import Part
from agent.service import assembly, daemon, shares
from agent.service.assembly import Acting, Agent
from agent.service.shares import Managed
from agent.settings import Settings
from agent.settings.load import load_settings
from benchmarks.loaded_cloud import ACCOUNT, GRACE_S, SAMPLE_S, START, LoadedCloud, make_fleets
from benchmarks.tick import log_to
from collectors.base import Refusal, SampleSink
from domain.clock import ScaledClock
from domain.fleet import Fleet
from domain.samples import Sample
from domain.subject import fleet_subject

LEVEL = 0.95
SEED = 11
MINUTE_S = 60.0
FIRST_OF_GROUP = 10**6
"""Numbers of launches by group, so that a VM has one name in the clouds of all processes."""


@dataclass(frozen=True, slots=True)
class Task:
    """An agent's part in a run. directory: of the run; begins: wall time at which the scaled clock reads START."""

    name: str
    number: int
    fleets: int
    vms_per_fleet: int
    url: str
    directory: str
    begins: float
    speed: float
    lease_s: float
    renew_s: float

    @property
    def records(self) -> Path:
        """The file of this process' records."""
        return Path(self.directory) / f"{self.name}-{self.number}.jsonl"

    @property
    def calls(self) -> Path:
        """The file of the changes that all processes have made."""
        return Path(self.directory) / "calls.jsonl"

    @property
    def gate(self) -> Path:
        """The file whose presence lets the agents take fleets."""
        return Path(self.directory) / "all-announced"


class Lines:
    """Appends lines of JSON to a file, each in one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, **fields: Any) -> None:
        """Append a line."""
        os.write(self._file, json.dumps(fields).encode() + b"\n")


class SharedCloud(LoadedCloud):
    """The cloud of one of several processes. fence: of the agent, set when it has one."""

    fence: Callable[[], None]

    def __init__(self, fleets: Sequence[Fleet], task: Task, clock: ScaledClock, acting: Acting) -> None:
        self._numbers: Counter[str] = Counter()
        self._first_numbers: dict[str, int] = {}
        super().__init__(fleets, task.vms_per_fleet, [LEVEL] * len(fleets), SEED)
        self.clock = clock  # type: ignore[assignment]
        self._acting, self._process = acting, f"{task.name}-{task.number}"
        self._fleet_of = {group.name: fleet.name for fleet in fleets for group in fleet.groups}
        self._truth = psycopg.connect(task.url.replace("+psycopg", ""), autocommit=True)
        self._lines, self._others = Lines(task.calls), task.calls.open("rb")
        self._cleared = 0.0
        self._changing = threading.RLock()
        self.made: Counter[str] = Counter()
        self.own_cpu_s = 0.0
        """Processor time of what an agent on AWS has not."""
        self.minute = 0
        """The minute that the present turn decides."""

    def read(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Answer a call that reads."""
        self.made[operation] += 1
        if operation == "GetCallerIdentity":
            return {"Account": ACCOUNT}
        with self._changing:
            return super().read(service, operation, **parameters)

    def mutate(self, service: str, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Pass the fence, record the call with its epoch and the newest one of its fleet, and do what it asks for."""
        self.fence()
        began = time.thread_time()
        (epoch,) = self._acting.epochs or (0,)
        with self._changing:
            group = parameters.get("AutoScalingGroupName") or self._homes[parameters["InstanceId"]]
            fleet = self._fleet_of[group]
            query = "SELECT max(epoch) FROM leader WHERE subject = %s"
            (newest,) = self._truth.execute(query, [fleet_subject(fleet).path]).fetchone() or (None,)
            who = {"process": self._process, "epoch": epoch, "newest": newest, "minute": self.minute}
            about = {"operation": operation, "parameters": parameters, "fleet": fleet}
            self._lines.add(at=self.clock.now(), **who, **about)
            self.made[operation] += 1
            self.own_cpu_s += time.thread_time() - began
            return super().mutate(service, operation, **parameters)

    def pass_step(self, store: SampleSink, led: Collection[str]) -> None:
        """Let what happened since the last step happen: others' calls, VMs that boot, work and reports of fleets."""
        now = self.clock.now()
        with self._changing:
            if now // MINUTE_S > self._cleared:
                self._cleared = now // MINUTE_S
                for group in self._groups.values():
                    for one in [one for one in group["Instances"] if one["LifecycleState"] == "Terminating"]:
                        self._forget(group, one)
            while (line := self._others.readline()).endswith(b"\n"):
                call = json.loads(line)
                vm = call["parameters"].get("InstanceId")
                if call["process"] != self._process and (vm is None or vm in self._homes):
                    self._change(call["operation"], call["parameters"], call["at"])
            # The rest of a line may not be there yet.
            self._others.seek(-len(line), os.SEEK_CUR)
            self._settle()
        for workers in self._workers:
            if workers.fleet.name in led:
                workers.work(now)
                workers.report(store, now)

    def _launch(self, group: dict[str, Any], at: float) -> None:
        name = group["AutoScalingGroupName"]
        first = self._first_numbers.setdefault(name, FIRST_OF_GROUP * len(self._first_numbers))
        self._launched = first + self._numbers[name]
        self._numbers[name] += 1
        super()._launch(group, at)


class TimedSink:
    """Counts the processor time that the store below takes."""

    def __init__(self, below: SampleSink) -> None:
        self._below, self.cpu_s = below, 0.0

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Hand readings to the store."""
        began = time.thread_time()
        self._below.append(paths, values, times, now, peer)
        self.cpu_s += time.thread_time() - began
        return ()

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Hand samples to the store."""
        return self._below.append_samples(samples, now)


def settings_of(fleets: Iterable[Fleet], task: Task) -> Settings:
    """Return the settings that describe the fleets, the leases on the task's time."""
    found = {
        "TRIMTAB_MODE": "act",
        "TRIMTAB_AWS__REGION": "us-east-1",
        "TRIMTAB_STATE_DIRECTORY": f"{task.directory}/{task.name}",
        "TRIMTAB_LEDGER__URL": task.url,
        "TRIMTAB_LEADER__NAME": task.name,
        "TRIMTAB_LEADER__LEASE_S": repr(task.lease_s),
        "TRIMTAB_LEADER__RENEW_S": repr(task.renew_s),
        "TRIMTAB_LISTENER__PORT": "0",
    }
    for fleet in fleets:
        of_fleet = f"TRIMTAB_FLEETS__{fleet.name}"
        found[f"{of_fleet}__SELF_TUNE"] = "off"
        for group in fleet.groups:
            values = {
                "NAME": group.name,
                "VM_TYPE": group.vm_type.name,
                "CORES": group.vm_type.cores,
                "MEMORY_GB": group.vm_type.memory_gb,
                "PRICE_PER_HOUR": group.vm_type.price_per_hour,
                "MIN": group.minimum,
                "MAX": group.maximum,
            }
            found |= {f"{of_fleet}__GROUPS__{group.key}__{name}": str(value) for name, value in values.items()}
    return load_settings(found)


def play(task: Task) -> None:
    """Run the agent until the process is ended."""
    Path(task.directory, task.name).mkdir(exist_ok=True)
    records, clock, acting = Lines(task.records), ScaledClock(START, task.begins, task.speed), Acting()
    fleets = make_fleets(task.fleets, task.fleets * task.vms_per_fleet)
    cloud = SharedCloud(fleets, task, clock, acting)
    agents: list[Agent] = []

    @contextmanager
    def assembled(*given: Any, **named: Any) -> Iterator[Agent]:
        with original(*given, **named) as agent:
            agents.append(agent)
            yield agent

    def session(settings: Settings, clock: object, keys: object, fence: Callable[[], None]) -> SharedCloud:
        cloud.fence = fence
        return cloud

    def managed_by(parts: Iterable[Part], settings: Settings) -> Managed:
        found = original_managed(parts, settings)
        return found if task.gate.exists() else Managed(found.settings)

    def ready() -> None:
        records.add(kind="ready", at=clock.now())
        threading.Thread(target=report_load, args=(cloud, agents[0], clock, records), daemon=True).start()

    original, original_managed = assembly.assembled, shares.managed_by
    replaced: Mapping[str, Any] = {
        "assembled": assembled,
        "aws_session": session,
        "managed_by": managed_by,
        "Acting": lambda: acting,
    }
    for name, value in replaced.items():
        setattr(assembly, name, value)
    note_decisions(records, clock, cloud)
    with open(os.devnull, "w", encoding="utf-8") as sink:
        log_to(sink)
        daemon.run(settings_of(fleets, task), clock, threading.Event(), started=ready)


def note_decisions(records: Lines, clock: ScaledClock, cloud: SharedCloud) -> None:
    """Record when decisions are in the ledger, and how long turns last."""
    record, turn = FleetStore.record, daemon.Loop.turn

    @wraps(record)
    def recorded(store: FleetStore, made: Sequence[Any], *given: Any, **named: Any) -> None:
        record(store, made, *given, **named)
        if made:
            fleets = [decided.decision.fleet for _, decided in made]
            records.add(kind="decided", at=clock.now(), minute=cloud.minute, fleets=fleets)

    @wraps(turn)
    def turned(loop: daemon.Loop) -> None:
        began = clock.now()
        cloud.minute = int((began - GRACE_S) // MINUTE_S)
        turn(loop)
        records.add(kind="turn", at=clock.now(), began=began)

    setattr(FleetStore, "record", recorded)  # noqa: B010
    setattr(daemon.Loop, "turn", turned)  # noqa: B010


def report_load(cloud: SharedCloud, agent: Agent, clock: ScaledClock, records: Lines) -> None:
    """Let the VMs of the fleets that this agent leads work and report, every ten seconds of the clock, for ever."""
    store, mine = TimedSink(assembly.sink_of(agent.parts)), psutil.Process()
    while True:
        led = {subject.name for subject in agent.leadership.leads().epochs}
        cloud.pass_step(store, led)
        # Of this thread only the store's part is the agent's.
        simulated_s = time.thread_time() - store.cpu_s + cloud.own_cpu_s
        records.add(
            kind="usage",
            at=clock.now(),
            led=len(led),
            cpu_s=time.process_time() - simulated_s,
            intake_cpu_s=store.cpu_s,
            simulated_cpu_s=simulated_s,
            calls=dict(cloud.made),
            rss_mb=mine.memory_info().rss / 2**20,
        )
        clock.sleep(SAMPLE_S - clock.now() % SAMPLE_S)


if __name__ == "__main__":
    play(Task(**json.load(sys.stdin)))
