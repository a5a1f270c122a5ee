"""Delivery of alarms: over a real socket and a real topic, in its own thread, and never at the loop's expense."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import boto3
import pytest
from structlog.testing import capture_logs

from agent.alarms.book import Alarm, AlarmBook
from agent.alarms.delivery import QUEUE_LENGTH, Alarms, SnsTopic, Webhook
from agent.kernel.turn import Severity, TurnReport
from agent.view.board import ServiceState
from collectors.aws import AwsOptions, AwsSession
from domain.clock import VirtualClock
from domain.decisions import Event, Reason
from domain.errors import CloudError
from domain.subject import fleet_subject
from simulator.aws.process import start_in_thread
from tests.waiting import until

ALARM = Alarm(fleet_subject("web"), Reason.CAPACITY_LOST, "m5a.large", Severity.WARNING, "AWS has none", 0.0)
SECRET = "s3cr3t-path"


class Hook(HTTPServer):
    """A webhook that records requests and gives the prepared responses."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answers: list[int] = []

        got, answers = self.got, self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(answers.pop(0) if answers else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{SECRET}"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def at_once(stopping: threading.Event, seconds: float) -> None:
    """Wait for nothing."""


def capacity_lost(*subjects: str) -> TurnReport:
    events = tuple(
        Event(fleet_subject("web"), 0.0, Reason.CAPACITY_LOST, "AWS has none", subject) for subject in subjects
    )
    return TurnReport(0.0, events=events)


def test_an_alarm_arrives_with_a_sentence_and_its_fields(hook: Hook) -> None:
    alarms = Alarms(AlarmBook(), [Webhook(hook.url)], at_once)
    alarms.start()
    alarms.on_turn(ServiceState(0.0), capacity_lost("m5a.large"))
    until(lambda: len(hook.got) == 1)
    alarms.stop()
    assert "capacity_lost: AWS has none" in hook.got[0]["text"]
    assert hook.got[0]["alarm"]["severity"] == "warning"


def test_a_refused_alarm_is_tried_again(hook: Hook) -> None:
    hook.answers += [500, 429]
    alarms = Alarms(AlarmBook(), [Webhook(hook.url)], at_once)
    alarms.start()
    alarms.on_turn(ServiceState(0.0), capacity_lost("m5a.large"))
    until(lambda: sum(alarms.delivered.values()) == 1)
    alarms.stop()
    assert len(hook.got) == 3


def test_what_cannot_be_delivered_is_counted_and_logged_without_the_secret_address() -> None:
    webhook = Webhook(f"http://127.0.0.1:9/{SECRET}")
    alarms = Alarms(AlarmBook(), [webhook], at_once)
    with capture_logs() as logs:
        alarms.start()
        alarms.on_turn(ServiceState(0.0), capacity_lost("m5a.large"))
        until(lambda: alarms.failed[webhook.name] == 1)
        alarms.stop()
    assert [entry["error"] for entry in logs if entry["event"] == "alarm_not_delivered"] == ["ConnectError"]
    assert SECRET not in str(logs)


def test_one_channel_that_fails_does_not_silence_the_other(hook: Hook) -> None:
    alarms = Alarms(AlarmBook(), [Webhook("http://127.0.0.1:9/nobody"), Webhook(hook.url)], at_once)
    alarms.start()
    alarms.on_turn(ServiceState(0.0), capacity_lost("m5a.large"))
    until(lambda: len(hook.got) == 1)
    alarms.stop()


def test_the_loop_never_waits_and_a_full_queue_drops_the_oldest() -> None:
    alarms = Alarms(AlarmBook(), [Webhook("http://127.0.0.1:9/nobody")])
    began = time.monotonic()
    alarms.on_turn(ServiceState(0.0), capacity_lost(*(f"zone {n}" for n in range(QUEUE_LENGTH + 5))))
    assert time.monotonic() - began < 30.0
    assert alarms.dropped == 5


def test_stopping_does_not_wait_for_an_address_that_does_not_answer() -> None:
    alarms = Alarms(AlarmBook(), [Webhook("http://127.0.0.1:9/nobody")])
    alarms.start()
    alarms.on_turn(ServiceState(0.0), capacity_lost(*(f"zone {n}" for n in range(10))))
    began = time.monotonic()
    alarms.stop()
    assert time.monotonic() - began < 30.0, "it waited out the pauses of seventy seconds"


def session(endpoint: str, clock: VirtualClock, *, read_only: bool) -> AwsSession:
    options = AwsOptions(
        region="us-east-1", endpoint_url=endpoint, access_key_id="agent", secret_access_key="simulated"
    )
    return AwsSession(options, clock, read_only=read_only)


def test_a_topic_gets_the_sentence_and_in_observe_mode_nothing() -> None:
    clock = VirtualClock(1_795_209_000.0)
    running = start_in_thread(clock)
    try:
        keys = {"aws_access_key_id": "owner", "aws_secret_access_key": "simulated"}
        sns = boto3.client("sns", endpoint_url=running.endpoint, region_name="us-east-1", **keys)
        sqs = boto3.client("sqs", endpoint_url=running.endpoint, region_name="us-east-1", **keys)
        topic = sns.create_topic(Name="ops")["TopicArn"]
        queue = sqs.create_queue(QueueName="ops")["QueueUrl"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint="arn:aws:sqs:us-east-1:123456789012:ops")
        acting = session(running.endpoint, clock, read_only=False)
        SnsTopic(acting, topic).send(ALARM)
        body = json.loads(sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"])
        assert body["Message"] == ALARM.sentence
        observing = session(running.endpoint, clock, read_only=True)
        with pytest.raises(CloudError, match="observe mode"):
            SnsTopic(observing, topic).send(ALARM)
        for made in (sns, sqs, acting, observing):
            made.close()
    finally:
        running.stop()


class Broken:
    """A channel with an unexpected error, whose text holds the address."""

    name = "webhook broken"

    def fault(self) -> str:
        raise LookupError(f"https://host:abc/{SECRET}")

    def send(self, alarm: Alarm) -> None:
        raise LookupError(f"https://host:abc/{SECRET}")


def test_no_error_of_one_channel_ends_the_delivery_of_the_others(hook: Hook) -> None:
    alarms = Alarms(AlarmBook(), [Broken(), Webhook(f"https://host:abc/{SECRET}"), Webhook(hook.url)], at_once)
    with capture_logs() as logs:
        alarms.start()
        for subject in ("first", "second"):
            alarms.on_turn(ServiceState(0.0), capacity_lost(subject))
        until(lambda: len(hook.got) == 2)
        alarms.stop()
    errors = {entry["error"] for entry in logs if entry["event"] == "alarm_not_delivered"}
    assert errors == {"LookupError", "InvalidURL"}
    assert SECRET not in str(logs)
    assert alarms.failed == {"webhook broken": 2, "webhook host": 2, "webhook 127.0.0.1": 0}


def test_a_webhook_raises_the_kind_of_an_error_and_none_of_its_text() -> None:
    with pytest.raises(ConnectionError, match=r"^InvalidURL$"):
        Webhook(f"https://host:abc/{SECRET}").send(ALARM)


class Uncounted(dict[str, int]):
    """Counts of deliveries that cannot be kept."""

    def __getitem__(self, name: str) -> int:
        raise KeyError(name)


def test_an_error_beside_the_delivery_does_not_end_the_thread_either(hook: Hook) -> None:
    alarms = Alarms(AlarmBook(), [Webhook(hook.url)], at_once)
    alarms.delivered = Uncounted()
    with capture_logs() as logs:
        alarms.start()
        alarms.on_turn(ServiceState(0.0), capacity_lost("first"))
        alarms.on_turn(ServiceState(0.0), capacity_lost("second"))
        until(lambda: len(hook.got) == 2)
        alarms.stop()
    assert {entry["error"] for entry in logs if entry["event"] == "alarm_not_delivered"} == {"KeyError"}


def test_a_channel_that_cannot_work_is_reported_at_the_start_until_it_delivers(hook: Hook) -> None:
    problems: list[str] = []
    unusable = Webhook(f"https://host:abc/{SECRET}")
    alarms = Alarms(AlarmBook(), [unusable, Webhook(hook.url)], at_once, problems.append)
    with capture_logs() as logs:
        alarms.start()
        until(lambda: bool(problems))
        alarms.stop()
    (problem,) = problems
    assert ["InvalidURL" in problem, "TRIMTAB_ALARMS__WEBHOOK_URL" in problem, SECRET in problem] == [True, True, False]
    assert [entry["channel"] for entry in logs if entry["event"] == "alarm_channel_unusable"] == ["webhook host"]
    assert hook.got == []


def test_a_webhook_that_comes_back_is_no_problem_any_more(hook: Hook) -> None:
    problems: list[str] = []
    alarms = Alarms(AlarmBook(), [Webhook(hook.url)], at_once, problems.append)
    hook.answers += [500] * 4
    alarms.start()
    alarms.on_turn(ServiceState(0.0), capacity_lost("first"))
    until(lambda: len(problems) == 1)
    alarms.on_turn(ServiceState(0.0), capacity_lost("second"))
    until(lambda: len(problems) == 2)
    alarms.stop()
    assert [problems[0].endswith("status 500"), problems[1]] == [True, ""]


def test_a_topic_of_another_region_cannot_work() -> None:
    here = session("http://127.0.0.1:9", VirtualClock(0.0), read_only=False)
    assert SnsTopic(here, "arn:aws:sns:us-east-1:123456789012:ops").fault() == ""
    elsewhere = SnsTopic(here, "arn:aws:sns:eu-west-1:123456789012:ops").fault()
    assert [name for name in ("eu-west-1", "us-east-1", "SNS_TOPIC_ARN") if name not in elsewhere] == []
