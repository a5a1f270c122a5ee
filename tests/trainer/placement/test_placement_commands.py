"""`trimtab train placement` and `trimtab evaluate placement`, as people call them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from simulator.placement import instances
from simulator.placement.instances import write_instance

SHORT = ["--population", "4", "--iterations", "2", "--sequences", "2"]


def called(*words: str) -> Any:
    """Run the program and return what it prints as JSON; errors are raised."""
    found = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_policy_is_trained_on_a_file_and_evaluated_on_it(tmp_path: Path) -> None:
    """Then evaluated by its file and with all seeds of the training, and reported."""
    file, out = tmp_path / "mine.json", tmp_path / "out"
    write_instance(instances.small(5), file)
    found = called("train", "placement", "--instance", str(file), "--seed", "3", *SHORT, "--out", str(out))
    assert found["seeds"] == [3]
    assert (out / "policy.json").is_file()
    data = called(
        *("evaluate", "placement", "--instance", str(file), "--policies", f"best={out / 'policy.json'}"),
        *("--runs", f"mine={out}", "--shuffles", "3", "--no-hand", "--out", str(tmp_path / "report")),
    )
    (one,) = data["evaluations"]
    hosts = {policy["policy"]: policy["mean"] for policy in one["policies"]}
    assert {"best", "mine seed 3", "BF"} <= set(hosts)
    assert hosts["best"] == hosts["mine seed 3"]
    assert one["seeds"]["mine"] == [hosts["best"], 0.0]
    assert all(Path(name).is_file() for name in data["files"])
    assert "seeds 3" in (tmp_path / "report" / "report.html").read_text("utf-8")


def test_a_seed_of_the_command_line_goes_before_the_seeds_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('version = 1\ndecision = "placement"\n[options]\ninstance = ["small-5"]\nseeds = "0-1"\n')
    config = ["train", "placement", "--config", str(file), *SHORT, "--out"]
    assert called(*config, str(tmp_path / "file"))["seeds"] == [0, 1]
    assert called(*config, str(tmp_path / "line"), "--seed", "3")["seeds"] == [3]


def test_a_search_does_not_load_torch() -> None:
    loaded = "import sys, trainer.placement.runs; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0


def test_a_front_is_written_with_its_picture(tmp_path: Path) -> None:
    called("train", "placement", "--instance", "small-5", "--front", *SHORT, "--out", str(tmp_path))
    data = json.loads((tmp_path / "front.json").read_text("utf-8"))
    assert data["objectives"][:3] == ["hosts", "imbalance", "concentration"]
    assert set(data["fixed"]) == {"BF", "DP", "WF", "RESERVE(100, 8, 10)"}
    assert (tmp_path / "front.svg").read_text("utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["train", "placement", "--instance", "huge-1"], "instance"),
        (["train", "placement", "--method", "annealing"], "method"),
        (["train", "placement", "--family", "bf"], "family"),
        (["train", "placement", "--rho", "-1"], "rho"),
        (["train", "placement", "--seed", "1", "--seeds", "0-4"], "--seeds"),
        (["train", "placement", "--front", "--method", "cmaes", "--out", "OUT"], "--front"),
        (["evaluate", "placement", "--policies", "mine"], "--policies"),
        (["evaluate", "placement", "--policies", "mine=none.json"], "--policies"),
        (["evaluate", "placement", "--runs", "mine=OUT"], "--runs"),
        (["tune", "placement"], "DECISION"),
    ],
)
def test_a_wrong_call_names_its_option_and_the_remedy(words: list[str], field: str, tmp_path: Path) -> None:
    words = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    found = CliRunner().invoke(app, [word.replace("OUT", str(tmp_path)) for word in words])
    assert found.exit_code != 0
    assert found.output.startswith(f"error: {field} is ")
    assert "Traceback" not in found.output
