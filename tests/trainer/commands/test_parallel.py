"""Verbs whose cases are independent: a stopped one continues with the same figures, and a plan starts nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agent.commands.main import app
from tests.trainer.oversubscription.test_evaluation import two_weeks
from trainer.autoscaling.baselines import tuning
from trainer.commands.verb import ANSWERS
from trainer.deferral import evaluation
from trainer.deferral.playing import _Player
from trainer.oversubscription.evaluation import Computation
from trainer.placement.evaluation import _Comparisons, _Shuffles

TUNE = ("tune", "autoscaling", "--policy", "queue-rule", "--workload", "train-fit", "--seeds", "1", "--json")
EVALUATE = ("evaluate", "deferral", "--scenario", "valley", "--scenario", "realtime", "--seeds", "0-1", "--json")
OWN = ("evaluate", "autoscaling", "--world", "live-like", "--workload", "train-text", "--seeds", "2", "--json")
PLACE = ("evaluate", "placement", "--instance", "S1", "--instance", "small-2", "--shuffles", "2", "--json")
OVERSUBSCRIBE = ("evaluate", "oversubscription", "--scenario", "two", "--short", "--json")
START = ("simulate", "deferral", "--scenario", "realtime", "--policy", "rolling", "--seeds", "0-2", "--json")
ORDERS = (
    "simulate",
    "placement",
    "--instance",
    "S1",
    "--policy",
    "reserve",
    "--ahead",
    "2",
    "--shuffles",
    "41",
    "--json",
)
WEEKS = ("simulate", "oversubscription", "--scenario", "two", "--json")
"""By usage that is drawn, by usage that is observed, by predicted peaks."""
DRAWN, OBSERVED, PEAKS = (
    (*WEEKS, "--policy", policy, "--episodes", episodes)
    for policy, episodes in (("static", "201"), ("shield:base=ma,posterior=yes", "21"), ("peak:n=3", "21"))
)
SIMULATE = {"deferral": START, "placement": ORDERS, "drawn usage": DRAWN, "observed usage": OBSERVED, "peaks": PEAKS}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    two = tmp_path / "two"
    two.mkdir()
    two_weeks(two)
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, stop_at: int | None) -> list[object]:
    """Count the calls of a module's function; Ctrl-C comes with the call of this number."""
    calls: list[object] = []
    real = getattr(module, name)

    def counting(*values: object) -> object:
        calls.append(values[-1])
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return real(*values)

    counting.__qualname__, counting.__module__ = real.__qualname__, real.__module__
    monkeypatch.setattr(module, name, counting)
    return calls


@pytest.mark.parametrize(
    ("words", "module", "name", "stop_at"),
    [
        (TUNE, tuning, "run_task", 100),
        (EVALUATE, evaluation, "_play", 4),
        (PLACE, _Comparisons, "part", 5),
        (OVERSUBSCRIBE, Computation, "result", 12),
        (START, _Player, "play", 2),
        (ORDERS, _Shuffles, "block", 2),
    ],
    ids=[
        "tune autoscaling",
        "evaluate deferral",
        "evaluate placement",
        "evaluate oversubscription",
        "simulate deferral",
        "simulate placement",
    ],
)
def test_a_stopped_command_continues_with_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], module: Any, name: str, stop_at: int
) -> None:
    with monkeypatch.context() as patched:
        every = counted(patched, module, name, None)
        whole = call(*words)
    assert (whole.exit_code, len(every) > stop_at - 1) == (0, True)
    assert not [*ANSWERS.glob("*")]
    with monkeypatch.context() as patched:
        counted(patched, module, name, stop_at)
        assert call(*words).exit_code == 130
    with monkeypatch.context() as patched:
        rest = counted(patched, module, name, None)
        again = call(*words, "--resume")
    assert again.stdout == whole.stdout
    # Finalists of a search meet the seeds of the first round again: those runs are stored too.
    assert 0 < len(rest) <= len(every) - (stop_at - 1)
    assert not [*ANSWERS.glob("*")]


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "words",
    [PLACE, OVERSUBSCRIBE, *SIMULATE.values()],
    ids=["evaluate placement", "evaluate oversubscription", *(f"simulate {name}" for name in SIMULATE)],
)
def test_two_workers_print_the_bytes_of_one_process(words: tuple[str, ...]) -> None:
    alone, shared = call(*words), call(*words, "--workers", "2")
    assert (alone.exit_code, shared.exit_code) == (0, 0)
    assert shared.stdout == alone.stdout


