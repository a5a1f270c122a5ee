"""Going back to an older schema and forward again with intents open (row 21 of the fault plan)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.autoscaling.store import FleetStore
from agent.commands.main import app
from agent.ledger import Ledger, lock_directory
from agent.ledger.schema import REVISIONS
from domain.decisions import Reason, Status
from tests.faults.world import Plan, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, Plan())
    yield made
    made.close()


def trimtab(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output


def schema(path: Path) -> tuple[str, set[str]]:
    connection = sqlite3.connect(path)
    (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    connection.close()
    return revision, tables


def test_an_intent_that_is_open_across_a_downgrade_and_an_upgrade_is_followed_to_its_end(
    world: World, tmp_path: Path
) -> None:
    """As when a new version is rolled back in the middle of a scale-out, and installed again."""
    world.tick(2)
    world.submit(40)
    world.tick()
    intents = world.ledger.open_intents()
    assert {intent.group: intent.target for intent in intents} == {"small": 2, "medium": 1, "large": 4}
    world.ledger.close()

    path = tmp_path / "ledger.db"
    said = trimtab("ledger", "downgrade", "--to", "0001", "--ledger", str(path))
    remedy = "install the version that uses it before starting the agent again"
    assert said.startswith(f"{path}: schema {REVISIONS[-1]} -> 0001; {remedy}\n")
    # What learning needs of the minutes before does not hold up a return; it is in a file.
    (export,) = tmp_path.glob("ledger-schema-*.jsonl")
    assert f"exported to {export}" in said
    revision, tables = schema(path)
    assert revision == "0001"
    assert "lease" not in tables

    world.restart()
    assert schema(path)[0] == REVISIONS[-1]
    found = json.loads(trimtab("ledger", "check", "--ledger", str(path), "--json"))
    assert (found["schema"], found["open_intents"]) == (REVISIONS[-1], [intent.intent_id for intent in intents])
    sent = world.count("SetDesiredCapacity")
    world.tick()
    for intent in intents:
        outcome = FleetStore(world.ledger).last_outcome(intent.intent_id)
        assert outcome is not None
        assert (outcome.status, outcome.reason) == (Status.DONE, Reason.DONE)
    assert world.desired() == {"small": 2, "medium": 1, "large": 4}
    assert world.count("SetDesiredCapacity") == sent


def test_while_an_agent_runs_the_schema_stays(world: World, tmp_path: Path) -> None:
    with lock_directory(tmp_path):
        done = CliRunner().invoke(app, ["ledger", "downgrade", "--to", "0001", "--ledger", str(tmp_path / "ledger.db")])
    assert done.exit_code == 1
    assert "stop that agent" in done.output
    assert schema(tmp_path / "ledger.db")[0] == REVISIONS[-1]


@pytest.mark.exhaustive
def test_a_schema_that_never_was_is_refused_with_those_there_are(world: World, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["ledger", "downgrade", "--to", "7", "--ledger", str(tmp_path / "ledger.db")])
    assert done.exit_code == 2
    assert "schema is '7': " in done.output


def test_a_ledger_of_the_first_version_is_brought_up_when_an_agent_opens_it(world: World, tmp_path: Path) -> None:
    world.ledger.downgrade("0001")
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(url) as ledger:
        assert ledger.schema() == REVISIONS[-1]
    world.restart()
