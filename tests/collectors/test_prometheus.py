"""Prometheus as a source: a real Prometheus over TLS with a client certificate, and answers that only others give."""

import base64
import itertools
import json
import shutil
import subprocess
import textwrap
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client.metrics_core import Metric

from collectors.json_source import Tls
from collectors.mapping import Hosts, Query, SignalName, is_for, map_of
from collectors.prometheus import SELECTOR, PrometheusCollector, PrometheusOptions, bounded
from domain.errors import CollectionFailed, ConfigurationError
from domain.fleet import Fleet, Group, VmType
from domain.samples import QueueMetric, QueueSeries, Sample, SignalSeries, VmMetric, VmSeries
from tests.collectors.surroundings import T0, WITHIN_S, body_of, closed_port, http_server, map_in_the_docs, respond

SMALL = VmType("m5a.large", 2, 8.0, 0.086)
WEB = Fleet("web", (Group("s", "web-s", SMALL, 1, 10), Group("m", "web-m", SMALL, 0, 10)))
PLACE = ("web", "s", "i-1")
CPU, WAITING = VmSeries(*PLACE, VmMetric.CPU_PERCENT), QueueSeries("web", QueueMetric.WAITING)


def queries(text: str) -> tuple[Query, ...]:
    return map_of(tomllib.loads(textwrap.dedent(text))).queries


def hosts() -> Hosts:
    known = Hosts()
    known.update([(PLACE, ["ip-10-0-1-17.ec2.internal", "10.0.1.17"])])
    return known


# What the file may say


def test_labels_name_fleet_group_and_vm() -> None:
    (query,) = queries("""
        [[prometheus]]
        query = "node_load1"
        to = "cpu_percent"
        fleet = "{app}"
        group = "{app}_{size}"
        vm = "{instance_id}"
        """)
    labels = {"app": "web", "size": "s", "instance_id": "i-7"}
    assert query.series("web", labels, hosts().find) == VmSeries("web", "web_s", "i-7", VmMetric.CPU_PERCENT)
    assert query.series("web", {**labels, "size": ""}, hosts().find) is None
    assert query.series("web", {**labels, "app": "a.b"}, hosts().find) is None


@pytest.mark.parametrize("instance", ["10.0.1.17:9100", "10.0.1.17", "ip-10-0-1-17:9100", "i-1"])
def test_a_vm_is_found_by_host_and_the_port_of_its_exporter_is_left_out(instance: str) -> None:
    (query,) = queries('[[prometheus]]\nquery = "x"\nto = "cpu_percent"\nhost = "{instance}"')
    assert query.series("web", {"instance": instance}, hosts().find) == CPU
    assert query.series("web", {"instance": "10.0.9.9:9100"}, hosts().find) is None


def test_a_query_is_asked_for_its_own_fleet_alone() -> None:
    mine, any_fleet, by_label = queries("""
        [[prometheus]]
        query = "a"
        to = "waiting"
        fleet = "web"
        [[prometheus]]
        query = 'b{queue="$fleet"}'
        to = "running"
        [[prometheus]]
        query = "c"
        to = "waiting"
        fleet = "{queue}"
        """)
    assert [is_for(one.fleet, "web") for one in (mine, any_fleet, by_label)] == [True] * 3
    assert [is_for(one.fleet, "batch") for one in (mine, any_fleet, by_label)] == [False, True, True]
    assert any_fleet.series("batch", {}, hosts().find) == QueueSeries("batch", QueueMetric.RUNNING)


def test_a_query_may_give_a_signal_of_a_fleet() -> None:
    (query,) = queries("""
        [[prometheus]]
        query = 'sum(rate(http_requests_total{app="$fleet"}[1m]))'
        to = "signal.rps"
        """)
    assert query.series("web", {}, hosts().find) == SignalSeries("web", "rps")


def test_the_queries_of_the_documentation_are_a_map() -> None:
    cpu, ram, waiting = map_in_the_docs("prometheus").queries
    assert cpu.series("web", {"instance": "10.0.1.17:9100"}, hosts().find) == CPU
    assert ram.to is VmMetric.RAM_PERCENT
    assert waiting.series("web", {}, hosts().find) == WAITING


