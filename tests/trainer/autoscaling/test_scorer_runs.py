"""A run of a scorer that was stopped at any moment goes on, and ends with the weights it would have had."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domain.errors import BadInput
from simulator.autoscaling.world_file import preset
from trainer.autoscaling import scorer
from trainer.autoscaling.lessons import Map, suite_lessons
from trainer.autoscaling.scorer import HELD_OUT, MOST_SEED, Part, Plan, Recipe, Samples, Scorer
from trainer.autoscaling.scorer_runs import RECIPE_FILE, SAMPLES_FOLDER, read_model, run, scorer_in, scorer_named
from trainer.kit.checkpoint import OtherConfiguration
from trainer.kit.files import ROOT
from trainer.kit.jobs import Workers
from trainer.kit.progress import CURVE_FILE, Listener, Progress, read_curve

LESSONS = partial(suite_lessons, world=preset("live-like"))
TINY = Recipe(rounds=(3, 2), explore=(0.15, 0.05), most=15, hidden=8, networks=2, groups=2, batch=32, selection=3)


def same(trained: Scorer, spread: Map) -> Scorer:
    """Choose a margin without playing."""
    return replace(trained, margin=1.0, figures={**trained.figures, HELD_OUT: 0.99})


def spreading(trained: Scorer, spread: Map) -> Scorer:
    """Conclude with some work that may be done by other processes."""
    assert list(spread(abs, range(-4, 0))) == [4, 3, 2, 1]
    return trained


def plan(seed: int = 0, recipe: Recipe = TINY) -> Plan:
    return Plan(recipe, seed, LESSONS, {"kind": "suite"}, same)


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Which network learns from which lessons depends on it: it is small for every run here."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scorer, "PART", 1)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that nothing stopped."""
    place = tmp_path_factory.mktemp("whole")
    run(plan(), place)
    return place


def test_a_run_gives_what_its_recipe_says(whole: Path) -> None:
    ours = scorer_in(whole)
    assert ours.recipe == TINY
    assert ours.figures[HELD_OUT] == 0.99
    assert (ours.margin, ours.idle_limit_min, ours.seed) == (1.0, 8.0, 0)


def model_in(place: Path) -> bytes:
    """The model file of a finished run."""
    (path,) = place.glob("*.onnx")
    return path.read_bytes()


def test_a_run_leaves_what_it_depends_on_its_figures_and_its_curve(whole: Path) -> None:
    facts, summary = (json.loads((whole / name).read_text()) for name in (RECIPE_FILE, "run.json"))
    assert facts["form"] == "scorer"
    assert facts["recipe"]["rounds"] == [3, 2]
    assert len(facts["code"]) == 12
    assert {name: summary[name] for name in facts} == facts
    model = read_model(whole / summary["model"])
    assert model.digest == summary["weights_hash"]
    assert model.figures == summary["figures"]
    assert summary["weights_hash"] == scorer_in(whole).digest
    assert summary["cpu_s"] > 0.0
    assert summary["figures"]["branched_minutes"] > 0
    rows = read_curve(whole / CURVE_FILE)
    assert [float(row["lessons"]) for row in rows][-1] == 5.0
    assert float(rows[-1]["share"]) == 1.0
    assert not (whole / SAMPLES_FOLDER).exists()


class Stopped(BaseException):
    """What ends a run in the middle, as a signal would."""


@pytest.mark.parametrize("lessons", [1, 3, 4])
def test_a_run_stopped_within_a_round_or_between_two_ends_with_the_same_weights(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lessons: int
) -> None:
    played: list[int] = []

    def stopping(part: Part) -> Samples:
        if len(played) == lessons:
            raise Stopped
        played.append(1)
        return play(part)

    play = Part.play
    with monkeypatch.context() as patched:
        patched.setattr(Part, "play", stopping)
        with pytest.raises(Stopped):
            run(plan(), tmp_path)
    assert len(list((tmp_path / SAMPLES_FOLDER).glob("*.npz"))) == lessons
    run(plan(), tmp_path, resume=True)
    assert model_in(tmp_path) == model_in(whole)


