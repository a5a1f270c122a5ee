"""`trimtab train autoscaling --form scorer`: from a command line to weights; wrong options are named."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from agent.commands.main import app
from trainer.autoscaling.scorer_runs import read_model, scorer_in

TINY = ("rounds=3+2", "explore=0.15+0.05", "most=10", "hidden=4", "networks=2", "batch=32", "selection=3")


def invoke(*arguments: str) -> Result:
    settings = [f"--set={setting}" for setting in TINY]
    return CliRunner().invoke(app, ["train", "autoscaling", "--form", "scorer", *settings, *arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of two finished runs."""
    place = tmp_path_factory.mktemp("scorers")
    found = invoke("--out", str(place), "--seeds", "0-1")
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert [line.split(",")[0] for line in lines[::2]] == ["seed 0", "seed 1"]
    assert "of the queue rule's cost on the selection" in lines[1]
    return place


@pytest.mark.exhaustive
def test_every_seed_leaves_weights_of_its_own(runs: Path) -> None:
    first, second = (scorer_in(runs / f"seed-{seed}") for seed in (0, 1))
    assert first.digest != second.digest
    assert first.recipe.rounds == (3, 2)
    assert first.figures["selection/fleets"] > 0.0


@pytest.mark.exhaustive
def test_a_finished_run_is_not_written_over_and_resuming_it_prints_its_figures(runs: Path) -> None:
    refused = invoke("--out", str(runs))
    assert refused.exit_code == 2
    assert "give --resume" in " ".join(refused.stderr.split())
    again = invoke("--out", str(runs), "--resume", "--json")
    assert again.exit_code == 0, again.output
    (run,) = json.loads(again.stdout)["runs"]
    assert run == json.loads((runs / "seed-0" / "run.json").read_text())
    assert run["weights_hash"] == scorer_in(runs / "seed-0").digest


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of ten hours."""
    path = tmp_path_factory.mktemp("log") / "jobs.csv"
    rng = np.random.default_rng(1)
    rows = zip(np.sort(rng.uniform(0.0, 36_000.0, 150)), rng.uniform(30.0, 600.0, 150), strict=True)
    path.write_text("arrival_s,service_s\n" + "".join(f"{at:.1f},{long:.1f}\n" for at, long in rows))
    return path


def test_fine_tuning_says_how_much_it_gains_how_sure_that_is_and_what_is_used(
    runs: Path, jobs: Path, tmp_path: Path
) -> None:
    found = CliRunner().invoke(
        app,
        [
            *("train", "autoscaling", "--from", str(runs / "seed-0"), "--world", "live-like", "--workload", str(jobs)),
            *("--set", "rounds=2+2", "--set", "most=10", "--out", str(tmp_path)),
        ],
    )
    assert found.exit_code == 0, found.output
    first, judged, costs, verdict = found.stdout.splitlines()
    assert ".onnx" in first
    assert re.search(r"6 windows, .* 4 later .*% sure", judged)
    assert "(horizon_s=" in costs
    run = json.loads((tmp_path / "seed-0" / "run.json").read_text())
    used = run["figures"]["own/used"] == 1.0
    assert ("holds the new weights" in verdict) == used
    assert ("the weights from before" in verdict) != used
    assert run["recipe"]["networks"] == 2
    assert run["recipe"]["hidden"] == 4
    kept = scorer_in(runs / "seed-0").digest
    assert (read_model(tmp_path / "seed-0" / run["model"]).digest == kept) != used


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "train-fit"], "--task is 'train-fit': it is for --form ppo: leave it out"),
        (["--network", "mlp"], "--network is 'mlp': it is for --form ppo"),
        (["--workers", "2"], "--workers is 2: it is for --form ppo"),
        (["--set", "round=3"], "--set is 'round=3': choose a field among rounds, explore"),
        (["--set", "rounds=3"], "explore is 2: give a share for each of the 1 rounds"),
        (["--set", "rate=0"], "rate is 0.0: give a number above 0"),
        (["--seed", "391"], "seed is 391: give a whole number in 0..390"),
        (["--world", "live-like"], "--world is 'live-like': give the loads of that world too, by --workload"),
        (["--from", "scorer"], "--from is 'scorer': give the loads of that world too, by --workload"),
        (["--from", "absent", "--workload", "nasa"], "--from is 'absent': give scorer, lstm, a FILE.onnx of a scorer"),
        (["--workload", "nasa", "--world", "mars"], "--world is 'mars'"),
        (["--workload", "nasa"], "give a longer log, or more of them"),
        (["--form", "ppo", "--jobs", "2"], "--jobs is 2: it is for --form scorer: leave it out"),
    ],
)
def test_a_wrong_option_is_named_with_what_to_give(arguments: list[str], words: str, tmp_path: Path) -> None:
    refused = invoke("--out", str(tmp_path / "out"), *arguments)
    assert refused.exit_code == 2, refused.output
    assert words in " ".join(refused.stderr.split())
    assert not (tmp_path / "out").exists()


def test_help_says_what_a_scorer_is_and_what_its_settings_are() -> None:
    text = CliRunner().invoke(app, ["train", "autoscaling", "--help"]).stdout
    for word in ("--form", "--jobs", "rounds, explore", "MODEL.onnx", "--form scorer --jobs 2"):
        assert word in text
