"""The users' page on simulating shows what the program really prints."""

import re
import shlex
from pathlib import Path

import pytest

from tests.architecture.product import ROOT
from tests.trainer.autoscaling.simulate.conftest import Simulate
from trainer.autoscaling.policies.registry import policy_of

PAGE = (ROOT / "docs" / "train" / "simulate.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def options(command: str) -> list[str]:
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:3] == [".venv/bin/trimtab", "simulate", "autoscaling"]
    return words[3:]


def test_the_comparison_is_what_the_program_prints(simulate: Simulate, tmp_path: Path) -> None:
    words = [str(tmp_path / "fleet.png") if word == "fleet.png" else word for word in options(blocks("sh")[0])]
    done = simulate(*words, "--boot", "uniform:45,97")
    assert done.stdout == blocks("text")[0]
    assert (tmp_path / "fleet.png").stat().st_size > 10_000


def test_own_jobs_on_own_vms(simulate: Simulate, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(blocks("text")[1], encoding="utf-8")
    done = simulate(*[str(jobs) if word == "jobs.csv" else word for word in options(blocks("sh")[1])])
    assert done.exit_code == 0, done.stderr


def test_the_script_can_be_played(simulate: Simulate, tmp_path: Path) -> None:
    script = tmp_path / "script.txt"
    script.write_text(blocks("text")[2], encoding="utf-8")
    done = simulate("--script", script, "--policy", "constant:3,1,1", "--workload", "train-fit", "--json")
    assert '"added": [\n    0,\n    0,\n    4\n  ]' in done.stdout
    assert '"removed": [\n    1,\n    0,\n    0\n  ]' in done.stdout


def test_the_environment_shows_the_moments_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    exec(compile(code, "simulate.md", "exec"), {})
    assert capsys.readouterr().out == blocks("text")[3]


@pytest.mark.parametrize(
    "text", ["nothing", "constant:1,1,1", "fixed-ramp:cores=20", "random:seed=1,masked=true", "plan"]
)
def test_the_policies_on_the_page_exist(text: str) -> None:
    assert policy_of(text).name.startswith(text.partition(":")[0])
