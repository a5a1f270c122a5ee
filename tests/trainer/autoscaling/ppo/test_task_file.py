"""Task files: worlds, loads with shares, what checkpoints are chosen on; every wrong field is named at once."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from domain.errors import BadInput
from simulator.autoscaling.world_file import preset, world_named
from simulator.checked_toml import FileRefused
from simulator.workloads.synthetic import train_rand
from tests.trainer.autoscaling.train.tiny_run import options
from trainer.autoscaling.policy_names import run_many
from trainer.autoscaling.ppo_runs import baselines_of, reported
from trainer.autoscaling.tasks import FOLDER, TASKS, load_of, task_in, task_of, write_task

WORLD = """
version = 1
[jobs]
sizes = "unknown"
typical_core_s = 77
[[vm_types]]
name = "only"
cores = 6
memory_gb = 8
price_per_hour = 0.3
limit = 9
minimum = 1
"""
TASK = """
version = 1
rule = "queue-rule:horizon_s=60"
[[stages]]
world = "live-like"
until = 0.5
changes = { cooldown_s = 0, limits = [4, 4, 4] }
loads = [
  { workload = "train-rand", seeds = { first = 5, count = 2 }, share = 0.8 },
  { workload = "jobs.csv", share = 0.2 },
]
[[stages]]
world = "mine.toml"
loads = [{ family = "log", seeds = { first = 7, count = 1 } }]
[selection]
loads = [{ workload = "jobs.csv" }, { family = "burst", seeds = { first = 9, count = 2 } }]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.toml").write_text(WORLD, "utf-8")
    (tmp_path / "jobs.csv").write_text("arrival_s,service_s\n" + "0,90\n" * 20, "utf-8")
    (tmp_path / "task.toml").write_text(TASK, "utf-8")
    smaller = WORLD[WORLD.index("[[vm_types]]") :].replace("only", "smaller").replace("cores = 6", "cores = 2")
    (tmp_path / "mixed.toml").write_text(WORLD + smaller, "utf-8")
    return tmp_path


def mistakes(folder: Path, text: str) -> dict[str, str]:
    path = folder / "wrong.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(FileRefused) as refused:
        task_in(path)
    return {mistake.name: f"{mistake.value}: {mistake.remedy}" for mistake in refused.value.mistakes}


def test_a_task_is_a_file_of_worlds_and_loads_with_shares(folder: Path) -> None:
    task = task_of(str(folder / "task.toml"))
    first, last = task.stages
    assert (first.config.cooldown_s, first.config.limits, first.until) == (0.0, (4, 4, 4), 0.5)
    assert [trace.digest for trace in first.traces[:2]] == [train_rand(5).digest, train_rand(6).digest]
    assert first.probabilities.tolist() == pytest.approx([0.4, 0.4, 0.2])
    assert task.world == world_named(str(folder / "mine.toml")).config
    assert last.traces[0].digest == load_of("log", 7, task.world.max_cores).digest
    assert (last.weights, last.until) == ((), 1.0)
    assert task.selection[0].jobs == 20


def test_a_rule_scales_rewards_and_measures_what_checkpoints_are_chosen_on(folder: Path) -> None:
    task = task_of(str(folder / "task.toml"))
    assert not task.tells_sizes
    assert task.rule == "queue-rule:horizon_s=60,job_core_s=77"
    first = task.stages[0]
    costs = [
        run_many(task.rule, first.config, (trace,), (seed,))[0].cost
        for trace, seed in zip(first.traces, (5, 6, 0), strict=True)
    ]
    assert list(first.scales) == costs
    assert task.families == ("jobs.csv", "burst", "burst")
    assert len(task.par) == 3
    assert set(baselines_of(str(folder / "task.toml"))) == {"queue rule", "threshold"}
    assert [trace.name for trace in reported(str(folder / "task.toml"), 4).traces] == [
        trace.name for trace in (*task.selection, task.selection[0])
    ]


@pytest.mark.parametrize(
    "name",
    [
        # These play the rule on all their loads.
        pytest.param(name, marks=pytest.mark.exhaustive if name == "mixture" else ())
        for name in sorted(path.stem for path in FOLDER.glob("*.toml"))
    ],
)
def test_a_packaged_task_is_a_file(name: str) -> None:
    assert name in TASKS
    assert task_of(name).report == ()


def test_the_mixture_has_its_world_and_shares() -> None:
    """As written in its file: nothing is played."""
    file = tomllib.loads((FOLDER / "mixture.toml").read_text("utf-8"))
    (stage,) = file["stages"]
    assert stage["world"] == "live-like"
    assert [load["family"] for load in stage["loads"]] == ["random", "longer", "burst", "idle", "log"]
    assert [load["share"] for load in stage["loads"]] == [0.4, 0.12, 0.12, 0.12, 0.24]


