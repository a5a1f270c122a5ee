"""`trimtab explain` tells an admission by its id: verdict, rule, where room is least, and who fills it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from tests.agent.admission.clusters import SEEN, ask, event
from tests.agent.admission.conftest import Make
from tests.golden import figures


@pytest.fixture
def asked(make: Make, path: Path) -> Path:
    service = make()
    for n in range(30):
        service.observe([event(f"old-{n}", "started", 6)])
    service.answer([ask("shop", 10, requested_by="ada")])
    service.answer([ask("kinds", 1, SEEN)])
    service.answer([ask("huge", 5000)])
    return path


def explained(path: Path, *arguments: str) -> str:
    done = CliRunner().invoke(app, ["explain", *arguments, "--ledger", str(path)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_decision_by_the_rule_with_the_largest_deployments(asked: Path) -> None:
    lines = explained(asked, "main-a1").splitlines()
    assert lines[0] == "main-a1  2026-09-21 14:13:20 UTC  cluster main"
    assert lines[1].startswith("  shop with 10 cores: ")
    assert [180, 1000, 30] in map(figures, lines)
    assert "  estimated by the population alone" in lines
    assert "  asked for by ada" in lines
    assert any(line.split() == ["policy", "second:2.2"] for line in lines)
    assert any("old-0" in line for line in lines[lines.index("Largest there") :])
    assert any(line.startswith("Least room: ") for line in lines)


def test_a_refusal_before_any_future_was_looked_at(asked: Path) -> None:
    text = explained(asked, "main-a3")
    assert "refused (rejected_feasibility)" in text
    assert [5000, 1000] in map(figures, text.splitlines())
    assert "Least room" not in text


def test_prior_observations(asked: Path) -> None:
    assert "and 5 observations" in explained(asked, "main-a2")


def test_as_data(asked: Path) -> None:
    found = json.loads(explained(asked, "main-a3", "--json"))
    assert (found["decision_id"], found["reason"], found["admit"]) == ("main-a3", "rejected_feasibility", False)


def test_an_id_that_is_none_says_where_there_are_some(asked: Path) -> None:
    done = CliRunner().invoke(app, ["explain", "main-a9", "--ledger", str(asked)])
    assert done.exit_code != 0
    said = done.output + str(done.exception)
    assert "near it are main-a2, main-a3" in said
