"""`trimtab evaluate admission` and `trimtab tune admission` as people and machines call them."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from trainer.admission.experiments import experiments_of
from trainer.admission.table import Cell, _weight

RUNNER = CliRunner()
SHORT = ("--runs", "4", "--years", "0.025", "--workers", "1", "--experiment", "ordering")


def call(*arguments: str) -> Result:
    return RUNNER.invoke(app, [*arguments])


@pytest.mark.exhaustive
def test_the_short_form_writes_a_report_with_the_numbers_of_its_json(tmp_path: Path) -> None:
    out = tmp_path / "found"
    answer = call("evaluate", "admission", "--preset", "K", *SHORT, "--out", str(out), "--json")
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    (ordering,) = data["experiments"]
    assert (ordering["name"], ordering["preset"]) == ("ordering", "K")
    assert {"zeroth", "first", "second"} == set(ordering["ladders"])
    figure = ordering["ladders"]["zeroth"][-1]
    assert (figure["policy"], figure["runs"], figure["seeds"]) == ("zeroth:20001", 4, [0, 3])
    assert len(figure["policy_hash"]) == 8
    metrics = {(gain["metric"], gain["sla"]) for gain in ordering["comparisons"][0]["gains"]}
    assert metrics == {(metric, sla) for metric in ("primary", "pooled") for sla in (1e-3, 3e-4, 1e-4)}
    assert json.loads((out / "summary.json").read_text()) == data
    page = (out / "report.html").read_text("utf-8")
    assert f"{figure['utilisation']['value']:.3f}" in page
    assert page.count("<svg") >= 3
    assert not re.search(r'(?:src|href)="(?!#)', page), "the page needs nothing beside it"
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert (out / "K-ordering-fronts.svg").read_text().startswith("<svg")

    kept = {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()}
    again = call("evaluate", "admission", "--preset", "K", *SHORT, "--out", str(out), "--json")
    assert json.loads(again.stdout) == data
    assert {file.name: file.stat().st_mtime_ns for file in (out / "runs").iterdir()} == kept

    other = call("evaluate", "admission", "--preset", "K", *SHORT[:2], "--years", "0.2", "--out", str(out))
    assert other.exit_code == 2
    assert "was 219.0, is 1752.0" in other.stderr.replace("\n", " ")


def test_a_plan_has_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Experiments share cells."""
    monkeypatch.setattr("trainer.kit.jobs.PLAN_S", 0.0)
    plans = []
    for names in (("ordering",), ("observations",), ("ordering", "observations")):
        words = [word for name in names for word in ("--experiment", name)]
        out = tmp_path / "none"
        years = ("--years", "0.02", "--runs", "5")
        answer = call("evaluate", "admission", "--preset", "K", *words, *years, "--plan", "--out", str(out), "--json")
        assert answer.exit_code == 0, answer.output
        assert not out.exists()
        plans.append(json.loads(answer.stdout))
    ordering, observations, both = plans
    cells = [
        {cell for one in experiments_of(names, "K", 1.0, ()) for cell in one.cells}
        for names in (["ordering"], ["observations"], ["ordering", "observations"])
    ]
    assert [plan["cases"] for plan in plans] == [len(each) for each in cells]
    assert both["cases"] < ordering["cases"] + observations["cases"]


def test_a_plan_weighs_rules_and_runs() -> None:
    zeroth, second = (Cell("K", text, 0) for text in ("zeroth:14000", "second:2.5"))
    assert _weight((second, [0])) > _weight((zeroth, [0]))
    assert _weight((zeroth, [0, 1])) == 2 * _weight((zeroth, [0]))


@pytest.mark.exhaustive
def test_tuning_tells_both_ways_of_keeping_the_promise(small: str, tmp_path: Path) -> None:
    arguments = ("--preset", small, "--policy", "zeroth", "--years", "0.2", "--runs", "10", "--final-runs", "20")
    answer = call("tune", "admission", *arguments, "--workers", "1", "--out", str(tmp_path / "kept"), "--json")
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    assert (data["sla"], data["metric"]) == (0.05, "primary")
    safe, average = data["choices"]
    assert (safe["wanted"], average["wanted"]) == ("safe", "average")
    assert safe["upper_90"] <= 0.05
    assert average["standing"]["primary"]["value"] <= 0.05
    assert average["standing"]["seeds"][0] == 500_000
    assert float(safe["policy"].partition(":")[2]) <= float(average["policy"].partition(":")[2])
    text = call("tune", "admission", *arguments, "--workers", "1", "--out", str(tmp_path / "kept"))
    assert safe["policy"] in text.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("evaluate", "admission", "--experiment", "weather", "--plan"),
        ("evaluate", "admission", "--years", "0"),
        ("tune", "admission", "--policy", "third"),
        ("tune", "admission", "--bracket", "one"),
        ("tune", "admission", "--metric", "mean"),
    ],
)
def test_mistakes_are_named_before_anything_is_played(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call(*arguments)
    assert answer.exit_code == 2
    assert list(tmp_path.iterdir()) == []
