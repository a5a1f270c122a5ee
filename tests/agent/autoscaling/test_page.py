"""Fleets on the page: badges, bars, rows of decisions and the banner, each from plain data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.announcements import in_words
from agent.autoscaling.api import VmReport
from agent.autoscaling.page import (
    Piece,
    badges,
    bar,
    bar_scale,
    decision_item,
    fleet_alerts,
    silence,
)
from agent.autoscaling.view import BreakerStatus, FleetStatus, GroupStatus, LastDecision
from agent.kernel.page import Alert, DecisionItem, collapsed
from agent.kernel.text import clock_minute
from agent.rails.permissions import paused_by, pinned_by
from domain.announcements import Announcement
from domain.controls import Pause, PauseScope, Pin
from tests.agent.api.running import Running
from tests.faults.conftest import make_world
from tests.faults.world import QUICK, MakeWorld
from tests.golden import check_wording

__all__ = ["make_world"]

NOW = 1_795_209_000.0
counts = st.integers(min_value=0, max_value=10_000)


def fleet(**fields: object) -> FleetStatus:
    last = LastDecision("web-1", NOW, "queue_covered", "no change")
    return FleetStatus("web", NOW, **{"mode": "act", "leader": True, "last_decision": last, **fields})  # type: ignore[arg-type]


def group(**fields: object) -> GroupStatus:
    return GroupStatus("small", "m5a.large", 0.086, 0, 10, **fields)  # type: ignore[arg-type]


def shown(status: FleetStatus) -> list[str]:
    return [badge.word for badge in badges(status, "observe", NOW)]


def test_the_mode_comes_first_and_alone_when_nothing_holds_the_fleet() -> None:
    assert shown(fleet()) == ["ACT"]
    assert shown(fleet(mode="observe")) == ["OBSERVE"]


def test_a_fleet_not_yet_decided_on_has_the_agents_mode() -> None:
    assert shown(FleetStatus("web", None)) == ["OBSERVE", "no decision yet"]


def test_work_that_is_known_to_come_has_a_badge_that_says_when() -> None:
    coming = (Announcement(NOW + 600.0, 40, 120.0, 300.0), Announcement(NOW + 1200.0, 1, 60.0))
    status = fleet(announced=coming)
    assert shown(status) == ["ACT", "work announced"]
    (badge,) = [badge for badge in badges(status, "act", NOW) if badge.word == "work announced"]
    assert badge.detail == "; ".join(in_words(one) for one in coming)
    assert badge.detail.startswith("40 jobs of 120 core-s")
    assert shown(fleet(announced=())) == ["ACT"]


def test_everything_that_holds_a_fleet_has_its_badge() -> None:
    status = fleet(
        leader=False,
        pauses=(Pause(PauseScope.ALL, "ada", "why", NOW), Pause(PauseScope.OUT, "bob", "so", NOW, NOW + 60.0)),
        pin=Pin({"small": 3}, "eve", "release", NOW, NOW + 3600.0),
        stale_minutes=4,
        breakers=(BreakerStatus("small", 3, NOW + 60.0, True), BreakerStatus("large", 1, 0.0, False)),
    )
    expected = ["ACT", "not leader", "paused", "scale-out paused", "pinned", "breaker open", "holding 4 min"]
    assert shown(status) == expected
    details = {badge.word: badge.detail for badge in badges(status, "act", NOW)}
    assert details["paused"] == paused_by(status.pauses[0], NOW)
    assert details["pinned"] == f"at small 3 {pinned_by(status.pin, NOW)}"
    assert details["breaker open"].startswith("small: 3 failures")


def test_a_fleet_that_aws_did_not_show_is_unreadable_rather_than_holding() -> None:
    last = LastDecision("web-2", NOW, "cloud_unreadable", "held: AWS could not be read")
    assert shown(fleet(last_decision=last, stale_minutes=2)) == ["ACT", "AWS unreadable"]


def test_a_bar_shows_reporting_silent_booting_and_draining_vms_in_that_order() -> None:
    drawn = bar(group(requested=8, warm=5, silent=1, booting=3, draining=2), scale=10)
    kinds = [("reporting", 0.0, 40.0), ("silent", 40.0, 10.0), ("booting", 50.0, 30.0), ("draining", 80.0, 20.0)]
    assert drawn.pieces == tuple(Piece(*kind) for kind in kinds)
    assert drawn.requested == 80.0


def test_a_group_that_was_not_read_has_an_empty_bar() -> None:
    assert bar(group(), scale=1).pieces == ()
    assert bar(group(), scale=1).requested is None


@given(st.lists(st.tuples(counts, counts, counts, counts, counts), min_size=1, max_size=5))
def test_every_bar_of_a_fleet_fits_its_one_scale(sizes: list[tuple[int, int, int, int, int]]) -> None:
    groups = [group(requested=r, warm=w, silent=s, booting=b, draining=d) for r, w, s, b, d in sizes]
    scale = bar_scale(groups)
    for one in groups:
        drawn = bar(one, scale)
        assert sum(piece.width for piece in drawn.pieces) <= 100.01
        assert drawn.requested is not None
        assert 0.0 <= drawn.requested <= 100.0


def item_of(running: Running, decision_id: str) -> DecisionItem:
    found = running.fleets.store.decision(decision_id)
    return decision_item(found.seq, found.decision, found.inputs)


def test_a_decision_is_listed_by_its_plain_sentence(make_world: MakeWorld) -> None:
    running = Running(make_world(limits=replace(QUICK, max_step_out=2)))
    running.world.submit(60)
    running.tick(2)
    item = item_of(running, "web-1")
    assert (item.id, item.changed, item.repeats) == ("web-1", True, "")
    check_wording("decision-list", {"change": item.change, "why": item.why})


def test_decisions_that_say_the_same_one_after_the_other_have_one_row(make_world: MakeWorld) -> None:
    running = Running(make_world())
    running.tick(3)
    running.world.submit(40)
    running.tick()
    store = running.fleets.store
    items = [item_of(running, row.decision.decision_id) for row in store.decisions_before()]
    rows = collapsed(items)
    assert [(row.id, row.count, row.since) for row in rows] == [("web-4", 1, None), ("web-3", 3, items[-1].at)]
    other = replace(items[1], id="batch-1", subject="batch")
    between = [(row.id, row.count) for row in collapsed([items[1], other, items[2]])]
    assert between == [("web-3", 2), ("batch-1", 1)], "those of another fleet between them part nothing"
    changed = [replace(items[0], id="web-5"), items[0]]
    assert [row.count for row in collapsed(changed)] == [1, 1], "two changes are two rows"


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        (
            {"due": 3, "reported": 0, "vm_age_s": 600.0, "stale_minutes": 9},
            "No VM reports since {since}; sizes are held.",
        ),
        ({"due": 3, "reported": 0, "vm_age_s": None}, "No VM has ever reported."),
        ({"due": 3, "reported": 2, "groups": (group(silent=1),)}, "1 VM is silent (1 of small)."),
        ({"due": 3, "reported": 2, "stale_minutes": 1}, "2 of 3 VMs report; sizes are held."),
        ({"due": 3, "reported": 3}, None),
        ({"due": 0, "reported": 0}, None),
        ({}, None),
    ],
)
def test_the_banner_says_which_vms_do_not_report_and_that_sizes_are_held(
    seen: dict[str, object], sentence: str | None
) -> None:
    found = fleet_alerts(fleet(**seen), NOW)
    expected = [] if sentence is None else [Alert("web", sentence.format(since=clock_minute(NOW - 600.0, NOW)))]
    assert list(found) == expected


def test_vms_that_fell_silent_come_first_then_those_never_heard_of() -> None:
    reports = [
        VmReport("a", "reports", True, NOW),
        VmReport("a", "never", False, None),
        VmReport("a", "silent-short", False, NOW - 100.0),
        VmReport("a", "silent-long", False, NOW - 900.0),
    ]
    assert [r.vm for r in sorted(reports, key=silence)] == ["silent-long", "silent-short", "never", "reports"]
