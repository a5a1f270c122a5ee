"""`trimtab price admission --label`: what an hour of a label costs by what a cluster's ledger has gathered of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.admission.cluster import AdmissionService
from agent.admission.state import AdmissionStore
from agent.commands.main import app
from agent.ledger import Ledger
from domain.clock import WallClock
from tests.agent.admission.clusters import event, rules


@pytest.fixture
def trimtab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """A ledger with ten deployments of ada's batch, which lasted half an hour, and the settings of its cluster."""
    url, now = f"sqlite:///{tmp_path / 'ledger.db'}", WallClock().now()
    with Ledger.open(url) as ledger:
        service = AdmissionService(rules(), AdmissionStore(ledger), WallClock())
        for n in range(10):
            service.observe([event(f"old-{n}", "started", 8, now - 7200.0, label="batch", owner="ada")])
            service.observe([event(f"old-{n}", "core_ended", 8, now - 5400.0)])
    for name, value in {"CLUSTERS__main__CAPACITY_CORES": "1000", "CLUSTERS__main__PRESET": "K"}.items():
        monkeypatch.setenv(f"TRIMTAB_{name}", value)
    monkeypatch.setenv("TRIMTAB_LEDGER__URL", url)
    return CliRunner()


def asked(trimtab: CliRunner, *words: str) -> Result:
    return trimtab.invoke(app, ["price", "admission", "--size", "8", "--at", "1", *words])


def test_a_label_of_brief_deployments_costs_less_than_without_its_name(trimtab: CliRunner) -> None:
    found = json.loads(asked(trimtab, "--label", "batch", "--owner", "ada", "--json").stdout)
    assert found["of_label"] == found["of_owner"] == pytest.approx(10.0, rel=1e-3)
    assert found["hours"][0]["price"] < found["hours"][0]["price_without_names"]


def test_a_label_of_which_nothing_is_known_costs_what_the_population_does(trimtab: CliRunner) -> None:
    found = json.loads(asked(trimtab, "--label", "web", "--json").stdout)
    assert found["of_label"] == 0.0
    assert all(row["price"] == row["price_without_names"] for row in found["hours"])


def test_the_text_says_from_how_many_deployments(trimtab: CliRunner) -> None:
    lines = asked(trimtab, "--label", "batch", "--owner", "ada").stdout.splitlines()
    assert re.findall(r"[\d.]+", lines[0])[:3] == ["8", "10.0", "10.0"]
    assert lines[2].endswith("without names")


def test_a_population_beside_a_name_and_a_wrong_name_are_refused(trimtab: CliRunner) -> None:
    for words, field in ((("--label", "batch", "--preset", "T"), "--preset"), (("--label", "a b"), "label")):
        done = asked(trimtab, *words)
        assert done.exit_code != 0
        assert field in done.output + str(done.exception)
