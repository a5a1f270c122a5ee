"""`trimtab status admission`: what is inside a cluster, as a person reads it."""

import json

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from tests.agent.admission.clusters import ask, event
from tests.agent.admission.conftest import Make


@pytest.fixture
def trimtab(make: Make, path: str, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    service = make()
    service.observe([event("shop", "started", 40)])
    service.observe([event("shop", "refused", 4)])
    service.answer([ask("late", 10)])
    service.answer([ask("huge", 5000)])
    values = {"CAPACITY_CORES": "1000", "PRESET": "K", "KAPPA": "2.2", "START_WITHIN_S": "2592000"}
    for name, value in values.items():
        monkeypatch.setenv(f"TRIMTAB_CLUSTERS__main__{name}", value)
    monkeypatch.setenv("TRIMTAB_LEDGER__URL", f"sqlite:///{path}")
    return CliRunner()


def said(trimtab: CliRunner, *arguments: str) -> str:
    done = trimtab.invoke(app, ["status", "admission", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_it_has_cores_room_and_the_newest_decisions(trimtab: CliRunner) -> None:
    lines = [" ".join(line.split()) for line in said(trimtab).splitlines()]
    assert {"cores taken 50 of 1,000 (5.0%)", "deployments 1 live, 1 admitted and not started"} <= set(lines)
    assert "rule second:2.2" in lines
    assert sum(line.startswith("room: ") for line in lines) == 5
    after = lines[lines.index("Newest decisions") + 1 :]
    assert [line.split()[0] for line in after][:2] == ["main-a2", "main-a1"]
    assert after[0].endswith("huge 5,000 rejected_feasibility")


def test_it_has_the_same_as_data(trimtab: CliRunner) -> None:
    (found,) = json.loads(said(trimtab, "main", "--json"))["clusters"]
    assert (found["total_cores"], found["live"], found["reserved"], found["decisions"]) == (50, 1, 1, 2)
    assert [decision["decision_id"] for decision in found["newest"]] == ["main-a2", "main-a1"]
