"""Which agent leads each subject is shown by the status, the API and the page of any agent on a shared ledger."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from agent.commands.main import app
from agent.ledger.leases import AgentRecord, Moves
from domain.subject import Subject, fleet_subject
from tests.agent.api.running import Running
from tests.agent.web.serving import Served
from tests.faults.world import Plan, World

pytestmark = pytest.mark.needs_postgresql


@pytest.fixture
def running(url: str, tmp_path: Path) -> Iterator[Running]:
    """An agent whose fleet `web` another agent leads."""
    world = World(tmp_path, Plan(ledger_url=url))
    made = Running(world)
    made.tick()
    north = AgentRecord("north", "host:1", "0014", settings={fleet_subject("web"): "d"})
    world.ledger.beat(north, (), 60.0, world.agent_clock.now(), lambda there: Moves(frozenset(north.settings)))
    made.board.change(leaders={"autoscaling/web": "north", "placement/south": "east", "placement/north": "east"})
    yield made
    world.close()


def test_status_api_and_page_show_the_leader_of_each_subject(running: Running, url: str) -> None:
    status = running.view.status()
    (web,) = status["subjects"]["autoscaling"]
    assert web["led_by"] == "north"
    assert {one["led_by"] for one in status["subjects"]["placement"]} == {None}
    assert status["leaders"]["placement/south"] == "east"
    with Served(running.parts) as served:
        page = httpx.get(served.url).text
        (listed,) = httpx.get(f"{served.url}/api/v1/autoscaling").json()
        item = httpx.get(f"{served.url}/api/v1/autoscaling/web").json()
        free = httpx.get(f"{served.url}/api/v1/placement").json()
    assert {(one["led_by"], one["epoch"]) for one in (web, listed, item)} == {("north", 2)}
    assert {(one["led_by"], one["epoch"]) for one in free} == {(None, None)}
    assert 'east leads <span title="placement/south, placement/north">2 subjects</span>' in page
    assert 'north leads <span title="autoscaling/web">1 subject</span>' in page
    assert re.findall(r'<span class="badge[^>]*>led by (\w+)</span>', page) == ["north", "east"]
    shown = CliRunner().invoke(app, ["status", "autoscaling", "web", "--ledger", url])
    assert "  led by north under epoch 2" in shown.stdout.splitlines()
    data = json.loads(CliRunner().invoke(app, ["status", "--json", "--ledger", url]).stdout)
    assert [one["led_by"] for one in data["fleets"]] == ["north"]


def test_the_status_of_a_subject_without_a_leader_has_the_reason(running: Running, url: str) -> None:
    def led() -> str:
        shown = CliRunner().invoke(app, ["status", "autoscaling", "web", "--ledger", url])
        (line,) = (one for one in shown.stdout.splitlines() if one.startswith("  led by"))
        return line

    ledger, web = running.world.ledger, fleet_subject("web")
    give = Moves(give=frozenset({web}))
    for name in ("north", "south"):
        agent = AgentRecord(name, f"{name}:1", "0014", settings={web: name})
        ledger.give_up("host:1")
        ledger.beat(agent, (), 60.0, 0.0, lambda there: give)
    assert "north (process north:1) and south (process south:1)" in led()
    ledger.give_up("south:1")
    assert led() == "  led by no agent"
    ledger.give_up("north:1")
    assert "agent south has ended" in led()
    with ledger.database.write() as connection:
        connection.execute(text("DELETE FROM agent"))
    assert "no live agent" in led()


def test_a_pause_and_a_pin_by_any_agent_reach_the_leader_at_its_next_turn(running: Running) -> None:
    """They are rows of the ledger, which the leader reads in each turn and before each call."""
    world = running.world
    assert running.fleets.controls("web").pauses == ()
    other = CliRunner().invoke(
        app, ["pause", "all", "--subject", "web", "--reason", "audit", "--ledger", world._ledger_url]
    )
    assert other.exit_code == 0, other.output
    (pause,) = world.ledger.controls(*Subject("autoscaling", "web")).pauses
    assert pause.reason == "audit"
    report = running.tick()
    assert report is not None
    assert {event.reason for event in report.events} == set()
