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
from agent.api.limits import RequestLimits
from agent.api.security import Role, roles_for
from agent.api.server import HttpServer
from agent.autoscaling.decision import AutoscalingPart
from agent.commands.main import app
from agent.kernel import parts as installed
from agent.kernel.store import DecisionStore
from agent.preflight.check import check_everything
from agent.rehearsal.sections import section_names
from agent.service.assembly import Agent, AwsKeys, assembled
from agent.service.daemon import Loop
from agent.service.http import parts_of
from agent.settings import Settings, load_settings, read_settings
from agent.settings.names import effective, page
from agent.settings.subjects import Subjects
from agent.telemetry.telemetry import Telemetry
from agent.view.board import ServiceBoard
from agent.view.view import AgentView
from agent.web.router import create_page_router
from domain.clock import VirtualClock
from domain.controls import Pause, PauseScope
from domain.decisions import Mode
from domain.errors import ConfigurationError
from simulator.aws.client import CloudControl
from simulator.aws.process import start_in_thread
from tests.agent.api.conftest import over_socket
from tests.agent.kernel.tokens import settings as toy_settings
from tests.agent.kernel.tokens.settings import SUBJECTS, DeskSettings
from tests.architecture.product import ROOT
from tests.contract.running import TOY, toy_installed
from tests.golden import figures
from tests.plug_ins import on_path, package
from tests.simulator.aws.world import START, World

GROUP = {"name": "web-s", "vm_type": "m5a.large", "cores": 2, "memory_gb": 8.0, "price_per_hour": 0.086, "max": 5}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The toy as an installed package would bring it: by its entry point alone."""
    site = tmp_path_factory.mktemp("toy") / "site"
    with toy_installed(site):
        yield site / "tokens-1.0.dist-info"


@pytest.fixture(scope="module")
def cloud() -> Iterator[World]:
    """The cloud of the agent that tests share."""
    running = start_in_thread(VirtualClock(START), seed=7)
    made = World(running, CloudControl(running.endpoint))
    made.group("web-s", size=(0, 1, 5))
    made.control.ready_now()
    yield made
    made.close()


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

    def turned(self) -> str:
        """Turn once, and return the line of the toy's decision."""
        self.loop.turn()
        (newest,) = DecisionStore(self.agent.ledger.database).newest("tokens", "desk", limit=1)
        return self.view.explain(newest.decision_id).lines[1].strip()

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


