"""The agent as a process, killed by SIGKILL at drawn moments: every job arrives once, or as often as was counted."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agent.service.site import Daemon, Site, running_site, wait_until
from tests.short_directory import short_directory

SPEED = 30.0
STEP_S = 60
DEATHS = 8
JOBS_PER_LIFE = 5
KEPT_BY_FIFO_S = 300.0
CALLS = ("ReceiveMessage", "DeleteMessageBatch", "SendMessageBatch")
DAY_S = 86_400.0


class Pool:
    """A daemon with one deferral pool between two queues, and the people who submit to it and post its capacity."""

    def __init__(self, site: Site, directory: Path, *, fifo: bool) -> None:
        self.site, self.socket = site, directory / "trimtab.sock"
        self.sqs = site._client("sqs")
        self.submit = self.sqs.create_queue(QueueName="submit")["QueueUrl"]
        name, about = ("ready.fifo", {"FifoQueue": "true"}) if fifo else ("ready", {})
        self.ready = self.sqs.create_queue(QueueName=name, Attributes=about)["QueueUrl"]
        self.jobs = 0
        self.daemon = Daemon(
            site,
            directory,
            TRIMTAB_AWS__CALLS_PER_MINUTE="6000",
            TRIMTAB_DEFERRALS__night__STEP_S=str(STEP_S),
            TRIMTAB_DEFERRALS__night__POLICY="knapsack",
            TRIMTAB_DEFERRALS__night__SUBMIT_QUEUE_URL=self.submit,
            TRIMTAB_DEFERRALS__night__READY_QUEUE_URL=self.ready,
        )

    def put(self, number: int) -> None:
        for _ in range(number):
            self.jobs += 1
            # Long enough to be worth its start, however late.
            about = {"cores": 1, "duration_steps": 5000, "latest_at": self.site.clock.now() + DAY_S}
            body = json.dumps({"job_id": f"j{self.jobs}", **about})
            self.sqs.send_message(QueueUrl=self.submit, MessageBody=body)

    def asked(self, method: str, path: str, **given: Any) -> Any:
        transport = httpx.HTTPTransport(uds=str(self.socket))
        with httpx.Client(transport=transport, timeout=30.0) as client:
            answer = client.request(method, f"http://localhost/api/v1/deferral/pools/night{path}", **given)
        answer.raise_for_status()
        return answer.json()

    def post(self) -> None:
        with contextlib.suppress(httpx.HTTPError):
            self.asked("POST", "/capacity", json={"cores": 1000})

    def live(self) -> None:
        self.daemon.start()
        self.daemon.await_ready()
        self.post()

    def die(self) -> None:
        assert self.daemon.popen is not None
        self.daemon.popen.kill()
        self.daemon.popen.wait()

    def met_a_fault(self) -> bool:
        self.post()
        return self.site.fault_met()

    def all_started(self) -> bool:
        self.post()
        found = self.asked("GET", "/jobs", params={"limit": 5000})
        return len(found) == self.jobs and {one["stage"] for one in found} == {"running"}

    def copies(self) -> dict[str, list[float]]:
        """When each job was put on the ready queue, by the queue's own clock, in seconds."""
        found: dict[str, list[float]] = defaultdict(list)
        while messages := self.sqs.receive_message(
            QueueUrl=self.ready, MaxNumberOfMessages=10, AttributeNames=["SentTimestamp"]
        ).get("Messages", []):
            for message in messages:
                at = float(message["Attributes"]["SentTimestamp"]) / 1000.0
                found[json.loads(message["Body"])["job_id"]].append(at)
                self.sqs.delete_message(QueueUrl=self.ready, ReceiptHandle=message["ReceiptHandle"])
        return found

    def left(self) -> int:
        about = self.sqs.get_queue_attributes(QueueUrl=self.submit, AttributeNames=["All"])["Attributes"]
        return int(about["ApproximateNumberOfMessages"]) + int(about["ApproximateNumberOfMessagesNotVisible"])


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as made:
        yield made


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fifo", [True, False])
def test_no_job_is_lost_and_what_came_twice_was_counted(directory: Path, fifo: bool) -> None:
    draws = random.Random(16)
    with running_site(SPEED) as site:
        pool = Pool(site, directory, fifo=fifo)
        try:
            for life in range(DEATHS):
                pool.live()
                call = CALLS[life % len(CALLS)]
                kind = draws.choice(["timeout_before", "timeout_after"])
                site.control.add_fault(kind, operations=[call], access_keys=["agent"], count=1, hold_s=8.0)
                pool.put(JOBS_PER_LIFE)
                if life < DEATHS - 2:
                    wait_until(pool.met_a_fault, every_s=0.2)
                else:
                    time.sleep(draws.uniform(0.0, 3.0))
                pool.die()
                site.control.clear_faults()
            pool.live()
            wait_until(pool.all_started, every_s=0.3)
            wait_until(lambda: pool.left() == 0)
            totals = pool.asked("GET", "")["totals"]
            pool.daemon.terminate()
            assert pool.daemon.wait() == 0
        finally:
            pool.daemon.close()
        copies = pool.copies()
    assert set(copies) == {f"j{n}" for n in range(1, pool.jobs + 1)}
    assert sum(len(sent) - 1 for sent in copies.values()) <= totals["repeated_starts"]
    assert totals["submitted"] == pool.jobs
    if fifo:
        apart = [two - one for sent in copies.values() for one, two in pairwise(sorted(sent))]
        assert min(apart, default=KEPT_BY_FIFO_S) >= KEPT_BY_FIFO_S
