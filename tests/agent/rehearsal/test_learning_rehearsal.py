"""The rehearsal of learning: nothing is set, a recorded log, and commands that are held to their answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.autoscaling.fleets import managed_fleets
from agent.autoscaling.state import FleetStore
from agent.commands.main import app
from agent.ledger import Ledger
from agent.rehearsal.commands import LearningFailed
from agent.rehearsal.learning import FORCED_H, JOBS, LOG, TUNED_H, LearningRehearsal, Part, settings_of
from agent.rehearsal.virtual_time import FLEET, fleet_of, quiet_logs
from agent.settings import load_settings
from domain.rules.queue_rule import HORIZON_S, IDLE_S
from domain.units import HOUR_S
from simulator.autoscaling.world_file import preset
from simulator.workloads.swf import read_swf


def test_its_fleet_is_that_of_the_world_and_follows_a_tuned_setting() -> None:
    settings = settings_of(preset("live-like"))
    (managed,) = managed_fleets(load_settings(settings), settings)
    assert managed.fleet == fleet_of(preset("live-like"))
    assert managed.follows == {"horizon_s", "idle_s", "job_core_s"}
    assert (managed.horizon_s, managed.aggregation.idle_s) == (HORIZON_S, IDLE_S)


def test_the_log_has_enough_jobs_before_the_tuning_and_after_it() -> None:
    trace, _ = read_swf(LOG, JOBS)
    begin, end = TUNED_H * HOUR_S, FORCED_H * HOUR_S
    assert (trace.arrival_s < begin).sum() > 100
    assert ((trace.arrival_s >= begin) & (trace.arrival_s < end)).sum() > 100


def test_an_answer_that_is_another_one_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with quiet_logs():
        rehearsal = LearningRehearsal(tmp_path, lambda line: None)
    rehearsal.results.parts.append(Part(0, 24, "", 1.0, 1.0))
    answer = json.dumps({"did": "tuned", "why": "", "outcome": "kept"})
    monkeypatch.setattr("agent.rehearsal.commands.PROGRAM", f"print('{answer}')")
    rehearsal._tune("some", "", "", "kept")
    with pytest.raises(LearningFailed, match="answers kept, not promoted"):
        rehearsal._tune("some", "", "", "promoted")


def test_a_folder_that_exists_is_not_written_to(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["rehearse-learning", "--keep", str(tmp_path)])
    assert (shown.exit_code, "does not exist yet" in shown.output) == (2, True)


@pytest.mark.exhaustive
def test_an_hour_is_lived_by_both_fleets_at_the_same_cost_until_a_setting_is_tuned(tmp_path: Path) -> None:
    with quiet_logs():
        rehearsal = LearningRehearsal(tmp_path, lambda line: None)
        rehearsal._live(1)
    (part,) = rehearsal.results.parts
    assert part.cost == part.default_cost == pytest.approx(rehearsal._fleet.cloud.simulation.measures().cost)
    assert part.setting == f"horizon {HORIZON_S:g} s, idle time {IDLE_S:g} s, the settings' own"
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", read_only=True) as ledger:
        assert len(FleetStore(ledger).decisions(FLEET, limit=2000)) == 60


@pytest.mark.exhaustive
def test_each_step_ends_as_it_must_and_the_tuned_hours_cost_less(tmp_path: Path) -> None:
    with quiet_logs():
        untuned, tuned, forced = LearningRehearsal(tmp_path, lambda line: None).run().parts
    assert untuned.cost == untuned.default_cost
    assert tuned.cost < tuned.default_cost
    assert forced.cost > forced.default_cost
