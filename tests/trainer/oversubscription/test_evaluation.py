"""An evaluation as a whole on a small cluster: what it tells, and that it goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from simulator.oversubscription.scenario import Scenario, scenario_of
from tests.simulator.oversubscription.cases import HEADER, write_folder
from trainer.oversubscription.evaluation import (
    CORRELATED,
    LEFT_OUT,
    OWN,
    PERSISTENT,
    SHIFTED,
    UNSEEN,
    VARIANTS,
    Contender,
    Evaluation,
    Extent,
    ResultsFile,
    Trials,
    content_of,
    evaluate,
    rules_of,
)
from trainer.oversubscription.report import own_week, write

SMALL = Extent(20, 40, unseen=1, shifted=1, persistent=2, points=4, evaluations=20)
COMPUTED = "result made"


def two_weeks(folder: Path) -> Scenario:
    """Return a small cluster with two weeks: of each subscriber a 2-core VM every hour, which stays for some hours."""
    rows = [f"{2 * t + n},{n},2,4,0.25,{t},{t + 3 + t % (4 + n)},0" for t in range(24) for n in range(2)]
    profile = [f"{n},{hour},{0.2 + 0.1 * n},0.2" for n in range(2) for hour in range(24)]
    write_folder(folder, rows, profile=profile, horizon_h=24, pms=12)
    later = [row.replace(",2,4,", ",2,2,") for row in rows]
    (folder / "small_s1_requests.csv").write_text("\n".join([HEADER, *later]))
    return scenario_of(str(folder))


def measured_days(path: Path) -> Path:
    """Write VM-days of two owners: one busy by day, one by night, each VM at a level of its own."""
    draws = np.random.default_rng(0)
    day = np.repeat(np.where(np.arange(24) < 12, 40.0, 5.0), 12)
    shapes = [(owner, shape * draws.uniform(0.5, 1.5)) for owner, shape in (("a", day), ("b", day[::-1])) * 30]
    lines = [",".join([owner, *(f"{value:.1f}" for value in usage)]) for owner, usage in shapes]
    head = ",".join(["owner", *(f"s{i:03}" for i in range(288))])
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return path


def counted(made: list[str]) -> Callable[[], dict[str, float]]:
    """Return work that says when it is done."""

    def work() -> dict[str, float]:
        made.append(COMPUTED)
        return {"value": 0.1 + 0.2}

    return work


@pytest.mark.exhaustive
def test_every_part_is_there_and_the_numbers_are_written_row_by_row(tmp_path: Path) -> None:
    folder = tmp_path / "two"
    folder.mkdir()
    scenario = two_weeks(folder)
    days = measured_days(tmp_path / "days.csv")
    results = tmp_path / "results.jsonl"
    done = evaluate(scenario, "cold", extent=SMALL, measured=[days], results=ResultsFile(results))
    kinds = {row["kind"] for row in done.rows}
    assert kinds == {OWN, UNSEEN, LEFT_OUT, SHIFTED, CORRELATED, PERSISTENT}
    assert {row["week"] for row in done.rows if row["kind"] == LEFT_OUT} == {"s0", "s1"}
    assert all(done.of(label) for label in VARIANTS)
    assert [point["asked"] for point in done.measured] == [0.05, 0.15, 0.25]
    assert all(point["predicted"] <= point["asked"] + 1e-12 for point in done.measured)
    again = evaluate(scenario, "cold", extent=SMALL, measured=[days], results=ResultsFile(results, resume=True))
    assert again == done
    lines = results.read_text("utf-8").splitlines()
    assert len({json.loads(line)["key"] for line in lines}) == len(lines)
    files = write(tmp_path / "report", [done], {})
    found = json.loads((tmp_path / "report" / "summary.json").read_text("utf-8"))
    assert found[0]["rows"] == json.loads(json.dumps(done.rows))
    assert str(tmp_path) not in (tmp_path / "report" / "summary.json").read_text("utf-8")
    assert [file.name for file in files[2:]] == ["cold-saved.svg", "cold-rates.svg", "cold-risk.svg"]


def test_a_policy_that_cannot_be_read_is_refused_before_any_search(tmp_path: Path) -> None:
    progress: list[str] = []
    mine = Contender("mine", ("nope.json",))
    with pytest.raises(BadInput, match=r"nope\.json"):
        evaluate(two_weeks(tmp_path), "cold", [mine], extent=SMALL, on_progress=progress.append)
    assert progress == []


def test_a_result_is_made_once_and_survives_a_cut_line(tmp_path: Path) -> None:
    path, made = tmp_path / "results.jsonl", list[str]()
    stored = ResultsFile(path)
    assert stored.of({"week": "s0"}, counted(made)) == stored.of({"week": "s0"}, counted(made)) == {"value": 0.1 + 0.2}
    stored.of({"week": "s1"}, counted(made))
    assert len(made) == 2
    path.write_text(path.read_text("utf-8")[:-9], encoding="utf-8")
    again = ResultsFile(path, resume=True)
    again.of({"week": "s0"}, counted(made))
    assert len(made) == 2
    again.of({"week": "s1"}, counted(made))
    assert len(made) == 3
    assert len(path.read_text("utf-8").splitlines()) == 2


def test_results_are_neither_mixed_nor_misread(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    ResultsFile(path).of({"week": "s0"}, counted([]))
    with pytest.raises(BadInput, match="--resume"):
        ResultsFile(path)
    path.write_text("no results\n", encoding="utf-8")
    with pytest.raises(BadInput, match="line 1"):
        ResultsFile(path, resume=True)


def test_a_file_that_a_policy_names_is_known_by_what_it_holds_also_behind_a_guard(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    for text in (str(model), f"shield:base=({model}),b=0.03", f"shield:base={model}"):
        model.write_text("first")
        first = content_of(text)
        assert first.startswith(f"{text} ")
        model.write_text("second")
        assert content_of(text) != first
    assert content_of("shield:base=(grid:0.5),b=0.03") == "shield:base=(grid:0.5),b=0.03"


def test_the_rules_that_ship_are_compared_and_a_table_has_the_published_figures_next_to_them() -> None:
    trials = Trials(scenario_of("azure_like"), "cold", SMALL)
    rules = {rule.label: rule for rule in rules_of(trials)}
    # By what their files hold: a new rule is not taken for the one that it replaces.
    assert all(content_of(rule.texts[0]) != rule.texts[0] for rule in rules.values())
    row = trials.row(rules["rule for cores"], trials.scenario.week("s0"), OWN, 20)
    done = Evaluation("azure_like", "cold", [row], [], {}, SMALL, packaged=True)
    text = own_week(done)
    shown = {f"{row['s_cores']:.1%}", f"{row['s_core_hours']:.1%}", f"{row['peak_machines']:g}", "10.4 %, 0 %"}
    assert all(f"<td>{figure}</td>" in text for figure in shown)
    assert "10.4 %, 0 %" not in own_week(replace(done, packaged=False))


def test_a_scenario_of_ones_own_has_no_rules_that_ship(tmp_path: Path) -> None:
    assert rules_of(Trials(two_weeks(tmp_path), "cold", SMALL)) == []