def test_every_mistake_is_named() -> None:
    with pytest.raises(ConfigurationError) as caught:
        queries("""
            [[prometheus]]
            to = "cpu_percent"
            host = "{instance}"
            [[prometheus]]
            query = "x"
            to = "waiting"
            [[prometheus]]
            query = "x"
            to = "cpu_percent"
            [[prometheus]]
            query = "x"
            to = "cpu_percent"
            vm = "{a b}"
            fold = "sum"
            """)
    names = [mistake.name.removeprefix("prometheus") for mistake in caught.value.mistakes]
    assert names == ["[1].query", "[2].fleet", "[3].vm", "[4].fold", "[4].vm", "[4].vm"]


@pytest.mark.parametrize(
    ("promql", "plain"),
    [
        ("node_load1", True),
        ("node_load1{job=\"a{b}\", x=~'c'}", True),
        ('{__name__="x"}', True),
        ('a{x="1"} / b{x="2"}', False),
        ("sum(x)", False),
        ("x[1m]", False),
        ("x offset 5m", False),
    ],
)
def test_a_plain_selector_is_kept_apart_from_an_expression(promql: str, plain: bool) -> None:
    assert (SELECTOR.fullmatch(promql) is not None) is plain


X, Y = "(x and last_over_time(x[90s]))", '(y{a="}"} and last_over_time(y{a="}"}[90s]))'


@pytest.mark.parametrize(
    ("promql", "asked"),
    [
        ("sum(x)", f"sum({X})"),
        ('sum by (x) (x) / on (x, y) group_left (x) y{a="}"}', f"sum by (x) ({X}) / on (x, y) group_left (x) {Y}"),
        ('sum(x) by (y) or y{a="}"}', f"sum({X}) by (y) or {Y}"),
        ("rate(x[5m]) > bool 1e3", "rate(x[5m]) > bool 1e3"),
        ("x offset 5m - x @ 1609746000", "x offset 5m - x @ 1609746000"),
        ('label_replace(x, "a", "$1", "x", "(.*)")', f'label_replace({X}, "a", "$1", "x", "(.*)")'),
        ('{__name__="x"} * 2', '({__name__="x"} and last_over_time({__name__="x"}[90s])) * 2'),
        ("max_over_time(rate(x[1m])[5m:30s]) + time()", "max_over_time(rate(x[1m])[5m:30s]) + time()"),
        ("sum without(x)(x) # x", f"sum without(x)({X}) # x"),
        ('time() - timestamp( y{a="}"} )', 'time() - timestamp( y{a="}"} )'),
        ("timestamp(x-1) + my_timestamp", f"timestamp({X}-1) + {X.replace('x', 'my_timestamp')}"),
    ],
)
def test_a_selector_in_an_expression_takes_no_old_sample(promql: str, asked: str) -> None:
    assert bounded(promql, "90s") == asked


@given(st.text(max_size=60))
def test_whatever_is_written_nothing_of_it_is_lost(promql: str) -> None:
    asked = bounded(promql, "90s")
    left = iter(asked)
    assert all(character in left for character in promql)


# A server that answers what the test sets


