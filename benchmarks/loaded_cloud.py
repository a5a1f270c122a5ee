"""Fleets under load for benchmarks: a cloud in memory that accepts every call, and VMs that report to the store.

The cloud answers in AWS's shapes at the place where calls would leave the process, so the real actuator works on it; no
request is built, sent or parsed. VMs take up jobs whole cores at a time, so that some are idle and some are full, and
the load of each fleet swings with a period and phase of its own, so that its policy changes its mind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import numpy as np

from collectors.aws import AwsOptions, AwsSession
from collectors.base import SampleSink
from domain.clock import VirtualClock
from domain.fleet import Fleet, Group, VmType
from domain.samples import PREFIX, QueueMetric, VmMetric

START = 1_795_209_000.0 // 60.0 * 60.0
GRACE_S = 5.0
SAMPLE_S = 10.0
BOOT_S = 40.0
JOB_CORE_S = 120.0
SWING = 0.12
PERIODS_S = (1500.0, 2100.0, 2700.0, 3600.0)
ACCOUNT = "123456789012"
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
TYPES = (
    VmType("m5a.large", 2, 8.0, 0.086),
    VmType("m5a.xlarge", 4, 16.0, 0.172),
    VmType("m5a.2xlarge", 8, 32.0, 0.344),
)
TEMPLATE = {"LaunchTemplateId": "lt-0a20c965061f64abc", "LaunchTemplateName": "workers", "Version": "1"}
SHARES = (0.5, 0.3, 0.2)
_SERVICES = ("autoscaling", "ec2", "sqs")

Described = dict[str, Any]


def make_fleets(fleets: int, vms: int) -> tuple[Fleet, ...]:
    """Return fleets of three groups, to start with `vms` VMs in all (see `sizes`) and free to grow by 40 %."""
    return tuple(Fleet(f"fleet-{n:02d}", _groups(f"fleet-{n:02d}", vms // fleets)) for n in range(fleets))


def _groups(fleet: str, vms: int) -> tuple[Group, ...]:
    return tuple(
        Group(f"g{k}", f"{fleet}-workers-{k}", vm_type, size // 2, size + 2 + 4 * size // 10)
        for k, (vm_type, size) in enumerate(zip(TYPES, sizes(vms), strict=True))
    )


def sizes(vms: int) -> tuple[int, ...]:
    """Return how many VMs each of the three groups starts with."""
    later = [int(share * vms) for share in SHARES[1:]]
    return (vms - sum(later), *later)


class LoadedCloud(AwsSession):
    """Auto Scaling groups that take every change, VMs that boot within a minute, and their readings.

    It is an `AwsSession` whose calls end here. The clients that a real one would use are loaded and never called, so
    that the process weighs what the agent weighs.
    """

    def __init__(self, fleets: Sequence[Fleet], vms_per_fleet: int, levels: Sequence[float], seed: int) -> None:
        self.clock = VirtualClock(START + GRACE_S)
        keys = AwsOptions(region="us-east-1", access_key_id="benchmark", secret_access_key="simulated")
        super().__init__(keys, self.clock, read_only=False)
        for service in _SERVICES:
            self.client(service)
        self.random = np.random.default_rng(seed)
        self.calls = 0
        self._launched = 0
        self._groups: dict[str, Described] = {}
        self._types = {group.name: group.vm_type.name for fleet in fleets for group in fleet.groups}
        self._homes: dict[str, str] = {}
        self._times: dict[str, float] = {}
        self._workers: list[Any] = []
        for number, (fleet, level) in enumerate(zip(fleets, levels, strict=True)):
            for group, size in zip(fleet.groups, sizes(vms_per_fleet), strict=True):
                self._groups[group.name] = _described(group, size)
                for _ in range(size):
                    self._launch(self._groups[group.name], START - 7200.0)
            swing = (level, PERIODS_S[number % len(PERIODS_S)], 2.0 * math.pi * number / len(fleets))
            self._workers.append(self._employ(fleet, swing))
        self._settle()

    @property
    def size(self) -> int:
        """VMs there are."""
        return len(self._homes)

    def described(self) -> list[Described]:
        """Every group as AWS describes it now."""
        return list(self._groups.values())

    def pass_minute(self, store: SampleSink) -> None:
        """Let a minute pass: VMs boot, work and report every ten seconds, the job sources too; then the grace."""
        for group in self._groups.values():
            for one in [one for one in group["Instances"] if one["LifecycleState"] == "Terminating"]:
                self._forget(group, one)
        start = self.clock.now() - GRACE_S
        for step in range(1, int(60.0 / SAMPLE_S) + 1):
            now = start + step * SAMPLE_S
            self.clock.advance(now - self.clock.now())
            self._settle()
            for workers in self._workers:
                workers.work(now)
                workers.report(store, now)
        self.clock.advance(GRACE_S)

    def _employ(self, fleet: Fleet, swing: tuple[float, float, float]) -> Any:
        return _Workers(fleet, swing, self.random)

    def _settle(self) -> None:
        """Bring what booted into service, and tell every fleet which VMs it has."""
        now = self.clock.now()
        for group in self._groups.values():
            for one in group["Instances"]:
                if one["LifecycleState"] == "Pending" and now - self._times[one["InstanceId"]] >= BOOT_S:
                    one["LifecycleState"] = "InService"
        for workers in self._workers:
            workers.seat([self._in_service(group.name) for group in workers.fleet.groups])

    def _in_service(self, name: str) -> list[str]:
        return [o["InstanceId"] for o in self._groups[name]["Instances"] if o["LifecycleState"] == "InService"]

    def _launch(self, group: Described, at: float) -> None:
        self._launched += 1
        vm = f"i-{self._launched * 0x9E3779B97F4A7C15 % 2**64:016x}"
        state = "Pending" if at >= START else "InService"
        group["Instances"].append(
            {
                "InstanceId": vm,
                "AvailabilityZone": ZONES[self._launched % len(ZONES)],
                "LifecycleState": state,
                "HealthStatus": "Healthy",
                "ProtectedFromScaleIn": False,
                "InstanceType": self._types[group["AutoScalingGroupName"]],
                "LaunchTemplate": TEMPLATE,
            }
        )
        self._homes[vm] = group["AutoScalingGroupName"]
        self._times[vm] = at

    def _forget(self, group: Described, one: Described) -> None:
        group["Instances"].remove(one)
        del self._homes[one["InstanceId"]], self._times[one["InstanceId"]]

    # What the actuator calls

    def read(self, service: str, operation: str, /, **parameters: Any) -> Described:
        """Answer a call that reads."""
        self.calls += 1
        if operation == "DescribeAutoScalingGroups":
            return {"AutoScalingGroups": [self._groups[name] for name in parameters["AutoScalingGroupNames"]]}
        if operation == "DescribeInstances":
            times = {vm: datetime.fromtimestamp(self._times[vm], UTC) for vm in parameters["Filters"][0]["Values"]}
            found = [{"InstanceId": vm, "LaunchTime": at} for vm, at in times.items()]
            return {"Reservations": [{"Instances": found}]}
        return {"LifecycleHooks": [], "InstanceRefreshes": [], "Activities": []}

    def mutate(self, service: str, operation: str, /, **parameters: Any) -> Described:
        """Do what a call asks for."""
        self.calls += 1
        self._change(operation, parameters, self.clock.now())
        return {}

    def _change(self, operation: str, parameters: Described, at: float) -> None:
        if operation == "SetDesiredCapacity":
            group = self._groups[parameters["AutoScalingGroupName"]]
            for _ in range(parameters["DesiredCapacity"] - group["DesiredCapacity"]):
                self._launch(group, at)
            group["DesiredCapacity"] = parameters["DesiredCapacity"]
        elif operation == "TerminateInstanceInAutoScalingGroup":
            group = self._groups[self._homes[parameters["InstanceId"]]]
            self._instance(group, parameters["InstanceId"])["LifecycleState"] = "Terminating"
            group["DesiredCapacity"] -= 1
        elif operation == "SetInstanceProtection":
            wanted = set(parameters["InstanceIds"])
            for one in self._groups[parameters["AutoScalingGroupName"]]["Instances"]:
                if one["InstanceId"] in wanted:
                    one["ProtectedFromScaleIn"] = parameters["ProtectedFromScaleIn"]
        else:
            raise ValueError(f"operation {operation}: the benchmark's cloud knows no such change")

    def _instance(self, group: Described, vm: str) -> Described:
        return next(one for one in group["Instances"] if one["InstanceId"] == vm)


def arn_of(name: str, account: str, number: int) -> str:
    """Return the ARN of a group that was made for the `number`th time under its name."""
    place = f"arn:aws:autoscaling:us-east-1:{account}:autoScalingGroup"
    return f"{place}:{number:08d}-0000-4000-8000-000000000000:autoScalingGroupName/{name}"


def _described(group: Group, size: int) -> Described:
    return {
        "AutoScalingGroupName": group.name,
        "AutoScalingGroupARN": arn_of(group.name, ACCOUNT, 1),
        "CreatedTime": datetime.fromtimestamp(START - 86400.0, UTC),
        "LaunchTemplate": TEMPLATE,
        "DesiredCapacity": size,
        "MinSize": group.minimum,
        "MaxSize": group.maximum,
        "AvailabilityZones": list(ZONES),
        "Instances": [],
    }


class _Workers:
    """One fleet's VMs at work: a backlog of core-seconds, taken up by the VMs in an order of their own.

    swing: mean load as a share of the cores it starts with, period in seconds, and phase.
    """

    def __init__(self, fleet: Fleet, swing: tuple[float, float, float], dice: np.random.Generator) -> None:
        self.fleet, self._dice = fleet, dice
        self._level, self._period_s, self._phase = swing
        self._names: list[list[str]] = []
        self._ranks: dict[str, float] = {}
        self._cores = self._busy = self._offset_s = np.empty(0)
        self._order = np.empty(0, dtype=np.int64)
        self._paths: list[bytes] = []
        self._first_cores = 0.0
        self._backlog = 0.0
        self._submitted = self._finished = 0.0
        self._queue_paths: list[bytes] = []

    def seat(self, names: list[list[str]]) -> None:
        """Take these VMs, by group, for those in service."""
        if names == self._names:
            return
        self._names = names
        vms = list(chain.from_iterable(names))
        self._ranks = {vm: self._ranks.get(vm) or self._dice.uniform() for vm in vms}
        ranks = np.array(list(self._ranks.values()))
        self._order = np.argsort(ranks)
        self._cores = np.repeat([float(cores) for cores in self.fleet.cores], [len(group) for group in names])
        # A VM reports at its own place within the ten seconds, always the same one.
        self._offset_s = ranks * 1e4 % SAMPLE_S
        self._first_cores = self._first_cores or float(self._cores.sum())
        self._paths = [
            f"{PREFIX}.{self.fleet.name}.{group.key}.{vm}.{metric}".encode()
            for group, vms in zip(self.fleet.groups, names, strict=True)
            for vm in vms
            for metric in VmMetric
        ]

    def work(self, now: float) -> None:
        """Let ten seconds of work arrive and be done."""
        load = self._level * (1.0 + SWING * math.sin(2.0 * math.pi * now / self._period_s + self._phase))
        arrived = max(0.0, load * self._dice.normal(1.0, 0.03)) * self._first_cores * SAMPLE_S
        capacity = float(self._cores.sum()) * SAMPLE_S
        done = min(capacity, self._backlog + arrived)
        self._backlog = max(0.0, self._backlog + arrived - done)
        self._submitted += arrived / JOB_CORE_S
        self._finished += done / JOB_CORE_S
        taken = self._cores[self._order]
        busy = np.empty_like(self._cores)
        busy[self._order] = np.clip(done / SAMPLE_S - (np.cumsum(taken) - taken), 0.0, taken)
        self._busy = np.round(busy)

    def report(self, store: SampleSink, now: float) -> None:
        """Hand what every VM and the job source measured in the last ten seconds to the store."""
        share = self._busy / self._cores
        noise = self._dice.uniform(0.0, 4.0, share.size)
        work = self._busy * (now % JOB_CORE_S)
        values = np.column_stack([95.0 * share + noise, 20.0 + 60.0 * share, self._busy, work])
        times = np.repeat(now - self._offset_s, len(VmMetric))
        _accept(store, self._paths, values.ravel().tolist(), times.tolist(), now)
        queue = {
            QueueMetric.WAITING: self._backlog // JOB_CORE_S,
            QueueMetric.RUNNING: float(self._busy.sum()),
            QueueMetric.SUBMITTED_TOTAL: math.floor(self._submitted),
            QueueMetric.FINISHED_TOTAL: math.floor(self._finished),
            QueueMetric.OLDEST_WAIT_SECONDS: min(self._backlog, 600.0),
            QueueMetric.JOB_CORE_SECONDS: JOB_CORE_S,
        }
        self._queue_paths = self._queue_paths or [f"{PREFIX}.{self.fleet.name}.queue.{one}".encode() for one in queue]
        _accept(store, self._queue_paths, list(queue.values()), [now] * len(queue), now)


def _accept(store: SampleSink, paths: list[bytes], values: list[float], times: list[float], now: float) -> None:
    refused = store.append(paths, values, times, now)
    if refused:
        raise RuntimeError(f"the store refused {len(refused)} readings, the first because of {refused[0].reason}")