@pytest.fixture(scope="module")
def running(toy: Path, cloud: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One agent for the module: each test looks at the turn that it takes itself."""
    with started(cloud, tmp_path_factory.mktemp("agent")) as it_runs:
        yield it_runs


@contextmanager
def started(cloud: World, tmp_path: Path) -> Iterator[Running]:
    """An agent for one fleet and every decision that is installed, after its first turn."""
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


def test_a_pause_of_all_holds_it(running: Running) -> None:
    running.agent.ledger.pause("tokens", "desk", Pause(PauseScope.ALL, "ada", "stocktaking", START))
    held = running.turned()
    running.agent.ledger.resume("tokens", "desk", PauseScope.ALL, at=START, owner="ada")
    assert (held, running.turned()) == ("0 tokens: paused", "3 tokens: 0 cores are pending")


def test_it_reads_what_autoscaling_has_pending(running: Running, cloud: World) -> None:
    cloud.client("autoscaling").set_desired_capacity(AutoScalingGroupName="web-s", DesiredCapacity=3)
    pending = running.turned()
    capacity = running.agent.part(AutoscalingPart).capacity("web")
    cloud.control.ready_now()
    assert capacity is not None
    assert (pending, capacity.free, capacity.pending) == ("0 tokens: 4 cores are pending", 4.0, 4.0)
    assert running.turned() == "3 tokens: 0 cores are pending"


def test_the_verbs_show_it(running: Running) -> None:
    place = running.agent.ledger.database.path
    for words, expected in (
        (["status", "tokens", "desk"], ": 3 tokens"),
        (["decisions", "tokens"], "desk-t1"),
        (["explain", "desk-t1"], "3 tokens: 0 cores are pending"),
    ):
        status, output = trimtab(*words, "--ledger", place)
        assert status == 0, output
        assert expected in output


def test_preflight_asks_it(toy: Path, cloud: World, tmp_path: Path) -> None:
    settings = settings_of(cloud, tmp_path)
    found = check_everything(settings, VirtualClock(START), wait_s=0.0, keys=AwsKeys("agent", "simulated"))
    assert "the desk needs nothing" in [one.detail for one in found]


def test_its_own_settings_are_its_own(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_TOKENS__TOKENS", "7")
    load_settings({"TRIMTAB_TOKENS__TOKENS": "7"})
    assert running.turned().startswith("7 tokens")
    monkeypatch.setenv("TRIMTAB_TOKENS__TOKEN", "7")
    with pytest.raises(ConfigurationError, match="there are TRIMTAB_TOKENS__TOKENS"):
        running.agent.parts.named("tokens").own_settings()


def test_its_subjects_stand_in_the_settings_and_their_reference(toy: Path) -> None:
    read = read_settings({"TRIMTAB_DESKS__north__STOCK": "7"})
    assert SUBJECTS.of(read.settings)["north"].stock == 7
    assert effective(read.settings)["TRIMTAB_DESKS__north__KEPT"] == "0"
    assert "| `TRIMTAB_DESKS__<desk>__STOCK` | `100` | a whole number from 0 to 1000 | Tokens that it has. |" in page()
    wrong = {"TRIMTAB_DESKS__north__STOCK": "1001", "TRIMTAB_DESKS__north__STOK": "1"}
    with pytest.raises(ConfigurationError) as caught:
        load_settings(wrong)
    said = {mistake.name: mistake.remedy for mistake in caught.value.mistakes}
    assert said.keys() == wrong.keys()
    assert figures(said["TRIMTAB_DESKS__north__STOCK"]) == [0, 1000]
    assert "did you mean TRIMTAB_DESKS__north__STOCK?" in said["TRIMTAB_DESKS__north__STOK"]


def test_it_says_which_of_its_settings_do_not_fit(toy: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"__north__KEPT=8: .* STOCK=7"):
        load_settings({"TRIMTAB_DESKS__north__STOCK": "7", "TRIMTAB_DESKS__north__KEPT": "8"})
    load_settings({"TRIMTAB_DESKS__north__STOCK": "7", "TRIMTAB_MODE": "act"})


def test_without_its_package_its_settings_are_unknown(gone: None) -> None:
    with pytest.raises(ConfigurationError, match="there is no such setting"):
        load_settings({"TRIMTAB_DESKS__north__STOCK": "7"})


def test_settings_under_a_name_of_the_agents_or_of_another_decision_are_refused(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, why in (("http", "settings of the agent have this one"), ("pools", "another decision has settings")):
        monkeypatch.setattr(toy_settings, "SUBJECTS", Subjects(name, "desks", DeskSettings, {name: "<desk>"}))
        monkeypatch.setattr(sys, "path", [*sys.path, f"/nowhere/{name}"])
        with pytest.raises(ConfigurationError, match=why):
            load_settings({})


def test_an_allocator_asks_it_and_nothing_else_of_it(toy: Path) -> None:
    asked = roles_for("POST", "/api/v1/tokens/desk/requests")
    assert asked == (Role.ASKER, Role.OPERATOR)
    for path in ("tokens/desk/close", "tokens/desk/requests/one", "tokens/a/b/requests", "tokens"):
        assert roles_for("POST", f"/api/v1/{path}") == (Role.OPERATOR,)
    assert Role.ASKER in roles_for("GET", "/api/v1/tokens/desk")
    assert Role.ASKER not in roles_for("GET", "/api/v1/tokensx")
    limits = RequestLimits()
    assert limits.body_limit("/api/v1/tokens/desk/requests") == limits.batch_bytes
    assert limits.body_limit("/api/v1/tokens/desk/close") == limits.body_bytes


def test_its_section_is_in_the_dry_run(toy: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    status, output = trimtab("dry-run", "--section", "tokens", "--headless", "--keep", kept)
    assert status == 0, output
    assert "a token of seed 1993" in output
    assert "worth no line" not in output
    assert "2 hours of the desk: 6 tokens" in output
    assert "why so many" in output
    status, output = trimtab("dry-run", "--section", "counters", "--keep", kept)
    assert status == 2
    assert section_names()[-1] == "tokens"


def test_two_packages_of_one_name_are_refused(toy: Path, tmp_path: Path) -> None:
    package(tmp_path, "others", TOY)
    with on_path(tmp_path), pytest.raises(ConfigurationError) as caught:
        installed.kinds()
    assert "two packages" in str(caught.value)


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy's package, uninstalled."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [each for each in sys.path if not each.endswith("/site")])
        installed.kinds.cache_clear()
        yield
    installed.kinds.cache_clear()


def test_a_decision_whose_package_is_gone_is_listed_by_its_id(running: Running, gone: None) -> None:
    status, output = trimtab("decisions", "--json", "--ledger", running.agent.ledger.database.path)
    assert status == 0, output
    assert any(row["decision"] == "tokens" for row in json.loads(output))


@pytest.mark.exhaustive
def test_the_steps_of_the_architecture_page_add_a_decision(from_the_page: None, cloud: World, tmp_path: Path) -> None:
    with started(cloud, tmp_path) as running:
        place = running.agent.ledger.database.path
        for words in (["status", "shift"], ["decisions", "shift"], ["explain", "night-shift1"]):
            status, output = trimtab(*words, "--ledger", place)
            assert (status, "1 on call" in output) == (0, True), output
        assert trimtab("replay", "shift", "night", "--ledger", place)[0] == 0
        with running.client() as client:
            assert client.get("/api/v1/shift/night").json()["last_decision"] == "night-shift1"
            assert "rota night" in client.get("/").text
        assert b'trimtab_shift_people{rota="night"} 1.0' in Telemetry(running.view).exposition()
        status, output = trimtab("pause", "all", "--subject", "night", "--reason", "holiday", "--ledger", place)
        assert status == 0, output
        running.loop.turn()
        assert DecisionStore(running.agent.ledger.database).newest_number("shift", "night") == 1
