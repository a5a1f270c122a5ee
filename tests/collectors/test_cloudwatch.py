"""CloudWatch and SQS read from a real endpoint (moto's): newest CPU per VM, jobs sent so far, what waits and runs."""

import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.aws import AwsOptions, AwsSession
from collectors.cloudwatch import (
    QUERIES_PER_CALL,
    CloudWatchCpu,
    CloudWatchOptions,
    CloudWatchSubmitted,
    MetricQuery,
    QueueDepthCollector,
    metric_values,
)
from collectors.polling import Poller
from domain.clock import VirtualClock
from domain.errors import BadInput, CloudError
from domain.fleet import Fleet, Group, VmType
from domain.samples import QueueMetric, QueueSeries, Sample, VmMetric, VmSeries

T0 = 1_795_209_000.0 // 60 * 60
REGION = "us-east-1"
SMALL = VmType("m5a.large", 2, 8.0, 0.086)
FLEET = Fleet("web", (Group("s", "web-small", SMALL, 0, 10),), queue_url="http://127.0.0.1/123456789012/web-jobs")


class Cloud:
    """moto's AWS, a session on it as the agent has one, and words for what tests put there."""

    def __init__(self, endpoint: str) -> None:
        self.options = AwsOptions(REGION, endpoint, access_key_id="AKIA", secret_access_key="x", read_attempts=1)
        self.session = AwsSession(self.options, VirtualClock(T0), read_only=True)
        self._endpoint = endpoint
        self._clients: list[Any] = []

    def client(self, service: str) -> Any:
        """The test's own client, without the agent's guards."""
        make: Any = boto3.client
        made = make(
            service,
            region_name=REGION,
            endpoint_url=self._endpoint,
            aws_access_key_id="AKIA",
            aws_secret_access_key="x",
        )
        self._clients.append(made)
        return made

    def put(self, namespace: str, metric: str, dimension: str, value: str, readings: dict[float, float]) -> None:
        self.client("cloudwatch").put_metric_data(
            Namespace=namespace,
            MetricData=[
                {
                    "MetricName": metric,
                    "Dimensions": [{"Name": dimension, "Value": value}],
                    "Timestamp": datetime.fromtimestamp(at, UTC),
                    "Value": number,
                }
                for at, number in readings.items()
            ],
        )

    def cpu(self, vm: str, readings: dict[float, float]) -> None:
        self.put("AWS/EC2", "CPUUtilization", "InstanceId", vm, readings)

    def sent(self, readings: dict[float, float]) -> None:
        self.put("AWS/SQS", "NumberOfMessagesSent", "QueueName", "web-jobs", readings)

    def group(self, size: int) -> list[str]:
        ec2, groups = self.client("ec2"), self.client("autoscaling")
        ec2.create_launch_template(
            LaunchTemplateName="small", LaunchTemplateData={"ImageId": "ami-12c6146b", "InstanceType": "m5a.large"}
        )
        groups.create_auto_scaling_group(
            AutoScalingGroupName="web-small",
            LaunchTemplate={"LaunchTemplateName": "small"},
            MinSize=0,
            MaxSize=10,
            DesiredCapacity=size,
            AvailabilityZones=[f"{REGION}a"],
        )
        (found,) = groups.describe_auto_scaling_groups(AutoScalingGroupNames=["web-small"])["AutoScalingGroups"]
        return [instance["InstanceId"] for instance in found["Instances"]]

    def close(self) -> None:
        self.session.close()
        for client in self._clients:
            client.close()


@pytest.fixture
def cloud(moto: str) -> Iterator[Cloud]:
    urllib.request.urlopen(urllib.request.Request(f"{moto}/moto-api/reset", method="POST")).close()
    made = Cloud(moto)
    yield made
    made.close()


def cpu(vm: str, value: float, at: float) -> Sample:
    return Sample(VmSeries("web", "s", vm, VmMetric.CPU_PERCENT), value, at)


def calls(cloud: Cloud) -> int:
    return sum(count for (family, _), count in cloud.session.budget.counts.items() if family == "cloudwatch read")


def test_the_newest_cpu_of_each_vm_in_service_is_stamped_with_the_time_of_asking(cloud: Cloud) -> None:
    first, second, unmeasured = cloud.group(3)
    cloud.cpu(first, {T0 - 240: 10.0, T0 - 180: 20.0})
    cloud.cpu(second, {T0 - 120: 35.5})
    cloud.cpu("i-stranger", {T0 - 120: 99.0})
    collector = CloudWatchCpu(FLEET, cloud.session, CloudWatchOptions())
    found = collector.collect(T0)
    assert sorted(found, key=lambda s: s.value) == [cpu(first, 20.0, T0), cpu(second, 35.5, T0)]
    assert unmeasured not in {sample.series.vm for sample in found if isinstance(sample.series, VmSeries)}


def test_between_two_questions_it_repeats_what_it_knows_and_asks_for_nothing(cloud: Cloud) -> None:
    (vm,) = cloud.group(1)
    cloud.cpu(vm, {T0 - 120: 50.0})
    collector = CloudWatchCpu(FLEET, cloud.session, CloudWatchOptions(ask_every_s=60.0, emit_every_s=10.0))
    assert collector.interval_s == 10.0
    assert [collector.collect(T0 + later) for later in (0.0, 10.0, 50.0)] == [
        [cpu(vm, 50.0, T0 + later)] for later in (0.0, 10.0, 50.0)
    ]
    assert calls(cloud) == 1
    cloud.cpu(vm, {T0 - 60: 60.0})
    assert collector.collect(T0 + 60) == [cpu(vm, 60.0, T0 + 60)]
    assert calls(cloud) == 2


