"""Fleets whose settings change while they live: a schedule, and a setting of the rule that was advised.

The logs are those of benchmarks/logs, the rehearsal pauses the fleet in two of every four hours. A pause keeps a
difference of one VM for its hours, so that a day of a small fleet is met or not by chance: three days are.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.autoscaling.policies.learned_models import ModelShelf
from agent.commands.main import app
from agent.rails.schedule import WindowSetting
from agent.rehearsal.virtual_time import Rehearsal, quiet_logs, rail_set
from domain.controls import PauseScope
from domain.rules.queue_rule import RuleSetting
from simulator.workloads.named import workload_of
from tests.architecture.product import ROOT
from tests.trainer.learning.recording import FLEET, WORLD
from trainer.learning.fidelity import WITHIN
from trainer.learning.minutes import read_record

NASA = f"{ROOT}/benchmarks/logs/NASA-iPSC-1993-3.1-cln.swf.gz"
HPC2N = f"{ROOT}/benchmarks/logs/HPC2N-2002-first-jobs.swf.gz"
PAUSED = WindowSetting("freeze", "0 */4 * * *", 120.0, pause=PauseScope.ALL)


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Any]:
    """Returns a rehearsal of hours of a log, with windows of a schedule; closed at the end."""
    begun: list[Rehearsal] = []

    def do(log: str, hours: float, *planned: WindowSetting) -> Rehearsal:
        path = tmp_path / "ledger.db"
        shelf, rails = ModelShelf(tmp_path), rail_set("default")
        trace = workload_of(f"{log},hours={hours:g}")
        begun.append(Rehearsal("queue-rule", trace, WORLD, rails, shelf, path, hours=hours, seed=5, planned=planned))
        return begun[-1]

    with quiet_logs():
        yield do
    for one in begun:
        one.close()


def learn(folder: Path, *words: str) -> Any:
    places = [
        "--ledger",
        str(folder / "ledger.db"),
        "--models-dir",
        str(folder / "models"),
        "--out",
        str(folder / "out"),
    ]
    return CliRunner().invoke(app, ["learn", "autoscaling", FLEET, *places, *words])


def lived(rehearsal: Rehearsal, hours: float) -> None:
    for _ in rehearsal.minutes(round(hours * 60.0)):
        pass


def fidelity(folder: Path) -> Any:
    shown = learn(folder, "--check", "--json")
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)["fidelity"]


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_fleet_that_a_schedule_pauses_learns(living: Any, tmp_path: Path) -> None:
    lived(living(f"{NASA}:from_s=259200,thin=0.4", 72.0, PAUSED), 72.0)
    minutes = read_record(str(tmp_path / "ledger.db"), FLEET, 28.0).minutes
    held = sum(any(window.pause for window in one.under.windows) for one in minutes)
    assert held > 0
    shown = learn(tmp_path, "--try", "--cpu-minutes", "2", "--set", "rounds=4+4")
    assert shown.exit_code in (0, 1), shown.output
    stages = json.loads((tmp_path / "out" / "state.json").read_text())["stages"]
    assert abs(stages["fidelity"]["off"]) <= WITHIN
    assert {"rule", "scorer", "judge", "gate"} <= stages.keys()


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_the_check_meets_another_log_with_the_same_pauses(living: Any, tmp_path: Path) -> None:
    lived(living(f"{HPC2N}:from_s=604800,thin=0.3", 72.0, PAUSED), 72.0)
    assert abs(fidelity(tmp_path)["off"]) <= WITHIN


@pytest.mark.exhaustive
def test_advice_that_is_taken_does_not_break_the_next_check(living: Any, tmp_path: Path) -> None:
    rehearsal = living(f"{NASA}:from_s=86400,thin=0.4", 24.0)
    lived(rehearsal, 12.0)
    (managed,) = rehearsal.loop.fleets
    follows = frozenset({"horizon_s", "idle_s"})
    rehearsal.loop.fleets = (replace(managed, follows=follows).under(RuleSetting(300.0, 0.0), "advice"),)
    lived(rehearsal, 24.0)
    recorded = read_record(str(tmp_path / "ledger.db"), FLEET, 28.0)
    assert {one.under.idle_s for one in recorded.minutes} == {120.0, 0.0}
    assert len(recorded.policies) == 2
    assert abs(fidelity(tmp_path)["off"]) <= WITHIN
