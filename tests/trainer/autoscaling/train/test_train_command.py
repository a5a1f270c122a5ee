"""`trimtab train`: from a command line to a model file; wrong options are named, a run is never written over."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from agent.commands.main import app
from agent.models.file import load_model
from tests.trainer.autoscaling.train.tiny_run import options
from trainer.autoscaling.policies import run_policy
from trainer.autoscaling.policy_names import policy_of
from trainer.autoscaling.ppo_runs import baseline_costs, baselines_of, reported
from trainer.autoscaling.tasks import TASKS


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def data(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run."""
    place = tmp_path_factory.mktemp("trained")
    data(invoke(*options("--out", str(place), "--json")))
    return place


def test_a_run_leaves_a_model_that_the_agent_accepts_with_what_it_was_trained_by(trained: Path) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    (variant,) = summary["variants"]
    run = json.loads((trained / "seed-0" / "run.json").read_text())
    model = load_model(trained / variant["best"]["model"])
    assert model.name == Path(run["model"]).stem
    assert model.card.training is not None
    assert model.card.evaluation is not None
    assert model.card.training["config"] == run["config"]
    assert model.card.training["seed"] == 0
    assert list(model.card.training["traces"]["digests"]) == ["train-fit"]
    assert model.card.evaluation["cost"] == run["report"]["cost"] == variant["mean"]
    assert model.card.evaluation["selection_cost"] == run["selection_cost"]
    assert (trained / "curves.svg").read_text().startswith("<?xml")
    assert set(variant["goals"]) == set(baselines_of("train-fit"))


def test_the_reported_cost_is_what_the_file_costs_in_the_plain_simulator(trained: Path) -> None:
    run = json.loads((trained / "seed-0" / "run.json").read_text())
    episodes = reported("train-fit", 3)
    policy = policy_of(str(trained / "seed-0" / run["model"]))
    costs = [
        run_policy(policy, episodes.world, trace, seed).cost
        for trace, seed in zip(episodes.traces, episodes.seeds, strict=True)
    ]
    assert run["report"]["episodes"] == 3
    assert sum(costs) / 3 == pytest.approx(run["report"]["cost"], abs=1e-9)


def test_a_run_says_what_it_does_from_its_start_to_its_end_and_keeps_that_as_a_log(tmp_path: Path) -> None:
    """2048 steps are eight updates of 256; 2000 are too, and no line says more than all of them."""
    # The last --steps given is the one that counts.
    answer = invoke(*options("--out", str(tmp_path / "run"), "--steps", "2000"))
    assert answer.exit_code == 0, answer.output
    said = answer.stderr.splitlines()
    assert [line.partition(":")[0] for line in said[:2]] == [
        "train autoscaling",
        "measuring the baselines on 3 episodes ...",
    ]
    begun = [line.partition(": ")[2].split(",")[0] for line in said[2:5]]
    assert begun == ["compiling", "gathering 256 steps", "256 of 2"]
    assert "(100 %)" in said[-1]
    assert "2,048 of 2,048 steps" in said[-1]
    log = (tmp_path / "run" / "seed-0" / "train.log").read_text("utf-8").splitlines()
    assert [line.partition(" ")[2] for line in log] == said[2:]