@dataclass
class Server:
    url: str
    answer: Any = None
    status: int = 200
    asked: list[dict[str, list[str]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    before: Callable[[], None] = lambda: None


@pytest.fixture
def server() -> Iterator[Server]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        there.asked.append(parse_qs(body_of(handler).decode()))
        there.headers.append(dict(handler.headers.items()))
        there.before()
        body = there.answer if isinstance(there.answer, bytes) else json.dumps(there.answer).encode()
        respond(handler, body, there.status)

    with http_server(answer) as url:
        there = Server(url)
        yield there


@pytest.fixture
def asking(server: Server) -> Iterator[Callable[..., PrometheusCollector]]:
    made: list[PrometheusCollector] = []

    def ask(promql: str = "sum(x)", **options: Any) -> PrometheusCollector:
        query = Query(promql, QueueMetric.WAITING, fleet="web")
        made.append(PrometheusCollector(WEB, [query], hosts(), PrometheusOptions(server.url, **options)))
        return made[-1]

    yield ask
    for collector in made:
        collector.close()


def success(*result: dict[str, Any], kind: str = "vector", **more: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": list(result)}, **more}


def test_a_token_is_sent_and_the_question_is_bounded_in_time(server: Server, asking: Any) -> None:
    server.answer = success()
    assert list(asking(authorization="Bearer s3cret", max_age_s=60.0).collect(T0)) == []
    assert server.headers[0]["Authorization"] == "Bearer s3cret"
    (asked,) = server.asked
    assert (asked["query"], asked["time"]) == (["sum((x and last_over_time(x[60s])))"], [f"{T0:.3f}"])
    assert 1 <= int(asked["timeout"][0].removesuffix("s")) <= 10


def test_the_question_is_never_from_the_future(server: Server, asking: Any) -> None:
    server.answer = success()
    list(asking().collect(T0 + 0.0009))
    assert float(server.asked[0]["time"][0]) == T0


def test_a_partial_answer_is_refused_and_a_note_about_the_query_is_not(server: Server, asking: Any) -> None:
    point = {"metric": {}, "value": [T0, "3"]}
    server.answer = success(point, warnings=["store 10.0.0.7 is not reachable"])
    with pytest.raises(CollectionFailed, match=r"not complete: store 10\.0\.0\.7"):
        list(asking().collect(T0))
    server.answer = success(point, warnings=["PromQL info: metric might not be a counter"])
    assert list(asking().collect(T0)) == [Sample(WAITING, 3.0, T0)]


def test_what_is_older_than_the_limit_is_not_taken_whoever_answers(server: Server, asking: Any) -> None:
    server.answer = success({"metric": {}, "values": [[T0 - 91, "1"], [T0 - 20, "2"], [T0 + 5, "3"]]}, kind="matrix")
    collector = asking("x")
    assert list(collector.collect(T0)) == [Sample(WAITING, 2.0, T0 - 20)]
    assert list(collector.collect(T0 + 1)) == [], "each reading comes once"
    server.answer = success({"metric": {}, "value": [T0 - 200, "3"]})
    assert list(asking().collect(T0)) == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([], "status 200"),
        ({"status": "error", "error": "bad\ndata"}, "bad data"),
        (success(kind="string"), "must give numbers"),
        (success({"value": [T0, "1"]}), "no labels"),
        (success({"metric": {}, "value": [T0, "1"]}, {"metric": {"a": "b"}, "value": [T0, "1"]}), "two series become"),
        ("x" * 9000, "longer than 4096 bytes"),
        (success({"metric": {"instance": 7}, "value": [T0, "1"]}), "a label is not text"),
        (success({"metric": {}, "value": [T0, "1"]}, warnings=7), "the answer is not complete: 7"),
    ],
)
def test_an_unusable_answer_fails_in_one_sentence(server: Server, asking: Any, answer: Any, why: str) -> None:
    server.answer = answer
    with pytest.raises(CollectionFailed, match=why):
        list(asking(max_response_bytes=4096).collect(T0))


@pytest.mark.parametrize(("status", "why"), [(503, "status 503"), (400, "status 400"), (200, "is not JSON")])
def test_a_status_is_named_also_where_a_proxy_answers_in_html(
    server: Server, asking: Any, status: int, why: str
) -> None:
    server.status, server.answer = status, b"<html>Service Unavailable</html>"
    with pytest.raises(CollectionFailed, match=why):
        list(asking().collect(T0))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", None, "x", 10**400, [1]])
def test_what_is_no_number_is_absent(server: Server, asking: Any, value: Any) -> None:
    server.answer = success({"metric": {}, "value": [T0, value]})
    assert list(asking().collect(T0)) == []


def test_all_queries_share_one_time_limit(server: Server) -> None:
    server.answer, server.before = success(), lambda: time.sleep(0.2)
    query = Query("sum(x)", QueueMetric.WAITING, fleet="web")
    collector = PrometheusCollector(WEB, [query] * 50, hosts(), PrometheusOptions(server.url, timeout_s=0.5))
    with pytest.raises(CollectionFailed, match=r"not complete after 0\.5 s|ReadTimeout|ConnectTimeout"):
        list(collector.collect(T0))
    collector.close()
    assert len(server.asked) < 10


def test_a_query_without_an_answer_takes_nothing_from_the_others(server: Server) -> None:
    """And the failure says which query it was; all of them are asked."""
    good, bad, other = (Query(promql, SignalName(promql), fleet="web") for promql in ("good", "bad", "other"))
    point = success({"metric": {}, "values": [[T0 - 1.0, "7"]]}, kind="matrix")
    faulty = {"status": "error", "error": "out of range"}

    def answer() -> None:
        server.answer = faulty if "bad" in server.asked[-1]["query"][0] else point

    server.before = answer
    collector = PrometheusCollector(WEB, [good, bad, other], hosts(), PrometheusOptions(server.url))
    taken: list[Sample] = []
    with pytest.raises(CollectionFailed, match=r"bad\[90s\]: out of range"):
        taken.extend(collector.collect(T0))
    assert [sample.series.path.rpartition(".")[2] for sample in taken] == ["good", "other"]
    server.asked.clear()
    with pytest.raises(CollectionFailed):
        list(collector.collect(T0))
    assert [one["query"][0] for one in server.asked][-1] == "bad[90s]", "what failed is asked last"
    collector.close()


def test_several_failures_are_counted_in_one_sentence(server: Server) -> None:
    server.answer = {"status": "error", "error": "no"}
    several = [Query("x", SignalName(f"s{k}"), fleet="web") for k in range(3)]
    collector = PrometheusCollector(WEB, several, hosts(), PrometheusOptions(server.url))
    with pytest.raises(CollectionFailed, match=r"and 2 more of 3 queries"):
        list(collector.collect(T0))
    collector.close()


def test_a_server_that_is_gone_is_asked_once_not_once_per_query(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[None] = []
    context = Tls.context
    monkeypatch.setattr(Tls, "context", lambda self: (opened.append(None), context(self))[1])
    several = [Query("x", SignalName(f"s{k}"), fleet="web") for k in range(30)]
    collector = PrometheusCollector(WEB, several, hosts(), PrometheusOptions(f"http://127.0.0.1:{closed_port()}"))
    with pytest.raises(CollectionFailed, match="ConnectError"):
        list(collector.collect(T0))
    assert len(opened) == 1


def test_an_authorization_that_no_header_holds_is_named_without_being_shown(server: Server, asking: Any) -> None:
    with pytest.raises(CollectionFailed, match="give it in ASCII") as caught:
        list(asking(authorization="Bearer s\u00e9cr\u20act").collect(T0))
    assert "cr\u20act" not in str(caught.value)


def test_a_redirect_is_not_followed_with_the_token(server: Server, asking: Any) -> None:
    server.status = 307
    with pytest.raises(CollectionFailed, match="status 307"):
        list(asking(authorization="Bearer s3cret").collect(T0))
    assert len(server.asked) == 1


# The real one

PASSWORD = "cnryPrometheus0011"
HASHED = "$2b$04$sMivYV/kePvG5jCbpSxMuOuirJWPj.Cjqt9KfdcvojrDTva.OSCRC"
CONFIG = """\
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: node
    static_configs: [{targets: ["127.0.0.1:%d"]}]
    relabel_configs: [{target_label: instance, replacement: "10.0.1.17:9100"}]
  - job_name: dying
    static_configs: [{targets: ["127.0.0.1:%d"]}]
"""
WEB_CONFIG = f"""\
tls_server_config:
  cert_file: own.pem
  key_file: own.key
  client_ca_file: own.pem
  client_auth_type: RequireAndVerifyClientCert
basic_auth_users: {{trimtab: "{HASHED}"}}
"""


class OldReadings:
    """An exporter of another system's readings, with the time of each: these are minutes old."""

    def collect(self) -> Iterable[Metric]:
        late = Metric("late_depth", "Depth of a queue, minutes late.", "gauge")
        late.add_sample("late_depth", {}, 7.0, timestamp=time.time() - 200.0)
        return [late]


@dataclass
class RealPrometheus:
    place: Path
    port: int
    cpu: Gauge
    stop_dying: Callable[[], None]

    def collector(self, *asked: Query, **changes: Any) -> PrometheusCollector:
        token = base64.b64encode(f"trimtab:{PASSWORD}".encode()).decode()
        options: dict[str, Any] = {
            "url": f"https://localhost:{self.port}",
            "authorization": f"Basic {token}",
            "tls": Tls(self.place / "own.pem", self.place / "own.pem", self.place / "own.key"),
        }
        return PrometheusCollector(WEB, asked, hosts(), PrometheusOptions(**{**options, **changes}))

    def wait_for(self, query: Query, wanted: Callable[[list[Sample]], bool]) -> list[Sample]:
        """Ask anew until the answer is the wanted one, and return it."""
        deadline, found, failure = time.monotonic() + WITHIN_S, [], None
        while time.monotonic() < deadline:
            collector = self.collector(query)
            try:
                found = list(collector.collect(time.time()))
                if wanted(found):
                    return found
            except CollectionFailed as error:
                failure = error
            finally:
                collector.close()
            time.sleep(0.2)
        raise AssertionError(f"not within {WITHIN_S:g} s: {found}, {failure}")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPrometheus]:
    place, port = tmp_path_factory.mktemp("prometheus"), closed_port()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", place / "own.key", "-out", place / "own.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    registry, mortal = CollectorRegistry(), CollectorRegistry()
    cpu = Gauge("cpu_busy_ratio", "Share of CPU.", registry=registry)
    cpu.set(0.71)
    broken = Gauge("broken", "Not a number.", ["kind"], registry=registry)
    broken.labels("nan").set(float("nan"))
    broken.labels("inf").set(float("inf"))
    registry.register(OldReadings())  # type: ignore[arg-type]  # a collector by its method
    Gauge("jobs_waiting", "Jobs.", ["queue"], registry=mortal).labels("web").set(12)
    living, _ = start_http_server(0, "127.0.0.1", registry)
    dying, dying_thread = start_http_server(0, "127.0.0.1", mortal)

    def stop_dying() -> None:
        dying.shutdown()
        dying_thread.join()
        dying.server_close()

    (place / "prometheus.yml").write_text(CONFIG % (living.server_port, dying.server_port))
    (place / "web.yml").write_text(WEB_CONFIG)
    command = [
        shutil.which("prometheus") or "prometheus",
        f"--config.file={place}/prometheus.yml",
        f"--web.config.file={place}/web.yml",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={place}/data",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    try:
        yield RealPrometheus(place, port, cpu, stop_dying)
    finally:
        process.terminate()
        process.wait(30)
        living.shutdown()
        living.server_close()


CPU_QUERY = Query("cpu_busy_ratio", VmMetric.CPU_PERCENT, host="{instance}", scale=100.0)
WAITING_QUERY = Query('jobs_waiting{queue="$fleet"}', QueueMetric.WAITING)
SUMMED = Query('sum(jobs_waiting{queue="$fleet"})', QueueMetric.WAITING)


@pytest.mark.needs_prometheus
class TestARealPrometheus:
    """Which wants a certificate and a password, and scrapes two exporters of which one dies."""

    def test_readings_come_with_the_times_of_their_scrapes_and_each_once(self, real: RealPrometheus) -> None:
        found = real.wait_for(CPU_QUERY, lambda found: len(found) >= 3)
        assert {(sample.series, sample.value) for sample in found} == {(CPU, 71.0)}
        spaced = [later.at - one.at for one, later in itertools.pairwise(found)]
        assert all(0.5 < gap < 30.0 for gap in spaced), spaced
        collector, now = real.collector(CPU_QUERY), time.time()
        first, again = list(collector.collect(now)), list(collector.collect(now))
        collector.close()
        assert first
        assert again == []

    def test_an_expression_has_the_time_of_the_question(self, real: RealPrometheus) -> None:
        real.wait_for(SUMMED, bool)
        collector, now = real.collector(SUMMED), round(time.time(), 3)
        (sample,) = list(collector.collect(now))
        collector.close()
        assert (sample.series, sample.value) == (WAITING, 12.0)
        assert sample.at == pytest.approx(now, abs=1e-3)

    def test_an_absent_series_gives_nothing_and_no_failure(self, real: RealPrometheus) -> None:
        for promql in ("no_such_series", "sum(no_such_series)"):
            collector = real.collector(Query(promql, QueueMetric.WAITING, fleet="web"))
            assert list(collector.collect(time.time())) == []
            collector.close()

    @pytest.mark.parametrize("promql", ["late_depth", "sum(late_depth)"])
    def test_readings_that_are_minutes_old_are_not_fresh(self, real: RealPrometheus, promql: str) -> None:
        """Prometheus itself looks back five minutes and would give such a sample the time of the question."""
        query = Query(promql, QueueMetric.WAITING, fleet="web")
        deadline = time.monotonic() + WITHIN_S
        patient = real.collector(query, max_age_s=280.0)
        while not list(patient.collect(time.time())):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        patient.close()
        strict = real.collector(query)
        assert list(strict.collect(time.time())) == []
        strict.close()

    @pytest.mark.parametrize("kind", ["nan", "inf"])
    def test_what_is_not_finite_is_absent(self, real: RealPrometheus, kind: str) -> None:
        real.wait_for(CPU_QUERY, bool)
        for promql in (f'broken{{kind="{kind}"}}', f'sum(broken{{kind="{kind}"}})'):
            collector = real.collector(Query(promql, QueueMetric.WAITING, fleet="web"))
            assert list(collector.collect(time.time())) == []
            collector.close()

    @pytest.mark.parametrize(
        "promql",
        [
            "sum by (instance) (cpu_busy_ratio) / on (instance) group_left () max by (instance) (cpu_busy_ratio)",
            "100 * avg without (kind) (cpu_busy_ratio{job=~'node|x'}) > bool 1e1 or cpu_busy_ratio",
            'label_replace(max_over_time(cpu_busy_ratio[1m]) + 0 * cpu_busy_ratio, "a", "$1", "job", "(.*)")',
        ],
    )
    def test_prometheus_understands_what_expressions_become(self, real: RealPrometheus, promql: str) -> None:
        real.wait_for(CPU_QUERY, bool)
        collector = real.collector(Query(promql, VmMetric.CPU_PERCENT, host="{instance}"))
        assert [sample.series for sample in list(collector.collect(time.time()))] == [CPU]
        collector.close()

    def test_two_series_for_one_measurement_are_refused(self, real: RealPrometheus) -> None:
        real.wait_for(CPU_QUERY, bool)
        collector = real.collector(Query("broken", QueueMetric.WAITING, fleet="web"))
        with pytest.raises(CollectionFailed, match="two series become"):
            list(collector.collect(time.time()))
        collector.close()

    def test_what_prometheus_says_of_a_wrong_query_is_passed_on(self, real: RealPrometheus) -> None:
        real.wait_for(CPU_QUERY, bool)
        collector = real.collector(Query("sum(", QueueMetric.WAITING, fleet="web"))
        with pytest.raises(CollectionFailed, match=r"sum\(: .*parse error"):
            list(collector.collect(time.time()))
        collector.close()

    def test_without_password_or_certificate_nothing_is_given(self, real: RealPrometheus) -> None:
        real.wait_for(CPU_QUERY, bool)
        wrong = base64.b64encode(b"trimtab:cnryWrong0012").decode()
        for changes, why in (
            ({"authorization": f"Basic {wrong}"}, r"status 401 \(the authorization is not accepted\)"),
            ({"tls": Tls(real.place / "own.pem")}, "Error"),
            ({"tls": Tls()}, "CERTIFICATE_VERIFY_FAILED"),
        ):
            collector = real.collector(CPU_QUERY, **changes)
            with pytest.raises(CollectionFailed, match=why) as caught:
                list(collector.collect(time.time()))
            collector.close()
            assert wrong not in str(caught.value)

    def test_a_prometheus_that_is_down_is_a_failure_that_names_the_place(self, real: RealPrometheus) -> None:
        port = closed_port()
        collector = real.collector(CPU_QUERY, url=f"https://localhost:{port}")
        with pytest.raises(CollectionFailed, match=f"Prometheus at https://localhost:{port}: ConnectError"):
            list(collector.collect(time.time()))
        collector.close()

    def test_when_the_exporter_dies_its_last_readings_keep_their_times(self, real: RealPrometheus) -> None:
        """Last of this class: the exporter stays dead."""
        real.wait_for(WAITING_QUERY, bool)
        real.stop_dying()
        dead_at = time.time()
        # An expression has no value from the scrape that failed; a selector has old readings with their own times.
        real.wait_for(SUMMED, lambda found: not found)
        collector = real.collector(WAITING_QUERY)
        old = list(collector.collect(time.time()))
        collector.close()
        assert old
        assert all(sample.at <= dead_at + 1.0 for sample in old)
