"""A part of another package draws its subjects on the page, beside the fleets and by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter

from agent.kernel.decision import Host, Part, one_of
from agent.kernel.page import Alert, DecisionItem, Draw, Frame, Scene
from agent.kernel.parts import Parts
from agent.kernel.store import Record
from agent.models.rounds import Ending
from agent.view.view import AgentView
from agent.web.page import Pages
from domain.errors import UnknownName
from domain.subject import Subject, fleet_subject
from tests.agent.api.running import Running
from tests.agent.web.serving import Served
from tests.faults.world import MakeWorld
from trainer.promotion.directory import write_round

NIGHT = Subject("shift", "night")


@dataclass(frozen=True)
class DrawnRota:
    """One night, by name."""

    name: str
    decisions: tuple[DecisionItem, ...] = ()
    main: str = "rota.html"
    side: str = "rota_side.html"
    alerts: tuple[Alert, ...] = (Alert("night", "1 person is ill."),)


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
        made = DecisionItem(scene.seq + 1, "night-s1", "night", scene.at, "accepted", "2 on call", "web grows", True)
        return DrawnRota("night", (made,))

    def fragments(self, drawn: DrawnRota, draw: Draw) -> Mapping[str, str]:
        return {"rota": draw("rota_count", people=2)}

    def listed(self, seq: int, body: Mapping[str, Any]) -> DecisionItem | None:
        return None

    def explained(self, record: Record) -> tuple[str, Mapping[str, Any]]:
        return "rota_count", {"people": 2}

    def router(self, frame: Frame) -> APIRouter:
        router = APIRouter()
        router.add_api_route("/rotas", lambda: frame.live(NIGHT), methods=["GET"], response_model=None)
        return router


@pytest.fixture
def both(make_world: MakeWorld, tmp_path: Path) -> Running:
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
    assert ["1 person is ill." in one for one in (overview, fleet, rota)] == [True, False, True]
    assert overview.index("night-s1") < overview.index('href="/decisions/web-2"')
    assert ("on call" in fleet, 'class="card fleet"' in fleet) == (False, True)
    assert ("on call" in rota, 'class="card fleet"' in rota) == (True, False)


def test_a_subject_that_no_part_draws_is_refused_with_those_there_are(both: Running) -> None:
    pages = Pages(AgentView(both.parts))
    assert (list(pages.of(NIGHT)), list(pages.of(fleet_subject("web"))), list(pages.of(None))) == (
        ["shift"],
        ["autoscaling"],
        ["autoscaling", "shift"],
    )
    with pytest.raises(UnknownName, match="choose one of: night"):
        pages.of(Subject("shift", "day"))
    with pytest.raises(UnknownName, match="choose one of: autoscaling, shift"):
        pages.of(Subject("deferral", "night"))


def test_a_fleet_shows_what_its_shadows_proposed_and_when_it_last_learnt(make_world: MakeWorld) -> None:
    hostile = "<script>document.title='broken'</script>"
    world = make_world()
    shadows = ("hold", "constant:7,0,1", "learned")
    world.loop.fleets = tuple(replace(one, shadows=shadows) for one in world.loop.fleets)
    running = Running(world)
    running.tick(2)
    write_round(running.models_dir, Subject("autoscaling", "web"), Ending.NOT_TRUE, hostile, world.agent_clock.now())
    with Served(running.parts) as served:
        text = httpx.get(f"{served.url}/fleets/web").text
        decision = httpx.get(f"{served.url}/decisions/web-2").text
    table = text[text.index('<table class="groups flat shadows">') :]
    rows = [" ".join(row.split("</tr>")[0].split()) for row in table.split("<tr title=")[1:]]
    assert [(">hold<" in rows[0], "7</b>" in rows[1], "failed, " in rows[2])] == [(True, True, True)]
    assert "last learnt 2026" in text
    assert (hostile in text, "not true, &lt;script&gt;" in text) == (False, True)
    assert decision.count("<b>shadow, not done</b>") == 3
    found = [(one.policy, one.desired, one.stands_in) for one in running.fleet("web").shadows]
    assert (found[0][0], found[1]) == ("hold", ("constant:7,0,1", (7, 0, 1), False))
    assert (found[2][0], found[2][2]) == ("learned", True)
