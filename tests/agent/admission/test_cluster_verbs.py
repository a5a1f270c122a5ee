"""`trimtab cluster`: what is inside, kept as files and put back, as a person types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from tests.agent.admission.clusters import ask, event
from tests.agent.admission.conftest import Make


@pytest.fixture
def trimtab(make: Make, path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    service = make()
    service.observe(event("shop", "started", 40))
    service.observe(event("shop", "refused", 4))
    service.admit(ask("late", 10))
    service.admit(ask("huge", 5000))
    values = {"CAPACITY_CORES": "1000", "PRESET": "K", "KAPPA": "2.2", "START_WITHIN_S": "2592000"}
    for name, value in values.items():
        monkeypatch.setenv(f"TRIMTAB_CLUSTERS__main__{name}", value)
    monkeypatch.setenv("TRIMTAB_LEDGER__URL", f"sqlite:///{path}")
    return CliRunner()


def said(trimtab: CliRunner, *arguments: str) -> str:
    done = trimtab.invoke(app, ["cluster", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_show_tells_cores_room_and_the_newest_decisions(trimtab: CliRunner) -> None:
    lines = [" ".join(line.split()) for line in said(trimtab, "show").splitlines()]
    assert lines[:3] == [
        "main",
        "cores taken 50 of 1,000 (5.0%)",
        "deployments 1 live, 1 admitted and not started",
    ]
    assert "rule second:2.2" in lines
    assert sum(line.startswith("room: ") for line in lines) == 5
    after = lines[lines.index("Newest decisions") + 1 :]
    assert [line.split()[0] for line in after] == ["main-a2", "main-a1"]
    assert after[0].endswith("huge 5,000 rejected_feasibility")


def test_show_says_whether_asking_takes_anybody_in(trimtab: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    for mode in ("observe", "act"):
        monkeypatch.setenv("TRIMTAB_MODE", mode)
        modes += [line.split(maxsplit=1)[1] for line in said(trimtab, "show").splitlines() if "  mode" in line]
    assert modes == ["observe: requests get advice, nothing is reserved", "act"]


def test_the_older_way_to_show_a_cluster_names_the_new_one(trimtab: CliRunner) -> None:
    done = trimtab.invoke(app, ["cluster", "show"])
    assert done.stderr == "cluster show goes away: use trimtab status admission [CLUSTER]\n"


def test_show_as_data(trimtab: CliRunner) -> None:
    found = json.loads(said(trimtab, "show", "main", "--json"))
    assert (found["total_cores"], found["live"], found["reserved"], found["decisions"]) == (50, 1, 1, 2)
    assert [decision["decision_id"] for decision in found["newest"]] == ["main-a2", "main-a1"]


def test_what_was_kept_is_put_back(trimtab: CliRunner, make: Make, tmp_path: Path) -> None:
    before = make().deployments()
    kept = said(trimtab, "snapshot", str(tmp_path / "kept"))
    assert kept == f"main: 2 deployments written to {tmp_path / 'kept.json'}\n"
    make().observe(event("shop", "shutdown"))
    assert make().deployments() != before
    assert said(trimtab, "restore", str(tmp_path / "kept")).startswith("main: 2 deployments are inside now")
    assert make().deployments() == before


def test_a_cluster_that_does_not_exist_is_reported(trimtab: CliRunner) -> None:
    done = trimtab.invoke(app, ["cluster", "show", "west"])
    assert done.exit_code == 2
    assert "choose one of: main" in done.output
