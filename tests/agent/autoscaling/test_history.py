"""A fleet over hours and days: what is read of the ledger, and charts with their axes from plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.autoscaling.history import (
    CHART_HEIGHT,
    CHART_WIDTH,
    KEPT_S,
    FleetHistory,
    HistoryPoint,
    cost_chart,
    line,
    queue_chart,
    size_charts,
    time_ticks,
    value_step,
)
from agent.autoscaling.state import FleetStore
from domain.units import DAY_S, HOUR_S
from tests.agent.api.running import Running
from tests.faults.conftest import make_world
from tests.faults.world import SMALL, MakeWorld
from tests.golden import check_wording

__all__ = ["make_world"]

NOON = 1_795_176_000.0
"""2026-11-20 12:00:00 UTC."""
counts = st.integers(min_value=0, max_value=10_000)


def test_a_minute_without_a_measurement_is_a_gap_in_the_line() -> None:
    drawn = line("n", "k", [(0.0, 1), (10.0, 2), (20.0, None), (30.0, 4), (40.0, 0)], 0.0, 40.0, 4.0)
    assert drawn.path.count("M") == 2
    assert drawn.most == 4
    assert line("n", "k", [], 0.0, 1.0, 1.0).path == ""


@given(st.lists(st.tuples(st.floats(0.0, 3600.0), st.none() | counts, st.none() | counts), max_size=80))
def test_every_chart_stays_inside_its_plane(rows: list[tuple[float, int | None, int | None]]) -> None:
    points = [
        HistoryPoint(NOON + at, waiting, running) for at, waiting, running in sorted(rows, key=lambda row: row[0])
    ]
    chart = queue_chart(points, NOON + 3600.0)
    for drawn in chart.lines:
        for pair in drawn.path.replace("M", " ").replace("L", " ").split():
            x, y = map(float, pair.split(","))
            assert 0.0 <= x <= CHART_WIDTH + 4.0
            assert 0.0 <= y <= CHART_HEIGHT
    assert [round(tick.place, 6) for tick in (chart.values[0], chart.values[-1])] == [100.0, 0.0]
    assert 2 <= len(chart.values) <= 6
    assert sum(hit.width for hit in chart.hits) == pytest.approx(
        CHART_WIDTH if points else 0.0, abs=0.01 * len(points) + 0.01
    )


@given(st.floats(0.0, 1e9), st.booleans())
def test_the_upright_axis_has_round_steps_up_to_the_largest_value(most: float, whole: bool) -> None:
    step = value_step(most, whole=whole)
    assert step * 5.0 >= most * (1.0 - 1e-9)
    assert f"{step:.6e}"[:8] in ("1.000000", "2.000000", "5.000000")
    assert not whole or step >= 1.0


def test_times_are_round_and_have_a_date_at_midnight_of_longer_charts() -> None:
    def texts(hours: float) -> list[str]:
        return [tick.text for tick in time_ticks(NOON - hours * HOUR_S, NOON)]

    assert texts(1) == ["11:10", "11:20", "11:30", "11:40", "11:50"]
    assert texts(24) == ["18:00", "20 Nov", "06:00"]
    assert texts(48) == ["19 Nov", "12:00", "20 Nov"]
    assert texts(168) == ["15 Nov", "17 Nov", "19 Nov"]
    assert 0 < len(texts(31 * DAY_S / HOUR_S)) <= 7


def test_a_chart_says_in_words_what_it_shows_and_at_each_point_its_values() -> None:
    points = [HistoryPoint(NOON - 120.0, 4, 2, (1,), (3,), 0.5), HistoryPoint(NOON - 60.0)]
    chart = queue_chart(points, NOON)
    check_wording("queue-chart", {"label": chart.label, "points": "\n".join(hit.text for hit in chart.hits)})
    cost = cost_chart(points, NOON)
    assert (cost.unit, cost.values[-1].text) == ("dollars", "$0.50")


def test_sizes_by_type_stand_beside_what_was_requested(make_world: MakeWorld) -> None:
    running = Running(make_world())
    running.tick(2)
    running.world.submit(40)
    running.tick(3)
    now, status = running.world.agent_clock.now(), running.fleet("web")
    points = FleetHistory(FleetStore(running.world.ledger)).last_hour([status], now)["web"]
    charts = list(size_charts(status, points, now))
    assert [chart.title for chart in charts] == [f"{group.key} {group.vm_type}" for group in status.groups]
    last = [chart.hits[-1].text.partition(": ")[2] for chart in charts]
    assert last == [f"in service {group.observed}, requested {group.requested}" for group in status.groups]


def test_a_longer_chart_reads_no_more_decisions_than_it_can_show(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.autoscaling.history.MOST_READ", 4)
    running = Running(make_world())
    running.tick(10)
    now, status = running.world.agent_clock.now(), running.fleet("web")
    points = FleetHistory(FleetStore(running.world.ledger)).over(status, now, DAY_S)
    times = [row.decision.at for row in running.fleets.store.decisions("web", newest_first=False)]
    assert [point.at for point in points] == times[::-3][::-1], "the newest is among them"
    assert FleetHistory(FleetStore(running.world.ledger)).over(status, now + 2 * DAY_S, DAY_S) == ()


def test_the_history_reads_once_and_then_only_what_was_missed(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(make_world())
    running.tick(3)
    history = FleetHistory(FleetStore(running.world.ledger))
    reads: list[str] = []
    read_inputs = FleetStore.inputs_since

    def noted(store: FleetStore, fleets: Sequence[str], since: float) -> object:
        reads.extend(fleets)
        return read_inputs(store, fleets, since)

    monkeypatch.setattr(FleetStore, "inputs_since", noted)

    def seen() -> list[int | None]:
        now = running.world.agent_clock.now()
        return [point.waiting for point in history.last_hour([running.fleet("web")], now)["web"]]

    assert (seen(), reads) == ([0, 0, 0], ["web"])
    running.world.submit(7)
    running.tick()
    assert (seen(), seen(), reads) == ([0, 0, 0, 7], [0, 0, 0, 7], ["web"] * 2)
    running.tick(2)
    assert (seen(), reads) == ([0, 0, 0, 7, 7, 7], ["web"] * 3)


def test_the_history_ends_after_an_hour(make_world: MakeWorld) -> None:
    running = Running(make_world())
    running.tick(2)
    history = FleetHistory(FleetStore(running.world.ledger))
    status = running.fleet("web")
    now = running.world.agent_clock.now()
    assert len(history.last_hour([status], now)["web"]) == 2
    assert history.last_hour([status], now + KEPT_S + 1.0) == {"web": ()}


def test_fleets_that_lack_the_same_decisions_are_read_at_once(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.autoscaling.state._CHUNK", 3)
    running = Running(make_world(groups=(SMALL,), sizes=(1,), batch=(replace(SMALL, key="b", name="batch-b"),)))
    running.tick(4)
    written_here = running.fleets.store
    reads: list[tuple[str, ...]] = []
    read_inputs = FleetStore.inputs_since

    def noted(store: FleetStore, fleets: Sequence[str], since: float) -> object:
        reads.append(tuple(fleets))
        return read_inputs(store, fleets, since)

    monkeypatch.setattr(FleetStore, "inputs_since", noted)
    history = FleetHistory(written_here)

    def seen(*names: str) -> list[str]:
        now = running.world.agent_clock.now()
        found = history.last_hour([running.fleet(name) for name in names], now)
        for name, points in found.items():
            assert points == FleetHistory(FleetStore(running.world.ledger)).over(running.fleet(name), now, HOUR_S)
        return list(found)

    assert seen("web", "batch") == ["web", "batch"]
    running.tick(2)
    seen("batch")
    running.tick()
    seen("web", "batch")
    assert reads == [("web", "batch"), ("batch",), ("web",), ("batch",)]
