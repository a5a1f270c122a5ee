"""The cloud under load, and everything that goes wrong with it: seeded faults of every kind the agent must live with.

Calls go through the real session: its budget, its sorting of failures and its counters; they end where a client would
build the request. Groups launch what is missing, fail to when there is no capacity, hold leaving VMs by hooks, lose
VMs, are made anew, or answer from another account. Besides, the clock of the agent's host is set or runs fast, VMs and
job sources fall silent, repeat themselves or contradict each other, and poison comes in as lines. `lost` counts jobs by
what ended their VM: `agent` is a scale-in or a hook that ran out while the agent could have kept it open; `silent VM`
one that ran out on a VM that alone did not report, as one does that is gone. `forbidden`
lists the agent's calls that a fault forbids.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

import botocore
import numpy as np
from botocore.exceptions import ClientError, ReadTimeoutError

from benchmarks.agent_host import Feed, HostClock
from benchmarks.loaded_cloud import ACCOUNT, BOOT_S, TYPES, ZONES, Described, LoadedCloud, arn_of
from benchmarks.soak_workers import JobWorkers
from collectors.aws import AwsSession
from collectors.intake import LineReader
from domain.fleet import Fleet

TWO_HOOKS = "-workers-1"
"""Groups of this ending have another party's terminating hook, listed before the agent's."""
FOREIGN_HOOK, FOREIGN_ACCOUNT = "a-upload-logs", "999999999999"
LARGER, LARGER_CORES = "m5a.4xlarge", 16
ODD_STATES = ("Terminating:Retained", "Quarantined", "ReplacingRootVolume", "Examined")
"""Lifecycle states that are rare, and one that AWS does not document."""
HELD_STATES = ("Terminating:Wait", "Warmed:Pending:Wait")
DELETED = "Delete in progress"
HEARTBEAT_S = 180.0
HOOK = {
    "LifecycleHookName": "drain",
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
    "HeartbeatTimeout": int(HEARTBEAT_S),
    "GlobalTimeout": 1800,
    "DefaultResult": "CONTINUE",
}
RETRY_LAUNCH_S = 60.0
ACTIVITIES_KEPT = 60
NOTICE_S = 120.0
LOST_SHARE, UNAVAILABLE_SHARE, THROTTLED_SHARE = 0.02, 0.004, 0.006
POISON = (
    b"trimtab.fleet-00.g0.i-1.cpu_percent nan 1795209000\n",
    b"\x00\xff\xfe not text at all\n",
    b"a.b.c 1 2 3 4\n",
    b"trimtab.fleet-00.g0.i-1.cpu_percent 1e400 1795209000\n",
    b"trimtab.strangers.g0.i-1.cpu_percent 50 1795209000\n",
    b"x" * 5000 + b"\n",
    b"trimtab.fleet-00.queue.waiting -5 99999999999\n",
    b"trimtab.fleet-00.queue.waiting;host=a 500 1795209000\n",
    b"trimtab.fleet-00.g0.host.example.org.busy_cores 0 1795209000\n",
    b"trimtab.fleet-00.g0.i-1.cpu_percent 400 1795209000\n",
    b"trimtab.fleet-00.queue.waiting 50 1795209000000\n",
    b"busy_cores;fleet=fleet-00;group=g0 4 1795209000\n",
    b"busy_cores;host=i-1;group=g0;fleet=fleet-00 4 1795209000\n",
    b"busy_cores;fleet=strangers;group=g0;host=i-1;rack=7 4 1795209000\n",
)
OF_THE_HOST = ("pause", "namesake_paused", "pin", "disk_full", "killed", "power_cut")
"""Operators' actions, and what happens to the agent's own process and disk: the caller carries them out."""
HOURLY = {
    "throttling": 0.5,
    "shortage": 0.6,
    "vanishing": 2.0,
    "fleet_silent": 0.5,
    "vm_silent": 1.5,
    "clock_set": 0.2,
    "policy_late": 0.5,
    "spot_notice": 2.0,
    "owner_resizes": 0.15,
    "pause": 0.25,
    "namesake_paused": 0.25,
    "pin": 0.2,
    "poison": 20.0,
    "protected_by_another": 0.1,
    "terminate_refused": 0.1,
    "launches_die": 0.05,
    "mass_interruption": 0.05,
    "other_account": 0.05,
    "made_anew": 0.05,
    "odd_state": 0.2,
    "larger_vm": 0.05,
    "two_senders": 0.1,
    "broken_workers": 0.05,
    "hung_workers": 0.05,
    "queue_repeats": 0.05,
    "queue_jumps": 0.3,
    "counter_falls": 0.1,
    "clock_fast": 0.03,
    "disk_full": 0.05,
    "killed": 0.05,
    "power_cut": 0.05,
}
"""How often each kind of fault begins, per hour."""


@dataclass(frozen=True, slots=True)
class SizeChange:
    """A change of desired capacity that the agent asked for; `vm` where it named one to terminate."""

    group: str
    before: int
    after: int
    vm: str | None


class _Client:
    """In place of a boto3 client: every method ends in the cloud."""

    def __init__(self, answer: Callable[..., Described]) -> None:
        self._answer = answer

    def __getattr__(self, method: str) -> Callable[..., Described]:
        return partial(self._answer, method)

    def close(self) -> None:
        """There is no connection."""


class TroubledCloud(LoadedCloud):
    """Auto Scaling groups, their VMs, an interruption queue, and faults; seeded, so that a run can be repeated."""

    _is_open = False

    def __init__(self, fleets: Sequence[Fleet], vms_per_fleet: int, levels: Sequence[float], seed: int) -> None:
        self._cores: dict[str, int] = {}
        self._cores_by_type = {**{one.name: one.cores for one in TYPES}, LARGER: LARGER_CORES}
        super().__init__(fleets, vms_per_fleet, levels, seed)
        self.account.expected = ACCOUNT
        for name, group in self._groups.items():
            group["LaunchTemplate"] = {"LaunchTemplateId": f"lt-{name}", "LaunchTemplateName": name, "Version": "1"}
        self.fleets = tuple(fleets)
        self.host_clock = HostClock(self.clock)
        self.faults: Counter[str] = Counter()
        self.changes: list[SizeChange] = []
        self.owner_changed: set[str] = set()
        self.late_policies: dict[str, float] = {}
        self._client_of_mine = _Client(self._answer)
        self._activities: dict[str, list[Described]] = {name: [] for name in self._groups}
        self._cause: dict[str, str] = {}
        self._short_until: dict[str, float] = {}
        self._tried_at: dict[str, float] = {}
        self._held_until: dict[str, float] = {}
        self._taken_at: dict[str, float] = {}
        self._messages: dict[str, str] = {}
        self._hidden: dict[str, str] = {}
        self._sent = 0
        self._throttled_until = 0.0
        self._silent_until: dict[bytes, float] = {}
        self._clock_right_at = 0.0
        self._clock_fast_until = 0.0
        self.forbidden: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.lost_examples: list[str] = []
        self._by_another: set[str] = set()
        self._cut_off_until = 0.0
        self._odd_until: dict[str, float] = {}
        self._guarded_until: dict[str, float] = {}
        self._stuck_until: dict[str, float] = {}
        self._dying_until: dict[str, float] = {}
        self._foreign_until = 0.0
        self._foreign: dict[str, Described] = {}
        self._anew: dict[str, list[tuple[float, str]]] = {}
        self._made = 1
        self._workers_until: dict[tuple[str, str], float] = {}
        self._larger: set[str] = set()
        self._is_open = True

    @property
    def job_workers(self) -> list[JobWorkers]:
        """The VMs of each fleet at work."""
        return self._workers

    def in_service(self, group: str) -> list[str]:
        """Return the ids of a group's VMs in service."""
        return [one["InstanceId"] for one in self._groups[group]["Instances"] if one["LifecycleState"] == "InService"]

    # The session

    def client(self, service: str, attempts: int = 1) -> Any:
        """Return what answers instead of a client."""
        return self._client_of_mine if self._is_open else super().client(service, attempts)

    def read(self, service: str, operation: str, /, **parameters: Any) -> Described:
        """Make a call that reads, as the real session does."""
        return AwsSession.read(self, service, operation, **parameters)

    def mutate(self, service: str, operation: str, /, **parameters: Any) -> Described:
        """Make a call that changes something, as the real session does."""
        return AwsSession.mutate(self, service, operation, **parameters)

    def _answer(self, method: str, **parameters: Any) -> Described:
        operation = _OPERATIONS[method]
        drawn = self.random.uniform()
        if self.clock.now() < self._throttled_until or drawn < THROTTLED_SHARE:
            _fail(operation, "Throttling", "Rate exceeded", 400)
        if drawn < THROTTLED_SHARE + UNAVAILABLE_SHARE:
            _fail(operation, "ServiceUnavailable", "try again later", 503)
        is_lost = not method.startswith("describe") and self.random.uniform() < LOST_SHARE
        if is_lost and self.random.uniform() < 0.5:
            self.faults["request_lost"] += 1
            raise ReadTimeoutError(endpoint_url="https://autoscaling.invalid")
        answer = self._do(method, operation, parameters)
        if is_lost:
            self.faults["answer_lost"] += 1
            raise ReadTimeoutError(endpoint_url="https://autoscaling.invalid")
        return answer

    def _do(self, method: str, operation: str, given: dict[str, Any]) -> Described:
        if self.clock.now() < self._foreign_until:
            return self._do_elsewhere(method, given)
        if method == "describe_scaling_activities":
            return {"Activities": self._activities[given["AutoScalingGroupName"]][::-1]}
        if method == "describe_lifecycle_hooks":
            foreign = [HOOK | {"LifecycleHookName": FOREIGN_HOOK}]
            return {"LifecycleHooks": foreign * given["AutoScalingGroupName"].endswith(TWO_HOOKS) + [HOOK]}
        if method == "describe_instance_types":
            cores = self._cores_by_type
            types = given["InstanceTypes"]
            return {"InstanceTypes": [{"InstanceType": t, "VCpuInfo": {"DefaultVCpus": cores[t]}} for t in types]}
        if method == "describe_launch_template_versions":
            launched = self._types[given["LaunchTemplateId"].removeprefix("lt-")]
            return {"LaunchTemplateVersions": [{"LaunchTemplateData": {"InstanceType": launched}}]}
        if method.startswith("describe"):
            return super().read("", operation, **given)
        if method == "receive_message":
            found = list(self._messages.items())[: given["MaxNumberOfMessages"]]
            # Hidden until the next minute; what was not deleted comes again.
            for receipt, _ in found:
                self._hidden[receipt] = self._messages.pop(receipt)
            return {"Messages": [{"Body": body, "MessageId": key, "ReceiptHandle": key} for key, body in found]}
        if method == "delete_message_batch":
            for entry in given["Entries"]:
                self._hidden.pop(entry["ReceiptHandle"], None)
            return {"Successful": given["Entries"]}
        if method in ("complete_lifecycle_action", "record_lifecycle_action_heartbeat"):
            self._forbid(given["LifecycleHookName"] != HOOK["LifecycleHookName"], "hook of another party")
            return self._hook_action(method, operation, given["InstanceId"])
        if method == "set_desired_capacity":
            group = self._groups[given["AutoScalingGroupName"]]
            self._forbid(self._is_anew(group), "size of a group made anew or being deleted")
            self._resize(group, given["DesiredCapacity"], None)
            return {}
        if method == "terminate_instance_in_auto_scaling_group":
            return self._terminate(operation, given["InstanceId"], given["ShouldDecrementDesiredCapacity"])
        return super().mutate("", operation, **given)

    def _do_elsewhere(self, method: str, given: dict[str, Any]) -> Described:
        """Answer as another account does, which has groups of the same names."""
        if method == "describe_auto_scaling_groups":
            return {"AutoScalingGroups": [self._foreign[name] for name in given["AutoScalingGroupNames"]]}
        if not method.startswith(("describe", "receive")):
            self._forbid(True, f"{method} in another account")
        return {name: [] for name in _EMPTY}

    def _forbid(self, is_forbidden: bool, what: str) -> None:
        if is_forbidden:
            self.forbidden[what] += 1

    def _is_anew(self, group: Described) -> bool:
        return bool(self._anew.get(group["AutoScalingGroupName"]))

    def _resize(self, group: Described, size: int, vm: str | None) -> None:
        name, before = group["AutoScalingGroupName"], group["DesiredCapacity"]
        if size != before:
            self.changes.append(SizeChange(name, before, size, vm))
        self._cause[name] = f"a user request changing the desired capacity from {before} to {size}."
        group["DesiredCapacity"] = size

    def _terminate(self, operation: str, vm: str, is_smaller: bool) -> Described:
        if vm not in self._homes:
            _fail(operation, "ValidationError", f"Instance Id not found - No managed instance found: {vm}", 400)
        group = self._groups[self._homes[vm]]
        one = self._instance(group, vm)
        self._forbid(self._is_anew(group), "termination in a group made anew or being deleted")
        self._forbid(one["LifecycleState"] in ODD_STATES, "termination in a state that is not the agent's")
        self._forbid(vm in self._guarded_until, "termination of a VM that another party protects")
        if vm in self._stuck_until:
            _fail(operation, "ScalingActivityInProgress", "Activity is in progress and blocks this one", 400)
        if is_smaller:
            self._resize(group, group["DesiredCapacity"] - 1, vm)
        self._let_go(group, one)
        return {}

    def _let_go(self, group: Described, one: Described) -> None:
        vm, name = one["InstanceId"], group["AutoScalingGroupName"]
        # A warm pool that takes VMs back shows another state for the same wait.
        one["LifecycleState"] = HELD_STATES[self._returns_to_pool(vm)]
        self._held_until[vm] = self.clock.now() + HEARTBEAT_S
        for workers in self._workers:
            workers.leaving.add(vm)
        self._note(name, f"Terminating EC2 instance: {vm}", "InProgress")

    def _returns_to_pool(self, vm: str) -> bool:
        return int(vm[2:], 16) % 7 == 0

    def _hook_action(self, method: str, operation: str, vm: str) -> Described:
        if vm not in self._held_until:
            _fail(operation, "ValidationError", f"No active Lifecycle Action found with instance ID {vm}", 400)
        wait_s = 0.0 if method.startswith("complete") else HEARTBEAT_S
        self._held_until[vm] = self.clock.now() + wait_s
        return {}

    def _note(self, name: str, description: str, status: str, message: str = "") -> None:
        kept = self._activities[name]
        kept.append(
            {
                "StartTime": datetime.fromtimestamp(self.clock.now(), UTC),
                "StatusCode": status,
                "StatusMessage": message,
                "Description": description,
                "Cause": self._cause.get(name, ""),
                "Details": "{}",
            }
        )
        del kept[:-ACTIVITIES_KEPT]

    # What AWS does by itself

    def _settle(self) -> None:
        super()._settle()
        if self._is_open:
            now = self.clock.now()
            for vm, at in list(self._taken_at.items()):
                if now >= at:
                    self._take(vm)
            for vm, at in list(self._held_until.items()):
                if now >= at:
                    del self._held_until[vm]
                    if vm in self._homes:
                        self._instance(self._groups[self._homes[vm]], vm)["LifecycleState"] = "Terminating"
            for group in self._groups.values():
                self._make_anew(group, now)
                self._die_early(group, now)
                self._fill(group, now)

    def _fill(self, group: Described, now: float) -> None:
        name = group["AutoScalingGroupName"]
        serving = [o for o in group["Instances"] if o["LifecycleState"] in ("Pending", "InService", *ODD_STATES)]
        spare = [one for one in serving if not one["ProtectedFromScaleIn"]]
        for one in spare[: max(0, len(serving) - group["DesiredCapacity"])]:
            self._let_go(group, one)
        missing = group["DesiredCapacity"] - len(serving)
        if missing <= 0 or now - self._tried_at.get(name, 0.0) < RETRY_LAUNCH_S / 2:
            return
        if now < self._short_until.get(name, 0.0):
            self._tried_at[name] = now
            zone = ZONES[int(self.random.integers(len(ZONES)))]
            message = (
                "We currently do not have sufficient m5a.xlarge capacity in the Availability Zone you requested "
                f"({zone}). Launching EC2 instance failed."
            )
            self._note(name, "Launching a new EC2 instance.  Status Reason: no capacity", "Failed", message)
            return
        for _ in range(missing):
            self._launch(group, now)
            self._note(name, f"Launching a new EC2 instance: {group['Instances'][-1]['InstanceId']}", "Successful")

    def _in_service(self, name: str) -> list[str]:
        """VMs that work: one that is held before it goes ends its jobs."""
        at_work = ("InService", *HELD_STATES, *ODD_STATES)
        return [one["InstanceId"] for one in self._groups[name]["Instances"] if one["LifecycleState"] in at_work]

    def _employ(self, fleet: Fleet, swing: tuple[float, float, float]) -> JobWorkers:
        return JobWorkers(fleet, swing, self.random, self._cores_of, self._job_ends)

    def _cores_of(self, vm: str) -> int:
        return self._cores.setdefault(vm, self._cores_by_type[self._types[self._homes[vm]]])

    def _job_ends(self, vm: str, jobs: int) -> None:
        if jobs and self._is_open:
            cause = "agent" if self.clock.now() >= self._cut_off_until else "agent cut off"
            # A VM that alone does not report may be gone, for all that the agent can know: it is not kept.
            cause = "silent VM" if vm.encode() in self._silent_until else cause
            cause = "another party or AWS" if vm in self._by_another else cause
            self.lost[cause] += jobs
            if cause == "agent" and len(self.lost_examples) < 5:
                self.lost_examples.append(f"{jobs} of {vm} at {self.clock.now():.0f}")
        self._by_another.discard(vm)
        self._cores.pop(vm, None)

    def _die_early(self, group: Described, now: float) -> None:
        name = group["AutoScalingGroupName"]
        if now < self._dying_until.get(name, 0.0):
            pending = [one for one in group["Instances"] if one["LifecycleState"] == "Pending"]
            for one in [one for one in pending if now - self._times[one["InstanceId"]] >= BOOT_S / 2]:
                self.faults["launch that died"] += 1
                self._note(name, f"Launching a new EC2 instance: {one['InstanceId']}", "Cancelled")
                self._forget(group, one)

    def _make_anew(self, group: Described, now: float) -> None:
        name = group["AutoScalingGroupName"]
        steps = self._anew.get(name, [])
        while steps and now >= steps[0][0]:
            _, vm_type = steps.pop(0)
            for one in list(group["Instances"]):
                self._take(one["InstanceId"])
            self.owner_changed.add(name)
            if vm_type == DELETED:
                group.update(Status=DELETED, DesiredCapacity=0)
                continue
            self._made += 1
            group.pop("Status", None)
            group.update(
                AutoScalingGroupARN=arn_of(name, ACCOUNT, self._made),
                CreatedTime=datetime.fromtimestamp(now, UTC),
                DesiredCapacity=max(group["MinSize"], 2),
            )
            self._cause[name] = ""
            self._types[name] = vm_type

    def _take(self, vm: str) -> None:
        self._by_another.add(vm)
        self._taken_at.pop(vm, None)
        self._held_until.pop(vm, None)
        if vm in self._homes:
            group = self._groups[self._homes[vm]]
            self._forget(group, self._instance(group, vm))

    # Faults

    def trouble(self, feed: Feed, reader: LineReader) -> list[tuple[str, Fleet, float]]:
        """Begin and end this minute's faults; return operators' actions, to be carried out with the ledger."""
        now = self.clock.now()
        self._messages.update(self._hidden)
        self._hidden.clear()
        self.changes.clear()
        self.owner_changed.clear()
        if self._clock_right_at and now >= self._clock_right_at:
            self.host_clock.error_s = self._clock_right_at = 0.0
        if now < self._clock_fast_until:
            self.host_clock.error_s += 0.05 * 60.0
        elif self._clock_fast_until:
            self.host_clock.error_s = self._clock_fast_until = 0.0
        for silent, until in list(self._silent_until.items()):
            if now >= until:
                del self._silent_until[silent]
        self._end_faults(now)
        operators = []
        for kind, per_hour in HOURLY.items():
            if self.random.uniform() < per_hour / 60.0:
                self.faults[kind] += 1
                fleet = self.fleets[int(self.random.integers(len(self.fleets)))]
                if kind in OF_THE_HOST:
                    operators.append((kind, fleet, float(self.random.uniform(300.0, 3600.0))))
                elif kind == "poison":
                    lines = self.random.choice(len(POISON), size=20)
                    reader.feed(b"".join(POISON[k] for k in lines))
                else:
                    self.begin(kind, fleet, now)
        feed.silent = set(self._silent_until)
        return operators

    def begin(self, kind: str, fleet: Fleet, now: float) -> None:
        """Begin a fault of this kind in a group of the fleet."""
        group = self._groups[fleet.groups[int(self.random.integers(len(fleet.groups)))].name]
        lasts_s = float(self.random.uniform(60.0, 600.0))
        running = [o["InstanceId"] for o in group["Instances"] if o["LifecycleState"] == "InService"]
        chosen = (
            [str(vm) for vm in self.random.choice(running, size=min(2, len(running)), replace=False)] if running else []
        )
        if kind == "throttling":
            self._throttled_until = now + lasts_s / 2
            self.cut_off(lasts_s / 2)
        elif kind == "shortage":
            self._short_until[group["AutoScalingGroupName"]] = now + 3.0 * lasts_s
        elif kind == "vanishing":
            for vm in chosen:
                self._take(vm)
        elif kind == "fleet_silent":
            self._silent_until[fleet.name.encode()] = now + lasts_s
        elif kind == "vm_silent":
            self._silent_until.update({vm.encode(): now + 3.0 * lasts_s for vm in chosen})
        elif kind == "clock_set":
            self.host_clock.error_s = float(self.random.choice([-3600.0, -90.0, -20.0, 15.0, 75.0, 3600.0]))
            self._clock_right_at = now + 3.0 * lasts_s
            self.cut_off(3.0 * lasts_s)
        elif kind == "policy_late":
            self.late_policies[fleet.name] = now + lasts_s / 2
        elif kind in ("spot_notice", "mass_interruption"):
            if kind == "mass_interruption":
                chosen = running[: 4 * len(running) // 5]
            for vm in chosen:
                self._taken_at[vm] = now + NOTICE_S
                # Twice, for a queue delivers at least once.
                self._send(vm, now)
                self._send(vm, now)
            self._sent += 1
            self._messages[f"m-{self._sent}"] = "{ this is no event"
        elif kind == "owner_resizes":
            size = group["DesiredCapacity"] + int(self.random.integers(-2, 3))
            group["DesiredCapacity"] = max(group["MinSize"], min(group["MaxSize"], size))
            self._cause[group["AutoScalingGroupName"]] = ""
            self.owner_changed.add(group["AutoScalingGroupName"])
        else:
            self._begin_rare(kind, fleet, group, chosen, now, lasts_s)

    def _begin_rare(
        self, kind: str, fleet: Fleet, group: Described, chosen: list[str], now: float, lasts_s: float
    ) -> None:
        name, workers = group["AutoScalingGroupName"], self._workers[self.fleets.index(fleet)]
        if kind == "protected_by_another":
            for one in [one for one in group["Instances"] if one["LifecycleState"] == "InService"]:
                if not one["ProtectedFromScaleIn"] and not workers.busy_cores(one["InstanceId"]):
                    one["ProtectedFromScaleIn"] = True
                    self._guarded_until[one["InstanceId"]] = now + 6.0 * lasts_s
        elif kind == "terminate_refused":
            self._stuck_until.update(dict.fromkeys(chosen, now + 6.0 * lasts_s))
        elif kind == "launches_die":
            self._dying_until[name] = now + 3.0 * lasts_s
        elif kind == "other_account":
            self._foreign = copy.deepcopy(self._groups)
            for other, described in self._foreign.items():
                described["AutoScalingGroupARN"] = arn_of(other, FOREIGN_ACCOUNT, 1)
                described["DesiredCapacity"] = min(described["MaxSize"], described["DesiredCapacity"] + 3)
            self._foreign_until = now + lasts_s
            self.cut_off(lasts_s)
        elif kind == "made_anew" and not self._anew.get(name):
            right = self._types[name]
            times = np.cumsum([0.0, 150.0, 3.0 * lasts_s, 150.0])
            kinds = (DELETED, LARGER, DELETED, right)
            self._anew[name] = [(now + float(at), one) for at, one in zip(times, kinds, strict=True)]
        elif kind == "odd_state":
            for vm in chosen[:1]:
                self._odd_until[vm] = now + 3.0 * lasts_s
                self._instance(group, vm)["LifecycleState"] = str(self.random.choice(ODD_STATES))
        elif kind == "larger_vm" and not self._is_anew(group) and group["DesiredCapacity"] < group["MaxSize"]:
            self._cause[name] = ""
            group["DesiredCapacity"] += 1
            self._launch(group, now)
            one = group["Instances"][-1]
            one["InstanceType"], self._cores[one["InstanceId"]] = LARGER, LARGER_CORES
            self.owner_changed.add(name)
        elif kind in ("two_senders", "broken_workers", "hung_workers"):
            found = {"two_senders": workers.doubled, "broken_workers": workers.broken, "hung_workers": workers.hung}
            found[kind].update(chosen)
            self._workers_until.update({(kind, vm): now + 3.0 * lasts_s for vm in chosen})
        elif kind == "queue_repeats":
            workers.frozen = True
            self._workers_until[kind, fleet.name] = now + 3.0 * lasts_s
        elif kind == "queue_jumps":
            workers.jumps = True
            self._workers_until[kind, fleet.name] = now + 1.0
        elif kind == "counter_falls":
            workers.submitted -= workers.submitted // 5
        elif kind == "clock_fast":
            self._clock_fast_until = now + 6.0 * lasts_s
            self.cut_off(6.0 * lasts_s)

    def cut_off(self, lasts_s: float) -> None:
        """Excuse the agent for jobs that a hook's end costs meanwhile: it could not keep the hook open."""
        self._cut_off_until = max(self._cut_off_until, self.clock.now() + lasts_s + HEARTBEAT_S)

    def _end_faults(self, now: float) -> None:
        for vm in [vm for vm, until in self._odd_until.items() if now >= until]:
            del self._odd_until[vm]
            if vm in self._homes:
                one = self._instance(self._groups[self._homes[vm]], vm)
                if one["LifecycleState"] in ODD_STATES:
                    one["LifecycleState"] = "InService"
        # A protected VM at work counts as one that the agent protects: it cannot tell the two apart.
        at_work = {vm for workers in self._workers for vm in self._guarded_until if workers.busy_cores(vm)}
        for vm in [vm for vm, until in self._guarded_until.items() if now >= until or vm in at_work]:
            del self._guarded_until[vm]
            if vm in at_work:
                continue
            if vm in self._homes:
                self._instance(self._groups[self._homes[vm]], vm)["ProtectedFromScaleIn"] = False
        for vm in [vm for vm, until in self._stuck_until.items() if now >= until]:
            del self._stuck_until[vm]
        by_name = {workers.fleet.name: workers for workers in self._workers}
        for kind, subject in [key for key, until in self._workers_until.items() if now >= until]:
            del self._workers_until[kind, subject]
            if kind == "queue_repeats":
                by_name[subject].frozen = False
            elif kind == "queue_jumps":
                by_name[subject].jumps = False
            for workers in self._workers:
                held = {"two_senders": workers.doubled, "broken_workers": workers.broken, "hung_workers": workers.hung}
                held.get(kind, set()).discard(subject)

    def _send(self, vm: str, now: float) -> None:
        self._sent += 1
        self._messages[f"m-{self._sent}"] = json.dumps(
            {
                "detail-type": "EC2 Spot Instance Interruption Warning",
                "time": datetime.fromtimestamp(now, UTC).isoformat(),
                "detail": {"instance-id": vm, "instance-action": "terminate"},
            }
        )


def _fail(operation: str, code: str, message: str, status: int) -> NoReturn:
    answer: Any = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    raise ClientError(answer, operation)


_EMPTY = (
    "Activities",
    "LifecycleHooks",
    "Reservations",
    "InstanceRefreshes",
    "Messages",
    "InstanceTypes",
    "LaunchTemplateVersions",
)
_OPERATIONS = {
    botocore.xform_name(name): name
    for name in (
        "DescribeAutoScalingGroups",
        "DescribeInstances",
        "DescribeScalingActivities",
        "DescribeLifecycleHooks",
        "DescribeInstanceRefreshes",
        "DescribeInstanceTypes",
        "DescribeLaunchTemplateVersions",
        "SetDesiredCapacity",
        "TerminateInstanceInAutoScalingGroup",
        "SetInstanceProtection",
        "CompleteLifecycleAction",
        "RecordLifecycleActionHeartbeat",
        "ReceiveMessage",
        "DeleteMessageBatch",
    )
}