def test_a_runs_configuration_is_one_file_that_repeats_it(trained: Path, tmp_path: Path) -> None:
    """Its --out has it; what is given beside it goes before."""
    written = (trained / "run.toml").read_text("utf-8")
    fields = tomllib.loads(written)["settings"]
    known = json.loads((trained / "seed-0" / "run.json").read_text("utf-8"))["config"]
    assert fields.keys() == known.keys() - {"task", "seed", "workers", "device"}
    again = data(
        invoke("train", "autoscaling", "--config", str(trained / "run.toml"), "--out", str(tmp_path / "a"), "--json")
    )
    assert again["runs"][0]["weights_hash"] == json.loads((trained / "seed-0" / "run.json").read_text())["weights_hash"]
    assert (tmp_path / "a" / "run.toml").read_text("utf-8") == written
    other = ("--set", "hidden=4", "--steps", "512", "--episodes", "1", "--out", str(tmp_path / "b"), "--json")
    config = data(invoke("train", "autoscaling", "--config", str(trained / "run.toml"), *other))["runs"][0]["config"]
    assert (config["hidden"], config["total_steps"], config["environments"]) == (4, 512, 8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = 1\ndecision = 'deferral'\n", 'decision = "autoscaling"'),
        ("version = 1\ndecision = 'autoscaling'\n[options]\nout = 'x'\n", "run.toml: options.out is 'x': choose among"),
        ("version = 1\ndecision = 'autoscaling'\n[settings]\nepoch = 1\n", "--set is 'epoch=1': choose a field among"),
        ("version = ", "give a run.toml that `train` wrote"),
    ],
)
def test_a_wrong_configuration_file_is_refused_by_name(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text, "utf-8")
    refused = invoke("train", "autoscaling", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"))
    assert (refused.exit_code, words in " ".join(refused.stderr.split())) == (2, True), refused.stderr


def test_a_directory_with_a_run_is_not_written_over(trained: Path) -> None:
    refused = invoke(*options("--out", str(trained)))
    assert refused.exit_code == 2
    assert "give --resume" in " ".join(refused.stderr.split())


def test_resuming_with_other_settings_lists_the_differences(trained: Path) -> None:
    refused = invoke(*options("--out", str(trained), "--resume", "--set", "gamma=0.5", "--network", "mlp"))
    assert refused.exit_code == 2
    for part in ("network: saved 'lstm', given 'mlp'", "gamma: saved 0.98, given 0.5"):
        assert part in " ".join(refused.stderr.split())


def test_export_writes_the_same_file_as_the_run_did(trained: Path, tmp_path: Path) -> None:
    run = json.loads((trained / "seed-0" / "run.json").read_text())
    seen = data(invoke("train", "export", str(trained / "seed-0"), "--out", str(tmp_path), "--episodes", "3", "--json"))
    assert seen["model"] == run["model"]
    assert seen["report"] == run["report"]
    written = (tmp_path / run["model"]).read_bytes()
    assert written == (trained / "seed-0" / run["model"]).read_bytes()


def test_a_changed_checkpoint_is_refused_by_the_name_of_the_file(trained: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(trained / "seed-0" / "checkpoints", place)
    for state in place.glob("*/state.npz"):
        state.write_bytes(state.read_bytes()[:-1])
    refused = invoke("train", "export", str(place))
    assert refused.exit_code == 2
    assert "state.npz" in refused.stderr
    assert "cut or changed" in " ".join(refused.stderr.split())


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_seeds_and_sweeps_make_a_run_each_with_a_summary_per_variant(tmp_path: Path) -> None:
    place = str(tmp_path / "grid")
    arguments = options("--out", place, "--seeds", "0-1", "--sweep", "network=mlp,lstm", "--at-once", "2", "--json")
    seen = data(invoke(*arguments))
    assert [variant["variant"] for variant in seen["variants"]] == ["network=mlp", "network=lstm"]
    assert [(run["config"]["network"], run["config"]["seed"]) for run in seen["runs"]] == [
        ("mlp", 0),
        ("mlp", 1),
        ("lstm", 0),
        ("lstm", 1),
    ]
    for variant in seen["variants"]:
        assert (tmp_path / "grid" / variant["curves"]).exists()
        assert (tmp_path / "grid" / variant["best"]["model"]).exists()
        assert list(variant["costs"]) == ["seed 0", "seed 1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "train-fat"], "task is 'train-fat': choose one of train-text, train-fit"),
        (["--preset", "best"], "preset is 'best': choose one of default, ppo-lstm-published"),
        (["--network", "rnn"], "--network network is 'rnn': choose one of lstm, mlp"),
        (["--actions", "act-9"], "action_set is 'act-9': choose one of act-7, act-multi"),
        (["--steps", "many"], "--steps total_steps is 'many': give a number"),
        (["--steps", "0"], "total_steps is 0: give a number above 0"),
        (["--set", "epochs=1.5"], "--set epochs is '1.5': give a whole number"),
        (["--set", "masked=perhaps"], "--set masked is 'perhaps': give true or false"),
        (["--set", "epoch=3"], "--set is 'epoch=3': choose a field among task, seed, total_steps"),
        (["--set", "epochs"], "--set is 'epochs': give FIELD=VALUE"),
        (["--seeds", "1-"], "--seeds is '1-': give whole numbers and ranges"),
        (["--sweep", "seed=1,2"], "--sweep is 'seed': give seeds by --seeds"),
        (["--workers", "3"], "environments is 512: give a multiple of workers x minibatches"),
    ],
)
def test_a_wrong_option_is_named_with_what_to_give(arguments: list[str], words: str, tmp_path: Path) -> None:
    refused = invoke("train", "autoscaling", "--out", str(tmp_path / "out"), *arguments)
    assert refused.exit_code == 2
    assert words in " ".join(refused.stderr.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("task", "costs"),
    [
        ("train-text", {"best constant fleet": 22.14, "threshold, tuned": 22.77, "queue rule, multi": 19.97}),
        ("train-fit", {"best constant fleet": 6.615, "threshold, tuned": 7.95, "queue rule, multi": 5.83}),
    ],
)
def test_the_goals_of_the_fixed_traces_are_what_tuning_found(task: str, costs: dict[str, float]) -> None:
    """Autoscaler specification §18 and `trimtab tune autoscaling`, boot drawn from 45 to 97 s."""
    found = baseline_costs(task, reported(task, 4))
    assert {name: found[name] for name in costs} == pytest.approx(costs, rel=0.03)


@pytest.mark.exhaustive
@pytest.mark.parametrize("task", list(TASKS)[2:])
def test_every_task_has_goals(task: str) -> None:
    names = list(baselines_of(task))
    assert [name for name in names if name != "best constant fleet"] == [
        "threshold, tuned",
        "queue rule, one action",
        "queue rule, multi",
    ]
