"""The settings name the inputs; an assembled agent keeps turning while Graphite accepts and never responds."""

import json
import socket
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from agent.autoscaling.decision import AutoscalingPart
from agent.autoscaling.fleets import managed_fleets
from agent.autoscaling.inputs import collectors_of
from agent.autoscaling.preflight.fleets import check_collectors, check_input_map, check_windows
from agent.kernel.checks import State
from agent.service.assembly import AwsKeys, assembled
from agent.settings import Settings, load_settings
from collectors.aws import AwsOptions, AwsSession
from collectors.base import Collector
from domain.clock import VirtualClock, WallClock
from domain.errors import ConfigurationError
from domain.samples import VmMetric
from tests.collectors.surroundings import body_of, closed_port, http_server, respond
from tests.waiting import until

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/web-jobs"
NO_URL = "the queries: TRIMTAB_PROMETHEUS__URL is not set"
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


def test_prometheus_is_asked_by_the_queries_of_the_map(tmp_path: Path) -> None:
    file = tmp_path / "inputs.toml"
    file.write_text('[[prometheus]]\nquery = "sum(jobs)"\nto = "waiting"\nfleet = "web"\n')
    asked = {"INPUT_MAP": str(file), "PROMETHEUS__URL": "https://prometheus:9090", "PROMETHEUS__INTERVAL_S": "30"}
    (one,) = collectors(**asked)
    assert (one.name, one.interval_s, one.timeout_s) == ("prometheus:web", 30.0, 10.0)
    pair = {"PROMETHEUS__CERTIFICATE": str(file), "PROMETHEUS__PRIVATE_KEY": str(file)}
    with pytest.raises(ConfigurationError, match=r"PROMETHEUS__CERTIFICATE.*files in PEM"):
        collectors(**asked, **pair)


