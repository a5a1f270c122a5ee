"""The render collector over a real HTTP server that can misbehave: it returns each reading once, and fails alone."""

import json
import math
import socket
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.snapshot.series import SeriesStore
from collectors.mapping import Hosts, InputMap, map_of
from collectors.polling import Poller
from collectors.render import RenderCollector, RenderOptions, _reading
from domain.clock import VirtualClock
from domain.errors import CollectionFailed
from domain.fleet import Fleet, Group, VmType
from domain.samples import QueueMetric, QueueSeries, Sample, VmMetric, VmSeries
from tests.collectors.surroundings import T0, body_of, closed_port, http_server, map_in_the_docs, respond

SMALL = VmType("m5a.large", 2, 8.0, 0.086)
FLEET = Fleet("web", (Group("s", "web-s", SMALL, 1, 10), Group("m", "web-m", SMALL, 0, 10)))
CPU = VmSeries("web", "s", "i-1", VmMetric.CPU_PERCENT)
WAITING = QueueSeries("web", QueueMetric.WAITING)

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Graphite:
    """An HTTP server that sends the responses that the test sets, and keeps its requests."""

    url: str
    answer: Answer = lambda handler: None
    questions: list[dict[str, list[str]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def gives(self, series: Any, status: int = 200) -> None:
        self.serve(json.dumps(series).encode(), status)

    def serve(self, body: bytes, status: int = 200) -> None:
        self.answer = lambda handler: respond(handler, body, status)


@pytest.fixture
def graphite() -> Iterator[Graphite]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        there.questions.append(parse_qs(body_of(handler).decode()))
        there.headers.append(dict(handler.headers.items()))
        there.answer(handler)

    with http_server(answer) as url:
        there = Graphite(url)
        yield there


@pytest.fixture
def reading(graphite: Graphite) -> Iterator[Callable[..., RenderCollector]]:
    made: list[RenderCollector] = []

    def make(**options: Any) -> RenderCollector:
        made.append(RenderCollector(FLEET, RenderOptions(graphite.url, **options)))
        return made[-1]

    yield make
    for collector in made:
        collector.close()


def series(target: str, *points: tuple[float | None, float]) -> dict[str, Any]:
    return {"target": target, "datapoints": [list(point) for point in points], "tags": {"name": target}}


def test_readings_of_vms_and_of_the_queue_come_back_as_samples(graphite: Graphite, reading: Any) -> None:
    graphite.gives(
        [
            series(CPU.path, (71.5, T0 - 20), (None, T0 - 10)),
            series("trimtab.waiting;fleet=web;queue=yes", (3, T0 - 10)),
            series("carbon.agents.x.cpuUsage", (1.0, T0 - 10)),
        ]
    )
    assert reading().collect(T0) == [Sample(CPU, 71.5, T0 - 20), Sample(WAITING, 3.0, T0 - 10)]


def test_it_asks_between_explicit_times_and_never_for_averages(graphite: Graphite, reading: Any) -> None:
    graphite.gives([])
    reading(lag_s=5.0, window_s=120.0, authorization="Bearer s3cret").collect(T0 + 0.9)
    (asked,) = graphite.questions
    assert (asked["from"], asked["until"]) == (["1795208875"], ["1795208995"])
    assert (asked["format"], asked["noNullPoints"]) == (["json"], ["true"])
    assert "maxDataPoints" not in asked
    assert graphite.headers[0]["Authorization"] == "Bearer s3cret"
    assert asked["target"] == [
        "trimtab.web.{s,m}.*.{cpu_percent,ram_percent,busy_cores,work_core_seconds}",
        "trimtab.web.queue.{waiting,running,submitted_total,finished_total,finished_core_seconds_total,"
        "oldest_wait_seconds,job_core_seconds,"
        "job_core_seconds_p10,job_core_seconds_p50,job_core_seconds_p90,job_core_seconds_p99}",
        "trimtab.web.signal.*",
    ]


def test_a_reading_is_returned_once_and_one_that_came_late_still_is(graphite: Graphite, reading: Any) -> None:
    collector = reading()
    graphite.gives([series(CPU.path, (1.0, T0 - 30), (2.0, T0 - 20))])
    assert [sample.value for sample in collector.collect(T0)] == [1.0, 2.0]
    graphite.gives(
        [series(CPU.path, (1.0, T0 - 30), (2.0, T0 - 20), (3.0, T0 - 10)), series(WAITING.path, (9, T0 - 60))]
    )
    assert [sample.value for sample in collector.collect(T0 + 15)] == [3.0, 9.0]
    assert collector.collect(T0 + 30) == []


def test_after_an_outage_it_reaches_back_to_the_last_answer_and_not_beyond_ten_minutes(
    graphite: Graphite, reading: Any
) -> None:
    collector = reading(lag_s=0.0, window_s=60.0)
    graphite.gives([])
    collector.collect(T0)
    graphite.gives([], status=503)
    for later in (15.0, 300.0):
        with pytest.raises(CollectionFailed, match="status 503"):
            collector.collect(T0 + later)
    graphite.gives([])
    collector.collect(T0 + 315)
    collector.collect(T0 + 5000)
    reach = [int(asked["until"][0]) - int(asked["from"][0]) for asked in graphite.questions]
    assert reach == [60, 60, 300, 315, 600]


def test_a_clock_set_back_does_not_silence_a_series(graphite: Graphite, reading: Any) -> None:
    collector = reading()
    graphite.gives([series(CPU.path, (1.0, T0 + 3590))])
    assert len(collector.collect(T0 + 3600)) == 1
    graphite.gives([series(CPU.path, (2.0, T0 - 10))])
    collector.collect(T0)
    graphite.gives([series(CPU.path, (3.0, T0 + 5))])
    assert [sample.value for sample in collector.collect(T0 + 15)] == [3.0]


def with_map(graphite: Graphite, rules: InputMap) -> RenderCollector:
    hosts = Hosts()
    hosts.update([(("web", "s", "i-1"), ["ip-10-0-1-17.ec2.internal"]), (("batch", "s", "i-9"), ["ip-10-0-9-9"])])
    return RenderCollector(FLEET, RenderOptions(graphite.url, lag_s=0.0), rules, hosts)


@pytest.mark.parametrize(
    ("sender", "targets", "answer", "becomes"),
    [
        (
            "statsd",
            ["stats.gauges.jobs.web.waiting", "stats.gauges.jobs.web.running"],
            [series("stats.gauges.jobs.web.waiting", (12, T0 - 10))],
            [Sample(WAITING, 12.0, T0 - 10)],
        ),
        (
            "telegraf",
            ["*.cpu-total.cpu.usage_idle", "*.mem.used_percent"],
            [
                series("ip-10-0-1-17.cpu-total.cpu.usage_idle", (29, T0 - 20), (None, T0 - 10)),
                series("ip-10-0-9-9.cpu-total.cpu.usage_idle", (50, T0 - 20)),
                series("ip-10-0-7-7.cpu-total.cpu.usage_idle", (50, T0 - 20)),
            ],
            [Sample(CPU, 71.0, T0 - 20)],
        ),
        (
            "collectd",
            ["collectd.*.cpu-*.cpu-*", "collectd.*.memory.memory-*"],
            # Path by path, as Graphite answers: the rounds are found again by their times.
            [
                series(f"collectd.ip-10-0-1-17.cpu-{n}.cpu-{state}", *((share, T0 - age) for age in (30, 20, 10)))
                for n in (0, 1)
                for state, share in (("idle", 29), ("user", 71))
            ],
            [Sample(CPU, 71.0, T0 - 30), Sample(CPU, 71.0, T0 - 20), Sample(CPU, 71.0, T0 - 10)],
        ),
    ],
)
def test_the_maps_of_the_documentation_hold_for_graphite_too(
    graphite: Graphite, sender: str, targets: list[str], answer: Any, becomes: list[Sample]
) -> None:
    collector = with_map(graphite, map_in_the_docs(sender))
    graphite.gives(answer)
    assert collector.collect(T0) == becomes
    assert graphite.questions[0]["target"][3:] == targets
    assert collector.collect(T0 + 1) == [], "each reading is returned once"
    collector.close()


def test_a_rule_is_asked_where_it_can_hold_for_the_fleet_and_graphite_has_such_a_target(graphite: Graphite) -> None:
    rules = map_of(
        tomllib.loads("""
            series = [
                {from = "a.{fleet}.{group}.{vm}.cpu", to = "cpu_percent"},
                {from = "b.{vm}", to = "cpu_percent", fleet = "web", group = "m"},
                {from = "c.{vm}", to = "cpu_percent", fleet = "batch", group = "m"},
                {from = "d.{vm}", to = "cpu_percent", fleet = "web", group = "xl"},
                {from = "sum(e.{vm})", to = "cpu_percent"},
            ]
            """)
    )
    collector = with_map(graphite, rules)
    graphite.gives([series("a.web.s.i-1.cpu", (71, T0 - 5))])
    assert collector.collect(T0) == [Sample(CPU, 71.0, T0 - 5)]
    assert graphite.questions[0]["target"][3:] == ["a.web.{s,m}.*.cpu", "b.*"]
    collector.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>login</html>", "not JSON"),
        (b"[" * 4000, "not JSON"),
        (b'{"error": "x"}', "not a list"),
        (b'[{"target": "x"}]', "no datapoints"),
        (b"[1]", "no target"),
        (b"[" + b" " * 5000 + b"]", "longer than 4096 bytes"),
        (b"\xff\xfe[]", "not JSON"),
    ],
)
def test_an_unusable_answer_fails_in_one_sentence(graphite: Graphite, reading: Any, body: bytes, why: str) -> None:
    graphite.serve(body)
    with pytest.raises(CollectionFailed, match=why):
        reading(max_response_bytes=4096).collect(T0)


