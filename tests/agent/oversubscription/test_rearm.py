"""`trimtab rearm` against the agent's own socket: a pool that was rolled back is let go on by a person, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from domain.decisions import Reason
from tests.agent.api.conftest import running as turned
from tests.agent.api.conftest import socket_directory, stage
from tests.agent.api.running import Running

__all__ = ["socket_directory", "stage", "turned"]

Rearm = Callable[..., Result]


@pytest.fixture
def rearm(turned: Running, socket_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rearm]:
    """Call `trimtab rearm` where the agent of a pool that was decided once listens."""
    turned.turn_pools()
    path = socket_directory / "http.sock"
    server = turned.server(socket=path)
    server.start()
    monkeypatch.setenv("TRIMTAB_HTTP__SOCKET", str(path))
    yield lambda *given: CliRunner().invoke(app, ["rearm", *given], catch_exceptions=False)
    server.stop()


def roll_back(turned: Running) -> None:
    """As three hot hours leave the pool."""
    pool = turned.pools["east"]
    pool.memory = replace(pool.memory, rolled_back=True)
    pool.store.write_memory("east", pool.memory)


def test_a_rolled_back_pool_is_rearmed_with_who_and_why_and_only_once(rearm: Rearm, turned: Running) -> None:
    roll_back(turned)
    result = rearm("east", "--reason", "load test is over", "--owner", "ada")
    assert result.exit_code == 0
    # The agent's own log stands before it, in this one process.
    message = result.stdout.splitlines()[-1]
    assert message == "east: re-armed; rates go down again from the next hour, one level in two hours"
    pool = turned.pools["east"]
    assert pool.store.memory("east").rolled_back is False
    assert pool.memory.rolled_back is False
    told = [entry.body["detail"] for entry in turned.world.ledger.journal() if entry.reason == Reason.RATES_REARMED]
    assert told == ["east: re-armed by ada: load test is over"]
    again = rearm("--reason", "once more")
    assert again.exit_code == 2
    assert again.stderr == "error: POOL is '': its rates are not rolled back: there is nothing to re-arm\n"


def test_a_pool_that_is_none_is_told_with_those_there_are(rearm: Rearm, turned: Running) -> None:
    roll_back(turned)
    result = rearm("west", "--reason", "x")
    assert (result.exit_code, result.stderr) == (2, "error: POOL is 'west': choose one of: east\n")
    assert turned.pools["east"].memory.rolled_back is True


def test_a_reason_is_required(rearm: Rearm, turned: Running) -> None:
    roll_back(turned)
    assert rearm("east").exit_code == 2
    assert rearm("east", "--reason", "").stderr.startswith("error: --reason is ''")
    assert turned.pools["east"].memory.rolled_back is True


def test_without_an_agent_nothing_is_changed_and_where_to_ask_is_told(
    turned: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned.turn_pools()
    roll_back(turned)
    path = turned.world.ledger.database.path
    monkeypatch.setenv("TRIMTAB_HTTP__SOCKET", str(tmp_path / "nobody.sock"))
    monkeypatch.setenv("TRIMTAB_LEDGER__URL", f"sqlite:///{path}")
    result = CliRunner().invoke(app, ["rearm", "east", "--reason", "x"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "by the agent that leads it, and none listens" in result.stderr
    assert turned.pools["east"].store.memory("east").rolled_back is True


def test_its_help_tells_what_a_roll_back_is() -> None:
    text = CliRunner().invoke(app, ["rearm", "--help"]).stdout
    assert "Three hot hours in 120 roll a pool back" in text
    assert 'trimtab rearm main --reason "load test is over"' in text
