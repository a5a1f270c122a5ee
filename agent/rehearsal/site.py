"""The managed application of the dry run, in a process of its own: job source, queue, one worker per VM in service.

Started with the name of the workload and a seed, it reads one JSON object (a `SiteSpec`) from standard input, then
orders, one JSON object a line: {"gap_s": 300} loses all metrics for so long, {"stop": true} ends it. Answers
{"ready": true} and, at the end, the job source's summary.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Callable
from datetime import datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
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
from agent.rehearsal.worker import Fate, Machine, MachineGone, Worker
from domain.workload import Trace
from simulator.paced_clock import FollowedClock

ACCESS_KEY = "workers"
ROSTER_EVERY_S = 10.0


@dataclass(frozen=True)
class SiteSpec:
    """What the process needs to know.

    Endpoint, queue, groups (AWS name -> key, cores, memory in GB), when the jobs start and the books end, the file of
    the clock to follow, listener.
    """

    endpoint: str
    region: str
    queue_url: str
    fleet: str
    groups: dict[str, tuple[str, int, float]]
    start: float
    end: float
    clock_file: str
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

    def hand_back(self, receipt: str) -> None:
        """Make one message visible again; when that fails it comes back by itself, only later."""
        try:
            self._client.change_message_visibility(QueueUrl=self._url, ReceiptHandle=receipt, VisibilityTimeout=0)
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


class Metadata:
    """A VM's instance metadata, asked over HTTP as a worker on it would."""

    def __init__(self, endpoint: str, vm: str) -> None:
        address = urlsplit(endpoint)
        self._vm = vm
        self._connection = HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=5)

    def look(self) -> Fate:
        """Return what the metadata says of the VM's future; where it does not answer, nothing.

        Raises MachineGone when there is no such VM. One that AWS takes back after a spot notice stays in its group
        until the health check or the end of its lifecycle hook, so the group does not tell.
        """
        status, state = self._get("autoscaling/target-lifecycle-state")
        if status == 404:
            raise MachineGone(self._vm)
        status_of_notice, notice = self._get("spot/instance-action")
        taken_at = None
        if status_of_notice == 200:
            taken_at = datetime.fromisoformat(json.loads(notice)["time"]).timestamp()
        return Fate(status == 200 and state.strip() == "Terminated", taken_at)

    def _get(self, item: str) -> tuple[int, str]:
        try:
            self._connection.request("GET", f"/_trimtab/imds/{self._vm}/latest/meta-data/{item}")
            answer = self._connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, HTTPException):
            self._connection.close()
            return 0, ""


class Site:
    """Keeps one worker for each VM in service."""

    def __init__(self, spec: SiteSpec, trace: Trace) -> None:
        self.spec = spec
        self.clock = FollowedClock(Path(spec.clock_file), awaited=True)
        self.reporter = Reporter(spec.listener_host, spec.listener_port, self.clock)
        self._groups = aws_client("autoscaling", spec)
        self._jobs = SqsJobs(aws_client("sqs", spec), spec.queue_url)
        self.source = JobSource(spec.fleet, trace, spec.start, spec.end, self.clock, self._jobs.put, self.reporter)
        self._workers: dict[str, Worker] = {}
        self._ended = Event()
        self._roster = Thread(target=self._keep_roster, name="roster", daemon=True)
        self._gone: list[Worker] = []

    def start(self) -> None:
        """Begin."""
        self.source.start()
        self._roster.start()

    def stop(self) -> dict[str, Any]:
        """End everything and return the job source's summary, with the jobs lost and handed back by their workers."""
        self._ended.set()
        self.source.stop()
        self._roster.join(timeout=5)
        books = self.source.summary()
        gone = self._gone + [worker for worker in self._workers.values() if not worker.is_alive()]
        every = self._gone + list(self._workers.values())
        for worker in self._workers.values():
            worker.kill()
        self.reporter.close()
        # A worker whose VM vanished last may still sleep, on a clock that has stopped: its jobs are lost all the same.
        lost, handed_back = sum(worker.lost for worker in gone), sum(worker.handed_back for worker in every)
        return {**books, "lost": lost, "handed_back": handed_back}

    def _keep_roster(self) -> None:
        while not self._ended.is_set():
            try:
                groups = self._groups.describe_auto_scaling_groups(AutoScalingGroupNames=list(self.spec.groups))
            except (BotoCoreError, ClientError):
                groups = None
            if groups is not None:
                self._meet(groups["AutoScalingGroups"])
            self.clock.sleep(ROSTER_EVERY_S, self._ended)

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
            self._gone.append(worker)
        for vm, (group, lifecycle) in alive.items():
            if vm not in self._workers and lifecycle == "InService":
                key, cores, memory_gb = self.spec.groups[group]
                machine = Machine(vm, self.spec.fleet, key, cores, memory_gb)
                look = Metadata(self.spec.endpoint, vm).look
                worker = Worker(machine, self._jobs, self.clock, look, self.reporter, self.source)
                self._workers[vm] = worker
                worker.start()


def say(answer: dict[str, Any]) -> None:
    """Write one JSON object on a line of standard output."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the site until told to stop or until whoever started it is gone."""
    workload, seed = sys.argv[1:]
    # A lost connection to the agent shows as a gap in its metrics; it is nothing to write to the terminal about.
    logging.getLogger("graphyte").addHandler(logging.NullHandler())
    trace = recorded_trace(workload, int(seed)).trace
    first = sys.stdin.readline()
    if not first:
        return
    site = Site(TypeAdapter(SiteSpec).validate_json(first), trace)
    site.start()
    say({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if "gap_s" in order:
            site.reporter.go_silent(float(order["gap_s"]))
        if order.get("stop"):
            break
    books = site.stop()
    with contextlib.suppress(BrokenPipeError):
        say(books)


if __name__ == "__main__":
    main()
