"""`trimtab rearm` against the agent's own socket: a pool that was rolled back is let go on by a person, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.ledger import Ledger
from agent.ledger.leases import Lease, Roster
from agent.oversubscription.decision import OversubscriptionPart
from agent.oversubscription.pool import Pool
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.subject import Subject
from tests.agent.oversubscription.pools import START
from tests.contract.running import RunningAgent, running
from tests.short_directory import short_directory

Rearm = Callable[..., Result]
EAST = {"machines": 3, "machine_cores": 48, "machine_memory_gb": 512, "subscribers": {"ours": {"internal": True}}}


@pytest.fixture(scope="module")
def agent() -> Iterator[RunningAgent]:
    """An agent that listens, whose pool was decided once."""
    with short_directory() as directory:
        http, url = {"socket": directory / "s.sock"}, f"sqlite:///{directory}/l.db"
        with running(url, VirtualClock(START), directory=directory, pools={"east": EAST}, http=http) as one:
            one.lead().turn("oversubscription")
            one.serve()
            yield one


@pytest.fixture
def pool(agent: RunningAgent) -> Pool:
    """The pool as three hot hours leave it."""
    part = agent.part("oversubscription")
    assert isinstance(part, OversubscriptionPart)
    found = part.pools["east"]
    found.memory = replace(found.memory, rolled_back=True)
    found.store.write_memory("east", found.memory)
    return found


@pytest.fixture
def rearm(agent: RunningAgent, monkeypatch: pytest.MonkeyPatch) -> Rearm:
    """Call `trimtab rearm` where the agent listens."""
    monkeypatch.setenv("TRIMTAB_HTTP__SOCKET", str(agent.settings.http_socket))
    return lambda *given: CliRunner().invoke(app, ["rearm", *given], catch_exceptions=False)


def test_a_rolled_back_pool_is_rearmed_with_who_and_why_and_only_once(
    rearm: Rearm, agent: RunningAgent, pool: Pool
) -> None:
    result = rearm("east", "--reason", "load test is over", "--owner", "ada")
    assert result.exit_code == 0
    # The agent's own log stands before it, in this one process.
    message = result.stdout.splitlines()[-1]
    assert message.startswith("east: re-armed")
    assert pool.store.memory("east").rolled_back is False
    assert pool.memory.rolled_back is False
    told = [entry.body["detail"] for entry in agent.ledger.journal() if entry.reason == Reason.RATES_REARMED]
    assert told == ["east: re-armed by ada: load test is over"]
    again = rearm("--reason", "once more")
    assert again.exit_code == 2
    assert again.stderr.startswith("error: POOL is ''")


def test_the_response_shows_the_agent_that_leads_the_pool(
    agent: RunningAgent, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Roster(leases={Subject("oversubscription", "east"): Lease("north", "host:1", 7)})
    monkeypatch.setattr(Ledger, "shared", True)
    monkeypatch.setattr(Ledger, "roster", lambda ledger: there)
    with agent.client("") as client:
        order = {"by": "ada", "reason": "load test is over", "pool": "east"}
        answer = client.post("/api/v1/oversubscription/rearm", json=order).json()
    assert (answer["led_by"], answer["epoch"]) == ("north", 7)


def test_a_pool_that_does_not_exist_is_reported_with_those_there_are(rearm: Rearm, pool: Pool) -> None:
    result = rearm("west", "--reason", "x")
    assert (result.exit_code, result.stderr) == (2, "error: POOL is 'west': choose one of: east\n")
    assert pool.memory.rolled_back is True


def test_a_reason_is_required(rearm: Rearm, pool: Pool) -> None:
    assert rearm("east").exit_code == 2
    assert rearm("east", "--reason", "").stderr.startswith("error: --reason is ''")
    assert pool.memory.rolled_back is True


def test_without_an_agent_nothing_is_changed_and_where_to_ask_is_reported(
    agent: RunningAgent, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = agent.ledger.database.path
    monkeypatch.setenv("TRIMTAB_HTTP__SOCKET", f"{path}.sock")
    monkeypatch.setenv("TRIMTAB_LEDGER__URL", f"sqlite:///{path}")
    result = CliRunner().invoke(app, ["rearm", "east", "--reason", "x"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "by the agent that leads it, and none listens" in result.stderr
    assert pool.store.memory("east").rolled_back is True


def test_its_help_tells_what_a_roll_back_is() -> None:
    text = CliRunner().invoke(app, ["rearm", "--help"]).stdout
    assert "Three hot hours in 120 roll a pool back" in text
    assert 'trimtab rearm main --reason "load test is over"' in text
