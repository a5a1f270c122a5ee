"""The cloud under load, and everything that goes wrong with it: seeded faults of every kind the agent must live with.

Calls go through the real session: its budget, its sorting of failures and its counters; they end where a client would
build the request. Groups launch what is missing, fail to when there is no capacity, hold leaving VMs by a hook, and
lose VMs. Besides, the clock of the agent's host is set, VMs and job sources fall silent, and poison comes in as lines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn

import botocore
from botocore.exceptions import ClientError, ReadTimeoutError

from benchmarks.agent_host import Feed, HostClock
from benchmarks.loaded_cloud import ZONES, Described, LoadedCloud
from collectors.aws import AwsSession
from collectors.intake import LineReader
from domain.fleet import Fleet

HOOKED = "-workers-0"
"""Groups of this ending hold leaving VMs by a lifecycle hook."""
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
)
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
    "pin": 0.2,
    "poison": 20.0,
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
        super().__init__(fleets, vms_per_fleet, levels, seed)
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
        self._is_open = True

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
        if method == "describe_scaling_activities":
            return {"Activities": self._activities[given["AutoScalingGroupName"]][::-1]}
        if method == "describe_lifecycle_hooks":
            return {"LifecycleHooks": [HOOK] if given["AutoScalingGroupName"].endswith(HOOKED) else []}
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
            return self._hook_action(method, operation, given["InstanceId"])
        if method == "set_desired_capacity":
            group = self._groups[given["AutoScalingGroupName"]]
            self._resize(group, given["DesiredCapacity"], None)
            return {}
        if method == "terminate_instance_in_auto_scaling_group":
            return self._terminate(operation, given["InstanceId"], given["ShouldDecrementDesiredCapacity"])
        return super().mutate("", operation, **given)

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
        if is_smaller:
            self._resize(group, group["DesiredCapacity"] - 1, vm)
        self._let_go(group, self._instance(group, vm))
        return {}

    def _let_go(self, group: Described, one: Described) -> None:
        vm, name = one["InstanceId"], group["AutoScalingGroupName"]
        is_held = name.endswith(HOOKED)
        one["LifecycleState"] = "Terminating:Wait" if is_held else "Terminating"
        if is_held:
            self._held_until[vm] = self.clock.now() + HEARTBEAT_S
        self._note(name, f"Terminating EC2 instance: {vm}", "InProgress" if is_held else "Successful")

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
                self._fill(group, now)

    def _fill(self, group: Described, now: float) -> None:
        name = group["AutoScalingGroupName"]
        serving = [one for one in group["Instances"] if one["LifecycleState"] in ("Pending", "InService")]
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
        at_work = ("InService", "Terminating:Wait")
        return [one["InstanceId"] for one in self._groups[name]["Instances"] if one["LifecycleState"] in at_work]

    def _take(self, vm: str) -> None:
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
        for silent, until in list(self._silent_until.items()):
            if now >= until:
                del self._silent_until[silent]
        operators = []
        for kind, per_hour in HOURLY.items():
            if self.random.uniform() < per_hour / 60.0:
                self.faults[kind] += 1
                fleet = self.fleets[int(self.random.integers(len(self.fleets)))]
                if kind in ("pause", "pin"):
                    operators.append((kind, fleet, float(self.random.uniform(300.0, 3600.0))))
                elif kind == "poison":
                    lines = self.random.choice(len(POISON), size=20)
                    reader.feed(b"".join(POISON[k] for k in lines))
                else:
                    self._begin(kind, fleet, now)
        feed.silent = set(self._silent_until)
        return operators

    def _begin(self, kind: str, fleet: Fleet, now: float) -> None:
        group = self._groups[fleet.groups[int(self.random.integers(len(fleet.groups)))].name]
        lasts_s = float(self.random.uniform(60.0, 600.0))
        running = [o["InstanceId"] for o in group["Instances"] if o["LifecycleState"] == "InService"]
        chosen = (
            [str(vm) for vm in self.random.choice(running, size=min(2, len(running)), replace=False)] if running else []
        )
        if kind == "throttling":
            self._throttled_until = now + lasts_s / 2
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
        elif kind == "policy_late":
            self.late_policies[fleet.name] = now + lasts_s / 2
        elif kind == "spot_notice":
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


_OPERATIONS = {
    botocore.xform_name(name): name
    for name in (
        "DescribeAutoScalingGroups",
        "DescribeInstances",
        "DescribeScalingActivities",
        "DescribeLifecycleHooks",
        "DescribeInstanceRefreshes",
        "SetDesiredCapacity",
        "TerminateInstanceInAutoScalingGroup",
        "SetInstanceProtection",
        "CompleteLifecycleAction",
        "RecordLifecycleActionHeartbeat",
        "ReceiveMessage",
        "DeleteMessageBatch",
    )
}
