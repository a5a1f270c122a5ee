"""Everybody can read the page: axe finds nothing, letters are large enough, identifiers stay whole."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from domain.errors import RejectReason
from tests.agent.api.running import Running
from tests.agent.web.browsing import DESKTOP, PHONE, complaints, sideways
from tests.agent.web.serving import Served
from tests.faults.world import Plan, World

pytestmark = pytest.mark.needs_chromium

Look = Callable[..., Any]
SMALL_PHONE = {**PHONE, "width": 390}
PATHS = (
    "/",
    "/fleets/web",
    "/fleets/web/history?hours=6",
    "/fleets/web/vms",
    "/decisions",
    "/decisions/web-4",
    "/decisions/east-o1",
)
LEAST_PX = 12.0

SMALL_TEXT = """(least) => {
  const small = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || element.closest("noscript, title")) continue;
    const size = parseFloat(getComputedStyle(element).fontSize);
    if (size < least) small.push(`${size} px: ${element.textContent.trim().slice(0, 40)}`);
  }
  return small;
}"""
BROKEN_WORDS = """() => {
  const broken = [];
  for (const element of document.querySelectorAll(".id, th, td, p, li, small")) {
    for (const node of element.childNodes) {
      if (node.nodeType !== 3) continue;
      for (const word of node.textContent.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(word[0]);
      }
    }
  }
  return broken;
}"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An agent with something of each kind to show: waiting jobs, a change, a silent VM, refused lines, a problem."""
    world = World(tmp_path_factory.mktemp("world"), Plan())
    running = Running(world)
    running.tick(3)
    world.submit(200)
    running.tick(3)
    world.silent = {world.in_service("small")[0]}
    running.tick(2)
    world.intake.refuse(RejectReason.FOREIGN_PATH, b"servers.web-1.cpu.idle 1.0 1795209000")
    running.board.problem("graphite", "no render API answers at http://graphite.example:8080")
    running.turn_pools()
    yield running
    world.close()


@pytest.fixture(scope="module")
def served(busy: Running) -> Iterator[Served]:
    """Its page."""
    with Served(busy.parts) as made:
        yield made


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_no_letter_is_too_small(served: Served, look: Look, scheme: str) -> None:
    page = look(served.url, viewport=PHONE, color_scheme=scheme).page
    for path in PATHS:
        page.goto(served.url + path)
        assert (path, complaints(page), page.evaluate(SMALL_TEXT, LEAST_PX)) == (path, [], [])
        assert (path, sideways(page), page.evaluate(BROKEN_WORDS)) == (path, 0, [])


def test_the_page_is_as_wide_as_the_window_and_says_what_it_has_to_who_cannot_see(served: Served, look: Look) -> None:
    for viewport in (DESKTOP, SMALL_PHONE):
        page = look(f"{served.url}/fleets/web", viewport=viewport).page
        width, height = struct.unpack(">II", page.screenshot(full_page=True)[16:24])
        assert width == viewport["width"], "nothing sticks out"
        assert viewport["height"] <= height < 8000, "nothing is missing, nothing is endless"
    tree = page.locator("body").aria_snapshot()
    assert "alert" in tree
    assert "1 VM is silent (1 of small)." in tree
    assert 'img "Queue, jobs, ' in tree
    assert 'img "small m5a.large, VMs, ' in tree
    assert 'img "Cost per hour, dollars, ' in tree
    for name in ("Decisions", "Events", "Inputs", "VMs that report"):
        assert f'heading "{name}" [level=2]' in tree


def test_a_card_names_what_is_wrong_and_leads_to_its_newest_decision(served: Served, look: Look) -> None:
    page = look(served.url).page
    pool = page.locator(".subject:has(h2:text-is('Pool east'))")
    assert pool.locator("p.bad").inner_text() == "no inventory file is set"
    pool.get_by_role("link", name="east-o1", exact=True).click()
    page.wait_for_url("**/decisions/east-o1")
    assert page.locator("p.sentence").inner_text().startswith("no rate moves; ")
    assert page.get_by_role("group", name="Explanation").get_attribute("tabindex") == "0"


def test_cards_stand_side_by_side_and_a_bar_of_vms_is_as_wide_as_what_one_sees(served: Served, look: Look) -> None:
    page = look(served.url).page
    tops = page.locator(".subject").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
    assert len(set(tops)) < len(tops)
    page.set_viewport_size(PHONE)
    for bar in page.locator("svg.bar").all():
        box = bar.bounding_box()
        assert box is not None
        assert 0 <= box["x"] < box["x"] + box["width"] <= PHONE["width"]


def test_a_chart_has_axes_gridlines_units_and_values_under_the_pointer(
    busy: Running, served: Served, look: Look
) -> None:
    page = look(f"{served.url}/fleets/web/history?hours=1", live=False).page
    figure = page.locator("figure.chart").first
    assert figure.locator("figcaption small").inner_text() == "jobs"
    assert figure.locator("svg.values text").all_text_contents()[0] == "0"
    assert figure.locator("svg.times text").count() >= 4
    assert figure.locator("line.grid").count() >= 6
    figure.locator(".hit").last.hover()
    queue = busy.fleet("web").queue
    assert queue is not None
    assert figure.locator(".readout").inner_text().endswith(f": waiting {queue.waiting}, running {queue.running}")


def test_refused_lines_have_the_remedy_beside_the_reason(served: Served, look: Look) -> None:
    page = look(served.url).page
    inputs = page.locator("[data-part=inputs]").inner_text()
    assert "1 foreign path: " in inputs
    assert "TRIMTAB_INPUT_MAP" in inputs


def test_a_policy_has_a_short_name_and_its_digest_in_the_tooltip(busy: Running, served: Served, look: Look) -> None:
    page = look(served.url).page
    policy = page.locator(".policy abbr")
    assert (policy.inner_text(), policy.get_attribute("title")) == ("queue-rule", busy.fleet("web").policy)
