"""The managed application of the dry run, in a process of its own: job source, queue, one worker per VM in service.

Reads one JSON object (a `SiteSpec`) from standard input, then orders, one JSON object a line: {"gap_s": 300} loses all
metrics for so long, {"stop": true} ends it. Answers {"ready": true} and, at the end, the job source's summary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from agent.rehearsal.job_source import JobSource
from agent.rehearsal.reporting import Reporter
from agent.rehearsal.scenario import recorded_trace
from agent.rehearsal.worker import Machine, MachineGone, Worker
from domain.clock import ScaledClock

ACCESS_KEY = "workers"
ROSTER_EVERY_S = 10.0


@dataclass(frozen=True)
class SiteSpec:
    """What the process needs to know.

    Endpoint, queue, groups (AWS name -> key, cores, memory in GB), trace, clock, listener.
    """

    endpoint: str
    region: str
    queue_url: str
    fleet: str
    groups: dict[str, tuple[str, int, float]]
    workload: str
    seed: int
    origin: float
    wall_origin: float
    speed: float
    listener_host: str
    listener_port: int


def aws_client(service: str, spec: SiteSpec) -> Any:
    """Return a boto3 client for the dry run's endpoint, signed as the workers."""
    make: Callable[..., Any] = boto3.client
    return make(
        service,
        endpoint_url=spec.endpoint,
        region_name=spec.region,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key="dry-run",
        config=Config(retries={"mode": "standard", "total_max_attempts": 3}, max_pool_connections=50),
    )


class SqsJobs:
    """The job queue on SQS; a failed call counts as an empty answer and is made again at the next poll."""

    def __init__(self, client: Any, url: str) -> None:
        self._client, self._url = client, url

    def receive(self, most: int) -> list[dict[str, Any]]:
        """Return at most `most` messages."""
        try:
            answer = self._client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=most)
        except (BotoCoreError, ClientError):
            return []
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def delete(self, receipt: str) -> None:
        """Delete one message; when that fails the job comes back and is counted once."""
        try:
            self._client.delete_message(QueueUrl=self._url, ReceiptHandle=receipt)
        except (BotoCoreError, ClientError):
            return

    def put(self, bodies: list[str]) -> None:
        """Send at most ten messages, again until SQS has them all."""
        entries = [{"Id": str(k), "MessageBody": body} for k, body in enumerate(bodies)]
        while entries:
            try:
                answer = self._client.send_message_batch(QueueUrl=self._url, Entries=entries)
            except (BotoCoreError, ClientError):
                continue
            failed = {failure["Id"] for failure in answer.get("Failed", [])}
            entries = [entry for entry in entries if entry["Id"] in failed]


def stopping_probe(endpoint: str, vm: str) -> Callable[[], bool]:
    """Return a function that asks the VM's instance metadata whether the VM is to be terminated.

    It raises MachineGone when there is no such VM. One that AWS takes back after a spot notice stays in its group until
    the health check or the end of its lifecycle hook, so the group does not tell.
    """
    address = urlsplit(endpoint)
    path = f"/_trimtab/imds/{vm}/latest/meta-data/autoscaling/target-lifecycle-state"
    connection = HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=5)

    def stopping() -> bool:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, HTTPException):
            connection.close()
            return False
        if answer.status == 404:
            raise MachineGone(vm)
        return answer.status == 200 and text.strip() == "Terminated"

    return stopping


class Site:
    """Keeps one worker for each VM in service."""

    def __init__(self, spec: SiteSpec) -> None:
        self.spec = spec
        self.clock = ScaledClock(spec.origin, spec.wall_origin, spec.speed)
        self.reporter = Reporter(spec.listener_host, spec.listener_port, self.clock)
        self._groups = aws_client("autoscaling", spec)
        self._jobs = SqsJobs(aws_client("sqs", spec), spec.queue_url)
        trace = recorded_trace(spec.workload, spec.seed).trace
        self.source = JobSource(spec.fleet, trace, spec.origin, self.clock, self._jobs.put, self.reporter)
        self._workers: dict[str, Worker] = {}
        self._ended = Event()
        self._roster = Thread(target=self._keep_roster, name="roster", daemon=True)
        self.interrupted = 0

    def start(self) -> None:
        """Begin."""
        self.source.start()
        self._roster.start()

    def stop(self) -> dict[str, Any]:
        """End everything and return the job source's summary."""
        self._ended.set()
        self.source.stop()
        self._roster.join(timeout=5)
        self.interrupted += sum(worker.interrupted for worker in self._workers.values() if not worker.is_alive())
        for worker in self._workers.values():
            worker.kill()
        self.reporter.close()
        return {**self.source.summary(), "interrupted": self.interrupted}

    def _keep_roster(self) -> None:
        while not self._ended.is_set():
            try:
                groups = self._groups.describe_auto_scaling_groups(AutoScalingGroupNames=list(self.spec.groups))
            except (BotoCoreError, ClientError):
                self.clock.sleep(ROSTER_EVERY_S)
                continue
            self._meet(groups["AutoScalingGroups"])
            self.clock.sleep(ROSTER_EVERY_S)

    def _meet(self, groups: list[dict[str, Any]]) -> None:
        """Start workers on VMs that came into service and end those whose VM is gone."""
        alive = {
            instance["InstanceId"]: (group["AutoScalingGroupName"], instance["LifecycleState"])
            for group in groups
            for instance in group["Instances"]
        }
        for vm in [vm for vm in self._workers if vm not in alive]:
            worker = self._workers.pop(vm)
            worker.kill()
            worker.join(timeout=2)
            self.interrupted += worker.interrupted
        for vm, (group, lifecycle) in alive.items():
            if vm not in self._workers and lifecycle == "InService":
                key, cores, memory_gb = self.spec.groups[group]
                machine = Machine(vm, self.spec.fleet, key, cores, memory_gb)
                probe = stopping_probe(self.spec.endpoint, vm)
                worker = Worker(machine, self._jobs, self.clock, probe, self.reporter, self.source.job_done)
                self._workers[vm] = worker
                worker.start()


def say(answer: dict[str, Any]) -> None:
    """Write one JSON object on a line of standard output."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the site until told to stop or until whoever started it is gone."""
    site = Site(TypeAdapter(SiteSpec).validate_json(sys.stdin.readline()))
    site.start()
    say({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if "gap_s" in order:
            site.reporter.go_silent(float(order["gap_s"]))
        if order.get("stop"):
            break
    say(site.stop())


if __name__ == "__main__":
    main()
