"""Alert rules and dashboard agree with what there is: metrics and labels of the catalogue, pages, reasons."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
import yaml

from agent.kernel.metrics import Kind
from domain.decisions import Reason, Status
from domain.errors import FailureClass
from tests.agent.telemetry.metrics import all_metrics
from tests.architecture.product import ROOT

ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text("utf-8"))
OF_PROMETHEUS = {"up": ("job", "instance")}
"""What Prometheus makes itself."""
SCRAPED = {"job", "instance"}
"""Labels that Prometheus adds to whatever it scrapes."""


def labels_by_name() -> dict[str, tuple[str, ...]]:
    """Labels of every name under which a metric can be asked for."""
    known = dict(OF_PROMETHEUS)
    for metric in all_metrics():
        known[metric.name] = metric.labels
        if metric.kind is Kind.HISTOGRAM:
            known[f"{metric.name}_bucket"] = (*metric.labels, "le")
            known |= {f"{metric.name}_{end}": metric.labels for end in ("sum", "count")}
    return known


KNOWN = labels_by_name()


def metrics_in(expression: str) -> list[tuple[str, str]]:
    """Each metric that a PromQL expression names, with the content of its braces."""
    text = re.sub(r"label_values\((\w+), \w+\)", r"\1", expression)
    return re.findall(r"\b((?:trimtab|process)_[a-z_]+|up)\b(?:\{([^}]*)\})?", text)


def grouped_by(expression: str) -> set[str]:
    return {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}


def panel_targets() -> list[tuple[str, str, str]]:
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


EXPRESSIONS = [
    *((rule["alert"], rule["expr"]) for rule in ALERTS),
    *((title, expression) for title, expression, _ in panel_targets()),
    *((item["name"], item["query"]) for item in DASHBOARD["templating"]["list"] if item["type"] == "query"),
    *((item["name"], item["expr"]) for item in DASHBOARD["annotations"]["list"]),
]


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS)
def test_every_metric_and_label_exists(name: str, expression: str) -> None:
    found = metrics_in(expression)
    assert found != []
    for metric, braces in found:
        assert metric in KNOWN
        asked = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", braces))
        assert asked <= {*KNOWN[metric], *SCRAPED}, (metric, asked)
    common = set.intersection(*({*KNOWN[metric], *SCRAPED} for metric, _ in found))
    assert grouped_by(expression) <= common


def left_over(expression: str) -> set[str]:
    """Labels that the result of an expression carries."""
    if " by (" in expression or expression.startswith("histogram_quantile"):
        return grouped_by(expression) - {"le"}
    return set.intersection(*({*KNOWN[metric], *SCRAPED} for metric, _ in metrics_in(expression)))


@pytest.mark.parametrize(("title", "expression", "legend"), panel_targets())
def test_a_legend_names_labels_that_are_left(title: str, expression: str, legend: str) -> None:
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= left_over(expression)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_summary_and_a_page_to_read(rule: dict[str, Any]) -> None:
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(re.findall(r"\{\{ \$labels\.(\w+) \}\}", notes["summary"])) <= left_over(rule["expr"])
    page, _, anchor = notes["runbook_url"].partition("#")
    assert anchor in anchors((ROOT / page).read_text("utf-8"))


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS)
def test_values_of_labels_are_ones_that_occur(name: str, expression: str) -> None:
    can_be = {
        "reason": {reason.value for reason in Reason},
        "status": {status.value for status in Status},
        "outcome": {failure.value for failure in FailureClass},
    }
    for label, value in re.findall(r'(\w+)(?:=|!=)"([^"]*)"', expression):
        if label in can_be:
            assert value in can_be[label]


@pytest.mark.needs_prometheus
@pytest.mark.smoke
def test_prometheus_accepts_the_rules() -> None:
    """tests/real/telemetry has them fire."""
    rules = ROOT / "deploy" / "prometheus" / "alerts.yaml"
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout, done.stderr


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names) >= 10


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