@pytest.mark.exhaustive
def test_the_mixture_is_measured_by_its_rule() -> None:
    task = task_of("mixture")
    assert task.world == preset("live-like")
    assert len(task.stages[0].traces) == 5 * 48
    assert sum(task.stages[0].weights[:48]) == pytest.approx(0.4)
    assert task.families[::8] == ("random", "longer", "burst", "idle", "log")
    trace, rule = task.selection[9], "queue-rule:horizon_s=300,idle_s=0,skip_cooling=true"
    assert trace.digest == load_of("longer", 900_009, task.world.max_cores).digest
    assert task.par[9] == run_many(rule, task.world, (trace,), (900_009,))[0].cost


def test_every_wrong_field_is_named_at_once_with_what_its_world_or_workload_is_refused_for(folder: Path) -> None:
    found = mistakes(
        folder,
        """
version = 3
rul = "queue-rule"
[[stages]]
world = "live-like"
until = 1.5
loads = [{ workload = "train-rand", family = "log", share = 1 }, { family = "log" }]
[[stages]]
loads = []
""",
    )
    assert "did you mean rule?" in found["rul"]
    assert found["version"].startswith("3: give 1")
    assert "above 0 and up to 1" in found["stages[1].until"]
    assert "one of the two" in found["stages[1].loads[1].workload"]
    assert "the family's traces" in found["stages[1].loads[2].seeds"]
    assert "or to none" in found["stages[1].loads[2].share"]
    assert "or FILE.toml" in found["stages[2].world"]
    assert "one load or more" in found["stages[2].loads"]
    loaded = mistakes(
        folder,
        """
version = 1
[[stages]]
world = "moon"
until = 0.5
loads = [{ workload = "lunch" }]
[[stages]]
world = "mine.toml"
changes = { colour = "red" }
loads = [{ family = "dinner", seeds = { first = 0, count = 1 } }, { workload = "none.csv" }]
""",
    )
    assert "choose one of exact" in loaded["stages[1].world"]
    assert "give train-text" in loaded["stages[1].loads[1].workload"]
    assert "with one of the fields" in loaded["stages[2].changes"]
    assert "longer, burst, idle, log" in loaded["stages[2].loads[1].family"]
    assert "readable CSV" in loaded["stages[2].loads[2].workload"]


@pytest.mark.parametrize(
    ("untils", "place", "said"),
    [
        (("0.5", "0.4"), "stages[2].until", "give 1 in the last stage"),
        (("0.5", "0.5"), "stages[1].until", "less than in the next"),
    ],
)
def test_stages_follow_one_another(folder: Path, untils: tuple[str, ...], place: str, said: str) -> None:
    stage = '[[stages]]\nworld = "exact"\nuntil = {}\nloads = [{{ workload = "train-fit" }}]\n'
    assert said in mistakes(folder, "version = 1\n" + "".join(stage.format(until) for until in untils))[place]


def test_what_is_written_for_jobs_of_ones_own_reads_back(folder: Path) -> None:
    world = world_named(str(folder / "mine.toml"))
    path = write_task(world, [str(folder / "jobs.csv"), "train-rand"], folder / "out")
    task = task_of(str(path))
    assert (task.name, task.world) == ("out", world.config)
    assert len(task.stages[0].traces) == 1 + 64
    assert len({trace.digest for trace in (*task.stages[0].traces, *task.selection, *task.report)}) == 1 + 64 + 16 + 30
    again = write_task(world, [str(folder / "jobs.csv"), "train-rand"], folder / "out", resume=True)
    assert again == path
    with pytest.raises(BadInput, match="or other loads"):
        write_task(world, ["nasa"], folder / "out", resume=True)


def test_a_policy_is_trained_for_a_world_and_jobs_of_ones_own(folder: Path) -> None:
    known = folder / "known.toml"
    known.write_text(WORLD.replace("unknown", "known"), "utf-8")
    own = ("--workload", str(folder / "jobs.csv"), "--out", str(folder / "runs"))
    answer = CliRunner().invoke(app, [*options("--world", str(known), "--observation", "obs-v2", *own), "--json"])
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    assert data["directory"] == str(folder / "runs")
    assert (folder / "runs" / "world.toml").is_file()
    assert set(data["runs"][0]["goals"]) == {"queue rule"}
    assert answer.stderr.splitlines()[0].startswith("threshold: changed nothing"), "what is stuck is no goal to pass"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--world", "live-like"), "by --workload"),
        (("--workload", "nasa", "--task", "train-fit"), "which are a task"),
        (("--world", "mine.toml", "--workload", "nasa", "--observation", "obs-v2"), "or --form scorer"),
        (("--task", "none.toml"), "readable TOML"),
        (("--world", "mixed.toml", "--workload", "nasa"), "in the order of their cores"),
        (("--task", "task.toml", "--observation", "obs-v2"), "or --form scorer"),
    ],
)
def test_what_no_policy_can_be_trained_for_is_refused(
    folder: Path, given: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    answer = CliRunner().invoke(app, options(*given))
    assert answer.exit_code == 2, answer.output
    assert said in answer.stderr
