"""The catalogue is what /metrics shows, on an agent to which everything in it has happened."""

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Never

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from agent.deferral.records import History, JobOrder, StepRow
from agent.deferral.state import Change
from agent.kernel.metrics import PREFIX, Kind
from agent.models.rounds import Ending
from agent.placement.records import PlaceRequest
from agent.service.http import show
from agent.telemetry.catalogue import PROCESS, page
from agent.telemetry.telemetry import Telemetry
from collectors.intake import ForwardingCounters
from domain.controls import Pause, PauseScope, Pin
from domain.decisions import Reason
from domain.samples import QueueMetric, QueueSeries, Sample
from domain.snapshot import Signal, SignalSnapshot
from domain.subject import Subject
from domain.units import HOUR_S
from tests.agent.api.conftest import over_socket
from tests.agent.api.running import Running
from tests.agent.placement.hosts import inventory
from tests.agent.telemetry.metrics import all_metrics
from tests.graphite_lines import format_line
from trainer.promotion.directory import write_round

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "operate" / "metrics.md"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def parsed(text: str) -> Samples:
    """Samples by name, then by labels in alphabetical order."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name][tuple(sorted(labels.items()))]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


class TestTheCatalogue:
    def test_names_follow_prometheus(self) -> None:
        for metric in all_metrics()[: -len(PROCESS.metrics)]:
            assert metric.name.startswith(PREFIX)
            assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
            assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total"), metric.name
            if metric.unit == "seconds" and metric.kind is not Kind.COUNTER:
                assert metric.name.endswith("_seconds"), metric.name
            if metric.unit == "bytes":
                assert metric.name.endswith("_bytes"), metric.name
            assert metric.meaning.endswith("."), metric.name

    def test_no_name_occurs_twice(self) -> None:
        names = [metric.name for metric in all_metrics()]
        assert sorted(names) == sorted(set(names))
        bare = [name.removesuffix("_total") for name in names]
        assert sorted(bare) == sorted(set(bare)), "a counter and a gauge must not differ by _total alone"

    def test_no_label_is_an_id(self) -> None:
        for metric in all_metrics():
            assert not {"vm", "instance", "instance_id", "decision_id", "intent", "owner"} & set(metric.labels), (
                metric.name
            )

    def test_the_committed_page_is_what_it_says(self) -> None:
        assert PAGE.read_text("utf-8") == page(), "run `trimtab config metrics` and commit docs/operate/metrics.md"

    def test_every_metric_has_a_line_on_the_page(self) -> None:
        for metric in all_metrics():
            assert page().count(f"| `{metric.name}` |") == 1


class TestARunningAgent:
    def test_shows_every_metric_of_the_catalogue_and_no_other(self, running: Running) -> None:
        telemetry = everything_happens(running)
        text = telemetry.exposition().decode()
        samples = parsed(text)
        bare = {metric.name.removesuffix("_total"): metric for metric in all_metrics()}
        assert {name.removesuffix("_total") for name in names_in(text)} == set(bare)
        for metric in all_metrics():
            name = f"{metric.name}_bucket" if metric.kind is Kind.HISTOGRAM else metric.name
            assert samples.get(name), f"{metric.name} has no sample on an agent to which everything has happened"
            for labels in samples[name]:
                assert {label for label, _ in labels} - {"le"} == set(metric.labels), metric.name

    def test_counts_what_it_did(self, running: Running) -> None:
        telemetry = Telemetry(running.view)
        running.world.submit(40)
        running.tick(2)
        samples = parsed(telemetry.exposition().decode())
        decisions = [row.decision for row in running.fleets.store.decisions("web", limit=2)]
        by_reason = {row.reason for row in decisions}
        assert sum(samples["trimtab_decisions_total"].values()) == 2
        assert all(of(samples, "trimtab_decisions_total", fleet="web", reason=r) >= 1 for r in by_reason)
        assert of(samples, "trimtab_ticks_total") == 2
        assert of(samples, "trimtab_tick_duration_seconds_count") == 2
        assert of(samples, "trimtab_tick_duration_seconds_sum") == 0.5
        assert of(samples, "trimtab_tick_duration_seconds_bucket", le="0.25") == 2
        intents = [intent for row in decisions for intent in row.intents]
        assert sum(samples["trimtab_intents_total"].values()) == len(intents) > 0
        assert of(samples, "trimtab_open_intents", fleet="web") == len(running.world.ledger.open_intents())

    def test_what_alert_rules_count_is_there_at_0_before_it_happens(self, shared: Running) -> None:
        samples = parsed(Telemetry(shared.view).exposition().decode())
        counted = {
            (name, reason)
            for rule in yaml.safe_load(RULES.read_text("utf-8"))["groups"][0]["rules"]
            for name, reason in re.findall(r'increase\((trimtab_\w+){reason="(\w+)"}', rule["expr"])
        }
        assert len(counted) == 4
        for name, reason in counted:
            found = [value for labels, value in samples[name].items() if ("reason", reason) in labels]
            assert found != []
            assert set(found) == {0.0}

    def test_shows_sizes_queue_and_cost_as_the_snapshot_has_them(self, shared: Running) -> None:
        samples = parsed(Telemetry(shared.view).exposition().decode())
        snapshot = shared.world.snapshot
        for group, seen in zip(shared.world.fleet.groups, snapshot.groups, strict=True):
            labels = {"fleet": "web", "group": group.key, "vm_type": group.vm_type.name}
            assert of(samples, "trimtab_group_requested", **labels) == seen.requested
            assert of(samples, "trimtab_group_warm", **labels) == seen.warm
            assert of(samples, "trimtab_group_maximum", **labels) == 10
        assert of(samples, "trimtab_queue_waiting_jobs", fleet="web") == 20
        assert of(samples, "trimtab_cost_dollars_per_hour", fleet="web") == pytest.approx(2 * 0.086 + 2 * 0.344)
        assert of(samples, "trimtab_coverage_ratio", fleet="web") == 1.0

    def test_counts_calls_to_aws_as_the_session_does(self, shared: Running) -> None:
        samples = parsed(Telemetry(shared.view).exposition().decode())
        for (family, outcome), count in shared.world.session.budget.counts.items():
            service, kind = family.split()
            assert of(samples, "trimtab_aws_calls_total", service=service, kind=kind, outcome=outcome) == count

    def test_what_was_not_measured_is_absent_and_not_zero(self, running: Running) -> None:
        telemetry = Telemetry(running.view)
        running.world.cpu, running.world.queue_reports = None, False
        running.tick()
        samples = parsed(telemetry.exposition().decode())
        assert "trimtab_cpu_ratio" not in samples
        assert "trimtab_queue_waiting_jobs" not in samples
        assert of(samples, "trimtab_stale_minutes", fleet="web") == 1

    def test_without_its_ledger_it_still_shows_the_rest(self, running: Running) -> None:
        telemetry = Telemetry(running.view)
        running.lose_ledger()
        running.tick()
        samples = parsed(telemetry.exposition().decode())
        assert of(samples, "trimtab_ledger_usable") == 0
        assert of(samples, "trimtab_tick_failures_total") == 1
        assert of(samples, "trimtab_ready") == 0
        assert "trimtab_cost_today_dollars" not in samples

    def test_missed_turns_are_counted_on_the_monotonic_clock(self, running: Running) -> None:
        telemetry = Telemetry(running.view)
        running.tick()
        running.world.agent_clock.step(-3600.0)
        running.world.clock.advance(180.0)
        running.tick()
        assert of(parsed(telemetry.exposition().decode()), "trimtab_ticks_missed_total") == 3

    def test_no_vm_is_named(self, shared: Running) -> None:
        text = Telemetry(shared.view).exposition().decode()
        vms = [vm for _, vm, _ in shared.world.vms()]
        assert len(vms) == 4
        assert not [vm for vm in vms if vm in text]

    def test_labels_cannot_be_made_without_bound(self, shared: Running) -> None:
        telemetry = Telemetry(shared.view)
        for number in range(2100):
            telemetry.count_request("GET", f"/{number}", 200, 0.0)
        routes = parsed(telemetry.exposition().decode())["trimtab_http_requests_total"]
        assert len(routes) == 2001
        assert routes[("method", "other"), ("route", "other"), ("status", "other")] == 100


def test_an_error_of_one_part_hides_no_metric_of_the_others(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Never:
        raise ValueError("no reading")

    for part in running.parts.parts:
        monkeypatch.setattr(part, "readings", broken, raising=True)
    samples = parsed(Telemetry(running.view).exposition().decode())
    assert "trimtab_build_info" in samples
    assert of(samples, "trimtab_ledger_usable") == 1.0


def test_it_is_served_where_prometheus_looks(running: Running, socket_directory: Path) -> None:
    with ExitStack() as stack:
        parts = running.with_settings(http={"socket": socket_directory / "http.sock"}).parts
        interface = show(stack, parts)
        client = stack.enter_context(over_socket(interface.server))
        client.get("/api/v1/autoscaling/web")
        answer = client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        samples = parsed(answer.text)
        route = {"method": "GET", "route": "/api/v1/autoscaling/{fleet}", "status": "200"}
        assert of(samples, "trimtab_http_requests_total", **route) == 1
        assert of(samples, "trimtab_build_info", version="0.1.0", python=_python()) == 1


def _python() -> str:
    import platform

    return platform.python_version()


def defer(agent: Running) -> None:
    """Let a job be deferred and start, on a capacity that was forecast for two days, where a model had decided."""
    service, now = agent.deferrals["night"], agent.world.agent_clock.now()
    first = int(now // HOUR_S) - 50
    rows = tuple(StepRow(first + k, 10, low=8.0, high=12.0) for k in range(50))
    service.transact(lambda state, at: (None, Change(state.head, history=History(rows))))
    service.submit(JobOrder(job_id="j1", cores=4, duration_steps=2, latest_at=now + 4 * HOUR_S))
    service.report(10)
    service.turns.turn(now, agent.world.epoch)


def everything_happens(agent: Running) -> Telemetry:
    """Let what is counted happen to an agent; return its metrics."""
    telemetry = Telemetry(agent.view)
    world, now = agent.world, agent.world.agent_clock.now()
    health = agent.collectors["queue web"]
    health.last_duration_s = 0.5
    world._reader.feed(f"gibberish\ntrimtab.web.queue.waiting 1e15 {now}\n".encode())
    agent.view.parts.intake().forwarding = {"agent-2": ForwardingCounters(forwarded=3, dropped=1)}
    oldest = QueueSeries("web", QueueMetric.OLDEST_WAIT_SECONDS)
    world.noise = lambda at: format_line(Sample(oldest, 30.0, at)).encode()
    agent.board.problem("disk", "nearly full")
    agent.board.change(leaders={"autoscaling/web": "north", "placement/south": "east"})
    agent.turn_pools()
    agent.placements["south"].adopt(inventory(), "inventory", world.epoch)
    agent.placements["south"].request(PlaceRequest("south", "r1", "shop", 1000, partial=True))
    agent.placements["south"].training_distance = {"hosts": 0.1}
    defer(agent)
    write_round(agent.models_dir, Subject("autoscaling", "web"), Ending.PROMOTED, "", now)
    world.ledger.pin("autoscaling", "web", Pin({"small": 3}, "ada", "test", now, now + 600.0))
    agent.tick(2)
    world.ledger.unpin("autoscaling", "web", at=now, owner="ada")
    world.ledger.pause("autoscaling", "web", Pause(PauseScope.IN, "ada", "test", now, None))
    agent.tick()
    world.owner.set_desired_capacity(AutoScalingGroupName="workers-s", DesiredCapacity=4)
    report = agent.tick()
    assert report is not None
    assert [event.reason for event in report.events] == [Reason.DRIFT_ADOPTED]
    # A fleet that is sized by its queue has no signal.
    signals = (SignalSnapshot(Signal("rps", 50.0), 310.0),)
    agent.fleets.snapshots["web"] = replace(agent.fleets.snapshots["web"], signals=signals)
    telemetry.count_request("GET", "/healthz", 200, 0.001)
    return telemetry