def test_lessons_that_were_played_are_not_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path
) -> None:
    def failing(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(scorer, "fit_seed", failing)
        with pytest.raises(Stopped):
            run(plan(), tmp_path)
    kept = {path.name: path.read_bytes() for path in (tmp_path / SAMPLES_FOLDER).iterdir()}
    assert sorted(kept) == ["000000.npz", "000001.npz", "000002.npz"]
    (tmp_path / SAMPLES_FOLDER / "000001.npz").write_bytes(kept["000001.npz"][:100])
    played: list[int] = []

    def counting(part: Part) -> Samples:
        played.append(part.first)
        return play(part)

    play = Part.play
    monkeypatch.setattr(Part, "play", counting)
    run(plan(), tmp_path, resume=True)
    assert played == [1, 3, 4], "the damaged part, and those of the second round"
    assert model_in(tmp_path) == model_in(whole)


def test_weights_are_found_by_the_run_its_parent_or_its_files(whole: Path, tmp_path: Path) -> None:
    model = json.loads((whole / "run.json").read_text())["model"]
    (tmp_path / "seed-0").symlink_to(whole)
    texts = (whole, whole / model, tmp_path)
    assert len({scorer_named(str(text)).digest for text in texts}) == 1
    with pytest.raises(BadInput, match=r"a FILE\.onnx of a scorer"):
        scorer_named(str(tmp_path / "absent"))


def test_a_directory_with_a_run_is_refused_without_resume_and_with_another_plan(whole: Path) -> None:
    with pytest.raises(BadInput, match="give --resume"):
        run(plan(), whole)
    with pytest.raises(OtherConfiguration) as refused:
        run(plan(1, replace(TINY, hidden=9)), whole, resume=True)
    assert [name for name, _, _ in refused.value.differences] == ["recipe.hidden", "seed"]


def test_a_run_of_other_code_is_not_gone_on_with(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorer, "code_version", lambda sources: "another")
    with pytest.raises(OtherConfiguration, match="code"):
        run(plan(), whole, resume=True)


def test_every_source_of_the_code_s_version_exists() -> None:
    assert all((ROOT / source).exists() for source in scorer.SOURCES)


def test_a_finished_run_asked_again_changes_nothing(whole: Path) -> None:
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    run(plan(), whole, resume=True)
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before
    # As a version without the field `device` wrote it.
    saved = json.loads(before[RECIPE_FILE])
    del saved["recipe"]["device"]
    (whole / RECIPE_FILE).write_text(json.dumps(saved))
    run(plan(), whole, resume=True)
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


def test_lines_say_how_much_is_done_and_how_long_the_rest_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(plan(), tmp_path, show="lines")
    lines = capsys.readouterr().err.splitlines()
    assert any("round 1 of 2" in line and line.endswith("left") for line in lines)
    assert lines[0].endswith("playing the first lessons")
    assert " %)" in lines[1]
    assert "margin 1" in lines[-2]
    assert "(100 %)" in lines[-1]
    assert "cost 0.99" in lines[-1]


def test_a_bar_moves_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[float] = []

    class Recorder(Listener):
        def __call__(self, progress: Progress) -> None:
            moved.append(round(progress.steps / progress.whole_steps, 3))

    monkeypatch.setattr(scorer, "on_screen", lambda *_: [Recorder()])
    run(replace(plan(), conclude=spreading), tmp_path, show="bar")
    assert moved == sorted(moved)
    assert moved[-1] == 1.0
    assert len(set(moved)) > 10


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": ()}, "rounds is '': give the episodes of each round"),
        ({"rounds": (9000, 2000)}, "rounds is 11000: give at most 10000"),
        ({"explore": (0.1,)}, "explore is 1: give a share for each of the 2 rounds"),
        ({"explore": (0.1, 1.1)}, "give shares in 0..1"),
        ({"hidden": 0}, "hidden is 0: give a number above 0"),
        ({"margin": -1.0}, "margin is -1.0: give a number of 0 or more"),
        ({"networks": 99}, "networks is 99: give fewer than 99"),
    ],
)
def test_a_wrong_recipe_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        replace(TINY, **changes)
    assert words in str(refused.value)


def test_a_seed_whose_lessons_are_kept_for_reports_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="seed is 391"):
        run(plan(MOST_SEED + 1), tmp_path)


@pytest.mark.parametrize("content", ["", "{", '{"form": "ppo"}'])
def test_a_directory_without_a_finished_scorer_is_refused_by_its_name(tmp_path: Path, content: str) -> None:
    with pytest.raises(BadInput, match="of a finished run"):
        scorer_in(tmp_path)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(BadInput, match=r"run\.json"):
        scorer_in(tmp_path)


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_several_processes_train_what_one_trains(whole: Path, tmp_path: Path) -> None:
    run(plan(), tmp_path, workers=Workers(2))
    assert model_in(tmp_path) == model_in(whole)


KILLED = """
from pathlib import Path
from typing import Any
import sys
from tests.trainer.autoscaling.test_scorer_runs import plan
from trainer.autoscaling import scorer, scorer_runs
scorer.PART = 1
scorer_runs.run(plan(), Path(sys.argv[1]), resume=True)
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_a_run_that_was_killed_goes_on(whole: Path, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    while len(list((tmp_path / SAMPLES_FOLDER).glob("0*.npz"))) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert run(plan(), tmp_path, resume=True).low.dtype == np.float32
    assert model_in(tmp_path) == model_in(whole)
