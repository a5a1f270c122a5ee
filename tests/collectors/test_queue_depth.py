"""The queue collector reads what waits and what runs from a real SQS endpoint (moto's), and fails alone."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.config import Config

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.cloudwatch import QueueDepthCollector
from collectors.polling import Poller
from domain.clock import VirtualClock
from domain.errors import BadInput
from domain.fleet import Fleet, Group, VmType
from domain.samples import QueueMetric, QueueSeries, Sample

T0 = 1_795_209_000.0
FLEET = Fleet("web", (Group("s", "web-s", VmType("m5a.large", 2, 8.0, 0.086), 1, 10),))


@pytest.fixture(scope="module")
def sqs(moto: str) -> Iterator[Any]:
    client = boto3.client(
        "sqs",
        endpoint_url=moto,
        region_name="eu-west-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}),
    )
    yield client
    client.close()


def test_visible_messages_wait_and_messages_in_flight_run(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
    for n in range(5):
        sqs.send_message(QueueUrl=url, MessageBody=str(n))
    sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=2, VisibilityTimeout=60)
    collector = QueueDepthCollector(replace(FLEET, queue_url=url), sqs)
    assert collector.name == "queue:web"
    assert collector.collect(T0) == (
        Sample(QueueSeries("web", QueueMetric.WAITING), 3.0, T0),
        Sample(QueueSeries("web", QueueMetric.RUNNING), 2.0, T0),
    )


def test_a_queue_that_is_gone_fails_alone(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="other")["QueueUrl"]
    healthy = QueueDepthCollector(replace(FLEET, queue_url=url), sqs)
    gone = QueueDepthCollector(replace(FLEET, name="lost", queue_url=url + "-gone"), sqs)
    store = SeriesStore()
    poller = Poller([gone, healthy], store, VirtualClock(T0))
    poller.poll_and_wait(10.0)
    assert poller.health["queue:lost"].failures == 1
    assert "NonExistentQueue" in poller.health["queue:lost"].last_error
    assert poller.health["queue:web"].successes == 1
    assert store.readings(store.queue_row("web", QueueMetric.WAITING), T0) == [(T0, 0.0)]
    assert len(store) == 2


def test_a_fleet_without_a_queue_has_no_depth_to_collect(sqs: Any) -> None:
    with pytest.raises(BadInput, match="queue_url"):
        QueueDepthCollector(FLEET, sqs)