def test_preflight_asks_prometheus_once_and_names_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "inputs.toml"
    file.write_text('[[prometheus]]\nquery = "sum(jobs)"\nto = "waiting"\nfleet = "web"\n')
    nowhere = closed_port()
    asked = settings(INPUT_MAP=str(file), PROMETHEUS__URL=f"http://127.0.0.1:{nowhere}")
    session = AwsSession(AwsOptions("us-east-1"), VirtualClock(), read_only=True)
    (found,) = check_collectors(asked, session)
    assert (found.subject, found.state) == ("collector prometheus:web", State.MISSING)
    assert f"Prometheus at http://127.0.0.1:{nowhere}: ConnectError" in found.detail
    (about_map,) = check_input_map(asked)
    assert about_map.detail == f"{file} has 0 rules, 1 queries and 0 hosts"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('[[series]]\nfrom = "a.{vm}"\nto = "cpu_percent"\nfleet = "wbe"\ngroup = "s"', "a.{vm}: no fleet is wbe"),
        ('[[series]]\nfrom = "a.{vm}"\nto = "cpu_percent"\nfleet = "web"\ngroup = "t"', "a.{vm}: web has no group t"),
        ('[[series]]\nfrom = "a.{fleet}"\nto = "signal.rps"', "a.{fleet}: no fleet has the signal rps"),
        ('[[prometheus]]\nquery = "a"\nto = "signal.p99"\nfleet = "{app}"', "a: no fleet has the signal p99"),
        ('[[prometheus]]\nquery = "a"\nto = "waiting"\nfleet = "wbe"', "a: no fleet is wbe"),
        ('[[prometheus]]\nquery = "a"\nto = "waiting"\nfleet = "web"', NO_URL),
    ],
)
def test_preflight_names_what_of_a_map_can_never_hold(table: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "inputs.toml"
    file.write_text(f'{table}\n[[series]]\nfrom = "b.{{fleet}}"\nto = "signal.lag"\n')
    url = {} if why == NO_URL else {"PROMETHEUS__URL": "http://prometheus:9090"}
    about_map, unused = check_input_map(settings(INPUT_MAP=str(file), FLEETS__web__SIGNALS__lag__TARGET="5", **url))
    assert about_map.state is State.OK
    assert (unused.subject, unused.state, unused.detail) == ("input map", State.ADVICE, why)


def test_preflight_names_windows_that_do_not_open_any_more() -> None:
    times = {
        "over": ("2025-11-27T18:00", "2025-11-28T02:00"),
        "skipped": ("2027-03-28T02:10", "2027-03-28T02:50"),
        "coming": ("2026-12-24T18:00", "2026-12-25T02:00"),
    }
    given: dict[str, str] = {}
    for name, (begins, ends) in times.items():
        below = f"FLEETS__web__SCHEDULE__{name}__"
        given |= {f"{below}BEGINS": begins, f"{below}ENDS": ends}
        given |= {f"{below}TIME_ZONE": "Europe/Berlin", f"{below}MIN": "2"}
    found = list(check_windows(settings(**given), now=datetime(2026, 11, 27, tzinfo=UTC).timestamp()))
    assert [(one.subject, one.state) for one in found] == [
        ("window over of web", State.ADVICE),
        ("window skipped of web", State.ADVICE),
    ]
    assert "2025-11-27T18:00 to 2025-11-28T02:00" in found[0].detail


def test_jobs_counted_by_cloudwatch_are_late_and_those_counted_by_the_job_source_are_not() -> None:
    for who, late in (("cloudwatch", True), ("reports", False)):
        asked = settings(FLEETS__web__QUEUE_URL=QUEUE, FLEETS__web__SUBMITTED_FROM=who)
        assert [managed.aggregation.submitted_late for managed in managed_fleets(asked)] == [late]


def test_a_graphite_that_never_answers_delays_neither_a_turn_nor_the_signals_of_prometheus(
    moto: str, tmp_path: Path
) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        body_of(handler)
        # The agent does not close its connection to Prometheus when it ends.
        handler.protocol_version, handler.close_connection = "HTTP/1.0", True
        point = {"metric": {}, "value": [time.time() - 1.0, "310"]}
        data = {"resultType": "vector", "result": [point]}
        respond(handler, json.dumps({"status": "success", "data": data}).encode())

    file = tmp_path / "inputs.toml"
    file.write_text('[[prometheus]]\nquery = "sum(r)"\nto = "signal.rps"\nfleet = "web"\n')
    with socket.create_server(("127.0.0.1", 0)) as silent, http_server(answer) as prometheus:
        asked = settings(
            STATE_DIRECTORY=str(tmp_path),
            LISTENER__PORT="0",
            AWS__ENDPOINT_URL=moto,
            AWS__REGION="us-east-1",
            RENDER__URL=f"http://127.0.0.1:{silent.getsockname()[1]}",
            RENDER__TIMEOUT_S="60",
            INPUT_MAP=str(file),
            PROMETHEUS__URL=prometheus,
            FLEETS__web__GROUPS__s__MIN="1",
            FLEETS__web__POLICY="signal-tracking",
            FLEETS__web__SIGNALS__rps__TARGET="50",
        )
        with assembled(asked, WallClock(), AwsKeys("AKIA", "x")) as agent:
            took_s = []
            for _ in range(3):
                began = time.monotonic()
                agent.turn()
                took_s.append(time.monotonic() - began)
            with socket.create_connection((agent.listener.host, agent.listener.port)) as vm:
                vm.sendall(f"trimtab.web.s.i-1.{VmMetric.CPU_PERCENT} 71 {time.time():.0f}\n".encode())
            until(lambda: agent.listener.counters.accepted and agent.poller.health["prometheus:web"].successes)
            assert agent.poller.health["prometheus:web"].refused == 0
            series = next(part.series for part in agent.parts if isinstance(part, AutoscalingPart))
            row = series.signal_row("web", "rps")
            assert [value for _, value in series.readings(row, time.time())] == [310.0]
            health = agent.poller.health["render:web"]
            assert (health.successes, health.failures) == (0, 0), "the question is still open"
            stopping = time.monotonic()
    # The first turn makes the AWS client; none of them waits a minute for Graphite.
    assert max(took_s) < 30.0
    assert time.monotonic() - stopping < 30.0