def test_what_is_too_old_is_absent(cloud: Cloud) -> None:
    (vm,) = cloud.group(1)
    cloud.cpu(vm, {T0 - 60: 50.0})
    options = CloudWatchOptions()
    collector = CloudWatchCpu(FLEET, cloud.session, options)
    assert collector.collect(T0 + options.longest_age_s) == [cpu(vm, 50.0, T0 + options.longest_age_s)]
    assert collector.collect(T0 + options.longest_age_s + 1) == []
    assert collector.collect(T0 + options.longest_age_s + 120) == []


def test_an_empty_fleet_asks_for_no_metric(cloud: Cloud) -> None:
    cloud.group(0)
    assert CloudWatchCpu(FLEET, cloud.session, CloudWatchOptions()).collect(T0) == []
    assert calls(cloud) == 0


def submitted(collector: CloudWatchSubmitted, now: float) -> float:
    (sample,) = collector.collect(now)
    assert (sample.series, sample.at) == (QueueSeries("web", QueueMetric.SUBMITTED_TOTAL), now)
    return sample.value


def test_jobs_count_once_when_cloudwatch_tells_of_them_however_late(cloud: Cloud) -> None:
    cloud.sent({T0 - 60: 1000.0})
    collector = CloudWatchSubmitted(FLEET, cloud.session, CloudWatchOptions())
    assert submitted(collector, T0 + 5) == 0.0, "what was sent before is not known to be new"
    cloud.sent({T0: 7.0})
    assert submitted(collector, T0 + 120) == 7.0
    assert submitted(collector, T0 + 180) == 7.0
    cloud.sent({T0 + 60: 5.0})
    cloud.sent({T0: 3.0})
    assert submitted(collector, T0 + 240) == 15.0, "a minute's count grew afterwards"
    assert submitted(collector, T0 + 4000) == 15.0
    cloud.sent({T0 + 3960: 1.0})
    assert submitted(collector, T0 + 4020) == 16.0


def test_a_clock_set_back_does_not_stop_the_count(cloud: Cloud) -> None:
    collector = CloudWatchSubmitted(FLEET, cloud.session, CloudWatchOptions())
    assert submitted(collector, T0 + 3600) == 0.0
    cloud.sent({T0: 4.0})
    assert submitted(collector, T0 + 60) == 0.0
    cloud.sent({T0 + 60: 6.0})
    assert submitted(collector, T0 + 120) == 6.0


def test_a_fleet_without_a_queue_cannot_be_counted(cloud: Cloud) -> None:
    with pytest.raises(BadInput, match="queue_url"):
        CloudWatchSubmitted(Fleet("web", FLEET.groups), cloud.session, CloudWatchOptions())
    with pytest.raises(BadInput, match="queue_url"):
        QueueDepthCollector(Fleet("web", FLEET.groups), cloud.client("sqs"))


def test_more_metrics_than_one_call_takes_are_asked_in_several(cloud: Cloud) -> None:
    count = QUERIES_PER_CALL + 3
    cloud.cpu(f"i-{count - 1}", {T0: 42.0})
    queries = [MetricQuery("AWS/EC2", "CPUUtilization", "InstanceId", f"i-{n}", 60, "Average") for n in range(count)]
    found = metric_values(cloud.session, queries, T0 - 60, T0 + 60)
    assert [values for values in found if values] == [{T0: 42.0}]
    assert found[-1] == {T0: 42.0}
    assert calls(cloud) == 2


def test_an_endpoint_that_is_gone_fails_with_its_class_and_is_asked_again_at_the_next_turn(cloud: Cloud) -> None:
    options = AwsOptions(
        REGION,
        "http://127.0.0.1:9",
        access_key_id="AKIA",
        secret_access_key="x",
        read_attempts=1,
        connect_timeout_s=0.5,
    )
    session = AwsSession(options, VirtualClock(T0), read_only=True)
    collector = CloudWatchCpu(FLEET, session, CloudWatchOptions())
    for _ in range(2):
        with pytest.raises(CloudError, match="DescribeAutoScalingGroups"):
            collector.collect(T0)
    session.close()


def test_visible_messages_wait_and_messages_in_flight_run(cloud: Cloud) -> None:
    sqs = cloud.client("sqs")
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


class Counts:
    """SQS whose readings of waiting messages are these."""

    def __init__(self, *waiting: int) -> None:
        self.left = list(waiting)

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        waiting = str(self.left.pop(0))
        attributes = {"ApproximateNumberOfMessages": waiting, "ApproximateNumberOfMessagesNotVisible": "0"}
        return {"Attributes": attributes}


@pytest.mark.parametrize(
    ("readings", "counted"),
    [
        ([0, 1], [0, 1]),
        ([2, 20, 20], [2, 20]),
        ([2, 20, 2, 5], [2, 2, 5]),
        ([2, 20, 18, 22], [2, 18, 22]),
        ([10, 21], [10, 21]),
        ([10, 22, 23], [10, 22]),
        ([9, 0], [9, 0]),
    ],
)
def test_a_jump_of_the_count_is_read_twice_and_the_lower_reading_counts(
    readings: list[int], counted: list[int]
) -> None:
    first = [readings[0]] if readings[0] > 1 else []
    sqs = Counts(*first, *readings)
    collector = QueueDepthCollector(replace(FLEET, queue_url="https://sqs.test/1/jobs"), sqs)
    assert [collector.collect(T0)[0].value for _ in counted] == counted
    assert sqs.left == []


def test_a_queue_that_is_gone_fails_alone(cloud: Cloud) -> None:
    sqs = cloud.client("sqs")
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
