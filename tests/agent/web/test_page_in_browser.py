"""The page in real Chromium: it shows the agent's numbers, follows each turn, and outlives a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from agent.autoscaling.api import VmReport
from agent.autoscaling.state import FleetStore
from agent.kernel.turn import TurnReport
from agent.web.router import create_page_router
from domain.controls import Pause, PauseScope, Pin
from domain.decisions import Event, Mode, Reason
from domain.subject import fleet_subject
from tests.agent.api.running import READER, Running
from tests.agent.web.browsing import PHONE, complaints, sideways
from tests.agent.web.serving import QUICK, Served
from tests.faults.world import SMALL, MakeWorld

pytestmark = pytest.mark.needs_chromium

Look = Callable[..., Any]
HOSTILE = """<script>document.title='broken'</script><img src=x onerror="document.title='broken'">'"&amp;"""


def figure(page: Page, name: str) -> str:
    return page.locator(f".figures div:has(dt:text-is('{name}')) dd").inner_text().replace("\n", " ")


def shown_decisions(page: Page) -> list[str]:
    """Return the ids of all decisions that the rows of the list stand for."""
    rows = page.locator("#decision-list > li").evaluate_all(
        "rows => rows.map(row => [row.querySelector('.when a').textContent, Number(row.dataset.count)])"
    )
    ids = [(*name.rsplit("-", 1), count) for name, count in rows]
    return [f"{fleet}-{int(number) - older}" for fleet, number, count in ids for older in range(count)]


def await_decision(page: Page, decision_id: str) -> None:
    page.locator(f"#decision-list > li:first-child .when a:text-is('{decision_id}')").wait_for()


def test_it_shows_the_numbers_of_the_running_agent(running: Running, served: Served, look: Look) -> None:
    running.world.submit(60)
    running.tick(2)
    page = look(served.url).page
    fleet = running.fleet("web")
    queue = fleet.queue
    assert queue is not None
    assert queue.waiting == 60
    assert figure(page, "Waiting").startswith("60 jobs")
    in_service, requested = sum(g.observed or 0 for g in fleet.groups), sum(g.requested or 0 for g in fleet.groups)
    assert figure(page, "In service") == f"{in_service} of {requested} requested"
    assert figure(page, "Cost per hour") == f"${fleet.cost_per_hour:.2f}"
    assert figure(page, "Cost today") == f"${fleet.cost_today:.2f}"
    rows = page.locator(".groups tbody tr:not(.bar)").all()
    for row, group in zip(rows, fleet.groups, strict=True):
        cells = row.locator("td").all_inner_texts()
        counts = [group.requested, group.observed, group.warm, group.booting, group.overdue, group.draining]
        assert [int(cell.split()[0]) for cell in cells] == counts
        assert row.locator("th").inner_text().split() == [group.key, group.vm_type]
    assert shown_decisions(page) == ["web-5", "web-4", "web-3", "web-2", "web-1"]
    assert page.locator(".fleet .badge").all_inner_texts() == ["ACT"]


@pytest.mark.smoke
def test_a_turn_appears_without_loading_the_page_again(running: Running, served: Served, look: Look) -> None:
    page = look(served.url).page
    page.evaluate("window.sameDocument = true")
    assert figure(page, "Waiting").startswith("0 ")
    running.world.submit(40)
    running.tick()
    await_decision(page, "web-4")
    page.locator(".figures dd:has-text('40')").wait_for()
    assert shown_decisions(page) == ["web-4", "web-3", "web-2", "web-1"]
    assert page.locator("#decision-list > li.changed .change").first.inner_text().split(", ")[1:] == [
        "medium 0 → 1",
        "large 0 → 4:",
    ]
    assert page.evaluate("window.sameDocument") is True


@pytest.mark.exhaustive
def test_decisions_that_say_the_same_have_one_row_also_while_one_looks(
    running: Running, served: Served, look: Look
) -> None:
    page = look(served.url).page
    for turn in range(4, 21):
        running.tick()
        await_decision(page, f"web-{turn}")
    assert shown_decisions(page) == [f"web-{n}" for n in range(20, 0, -1)]
    rows = page.locator("#decision-list > li")
    live = rows.all_inner_texts()
    assert len(live) < 5
    page.reload()
    assert rows.all_inner_texts() == live, "the script counts as the server does"


