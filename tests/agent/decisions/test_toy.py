"""A decision of another package appears wherever decisions appear, with no edit of the product."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from agent.api.app import create_app
from agent.api.server import HttpServer
from agent.autoscaling.part import AutoscalingPart
from agent.commands.main import app
from agent.decisions import parts as installed
from agent.decisions.part import Capacity
from agent.decisions.store import DecisionStore
from agent.preflight.check import check_everything
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.service.daemon import Loop
from agent.service.http import parts_of
from agent.settings import Settings, load_settings
from agent.telemetry.telemetry import Telemetry
from agent.view.board import ServiceBoard
from agent.view.view import AgentView
from agent.web.router import create_page_router
from domain.clock import VirtualClock
from domain.controls import Pause, PauseScope
from domain.decisions import Mode
from domain.errors import ConfigurationError
from tests.agent.api.conftest import over_socket
from tests.architecture.product import ROOT
from tests.simulator.aws.world import START, World

GROUP = {"name": "web-s", "vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The toy as an installed package would bring it: by its entry point alone."""
    about = tmp_path / "site" / "tokens-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tokens\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[trimtab.decisions]\ntokens = tests.agent.decisions.toy:TokensPart\n")
    monkeypatch.setattr(sys, "path", [str(about.parent), *sys.path])
    installed.kinds.cache_clear()
    yield about
    installed.kinds.cache_clear()


@pytest.fixture
def from_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The decision that the architecture page adds, by the steps of the page: its code, its entry point, installed."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    code, table = (
        textwrap.dedent(re.search(rf"^ +```{word}\n(.*?)^ +```$", page, re.DOTALL | re.MULTILINE)[1])
        for word in ("python", "toml")
    )
    ((group, entries),) = tomllib.loads(table)["project"]["entry-points"].items()
    about = tmp_path / "site" / "shift-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shift\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()))
    (about.parent / "shift_part.py").write_text(code)
    monkeypatch.setattr(sys, "path", [str(about.parent), *sys.path])
    installed.kinds.cache_clear()
    yield
    installed.kinds.cache_clear()
    sys.modules.pop("shift_part", None)


def trimtab(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    return result.exit_code, result.output


@dataclass
class Running:
    agent: Agent
    loop: Loop
    view: AgentView

    @contextmanager
    def client(self) -> Iterator[httpx.Client]:
        app = create_app(self.view, routers=(create_page_router(self.view),))
        server = HttpServer(app, self.agent.settings)
        server.start()
        try:
            with over_socket(server) as client:
                yield client
        finally:
            server.stop()


def settings_of(cloud: World, directory: Path) -> Settings:
    return Settings(
        mode=Mode.ACT,
        state_directory=directory,
        listener={"port": 0},
        aws={"region": "us-east-1", "endpoint_url": cloud.running.endpoint, "read_timeout_s": 0.5},
        fleets={"web": {"policy": "hold", "groups": {"workers": GROUP}}},
    )


@pytest.fixture
def running(toy: Path, cloud: World, tmp_path: Path) -> Iterator[Running]:
    with started(cloud, tmp_path) as it_runs:
        yield it_runs


@contextmanager
def started(cloud: World, tmp_path: Path) -> Iterator[Running]:
    """An agent for one fleet and every decision that is installed, after its first turn."""
    cloud.group("web-s", size=(0, 1, 5))
    cloud.control.ready_now()
    settings = settings_of(cloud, tmp_path / "state")
    (tmp_path / "state").mkdir()
    with assembled(settings, VirtualClock(START + 5.0), AwsKeys("agent", "simulated")) as agent:
        board = ServiceBoard(START)
        view = AgentView(parts_of(agent, settings, board))
        loop = Loop(agent, board)
        loop.turn()
        yield Running(agent, loop, view)


def test_it_decides_in_the_loop_and_its_decision_is_in_the_ledger(running: Running) -> None:
    found = DecisionStore(running.agent.ledger.database).find("desk-t1")
    assert found is not None
    assert (found.decision, found.subject, found.number) == ("tokens", "desk", 1)


def test_it_appears_in_the_api_and_on_the_page(running: Running) -> None:
    with running.client() as client:
        assert client.get("/api/v1/tokens").json()[0]["last_decision"] == "desk-t1"
        assert client.get("/api/v1/tokens/desk").json()["subject"] == "desk"
        assert [one["id"] for one in client.get("/api/v1/tokens/desk/decisions").json()["decisions"]] == ["desk-t1"]
        assert client.get("/api/v1/decisions/desk-t1").json()["decision"]["tokens"] == 3
        assert client.get("/api/v1/status").json()["desks"][0]["subject"] == "desk"
        page = client.get("/").text
        assert "desk desk" in page
        assert "3 tokens: 0 cores are pending" in page
        assert "3 tokens" in client.get("/decisions/desk-t1").text


def test_its_metric_is_in_the_exposition(running: Running) -> None:
    assert b'trimtab_tokens_given{desk="desk"} 3.0' in Telemetry(running.view).exposition()


def test_a_pause_of_all_holds_it(running: Running) -> None:
    running.agent.ledger.pause("desk", Pause(PauseScope.ALL, "ada", "stocktaking", START))
    running.loop.turn()
    assert running.view.explain("desk-t2").lines[1] == "  0 tokens: paused"


def test_it_reads_what_autoscaling_has_pending(running: Running, cloud: World) -> None:
    cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName="web-s", DesiredCapacity=3)
    running.loop.turn()
    assert running.agent.part(AutoscalingPart).capacity("web") == Capacity(free=4.0, pending=4.0)
    assert running.view.explain("desk-t2").lines[1] == "  0 tokens: 4 cores are pending"


