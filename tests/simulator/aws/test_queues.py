"""Queues keep the cloud's time, and no message goes to two receivers at once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from domain.clock import ScaledClock
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World


def test_a_visibility_timeout_runs_on_the_clouds_clock(world: World) -> None:
    sqs = world.client("sqs")
    url = sqs.create_queue(QueueName="jobs", Attributes={"VisibilityTimeout": "60"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="job")
    assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
    world.control.advance(59.9)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    world.control.advance(0.2)
    (again,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    assert again["Attributes"]["SentTimestamp"] == str(int(START * 1000))


def test_a_long_poll_on_a_stopped_clock_returns_at_once(world: World) -> None:
    url = world.client("sqs").create_queue(QueueName="jobs")["QueueUrl"]
    began = time.monotonic()
    assert "Messages" not in world.client("sqs").receive_message(QueueUrl=url, WaitTimeSeconds=20)
    assert time.monotonic() - began < 15.0


def test_a_long_poll_on_a_fast_clock_waits_that_much_less_and_ends_with_the_message() -> None:
    running = start_in_thread(ScaledClock(START, time.time(), 60.0))
    world = World(running, CloudControl(running.endpoint))
    try:
        sqs = world.client("sqs")
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        began = time.monotonic()
        assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)
        assert 20 / 60 - 0.05 <= time.monotonic() - began < 15.0
        got: list[int] = []
        other = world.client("sqs", access_key="AKIATRIMTABWORKER001")

        def wait_for_one() -> None:
            got.append(len(other.receive_message(QueueUrl=url, WaitTimeSeconds=20)["Messages"]))

        waiting = threading.Thread(target=wait_for_one)
        waiting.start()
        sqs.send_message(QueueUrl=url, MessageBody="job")
        waiting.join(timeout=60.0)
        assert got == [1]
    finally:
        world.close()


@pytest.fixture
def hurried_threads() -> Iterator[None]:
    """Switch threads so often that what is not protected breaks."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("hurried_threads")
def test_receivers_side_by_side_share_the_messages_out(world: World) -> None:
    sqs = world.client("sqs")
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    for first in range(0, 150, 10):
        entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(first, first + 10)]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    bodies: list[str] = []

    def work() -> None:
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3).get("Messages"):
            bodies.extend(message["Body"] for message in messages)

    workers = [threading.Thread(target=work) for _ in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(bodies, key=int) == [str(n) for n in range(150)]
