"""The rules of deploy/prometheus in a real Prometheus: when each fires, and that Alertmanager receives it."""

import json
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.architecture.product import ROOT
from tests.collectors.graphite.real_graphite import child, free_ports, wait_until
from tests.collectors.surroundings import body_of, http_server, respond
from tests.real.running_agent import Agent

RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
READER = "reader-0123456789abcdef"
COUNTED = "0 0 1x9"
"""A counter that grows in minute 2."""
AGENT, FLEET, GROUP = '{job="trimtab",instance="a"}', '{fleet="web"}', '{fleet="web",group="s"}'
CLUSTER, POOL = '{cluster="main"}', '{pool="main"}'
CASES: dict[str, tuple[dict[str, str], int]] = {
    "TrimtabDown": ({f"up{AGENT}": "0x9"}, 3),
    "TrimtabLoopStandsStill": ({f"trimtab_healthy{AGENT}": "0x9"}, 2),
    "TrimtabCannotRecord": ({f"trimtab_ledger_usable{AGENT}": "0x9"}, 2),
    "TrimtabNobodyLeads": ({f"trimtab_leader{AGENT}": "0x9", 'trimtab_leader{job="trimtab",instance="b"}': "1 0x9"}, 4),
    "TrimtabNoMeasurements": ({f"trimtab_stale_minutes{FLEET}": "3x5 4x9"}, 8),
    "TrimtabVmsSilent": ({f"trimtab_group_silent{GROUP}": "1x5 2x19", f"trimtab_group_warm{GROUP}": "4x25"}, 16),
    "TrimtabVmsOverdue": ({f"trimtab_group_overdue{GROUP}": "1x9"}, 5),
    "TrimtabNoCapacity": ({'trimtab_outcomes_total{fleet="web",group="s",reason="no_capacity"}': COUNTED}, 2),
    "TrimtabCircuitOpen": ({f"trimtab_circuit_open{GROUP}": "0x3 1x9"}, 9),
    "TrimtabAwsThrottled": ({'trimtab_aws_calls_total{service="ec2",outcome="throttle"}': "0+1x9 9+5x40"}, 23),
    "TrimtabCollectorFails": (
        {
            'trimtab_collector_successes_total{collector="cloudwatch"}': "0+1x10 10x45",
            'trimtab_collector_failures_total{collector="cloudwatch"}': "0x10 0+1x45",
        },
        40,
    ),
    "TrimtabPausedForLong": ({'trimtab_paused{fleet="web",scope="all"}': "0x9 1x1500"}, 1450),
    "TrimtabClusterUnsafe": ({f"trimtab_cluster_safe{CLUSTER}": "0x19"}, 10),
    "TrimtabClusterRefusesCores": ({f"trimtab_cluster_failures_month_to_date{CLUSTER}": COUNTED}, 2),
    "TrimtabClusterPromiseNearlyUsed": ({f"trimtab_cluster_sla_budget_used_ratio{CLUSTER}": "0.8x3 0.81x9"}, 4),
    "TrimtabMachineHot": ({f"trimtab_oversub_hot_machine_hours_total{POOL}": COUNTED}, 2),
    "TrimtabRatesRolledBack": (
        {
            f"trimtab_oversub_rolled_back{POOL}": "0x3 1x99",
            f"trimtab_oversub_frozen{POOL}": "0x3 1x99",
            f"trimtab_oversub_fallback_total{POOL}": "0x3 1x99",
        },
        4,
    ),
    "TrimtabRatesFrozen": (
        {f"trimtab_oversub_frozen{POOL}": "0x3 1x9", f"trimtab_oversub_rolled_back{POOL}": "0x20"},
        4,
    ),
    "TrimtabPoolRisky": ({f"trimtab_oversub_violation_ratio{POOL}": "0.2x5 0.21x200"}, 186),
    "TrimtabUsageDrifted": ({f"trimtab_oversub_drift_alarms_total{POOL}": COUNTED}, 2),
    "TrimtabRatesFallBack": ({f"trimtab_oversub_fallback_total{POOL}": "0 0 1x99"}, 62),
    "TrimtabNoMachineHasRoom": ({f"trimtab_oversub_rejects_total{POOL}": COUNTED}, 2),
    "TrimtabLearningOverdue": (
        {'trimtab_events_total{decision="autoscaling",subject="web",reason="learning_overdue"}': COUNTED},
        2,
    ),
    "TrimtabSelfTuningFailed": (
        {'trimtab_events_total{decision="autoscaling",subject="web",reason="self_tuning_failed"}': COUNTED},
        2,
    ),
    "TrimtabPromotionRolledBack": (
        {'trimtab_events_total{decision="autoscaling",subject="web",reason="promotion_rolled_back"}': COUNTED},
        2,
    ),
}
"""What Prometheus scrapes, a value a minute, and the minute in which the alert of that name fires, and it alone."""


