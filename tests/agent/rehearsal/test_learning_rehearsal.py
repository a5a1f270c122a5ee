"""The rehearsal of learning: a load that changes on the fourth day, and commands that are held to how they end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from agent.autoscaling.state import FleetStore
from agent.commands.main import app
from agent.ledger import Ledger
from agent.models.directory import PROMOTED
from agent.rehearsal.learning import (
    Day,
    LearningFailed,
    LearningRehearsal,
    Results,
    _Started,
    fleet_world,
    load_of,
    lying_world,
)
from agent.rehearsal.virtual_time import FLEET, quiet_logs
from domain.units import DAY_S
from simulator.autoscaling.world_file import world_named


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def rehearsal(tmp_path: Path, lines: list[str]) -> Iterator[LearningRehearsal]:
    with quiet_logs():
        yield LearningRehearsal(tmp_path, lines.append)


def test_jobs_are_three_times_as_long_from_the_fourth_day_on_and_come_in_two_batches() -> None:
    trace = load_of(5, 0)
    day = np.floor(trace.arrival_s / DAY_S) + 1
    old, new = trace.service_s[day < 4].mean(), trace.service_s[day >= 4].mean()
    assert new / old == pytest.approx(3.0, rel=0.05)
    by_hour = np.bincount(((trace.arrival_s[day == 5] % DAY_S) // 3600).astype(int), minlength=24)
    assert sorted(np.argsort(by_hour)[-2:]) == [9, 17]
    assert by_hour[9] > 50


def test_more_days_begin_with_the_same_days() -> None:
    few, many = load_of(3, 1), load_of(6, 1)
    assert np.array_equal(few.arrival_s, many.arrival_s[: few.jobs])
    assert np.array_equal(few.service_s, many.service_s[: few.jobs])


def test_what_is_saved_is_a_share_of_the_days_of_the_new_load() -> None:
    costs = (1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0, 3.0, 9.0, 9.0)
    results = Results([Day(number, "", cost, 0.0, 1, "") for number, cost in enumerate(costs, 1)])
    assert results.saving == pytest.approx(0.25)


def test_a_command_that_ends_otherwise_stops_it_with_what_it_printed(
    rehearsal: LearningRehearsal, tmp_path: Path, lines: list[str]
) -> None:
    def started(status: int) -> _Started:
        log = tmp_path / "some.log"
        with log.open("wb") as file:
            program = f"print('a reason'); print('a stage ...'); raise SystemExit({status})"
            return _Started("some", 7, subprocess.Popen([sys.executable, "-c", program], stdout=file), log, 0.0)

    rehearsal._ended(started(6), 6, "it is taken back")
    assert ["(exit status 6):" in lines[0], lines[1:]] == [True, ["  a reason"]]
    with pytest.raises(LearningFailed, match=r"status 1, not 0:\na reason"):
        rehearsal._ended(started(1), 0, "")
    with pytest.raises(LearningFailed, match="no model is promoted"):
        rehearsal._ended(started(0), 0, "", PROMOTED)
    assert [(step.day, step.status) for step in rehearsal.results.steps] == [(7, 6), (7, 1), (7, 0)]


def test_the_world_that_lies_differs_in_the_speed_of_the_dear_type_alone(rehearsal: LearningRehearsal) -> None:
    true, given = fleet_world(), world_named(str(rehearsal.folder / "lie.toml")).config
    assert given == lying_world()
    assert replace(given, speed=()) == true
    assert given.speeds[2] > true.types[2].price_per_hour / (true.types[0].price_per_hour * 4.0) > true.speeds[2]


def test_a_folder_that_exists_is_not_written_to(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["rehearse-learning", "--keep", str(tmp_path)])
    assert (shown.exit_code, "does not exist yet" in shown.output) == (2, True)


@pytest.mark.exhaustive
def test_a_day_is_lived_by_the_agents_loop_and_its_ledger_is_copied_whole(
    rehearsal: LearningRehearsal, lines: list[str]
) -> None:
    rehearsal._live(1)
    (day,) = rehearsal.results.days
    assert day.jobs > 400
    assert day.cost == pytest.approx(rehearsal._fleet.cloud.simulation.measures().cost)
    assert lines[0].startswith("day 1: short jobs")
    with Ledger.open(f"sqlite:///{rehearsal._copied()}", read_only=True) as ledger:
        assert len(FleetStore(ledger).decisions(FLEET, limit=2000)) == 1440
