"""`trimtab evaluate deferral`, as people call it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from tests.architecture.product import ROOT
from trainer.deferral import report


def called(*words: str) -> Any:
    """Run the program and return what it prints as JSON; errors are raised."""
    found = CliRunner().invoke(app, ["evaluate", "deferral", *words, "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_parameters_of_a_file_are_played_and_reported(tmp_path: Path) -> None:
    """A drop at another hour and of another depth, which no scenario has."""
    file, out = tmp_path / "mine.toml", tmp_path / "out"
    file.write_text("steps = 8\ndrop_p = 0.9\ndrop_hour = 15\ndrop_frac = 0.3\n", "utf-8")
    data = called(
        *("--scenario", str(file), "--seeds", "3", "--policies", "low=rolling:quantile=0.1", "--out", str(out))
    )
    (one,) = data["evaluations"]
    totals = {policy["policy"]: policy["total"] for policy in one["policies"]}
    assert {"low", "rolling", "fifo:skip", "optimum"} <= set(totals)
    assert max(totals.values()) == totals["optimum"]
    assert one["scenario"] == "mine"
    covered = one["coverage"]["at_or_below"]
    assert all(row[:3] == [share for share in row if share is not None] for row in covered), "8 steps have no ninth"
    assert all(Path(name).is_file() for name in data["files"])


def test_a_trace_is_played_with_a_forecast_of_its_other_weeks() -> None:
    log = ROOT / "benchmarks" / "logs" / "NASA-iPSC-1993-3.1-cln.swf.gz"
    (one,) = called("--trace", f"azure_like,{log}", "--seeds", "0")["evaluations"]
    assert one["scenario"] == f"azure_like,{log.name}"
    assert all(policy["share_of_optimum"] <= 1.0 for policy in one["policies"])


def test_the_runs_of_a_training_get_the_names_of_the_paper(tmp_path: Path) -> None:
    """As published, a model is played as the paper decodes it and as its card says; what has no file is read."""
    for place, method, model in (("full-paper", "full", "m.onnx"), ("full-imitation", "full", "m.onnx"),
                                 ("mlp-paper", "mlp", None)):  # fmt: skip
        folder = tmp_path / place / "seed-0"
        folder.mkdir(parents=True)
        means = {"utilisation": 1.0, "delay_charge": 0.0, "total": 1.0}
        run = {"config": {"method": method}, "model": model, "reports": {"valley": {"prefix": means}}}
        (folder / "run.json").write_text(json.dumps(run), "utf-8")
    pairs, recorded = report.trained_in([str(tmp_path)])
    labels = [(label, text.partition(".onnx")[2]) for label, text in pairs]
    assert labels == [
        ("full-imitation:prefix", ":prefix"), ("full-imitation", ""), ("OSDEC", ":prefix"), ("full-paper", "")
    ]  # fmt: skip
    assert [(one.label, one.means["valley"]["total"]) for one in recorded] == [("PPO-MLP", 1.0)]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["--scenario", "hills"], "scenario"),
        (["--scenario", "none.toml"], "file"),
        (["--seeds", "x"], "--seeds"),
        (["--policies", "rolling"], "--policies"),
        (["--policies", "mine=lifo"], "policy"),
        (["--policies", "fifo=sjf"], "label"),
        (["--runs", "nowhere"], "--runs"),
        (["--trace", "azure_like"], "--trace"),
        (["--out", __file__], "--out"),
    ],
)
def test_a_wrong_call_names_its_option_and_the_remedy(words: list[str], field: str) -> None:
    found = CliRunner().invoke(app, ["evaluate", "deferral", *words])
    assert found.exit_code != 0
    assert found.output.startswith(f"error: {field} is ")
    assert "Traceback" not in found.output