def test_the_verbs_show_it(running: Running) -> None:
    place = running.agent.ledger.database.path
    for words, expected in (
        (["status", "tokens", "desk"], "desk-t1: 3 tokens"),
        (["decisions", "tokens"], "desk-t1"),
        (["explain", "desk-t1"], "3 tokens: 0 cores are pending"),
    ):
        status, output = trimtab(*words, "--ledger", place)
        assert status == 0, output
        assert expected in output


def test_preflight_asks_it(toy: Path, cloud: World, tmp_path: Path) -> None:
    cloud.group("web-s", size=(0, 1, 5))
    settings = settings_of(cloud, tmp_path)
    found = check_everything(settings, VirtualClock(START), wait_s=0.0, keys=AwsKeys("agent", "simulated"))
    assert "the desk needs nothing" in [one.detail for one in found]


def test_its_own_settings_are_its_own(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_TOKENS__TOKENS", "7")
    load_settings({"TRIMTAB_TOKENS__TOKENS": "7"})
    running.loop.turn()
    assert "7 tokens" in running.view.explain("desk-t2").lines[1]
    monkeypatch.setenv("TRIMTAB_TOKENS__TOKEN", "7")
    with pytest.raises(ConfigurationError, match="there is no such setting; there are TRIMTAB_TOKENS__TOKENS"):
        running.agent.parts.named("tokens").own_settings()


def test_two_packages_of_one_name_are_refused(toy: Path) -> None:
    other = toy.parent / "others-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[trimtab.decisions]\ntokens = tests.agent.decisions.toy:TokensPart\n")
    with pytest.raises(ConfigurationError, match="two packages bring this decision"):
        installed.kinds()


def test_a_decision_whose_package_is_gone_is_listed_by_its_id(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not each.endswith("/site")])
    installed.kinds.cache_clear()
    status, output = trimtab("decisions", "--json", "--ledger", running.agent.ledger.database.path)
    assert status == 0, output
    assert any(row["decision"] == "tokens" for row in json.loads(output))


@pytest.mark.exhaustive
def test_the_steps_of_the_architecture_page_add_a_decision(from_the_page: None, cloud: World, tmp_path: Path) -> None:
    with started(cloud, tmp_path) as running:
        place = running.agent.ledger.database.path
        for words in (["status", "shift"], ["decisions", "shift"], ["explain", "night-s1"]):
            status, output = trimtab(*words, "--ledger", place)
            assert (status, "1 on call" in output) == (0, True), output
        with running.client() as client:
            assert client.get("/api/v1/shift/night").json()["last_decision"] == "night-s1"
            assert "rota night" in client.get("/").text
        assert b'trimtab_shift_people{rota="night"} 1.0' in Telemetry(running.view).exposition()
        status, output = trimtab("pause", "all", "--subject", "night", "--reason", "holiday", "--ledger", place)
        assert status == 0, output
        running.loop.turn()
        assert DecisionStore(running.agent.ledger.database).newest_number("shift", "night") == 1
