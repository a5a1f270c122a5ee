"""The settings name the inputs; an assembled agent keeps turning while Graphite accepts and never responds."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from agent.autoscaling.inputs import collectors_of
from agent.autoscaling.part import managed_fleets
from agent.service.assembly import AwsKeys, assembled
from agent.settings import Settings, load_settings
from collectors.aws import AwsOptions, AwsSession
from collectors.base import Collector
from domain.clock import VirtualClock, WallClock
from domain.samples import VmMetric

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/web-jobs"
GROUP = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MAX": "10"}


def settings(**more: str) -> Settings:
    group = {f"TRIMTAB_FLEETS__web__GROUPS__s__{name}": text for name, text in GROUP.items()}
    return load_settings({**group, **{f"TRIMTAB_{name}": text for name, text in more.items()}})


def collectors(**more: str) -> list[Collector]:
    session = AwsSession(AwsOptions("us-east-1"), VirtualClock(), read_only=True)
    asked = settings(**more)
    return collectors_of(asked, [asked.fleet("web")], session)


def test_without_a_setting_there_is_nothing_but_the_listener() -> None:
    assert collectors() == []


def test_each_input_is_there_when_a_setting_asks_for_it() -> None:
    everything = collectors(
        FLEETS__web__QUEUE_URL=QUEUE,
        FLEETS__web__CPU_FROM="cloudwatch",
        FLEETS__web__SUBMITTED_FROM="cloudwatch",
        RENDER__URL="http://graphite:8080",
        RENDER__INTERVAL_S="20",
        RENDER__TIMEOUT_S="4",
        CLOUDWATCH__INTERVAL_S="120",
    )
    assert [(one.name, one.interval_s, one.timeout_s) for one in everything] == [
        ("queue:web", 15.0, 15.0),
        ("render:web", 20.0, 4.0),
        ("cloudwatch-cpu:web", 10.0, 30.0),
        ("cloudwatch-submitted:web", 120.0, 30.0),
    ]


def test_jobs_counted_by_cloudwatch_are_late_and_those_counted_by_the_job_source_are_not() -> None:
    for who, late in (("cloudwatch", True), ("reports", False)):
        asked = settings(FLEETS__web__QUEUE_URL=QUEUE, FLEETS__web__SUBMITTED_FROM=who)
        assert [managed.aggregation.submitted_late for managed in managed_fleets(asked)] == [late]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def test_a_graphite_that_accepts_and_never_answers_delays_no_turn(endpoint: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = settings(
            STATE_DIRECTORY=str(tmp_path),
            LISTENER__PORT="0",
            AWS__ENDPOINT_URL=endpoint,
            AWS__REGION="us-east-1",
            RENDER__URL=f"http://127.0.0.1:{silent.getsockname()[1]}",
            RENDER__TIMEOUT_S="60",
        )
        with assembled(asked, WallClock(), AwsKeys("AKIA", "x")) as agent:
            took_s = []
            for _ in range(3):
                began = time.monotonic()
                agent.turn()
                took_s.append(time.monotonic() - began)
            with socket.create_connection((agent.listener.host, agent.listener.port)) as vm:
                vm.sendall(f"trimtab.web.s.i-1.{VmMetric.CPU_PERCENT} 71 {time.time():.0f}\n".encode())
            deadline = time.monotonic() + 5.0
            while not agent.listener.counters.accepted:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            health = agent.poller.health["render:web"]
            assert (health.successes, health.failures) == (0, 0), "the question is still open"
            stopping = time.monotonic()
    # The first turn makes the AWS client; none of them waits a minute for Graphite.
    assert max(took_s) < 10.0
    assert time.monotonic() - stopping < 10.0
