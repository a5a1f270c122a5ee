"""`trimtab simulate deferral`: figures, steps, picture, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from domain.rules.deferral.jobs import jobs_of
from simulator.deferral import world
from simulator.deferral.engine import rule_of
from simulator.deferral.scenarios import Episode, episode
from trainer.deferral.playing import steps_of

RUNNER = CliRunner()


def simulate(*words: str) -> Result:
    return RUNNER.invoke(app, ["simulate", "deferral", *words])


def test_fifo_reaches_the_figures_of_the_specification() -> None:
    data = json.loads(simulate("--policy", "fifo", "--seeds", "0-2", "--json").stdout)
    assert [(one["seed"], one["utilisation"], one["delay"], one["total"]) for one in data["by_seed"]] == [
        (0, 3624, 98, 3428),
        (1, 3542, 125, 3292),
        (2, 3609, 104, 3401),
    ]
    assert data["total"] == pytest.approx((3428 + 3292 + 3401) / 3)
    assert (data["episodes"], data["fallbacks"]) == (3, 0)


def test_text_names_work_delay_and_jobs() -> None:
    text = simulate("--policy", "fifo", "--seeds", "0").stdout
    assert "valley, fifo, seed 0" in text
    assert "3,624.0 of 4,345.0" in text
    assert "98.0 steps" in text


def test_steps_add_up_to_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    words = ("--policy", "knapsack", "--scenario", "sched_drop", "--seeds", "3,5", "--steps", str(path), "--json")
    data = json.loads(simulate(*words).stdout)
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 168
    for one in data["by_seed"]:
        mine = [row for row in rows if int(row["seed"]) == one["seed"]]
        sums = {name: sum(int(row[name]) for row in mine) for name in ("violation", "started_jobs", "expired_jobs")}
        assert sums == {
            "violation": one["violation"],
            "started_jobs": one["started"],
            "expired_jobs": one["expired"],
        }
    other = tmp_path / "steps.json"
    simulate(*words[:-3], "--steps", str(other))
    columns = json.loads(other.read_text())["seeds"]["5"]
    assert [str(value) for value in columns["running"]] == [row["running"] for row in rows if row["seed"] == "5"]


def test_steps_by_hand() -> None:
    """One job starts late, one at its earliest step and runs beyond the end, one never."""
    jobs = jobs_of([(2, 2, 0, 3, 0), (3, 9, 2, 2, 0), (4, 1, 1, 2, 0)])
    table = steps_of(Episode(jobs, np.array([3, 3, 4, 4]), 167), np.array([1, 2, -1]))
    assert {name: column.tolist() for name, column in table.items()} == {
        "hour": [167, 0, 1, 2],
        "capacity": [3, 3, 4, 4],
        "running": [0, 2, 5, 3],
        "deferred": [0, 2, 2, 0],
        "violation": [0, 0, 1, 0],
        "waiting": [2, 4, 4, 0],
        "waiting_jobs": [1, 1, 1, 0],
        "started": [0, 2, 3, 0],
        "started_jobs": [0, 1, 1, 0],
        "expired_jobs": [0, 0, 1, 0],
    }


def test_waiting_jobs_are_those_that_the_world_shows_and_does_not_start() -> None:
    one, policy = episode("bursty_long", 7), rule_of("sjf").policy()
    played, seen = world.World(one), []
    while not played.done:
        view = played.view()
        chosen = policy(view)
        seen.append(view.cur.size - chosen.size)
        played.step(chosen)
    assert steps_of(one, played.start)["waiting_jobs"].tolist() == seen


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_episode_is_drawn_alike(tmp_path: Path, suffix: str) -> None:
    pictures = [tmp_path / f"{k}{suffix}" for k in range(2)]
    for path in pictures:
        assert simulate("--seeds", "1", "--plot", str(path)).exit_code == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    if suffix == ".svg":
        assert "left by on-demand work" in pictures[0].read_text()


def test_parameters_of_your_own_are_played(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("steps = 24\nlam = 2\n")
    data = json.loads(simulate("--world", str(path), "--seeds", "4", "--json").stdout)
    assert data["scenario"] == "mine.toml"
    assert 20 < data["jobs"] < 90


@pytest.mark.exhaustive
def test_a_trace_is_played() -> None:
    log = Path(__file__).parents[3] / "benchmarks/logs/HPC2N-2002-first-jobs.swf.gz"
    data = json.loads(simulate("--trace", f"azure_like,{log}", "--seeds", "0", "--json").stdout)
    assert data["jobs"] == 1008
    assert data["total"] > 0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--scenario", "vally"), "did you mean valley"),
        (("--policy", "lifo"), "policy"),
        (("--seeds", "5-1"), "--seeds"),
        (("--scenario", "valley", "--trace", "azure_like,log.swf"), "give one of them"),
        (("--trace", "azure_like"), "SCENARIO,LOG"),
        (("--world", "missing.toml"), "missing.toml"),
        (("--steps", "steps.txt"), ".csv, .json"),
        (("--plot", "plot.html"), ".svg, .pdf, .png"),
        (("--plot", "missing/plot.svg"), "folder that exists"),
    ],
)
def test_what_cannot_be_played_is_refused_with_a_remedy(words: tuple[str, ...], named: str) -> None:
    answer = simulate(*words)
    assert answer.exit_code == 2
    assert named in answer.stderr


def test_a_file_is_not_written_over_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("mine")
    assert simulate("--seeds", "0", "--steps", str(path)).exit_code == 2
    assert path.read_text() == "mine"
    assert simulate("--seeds", "0", "--steps", str(path), "--force").exit_code == 0
    assert path.read_text().startswith("seed,step,hour,capacity")
