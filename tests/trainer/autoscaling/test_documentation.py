"""The pages for users on training, simulating, worlds and tasks: their examples run, and their tables are complete."""

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from simulator.autoscaling.world_file import MOST_TYPES, VmTypeTable, WorldTable, world_from, world_names, world_text
from simulator.checked_toml import Table
from tests.architecture.product import ROOT
from trainer.autoscaling.baselines.tuning import MOST_FLEETS
from trainer.autoscaling.policy_names import policy_of
from trainer.autoscaling.ppo_lstm import PPOConfig
from trainer.autoscaling.ppo_runs import PRESETS
from trainer.autoscaling.tasks import FOLDER, TASKS, task_in
from trainer.commands.train_scorer import LSTM

TRAIN, SIMULATE, WORLDS = (
    (ROOT / "docs" / "train" / f"{name}.md").read_text("utf-8") for name in ("train", "simulate", "worlds")
)


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


WORLD, TASK = blocks(WORLDS, "toml")


def text(value: object) -> str:
    """A value as the table shows it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value) or "none"


def test_the_table_lists_every_setting_with_what_the_presets_give_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?)\|", TRAIN[TRAIN.index("## Settings") :], re.MULTILINE)
    default, published = PRESETS["default"], PRESETS["ppo-lstm-published"]
    wanted = []
    for known in fields(PPOConfig):
        ours, theirs = text(getattr(default, known.name)), text(getattr(published, known.name))
        wanted.append((known.name, ours, "" if ours == theirs else theirs))
    assert [(name, ours, theirs.strip()) for name, ours, theirs in rows] == wanted


def test_the_table_lists_every_task_and_the_help_every_preset() -> None:
    tasks = TRAIN[TRAIN.index("## Tasks") : TRAIN.index("## Output")]
    assert re.findall(r"^\| `([\w-]+)` \|", tasks, re.MULTILINE) == list(TASKS)
    shown = CliRunner().invoke(app, ["train", "autoscaling", "--help"]).output
    assert [task for task in TASKS if task not in shown] == []
    presets = re.sub(r"\s", "", shown).partition("Settingstostartfrom:")[2].partition(".[")[0]
    assert set(re.sub(r"\(.*?\)", "", presets).split(",")) == {*PRESETS, LSTM}


def simulate(number: int, *more: str, **files: Path) -> Result:
    """Run the simulation of this number on the page, with files in place of those that it names."""
    examples = [shlex.split(block.replace("\\\n", " ")) for block in blocks(SIMULATE, "sh")]
    words = [one for one in examples if one[:3] == [".venv/bin/trimtab", "simulate", "autoscaling"]][number]
    given = [str(files.get(word.partition(".")[0], word)) for word in words[1:]]
    return CliRunner().invoke(app, [*given, *more], catch_exceptions=False)


def test_the_comparison_is_what_the_program_prints(tmp_path: Path) -> None:
    done = simulate(0, "--boot", "uniform:45,97", fleet=tmp_path / "fleet.png")
    assert done.stdout == blocks(SIMULATE, "text")[0]
    assert (tmp_path / "fleet.png").stat().st_size > 10_000


def test_own_jobs_on_own_vms(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(blocks(SIMULATE, "text")[1], encoding="utf-8")
    done = simulate(1, jobs=jobs)
    assert done.exit_code == 0, done.stderr


def test_the_script_can_be_played(tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text(blocks(SIMULATE, "text")[2], encoding="utf-8")
    options = ["--boot", "const:71", "--policy", "constant:3,1,1", "--workload", "train-fit", "--json"]
    done = CliRunner().invoke(app, ["simulate", "autoscaling", "--script", str(script), *options])
    run = json.loads(done.stdout)
    assert (run["added"], run["removed"]) == ([0, 0, 4], [1, 0, 0])


def test_the_environment_shows_the_moments_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    code = blocks(SIMULATE, "python")[0]
    exec(compile(code, "simulate.md", "exec"), {})
    assert capsys.readouterr().out == blocks(SIMULATE, "text")[3]


@pytest.mark.parametrize(
    "name", ["nothing", "constant:1,1,1", "fixed-ramp:cores=20", "random:seed=1,masked=true", "plan"]
)
def test_the_policies_on_the_page_exist(name: str) -> None:
    assert policy_of(name).name.startswith(name.partition(":")[0])


def test_the_example_of_a_world_reads_and_has_every_field() -> None:
    world = world_from(WORLD, "my")
    assert [kind.name for kind in world.config.types] == ["m5a.large", "m5.xlarge", "c5.4xlarge"]
    assert world.config.boot_points_s == ((60.0, 120.0), (75.0, 75.0), (58.0, 64.0, 70.0, 83.0, 210.0))
    assert world_from(world_text(world), "my") == world
    names = [*WorldTable.model_fields, *VmTypeTable.model_fields]
    for field in WorldTable.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Table):
            names += field.annotation.model_fields
    absent = [name for name in names if not re.search(rf"(^|\[){name}\b", WORLD, re.MULTILINE)]
    assert absent == ["compat"]
    assert "`compat`" in WORLDS


@pytest.mark.exhaustive
def test_the_example_of_a_task_reads(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TASK, "utf-8")
    task = task_in(path)
    assert [len(stage.traces) for stage in task.stages] == [64, 64 + 16 + 1]
    assert (len(task.selection), len(task.report)) == (8, 30)


def test_what_the_page_counts_and_names_is_so() -> None:
    assert f"1 to {MOST_TYPES} VM types" in WORLDS
    assert f"more than {MOST_FLEETS:,} fixed fleets" in WORLDS
    assert [name for name in world_names() if f"`{name}`" not in WORLDS] == []
    assert {*TASKS} == {path.stem for path in FOLDER.glob("*.toml")}