def test_without_resume_every_case_is_played_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch, evaluation, "_play", 3)
    assert call(*EVALUATE).exit_code == 130
    monkeypatch.undo()
    monkeypatch.chdir(Path.cwd())
    every = counted(monkeypatch, evaluation, "_play", None)
    assert call(*EVALUATE).exit_code == 0
    assert len(every) == 4


@pytest.mark.exhaustive
@pytest.mark.timeout(180)
def test_a_killed_command_continues_with_the_same_bytes(folder: Path) -> None:
    """With two workers; SIGKILL ends the command and its processes."""
    command = [sys.executable, "-c", "from agent.commands.main import app; app()", *EVALUATE[:-2], "0-3", "--json"]
    command += ["--workers", "2"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ) as process:
        while not [*ANSWERS.glob("*")]:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    stored = [file.stat().st_size for file in ANSWERS.glob("*")]
    again = subprocess.run([*command, "--resume"], check=True, capture_output=True, env=environ)
    assert stored
    assert again.stdout.decode() == call(*EVALUATE[:-2], "0-3", "--json").stdout


@pytest.mark.parametrize(
    ("words", "cases"),
    [
        (EVALUATE, 4),
        (PLACE, 16),
        (OVERSUBSCRIBE, None),
        *((words, 3) for words in SIMULATE.values()),
        (("evaluate", "admission", "--preset", "K", "--experiment", "ordering", "--years", "0.02"), None),
        (("tune", "admission", "--years", "0.02", "--policy", "zeroth", "--out", "tuning"), None),
        (OWN, None),
        (TUNE, None),
    ],
    ids=[
        "evaluate deferral",
        "evaluate placement",
        "evaluate oversubscription",
        *(f"simulate {name}" for name in SIMULATE),
        "evaluate admission",
        "tune admission",
        "evaluate autoscaling",
        "tune autoscaling",
    ],
)
def test_a_plan_measures_a_few_cases_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, folder: Path, words: tuple[str, ...], cases: int | None
) -> None:
    monkeypatch.setattr("trainer.kit.jobs.PLAN_S", 0.0)
    answer = call(*words, *(() if "--json" in words else ("--json",)), "--plan", "--workers", "3")
    assert answer.exit_code == 0, answer.output
    plan = json.loads(answer.stdout)
    assert plan["cases"] == cases or cases is None
    assert plan["cases"] > plan["measured"] >= 1
    assert plan["cpu_hours"] > 0.0
    assert {1, 3} <= {one["workers"] for one in plan["shapes"]}
    walls = [one["wall_s"] for one in plan["shapes"]]
    assert walls == sorted(walls, reverse=True)
    assert {path.parent.name for path in folder.rglob("*") if path.is_file()} == {"two"}


def test_a_plan_leaves_out_finished_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        counted(patched, evaluation, "_play", 2)
        assert call(*EVALUATE).exit_code == 130
    plan = json.loads(call(*EVALUATE, "--plan").stdout)
    assert (plan["finished"], plan["cases"]) == (1, 3)


def test_resuming_a_command_that_was_not_stopped_is_reported() -> None:
    words = ("simulate", "deferral", "--scenario", "valley", "--policy", "fifo", "--seeds", "0")
    assert str(ANSWERS) not in call(*words).stderr
    assert str(ANSWERS) in call(*words, "--resume").stderr