def expected(minute: int, alerts: list[str]) -> dict[str, Any]:
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in alerts]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    return {"expr": firing, "eval_time": f"{minute}m", "exp_samples": samples}


@pytest.mark.needs_prometheus
def test_each_alert_fires_in_its_minute_and_not_before(tmp_path: Path) -> None:
    """And no rule is without a case."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    assert [rule["alert"] for group in groups for rule in group["rules"]] == list(CASES)
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in given.items()],
            "promql_expr_test": [expected(minute - 1, []), expected(minute, [name])],
        }
        for name, (given, minute) in CASES.items()
    ]
    from_the_start = {"series": 'trimtab_paused{fleet="web",scope="all"}', "values": "1x1500"}
    tests.append(
        {
            "name": "a pause is as old as what Prometheus has seen of it",
            "interval": "1m",
            "input_series": [from_the_start],
            "promql_expr_test": [expected(60, []), expected(1441, ["TrimtabPausedForLong"])],
        }
    )
    file = tmp_path / "alerts.test.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(file)]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def notified() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """The address of a receiver of Alertmanager's notifications, and what it received."""
    received: queue.Queue[dict[str, Any]] = queue.Queue()

    def receive(handler: BaseHTTPRequestHandler) -> None:
        received.put(json.loads(body_of(handler)))
        respond(handler)

    with http_server(receive) as url:
        yield url, received


@pytest.mark.needs_prometheus
@pytest.mark.needs_alertmanager
def test_an_agent_that_is_killed_is_named_by_a_notification_of_alertmanager(
    tmp_path: Path, notified: tuple[str, queue.Queue[dict[str, Any]]]
) -> None:
    """A real agent, scraped with its token by a real Prometheus, whose rules wait for no time here."""
    receiver, received = notified
    port, scraper, manager = free_ports(3)
    directory = Path(tempfile.mkdtemp(prefix="tt-"))
    settings = {"TRIMTAB_LISTENER__PORT": "0", "TRIMTAB_HTTP__PORT": str(port), "TRIMTAB_HTTP__TOKEN": READER}
    clusters = {"TRIMTAB_CLUSTERS__main__CAPACITY_CORES": "1000", "TRIMTAB_CLUSTERS__main__PRESET": "K"}
    agent = Agent(directory, {**settings, **clusters, "AWS_EC2_METADATA_DISABLED": "true"})
    (tmp_path / "rules.yaml").write_text(re.sub(r"\n +for: .*", "", RULES.read_text("utf-8")))
    scrape = {"job_name": "trimtab", "authorization": {"credentials": READER}, **targets(port)}
    prometheus = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(tmp_path / "rules.yaml")],
        "alerting": {"alertmanagers": [targets(manager)]},
        "scrape_configs": [scrape],
    }
    (tmp_path / "prometheus.json").write_text(json.dumps(prometheus))
    route = {"receiver": "operator", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    hook = {"name": "operator", "webhook_configs": [{"url": receiver}]}
    (tmp_path / "alertmanager.json").write_text(json.dumps({"route": route, "receivers": [hook]}))
    commands = {
        "prometheus": [
            f"--config.file={tmp_path}/prometheus.json",
            f"--web.listen-address=127.0.0.1:{scraper}",
            f"--storage.tsdb.path={tmp_path}/prometheus",
        ],
        shutil.which("prometheus-alertmanager") or "alertmanager": [
            f"--config.file={tmp_path}/alertmanager.json",
            f"--web.listen-address=127.0.0.1:{manager}",
            f"--storage.path={tmp_path}/alertmanager",
            "--cluster.listen-address=",
        ],
    }
    (prometheus_command, manager_command) = ([name, *options] for name, options in commands.items())
    log = tmp_path / "prometheus.log"
    agent.start()
    try:
        with child(manager_command, tmp_path / "manager.log", {}), child(prometheus_command, log, {}) as process:
            wait_until(lambda: value(scraper, "trimtab_healthy") == 1.0, process, log)
            agent.end(signal.SIGKILL)
            notification = received.get(timeout=30.0)
            while "TrimtabDown" not in notification["groupKey"]:
                notification = received.get(timeout=30.0)
            (alert,) = notification["alerts"]
    finally:
        if agent._process is not None:
            agent.end(signal.SIGKILL)
        shutil.rmtree(directory)
    assert (alert["status"], alert["labels"]["severity"]) == ("firing", "critical")
    assert (alert["labels"]["alertname"], alert["labels"]["instance"]) == ("TrimtabDown", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in alert["annotations"]["summary"]
    page, _, _ = alert["annotations"]["runbook_url"].partition("#")
    assert (ROOT / page).is_file()


def targets(port: int) -> dict[str, Any]:
    return {"static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}


def value(port: int, promql: str) -> float | None:
    """Return the value of an expression, None where it has none or Prometheus is not up yet."""
    address = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(promql)}"
    try:
        with urllib.request.urlopen(address, timeout=5.0) as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:
        return None
    return float(found[0]["value"][1]) if found else None
