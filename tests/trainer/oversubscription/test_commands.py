"""`trimtab tune|train|evaluate oversubscription` as a user calls them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from trainer.oversubscription.evaluation import (
    LEFT_OUT,
    OWN,
    PERSISTENT,
    SHIFTED,
    UNSEEN,
    Evaluation,
    Extent,
    Row,
    checks_of,
)

RUN = CliRunner()


def call(*words: str) -> dict[str, Any]:
    """Return what a verb answers as JSON."""
    result = RUN.invoke(app, [*words, "--json"])
    assert result.exit_code in (0, 1), result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_a_static_search_writes_rates_that_the_simulator_plays(tmp_path: Path) -> None:
    out = str(tmp_path / "static")
    found = call(
        "tune",
        "oversubscription",
        "--scenario",
        "azure_like",
        "--method",
        "static",
        "--evaluations",
        "60",
        "--out",
        out,
    )
    assert found["feasible"] is True
    assert found["calibration"]["c_hot_r_assessed"]["s0"] <= 0.05
    file = str(Path(out) / "rates.json")
    played = call("simulate", "oversubscription", "--scenario", "azure_like", "--policy", file, "--episodes", "100")
    assert played["s_cores"] == pytest.approx(found["calibration"]["s_cores"]["s0"])


@pytest.mark.exhaustive
def test_a_learned_policy_is_written_played_and_not_trained_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.oversubscription.runs.REPORT_EPISODES", 40)
    monkeypatch.setattr("trainer.oversubscription.runs.UNSEEN_EPISODES", 20)
    out = tmp_path / "learned"
    words = ("train", "oversubscription", "--method", "vdn", "--preset", "paper", "--episodes", "2", "--out", str(out))
    settings = ("--set", "updates=2", "--set", "hidden=8", "--set", "evaluate_every=1")
    found = call(*words, *settings)
    assert found["seeds"] == [0]
    (model,) = found["models"]
    played = call("simulate", "oversubscription", "--policy", str(out / model), "--episodes", "20")
    run = json.loads((out / "seed-0" / "run.json").read_text())
    same = ("s_cores", "c_hot_r_analytic", "peak_machines", "mean_rates")
    assert {name: played[name] for name in same} == {name: run["reports"][0][name] for name in same}
    assert [week["week"] for week in run["unseen"]] == [f"unseen{i}" for i in range(8)]
    assert found["unseen"]["c_hot_r_worst"] == [max(week["c_hot_r"] for week in run["unseen"])]
    behind = run["shield"]
    assert behind["worst"] <= 0.03
    assert found["shield_budgets"] == [behind["budget"]]
    policy = f"shield:base={out / model},b={behind['budget']}"
    shielded = call("simulate", "oversubscription", "--policy", policy, "--episodes", "20")
    assert {name: shielded[name] for name in same} == {name: behind["reports"][0][name] for name in same}
    observed = ("simulate", "oversubscription", "--policy", f"shield:base={out / model},posterior=yes")
    assert call(*observed, "--episodes", "11", "--workers", "2") == call(*observed, "--episodes", "11")
    assert (out / "seed-0" / "curve.csv").is_file()
    assert "internal_like, cold" in (out / "curves.svg").read_text()
    assert list((out / "seed-0" / "tensorboard").iterdir())
    again = RUN.invoke(app, [*words, *settings])
    assert again.exit_code == 2
    assert "--resume" in again.output


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "oversubscription", "--method", "guess"),
        ("tune", "oversubscription", "--alpha", "1"),
        ("tune", "oversubscription", "--shield", "strong"),
        ("evaluate", "oversubscription", "--measured", "nowhere.parquet"),
        ("train", "oversubscription", "--method", "vdn", "--set", "gama=1"),
        ("evaluate", "oversubscription", "--start", "hot"),
        ("evaluate", "oversubscription", "--policies", "rates.json"),
        ("evaluate", "oversubscription", "--runs", "a=nowhere"),
    ],
)
def test_wrong_words_are_refused_before_anything_runs(words: tuple[str, ...]) -> None:
    assert RUN.invoke(app, list(words)).exit_code == 2


@pytest.mark.parametrize(
    "words", [("--objective", "cores"), ("--preset", "machine", "--episodes", "2"), ("--seeds", "one")]
)
def test_options_of_another_preset_and_wrong_seeds_are_refused_before_torch_is_loaded(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loading(*given: object) -> None:
        raise AssertionError(given)

    monkeypatch.setattr("trainer.kit.progress.announce", loading)
    assert RUN.invoke(app, ["train", "oversubscription", *words]).exit_code == 2


def row(label: str, kind: str = OWN, **figures: float) -> Row:
    """Return a row of an evaluation."""
    usual: Row = {"s_cores": 0.5, "s_core_hours": 0.4, "peak_machines": 60.0, "episodes": 300}
    usual |= {"c_hot_r": 0.01, "c_hot_r_upper_95": 0.02}
    named: Row = {"label": label, "kind": kind, "week": "s0" if kind == OWN else "unseen0"}
    return named | usual | figures


def evaluation(**changes: list[Row]) -> Evaluation:
    """Return an evaluation in which everything is as asked, apart from changed rows by label."""
    rows = [
        *(row(label, c_hot_r=1.0) for label in ("Grid-0.2", "Grid-0.4")),
        *(row(label, c_hot_r=0.0, s_cores=0.45) for label in ("Grid-0.6", "MA", "SL", "No-oversub")),
        row("static 0.75", s_cores=0.56, c_hot_r=0.24),
        row("static 0.85", s_cores=0.55, c_hot_r=0.14),
        row("static 0.95", s_cores=0.53, c_hot_r=0.04),
        row("calibrated 0.95", s_cores=0.52),
        *(row("calibrated 0.95", UNSEEN, s_cores=0.52, c_hot_r=risk) for risk in (0.02, 0.04)),
    ]
    kept = [one for one in rows if one["label"] not in changes]
    rows = [*kept, *(one for own in changes.values() for one in own)]
    points = [{"predicted": 0.1, "realised": 0.12, "unseen": True}]
    return Evaluation("internal_like", "cold", rows, points, {}, Extent(), packaged=True)


def missed(done: Evaluation) -> list[str]:
    """Return the keys of the checks that are not kept."""
    return [check.key for check in checks_of(done) if not check.kept]


def test_nothing_is_missed_where_everything_is_as_asked() -> None:
    assert missed(evaluation()) == []


def test_each_figure_that_falls_short_is_a_miss() -> None:
    poor = [row("calibrated 0.95", s_cores=0.49), row("calibrated 0.95", UNSEEN, s_cores=0.52)]
    assert missed(evaluation(**{"calibrated 0.95": poor})) == ["B2"]
    worst = [row("calibrated 0.95", s_cores=0.52), row("calibrated 0.95", UNSEEN, s_cores=0.52, c_hot_r=0.11)]
    assert missed(evaluation(**{"calibrated 0.95": worst})) == ["B5"]
    assert missed(evaluation(**{"static 0.95": [row("static 0.95", s_cores=0.51)]})) == ["B3"]
    assert missed(evaluation(**{"static 0.85": [row("static 0.85", s_cores=0.55, c_hot_r=0.16)]})) == ["B4"]
    assert missed(evaluation(MA=[row("MA", s_cores=0.45, c_hot_r=0.06)])) == ["B1"]


def test_left_out_weeks_shifted_profiles_and_measured_usage_are_held_to_their_limits() -> None:
    left = [row("shielded 0.95", LEFT_OUT, s_cores=0.53, c_hot_r=risk) for risk in (0.01, 0.02)]
    assert missed(evaluation(**{"shielded 0.95": left})) == []
    left[1]["c_hot_r"] = 0.11
    assert missed(evaluation(**{"shielded 0.95": left})) == ["B5"]
    average = [row("MA", s_cores=0.45), row("MA", SHIFTED, s_cores=0.40)]
    anew = [row("reshielded", SHIFTED, s_cores=0.43)]
    assert missed(evaluation(MA=average, reshielded=anew)) == []
    anew[0]["s_cores"] = 0.41
    assert missed(evaluation(MA=average, reshielded=anew)) == ["B5"]
    measured = [{"file": "days.csv", "predicted": 0.1, "realised": 0.16}]
    assert missed(replace(evaluation(), measured=measured)) == ["B7"]
    never: list[Row] = [{"file": "idle.csv", "predicted": 0.0, "realised": 0.0}]
    assert not [check for check in checks_of(replace(evaluation(), measured=never)) if "idle.csv" in check.asked]


def test_of_few_episodes_there_is_no_verdict() -> None:
    few = [row("risk filter, knowing VMs", PERSISTENT, peak_machines=46.5, episodes=2)]
    verdicts = {check.key: check.kept for check in checks_of(evaluation(**{"risk filter, knowing VMs": few}))}
    assert (verdicts["B5b"], verdicts["B4"]) == (None, True)


def test_misses_stand_first() -> None:
    checks = checks_of(evaluation(**{"static 0.95": [row("static 0.95", s_cores=0.51)]}))
    passed = [check.kept is True for check in checks]
    assert (passed[0], passed) == (False, sorted(passed))


@pytest.mark.parametrize("form", ["csv", "latex"])
def test_a_table_for_other_programs_has_a_row_per_policy_and_kind_of_week(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = evaluation()
    monkeypatch.setattr("trainer.oversubscription.evaluation.evaluate", lambda *_, **__: done)
    printed = RUN.invoke(app, ["evaluate", "oversubscription", "--format", form])
    assert printed.exit_code == 0, printed.output
    if form == "latex":
        assert printed.stdout.count(r"\begin{tabular}{lrrrrrrr}") == 2
        return
    rows = [line.split(",") for line in printed.stdout.replace('"', "").splitlines()]
    titles = [title.strip() for title in rows[0]]
    assert {len(cells) - len(titles) for cells in rows[1:]} == {2}, "the table's name has two commas"
    policies = {(cells[2].strip(), cells[3]): cells[4:] for cells in rows[1:]}
    assert policies["week s0", "static 0.95"][:4] == ["0.53", "0.4", "60.0", "0.04"]
    assert policies["unseen weeks", "calibrated 0.95"][3:] == ["0.03", "0.02", "2", "300"]