@given(
    st.lists(
        st.one_of(
            st.none(), st.text(max_size=3), st.integers(), st.lists(st.floats() | st.integers() | st.none(), max_size=3)
        )
    )
)
def test_any_points_give_finite_readings_or_none(points: list[Any]) -> None:
    for point in [*points, [10**400, T0], [1.0, -(10**400)], [True, "x"]]:
        found = _reading(point)
        assert found is None or all(map(math.isfinite, found))


def test_a_refused_connection_and_a_redirect_are_failures_that_name_the_place_and_no_secret(
    graphite: Graphite, reading: Any
) -> None:
    port = closed_port()
    collector = RenderCollector(FLEET, RenderOptions(f"http://me:hunter2@127.0.0.1:{port}/graphite"))
    with pytest.raises(CollectionFailed) as caught:
        collector.collect(T0)
    collector.close()
    assert str(caught.value).startswith(f"graphite-web at http://127.0.0.1:{port}: ConnectError")
    assert "hunter2" not in str(caught.value)
    graphite.serve(b"", status=302)
    with pytest.raises(CollectionFailed, match="status 302"):
        reading().collect(T0)


def test_a_server_that_sends_back_what_it_was_sent_gives_no_secret_away() -> None:
    """A line protocol on that port, as the agent's own listener: an error of HTTP quotes the line it cannot read."""

    def echo(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            line = next(line for line in connection.recv(65536).split(b"\r\n") if b"hunter2" in line)
            connection.sendall(line + b"\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        collector = RenderCollector(FLEET, RenderOptions(url, authorization="Bearer hunter2"))
        with pytest.raises(CollectionFailed, match=r"illegal status line.*\*\*\*") as caught:
            collector.collect(T0)
        collector.close()
        thread.join()
    assert "hunter2" not in str(caught.value)


def test_an_answer_that_drips_is_given_up_at_the_timeout(graphite: Graphite, reading: Any) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(600):
            handler.wfile.write(b" ")
            time.sleep(0.05)

    graphite.answer = drip
    began = time.monotonic()
    with pytest.raises(CollectionFailed, match=r"not complete after 0\.3 s"):
        reading(timeout_s=0.3).collect(T0)
    assert time.monotonic() - began < 20.0


def test_a_graphite_that_accepts_and_never_responds_delays_no_other(graphite: Graphite, reading: Any) -> None:
    graphite.gives([series(CPU.path, (1.0, T0 - 10))])
    clock = VirtualClock(T0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        stuck = RenderCollector(
            Fleet("lost", FLEET.groups), RenderOptions(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=5.0)
        )
        healthy = reading()
        store = SeriesStore()
        polling = Poller([stuck, healthy], store, clock)
        polling.poll()
        while not polling.health[healthy.name].successes:
            assert not polling.health[stuck.name].failures, "the healthy collector waited for the stuck one"
            time.sleep(0.005)
        clock.advance(15.0)
        polling.poll()
        assert (polling.health[stuck.name].skipped, polling.health[stuck.name].overruns) == (1, 1)
        polling.poll_and_wait(60.0)
        assert polling.health[stuck.name].failures == 1
        assert "ReadTimeout" in polling.health[stuck.name].last_error
        assert polling.health[healthy.name].successes == 2
        stuck.close()