def test_no_decision_is_lost_or_shown_twice_when_the_agent_restarts(running: Running, look: Look) -> None:
    world = running.world
    with Served(running.parts) as first:
        page = look(first.url).page
        running.tick()
        await_decision(page, "web-4")
    page.locator("#link[data-state=off]").wait_for()
    world.restart()
    again = Running(world)
    again.tick(2)
    with Served(again.parts, port=first.port):
        page.locator("#link[data-state=on]").wait_for()
        await_decision(page, "web-6")
        again.tick()
        await_decision(page, "web-7")
        assert shown_decisions(page) == [f"web-{n}" for n in range(7, 0, -1)]
        numbers = page.locator("#decision-list > li").evaluate_all("rows => rows.map(row => Number(row.dataset.seq))")
        assert numbers == sorted(set(numbers), reverse=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_in_one_direction_only_and_everything_can_be_read(
    running: Running, served: Served, look: Look, scheme: str
) -> None:
    world = running.world
    world.submit(200)
    running.tick()
    world.silent = {world.in_service("small")[0]}
    running.collectors["queue web"].last_error = "the queue https://sqs.eu-west-1.amazonaws.com/123/" + "long" * 30
    running.board.problem("graphite", "no render API answers at http://" + "a" * 150)
    world.ledger.pause("autoscaling", "web", Pause(PauseScope.ALL, "o" * 90, "r" * 200, world.agent_clock.now()))
    running.tick(2)
    page = look(served.url, viewport=PHONE, color_scheme=scheme).page
    for path in ("/", "/fleets/web", "/decisions", "/decisions/web-4", "/fleets/web/vms"):
        page.goto(served.url + path)
        assert (path, sideways(page), complaints(page)) == (path, 0, [])


def test_what_others_wrote_is_shown_and_never_obeyed(
    running: Running, served: Served, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = running.world
    now = world.agent_clock.now()
    world.ledger.pause("autoscaling", "web", Pause(PauseScope.IN, HOSTILE, HOSTILE, now))
    world.ledger.pin("autoscaling", "web", Pin({"small": 2}, HOSTILE, HOSTILE, now, now + 3600.0))
    FleetStore(world.ledger).record((), events=[Event(fleet_subject("web"), now, Reason.OPERATOR, HOSTILE, HOSTILE)])
    running.board.problem(HOSTILE, HOSTILE)
    running.collectors[HOSTILE] = replace(running.collectors["queue web"], last_error=HOSTILE)
    world.store.append([b"trimtab.web.small.<script>.cpu_percent"], [1.0], [now], now)
    reports = tuple(VmReport("small", vm, False, None) for vm in (HOSTILE, f"i-{HOSTILE}"))
    monkeypatch.setattr(running.fleets, "vms_of", lambda fleets: {"web": reports})
    with Served(running.parts) as hostile:
        page = look(hostile.url).page
        running.tick()
        await_decision(page, "web-4")
        assert page.locator("ul.held").inner_text().count(HOSTILE) == 4
        assert HOSTILE in page.locator("[data-part=vms]").inner_text()
        assert HOSTILE in page.locator("[data-part=inputs]").inner_text()
        assert HOSTILE in page.locator("[role=alert]").inner_text()
        assert HOSTILE in page.locator("#event-list").inner_text()
        for path in ("/decisions/web-4", "/fleets/web/vms", "/decisions"):
            page.goto(hostile.url + path)
        assert page.title() != "broken"
        assert page.locator("main script, main img").count() == 0


def test_a_pause_and_a_pin_appear_as_badges_while_one_looks(running: Running, served: Served, look: Look) -> None:
    page = look(served.url).page
    now = running.world.agent_clock.now()
    running.world.ledger.pause("autoscaling", "web", Pause(PauseScope.IN, "ada", "load test", now, now + 600.0))
    page.locator(".fleet .badge:text-is('scale-in paused')").wait_for()
    running.world.ledger.pin("autoscaling", "web", Pin({"small": 3}, "grace", "release", now, now + 900.0))
    page.locator(".fleet .badge:text-is('pinned')").wait_for()
    held = page.locator("ul.held").inner_text()
    assert "(load test)" in held
    assert "(release)" in held
    assert page.locator("#event-list li").count() == 2


def test_a_metric_gap_shows_as_holding_and_names_what_is_absent(running: Running, served: Served, look: Look) -> None:
    page = look(served.url).page
    running.world.metric_gap(2)
    for report in running.world.reports[-2:]:
        running.board.turned(running.fleets.take(TurnReport(report.at), report), 0.0)
    page.locator(".fleet .badge:text-is('holding 2 min')").wait_for()
    assert "cpu" in (page.locator(".fleet .badge.held").get_attribute("title") or "")
    assert page.locator("dd.held").count() == 1


def test_an_agent_that_only_observes_or_does_not_lead_says_so(make_world: MakeWorld, look: Look) -> None:
    running = Running(make_world(mode=Mode.OBSERVE))
    running.tick()
    with Served(running.parts) as served:
        page = look(served.url).page
        assert page.locator(".fleet .badge").all_inner_texts() == ["OBSERVE"]
        running.board.change(leader=False)
        page.locator(".agent:has-text('standing by')").wait_for()


def test_a_loop_that_stands_still_raises_an_alert(running: Running, served: Served, look: Look) -> None:
    page = look(served.url).page
    running.world.clock.advance(400.0)
    alert = page.locator("[role=alert] li")
    alert.wait_for()
    assert alert.inner_text().startswith("Not turning")


def test_silent_vms_come_first_with_the_time_since_when(running: Running, served: Served, look: Look) -> None:
    world = running.world
    world.submit(100)
    running.tick(4)
    quiet = world.in_service("large")[1]
    world.silent = {quiet}
    running.tick(3)
    page = look(f"{served.url}/fleets/web/vms", live=False).page
    rows = page.locator(".vms tbody tr").all_inner_texts()
    vms = running.fleets.vms("web")
    assert len(rows) == len(vms)
    assert rows[0].split("\t")[0] == quiet
    assert "silent since" in rows[0]
    assert all("silent" not in row for row in rows[1:])
    page.goto(served.url)
    assert page.locator("[data-part=vms] .count").inner_text() == f"1 VM is silent, of {len(vms)}."


def test_the_link_of_a_decision_leads_to_everything_explain_tells(running: Running, served: Served, look: Look) -> None:
    running.world.submit(40)
    running.tick(3)
    page = look(served.url).page
    page.get_by_role("link", name="web-4", exact=True).first.click()
    page.wait_for_url("**/decisions/web-4")
    text = page.locator("main").inner_text()
    assert "intent: large 0 → 4" in text
    assert "40 jobs wait" in text
    assert page.locator(".steps li").count() == 15
    assert page.locator(".timeline li").count() >= 2
    assert [h.inner_text() for h in page.locator("h2").all()] == ["Seen", "Proposed", "Rails", "Done"]


@pytest.mark.exhaustive
def test_without_javascript_everything_is_there_and_the_page_loads_itself_anew(
    running: Running, served: Served, look: Look
) -> None:
    page = look(served.url, live=False, java_script_enabled=False).page
    assert shown_decisions(page) == ["web-3", "web-2", "web-1"]
    assert "every minute" in page.locator("#link").inner_text()
    assert page.locator("noscript meta, meta[http-equiv=refresh]").count() == 1


@pytest.mark.exhaustive
def test_behind_the_agents_own_server_a_token_opens_the_page_and_its_stream(
    running: Running, look: Look, tmp_path: Path
) -> None:
    server = running.server(
        create_page_router(running.view, QUICK), socket=tmp_path / "http.sock", port=0, token=READER
    )
    server.start()
    try:
        address = f"http://127.0.0.1:{server.port}"
        page = look(address, http_credentials={"username": "anyone", "password": READER, "origin": address}).page
        running.tick()
        await_decision(page, "web-4")
        policy = page.request.get(address).headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
    finally:
        server.stop()


def test_a_fleet_that_is_new_gets_its_card(make_world: MakeWorld, look: Look) -> None:
    running = Running(make_world(batch=(replace(SMALL, key="nightly", name="nightly"),)))
    both = running.world.loop.fleets
    running.world.loop.fleets = both[:1]
    running.tick()
    with Served(running.parts) as served:
        page = look(served.url).page
        assert page.locator(".fleet h3").all_inner_texts() == ["web"]
        running.world.loop.fleets = both
        running.tick()
        page.locator(".fleet h3:has-text('batch')").wait_for()
        assert shown_decisions(page) == ["batch-1", "web-2", "web-1"]


def test_many_fleets_have_a_row_each_and_their_groups_on_their_own_pages(
    make_world: MakeWorld, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.autoscaling.page.MOST_CARDS", 1)
    running = Running(make_world(batch=(replace(SMALL, key="nightly", name="nightly"),)))
    running.tick()
    with Served(running.parts) as served:
        page = look(served.url, viewport=PHONE).page
        assert page.locator(".many .fleet h3").all_inner_texts() == ["batch", "web"]
        assert page.locator(".many dl.figures").count() == 2
        assert page.locator("table.groups").count() == 0
        assert sideways(page) == 0
        page.get_by_role("link", name="batch", exact=True).first.click()
        page.wait_for_url("**/fleets/batch")
        assert page.locator("table.groups").count() == 1


@pytest.mark.exhaustive
def test_a_fleets_own_page_follows_that_fleet_alone(make_world: MakeWorld, look: Look) -> None:
    running = Running(make_world(batch=(replace(SMALL, key="nightly", name="nightly"),)))
    running.tick()
    with Served(running.parts) as served:
        page = look(f"{served.url}/fleets/batch").page
        assert page.locator(".fleet h3").all_inner_texts() == ["batch"]
        running.tick()
        await_decision(page, "batch-2")
        assert shown_decisions(page) == ["batch-2", "batch-1"]
