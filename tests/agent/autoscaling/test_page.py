"""Fleets on the page: badges, bars, lines, rows and the queue's history, each from plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.announcements import in_words
from agent.autoscaling.api import VmReport
from agent.autoscaling.page import (
    KEPT_S,
    LINE_HEIGHT,
    LINE_WIDTH,
    Piece,
    QueueHistory,
    badges,
    bar,
    bar_scale,
    decision_item,
    line,
    silence,
)
from agent.autoscaling.status import BreakerStatus, FleetStatus, GroupStatus, LastDecision
from agent.autoscaling.store import FleetStore
from agent.decisions.text import clock_time
from agent.ledger.codec import plain
from domain.announcements import Announcement
from domain.controls import Pause, PauseScope, Pin
from tests.agent.api.running import Running
from tests.faults.conftest import make_world
from tests.faults.world import QUICK, World

__all__ = ["make_world"]

NOW = 1_795_209_000.0
counts = st.integers(min_value=0, max_value=10_000)


def fleet(**fields: object) -> FleetStatus:
    last = LastDecision("web-1", NOW, "queue_covered", "no change")
    return FleetStatus("web", NOW, **{"mode": "act", "leader": True, "last_decision": last, **fields})  # type: ignore[arg-type]


def group(**fields: object) -> GroupStatus:
    return GroupStatus("small", "m5a.large", 0.086, 0, 10, **fields)  # type: ignore[arg-type]


def shown(status: FleetStatus) -> list[str]:
    return [badge.text for badge in badges(status, "observe", NOW)]


def test_the_mode_comes_first_and_alone_when_nothing_holds_the_fleet() -> None:
    assert shown(fleet()) == ["ACT"]
    assert shown(fleet(mode="observe")) == ["OBSERVE"]


def test_a_fleet_not_yet_decided_on_has_the_agents_mode() -> None:
    assert shown(FleetStatus("web", None)) == ["OBSERVE", "no decision yet"]


def test_work_that_is_known_to_come_has_a_badge_that_says_when() -> None:
    coming = (Announcement(NOW + 600.0, 40, 120.0, 300.0), Announcement(NOW + 1200.0, 1, 60.0))
    status = fleet(announced=coming)
    assert shown(status) == ["ACT", "work announced"]
    (badge,) = [badge for badge in badges(status, "act", NOW) if badge.text == "work announced"]
    assert badge.detail == "; ".join(in_words(one) for one in coming)
    assert badge.detail.startswith("40 jobs of 120 core-s at ")
    assert shown(fleet(announced=())) == ["ACT"]


def test_everything_that_holds_a_fleet_has_its_badge() -> None:
    status = fleet(
        leader=False,
        pauses=(Pause(PauseScope.ALL, "ada", "why", NOW), Pause(PauseScope.OUT, "bob", "so", NOW, NOW + 60.0)),
        pin=Pin({"small": 3}, "eve", "release", NOW, NOW + 3600.0),
        stale_minutes=4,
        breakers=(BreakerStatus("small", 3, NOW + 60.0, True), BreakerStatus("large", 1, 0.0, False)),
    )
    expected = ["ACT", "not leader", "paused", "scale-out paused", "pinned", "holding 4 min", "breaker open"]
    assert shown(status) == expected
    details = {badge.text: badge.detail for badge in badges(status, "act", NOW)}
    assert details["paused"] == "by ada, until resumed: why"
    assert details["pinned"] == f"at small 3 by eve until {clock_time(NOW + 3600.0)} UTC: release"
    assert details["breaker open"] == "left alone after repeated failures: small"


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


def test_a_minute_without_a_measurement_is_a_gap_in_the_line() -> None:
    drawn = line([(0.0, 1), (10.0, 2), (20.0, None), (30.0, 4), (40.0, 0)], 0.0, 40.0, 4)
    assert drawn.path.count("M") == 2
    assert drawn.most == 4
    assert line([], 0.0, 1.0, 1).path == ""


@given(st.lists(st.tuples(st.floats(0.0, 3600.0), st.none() | counts), max_size=80))
def test_a_line_stays_inside_its_drawing(points: list[tuple[float, int | None]]) -> None:
    ordered = sorted(points, key=lambda point: point[0])
    top = max([1, *(value for _, value in ordered if value is not None)])
    drawn = line(ordered, 0.0, 3600.0, top)
    for pair in drawn.path.replace("M", " ").replace("L", " ").split():
        x, y = map(float, pair.split(","))
        assert 0.0 <= x <= LINE_WIDTH + 4.0
        assert 0.0 <= y <= LINE_HEIGHT


def test_a_decision_is_told_by_its_change_what_was_seen_and_the_rails_that_changed_it(
    make_world: Callable[..., World],
) -> None:
    running = Running(make_world(limits=replace(QUICK, max_step_out=2)))
    running.world.submit(60)
    running.tick(2)
    listed = FleetStore(running.world.ledger).decisions_before()[1]
    item = decision_item(listed.seq, plain(listed.decision))
    assert (item.id, item.changed, item.change) == ("web-1", True, "small 1 → 2, large 0 → 2")
    assert item.why == listed.decision.proposal.detail
    assert [(rail.rail, rail.verdict) for rail in item.rails] == [("step_limit", "shrunk")]
    assert "at most 2 VMs out per decision" in item.rails[0].sentence


def test_a_replacement_says_how_many_vms_it_replaces() -> None:
    body = {
        "decision_id": "web-9",
        "fleet": "web",
        "at": NOW,
        "reason": "queue_covered",
        "sentence": "no change (queue_covered): 3 jobs",
        "proposal": {"detail": "3 jobs"},
        "effects": [],
        "intents": [{"group": "large", "direction": "replace", "victims": ["i-1"], "before": 3, "target": 3}],
    }
    assert decision_item(1, body).change == "large: 1 VM replaced"


def test_the_history_reads_once_and_then_only_what_was_missed(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(make_world())
    running.tick(3)
    history = QueueHistory(running.world.ledger)
    reads: list[str] = []
    read_inputs = FleetStore.inputs

    def noted(store: FleetStore, fleet: str, since: float | None = None, until: float | None = None) -> object:
        reads.append(fleet)
        return read_inputs(store, fleet, since, until)

    monkeypatch.setattr(FleetStore, "inputs", noted)

    def seen() -> list[int | None]:
        now = running.world.agent_clock.now()
        return [point.waiting for point in history.last_hour(running.fleet("web"), now)]

    assert (seen(), reads) == ([0, 0, 0], ["web"])
    running.world.submit(7)
    running.tick()
    assert (seen(), seen(), reads) == ([0, 0, 0, 7], [0, 0, 0, 7], ["web"])
    running.tick(2)
    assert (seen(), reads) == ([0, 0, 0, 7, 7, 7], ["web", "web"])


def test_the_history_ends_after_an_hour(make_world: Callable[..., World]) -> None:
    running = Running(make_world())
    running.tick(2)
    history = QueueHistory(running.world.ledger)
    status = running.fleet("web")
    now = running.world.agent_clock.now()
    assert len(history.last_hour(status, now)) == 2
    assert history.last_hour(status, now + KEPT_S + 1.0) == ()


def test_vms_that_fell_silent_come_first_then_those_never_heard_of() -> None:
    reports = [
        VmReport("a", "reports", True, NOW),
        VmReport("a", "never", False, None),
        VmReport("a", "silent-short", False, NOW - 100.0),
        VmReport("a", "silent-long", False, NOW - 900.0),
    ]
    assert [r.vm for r in sorted(reports, key=silence)] == ["silent-long", "silent-short", "never", "reports"]
