"""A part of another package draws its subjects on the page, beside the fleets and by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter

from agent.decisions.page import DecisionItem, Draw, Frame, Scene
from agent.decisions.part import Host, Part, one_of
from agent.decisions.parts import Parts
from agent.decisions.store import Record
from agent.view.view import AgentView
from agent.web.page import Pages
from domain.errors import UnknownName
from tests.agent.api.running import Running
from tests.agent.web.serving import Served
from tests.faults.world import World


@dataclass(frozen=True)
class DrawnRota:
    """One night, by name."""

    name: str
    decisions: tuple[DecisionItem, ...] = ()
    main: str = "rota.html"
    side: str = "rota_side.html"


class RotaPage:
    """Draws the rota `night`."""

    def __init__(self, templates: Path) -> None:
        self.templates = templates
        templates.mkdir(exist_ok=True)
        (templates / "rota.html").write_text("<section>on call: {{ drawn.name }}</section>")
        (templates / "rota_side.html").write_text("<section>beside {{ parts['rota']|safe }}</section>")
        (templates / "rota_count.html").write_text("{{ people }} people")

    def one(self, name: str) -> str:
        return one_of(name, ("night",), "rota", field="rota")

    def gather(self, scene: Scene) -> DrawnRota:
        made = DecisionItem(
            scene.seq + 1, "night-s1", "night", scene.at, "accepted", "2 on call", "web grows", True, ()
        )
        return DrawnRota("night", (made,))

    def fragments(self, drawn: DrawnRota, draw: Draw) -> Mapping[str, str]:
        return {"rota": draw("rota_count", people=2)}

    def listed(self, seq: int, body: Mapping[str, Any]) -> DecisionItem | None:
        return None

    def explained(self, record: Record) -> tuple[str, Mapping[str, Any]]:
        return "rota_count", {"people": 2}

    def router(self, frame: Frame) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/rotas", lambda: frame.live("night"), methods=["GET"], response_model=None)
        return router


@pytest.fixture
def both(make_world: Callable[..., World], tmp_path: Path) -> Running:
    class RotaPart(Part):
        name = "shift"

        def page(self) -> RotaPage:
            return RotaPage(tmp_path / "templates")

    running = Running(make_world())
    running.tick(2)
    rota = RotaPart(Host(running.world.ledger, running.settings, running.world.agent_clock))
    running.parts = replace(running.parts, parts=Parts([*running.parts.parts, rota], running.world.ledger))
    return running


def test_each_is_drawn_on_the_overview_and_alone_on_its_own_page(both: Running) -> None:
    with Served(both.parts) as served:
        overview, fleet, rota = (httpx.get(f"{served.url}{path}").text for path in ("/", "/fleets/web", "/rotas"))
    assert all(words in overview for words in ("on call: night", "beside 2 people", 'class="card fleet"', "web-2"))
    assert overview.index("night-s1") < overview.index('href="/decisions/web-2"')
    assert ("on call" in fleet, 'class="card fleet"' in fleet) == (False, True)
    assert ("on call" in rota, 'class="card fleet"' in rota) == (True, False)


def test_a_subject_that_no_part_draws_is_refused_with_those_there_are(both: Running) -> None:
    pages = Pages(AgentView(both.parts))
    assert (list(pages.of("night")), list(pages.of("web")), list(pages.of(None))) == (
        ["shift"],
        ["autoscaling"],
        ["autoscaling", "shift"],
    )
    with pytest.raises(UnknownName, match="choose one of: web"):
        pages.of("day")
