"""`trimtab evaluate autoscaling` as people and machines call it."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from tests.trainer.autoscaling.evaluation.reacting_model import reacting

RUNNER = CliRunner()
TWO = ("--policies", "rule=queue-rule", "--policies", "idle=nothing")
FEW = ("--traces", "T2", "--short", "--seeds", "1")


def evaluate(*arguments: str) -> Result:
    return RUNNER.invoke(app, ["evaluate", "autoscaling", *arguments])


def test_it_prints_a_table_per_family_with_the_comparison() -> None:
    answer = evaluate(*TWO, *FEW)
    assert answer.exit_code == 0, answer.output
    lines = answer.stdout.splitlines()
    assert lines[0] == "T2 (1 case)"
    assert "reference" in next(line for line in lines if "rule" in line)
    assert re.search(r"\d %  ", next(line for line in lines if line.startswith("  idle "))), "one case has no interval"
    assert "T2 has 1 case" in answer.stdout


def test_json_holds_the_standings_the_verdicts_and_nothing_else_on_standard_output() -> None:
    data = json.loads(evaluate(*TWO, *FEW, "--json").stdout)
    assert [s["policy"] for s in data["standings"]] == ["rule", "idle"]
    assert data["reference"] == "rule"
    assert data["standings"][1]["against"]["relative"]["mean"] != 0.0
    assert [v["policy"] for v in data["verdicts"]] == ["rule", "idle"]


def test_results_are_kept_and_only_gone_on_with_when_asked(tmp_path: Path) -> None:
    file = str(tmp_path / "rows.csv")
    first = evaluate(*TWO, *FEW, "--results", file, "--json")
    assert first.exit_code == 0, first.output
    refused = evaluate(*TWO, *FEW, "--results", file)
    assert refused.exit_code == 2
    assert "--resume" in refused.stderr
    again = evaluate(*TWO, *FEW, "--results", file, "--resume", "--json")
    assert again.stdout == first.stdout


def test_the_report_is_written_with_a_model_and_its_importance(tmp_path: Path) -> None:
    model, out = reacting(tmp_path, 5), tmp_path / "report.html"
    answer = evaluate("--importance", str(model), "--repeats", "2", *FEW, "--out", str(out))
    assert answer.exit_code == 0, answer.output
    assert "wait_global" in answer.stdout
    assert f"inputs of {model.name[:12]}" in out.read_text("utf-8")


@pytest.mark.exhaustive
def test_a_whole_report_of_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"queue rule": [f"queue-rule:horizon_s={h}" for h in (60, 600)]}
    monkeypatch.setattr("trainer.autoscaling.evaluation.report.settings", lambda case: few)
    monkeypatch.setattr("trainer.autoscaling.evaluation.report.settings", lambda case: few)
    out = tmp_path / "report.html"
    answer = evaluate("--traces", "T2", "--short", "--seeds", "1", "--out", str(out))
    assert answer.exit_code == 0, answer.output
    text = out.read_text("utf-8")
    assert "Cost against delay" in text
    assert "queue rule, one action" in text
    assert text.count("<svg") == 4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--traces", "T9"), "T1, T2, T3, T4, T5, T6"),
        (("--world", "mars"), "live-like, training"),
        (("--policies", "magic", "--traces", "T1"), "queue-rule"),
        (("--out", "report.pdf"), ".html"),
        (("--out", "nowhere/report.html"), "a folder that exists"),
        (("--policies", "none.onnx", "--traces", "T1"), "none.onnx"),
        (("--policies", "constant:1,1", "--traces", "T1", "--short"), "none of them runs"),
        (("--policies", "nothing", "--against", "other", "--traces", "T2", "--short", "--seeds", "1"), "choose one of"),
    ],
)
def test_a_mistake_is_one_message_and_status_2(arguments: tuple[str, ...], named: str) -> None:
    answer = evaluate(*arguments)
    assert answer.exit_code == 2
    error = answer.stderr.splitlines()[-1]
    assert (error.startswith("error: "), named in error, answer.stdout) == (True, True, ""), "progress comes before"
