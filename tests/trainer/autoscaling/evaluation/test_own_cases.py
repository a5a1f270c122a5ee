"""Jobs of one's own in any world: evaluated and promoted against a queue rule that is tuned for them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agent.commands.main import app
from agent.models.shipped import ShippedModel
from domain.errors import BadInput
from tests.agent.models.making import NOTHING, preferring, scorer
from trainer.autoscaling.baselines.tuning import GRIDS
from trainer.autoscaling.evaluation import contenders
from trainer.autoscaling.evaluation.contenders import (
    Contender,
    contenders_in_world,
    own_cases,
    own_contenders,
    own_world,
    tuned_rule,
)
from trainer.autoscaling.worlds import world_of

WORLD = """
version = 1
[jobs]
sizes = "unknown"
typical_core_s = 90
[[vm_types]]
name = "one"
cores = 4
memory_gb = 8
price_per_hour = 0.2
limit = 8
minimum = 1
[[vm_types]]
name = "two"
cores = 8
memory_gb = 16
price_per_hour = 0.3
limit = 4
"""


@pytest.fixture
def world(tmp_path: Path) -> str:
    path = tmp_path / "two.toml"
    path.write_text(WORLD, "utf-8")
    return str(path)


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    path = tmp_path / "my jobs.csv"
    path.write_text("arrival_s,service_s\n" + "0,300\n" * 30 + "1200,300\n" * 10, "utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["queue-rule:horizon_s=120,idle_s=60", "queue-rule:horizon_s=600,idle_s=0"]
    monkeypatch.setitem(GRIDS, "queue-rule", lambda config: texts)  # type: ignore[arg-type]
    monkeypatch.setitem(GRIDS, "target-tracking", lambda config: ["target-tracking:target=0.6"])


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"PROMOTION_KEY": None})


def test_cases_are_drawn_anew_only_where_the_workload_varies(world: str, jobs: str) -> None:
    cases = own_cases(world_of(world), [jobs, "train-rand"], 3)
    assert [case.family for case in cases] == ["own my_jobs.csv"] * 3 + ["own train-rand"] * 3
    assert [case.seed for case in cases] == [0, 1, 2] * 2
    assert [
        len({case.trace.digest for case in cases if case.family == family})
        for family in (cases[0].family, cases[3].family)
    ] == [1, 3]
    assert {case.group for case in cases} == {"own"}
    assert len({case.key for case in cases}) == 6


def test_the_yardstick_is_tuned_and_gets_what_the_world_tells(world: str, jobs: str) -> None:
    chosen = world_of(world)
    rule = tuned_rule(chosen, [jobs])
    text = rule.text("own")
    assert text is not None
    assert text.endswith(",job_core_s=90")
    labels = [contender.label for contender in own_contenders(chosen, rule)]
    assert labels[:3] == [rule.label, "queue rule, not tuned", "threshold 75 %"]
    assert len(own_contenders(world_of("dry-run"), rule)) > 3


def test_a_world_needs_jobs_and_the_worlds_of_the_suite_do_not(world: str, jobs: str) -> None:
    assert own_world("live-like", ()) is own_world("training", ()) is None
    assert own_world("training", [jobs]) == world_of("exact")
    assert own_world(world, (), ["ledger.db"]) == world_of(world)
    assert own_world("live-like", (), ["ledger.db"]) is None
    with pytest.raises(BadInput, match="jobs by --workload"):
        own_world(world, ())
    with pytest.raises(BadInput, match=r"FILE\.toml"):
        own_world("moon", [jobs])


def test_evaluate_takes_any_world_and_workloads(world: str, jobs: str, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    given = ("evaluate", "autoscaling", "--world", world, "--workload", jobs, "--workload", "train-fit", "--seeds", "1")
    answer = call(*given, "--out", str(out), "--json")
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    assert (data["cases"], data["world"]) == (2, "two")
    assert set(data["families"]) == {"own my_jobs.csv", "own train-fit"}
    shown = [result["policy"] for result in data["standings"] if result["family"] == "own train-fit"]
    labels = ["queue rule, multi", "target tracking, tuned", "best constant fleet", "queue rule, not tuned"]
    assert shown == [*labels, "threshold 75 %", "scorer", "lstm"]
    assert all(result["against"] for result in data["standings"] if result["policy"] != labels[0])
    lines = call(*given).stdout.splitlines()
    assert len([line for line in lines if line.startswith("not run: ")]) == 1, "models of other fleets are one line"
    assert "own — loads of one's own" in out.read_text("utf-8").replace("&#x27;", "'")
    refused = call(*given, "--traces", "T1")
    assert (refused.exit_code, "in world two" in refused.stderr) == (2, True)


def test_a_comparison_is_printed_as_csv_and_latex_and_drawn_for_paper(world: str, jobs: str, tmp_path: Path) -> None:
    policies = ("--policies", "rule & co=queue-rule", "--policies", "constant:2,0", "--policies", "threshold")
    given = ("evaluate", "autoscaling", "--world", world, "--workload", jobs, "--seeds", "2", *policies)
    results = ("--results", str(tmp_path / "rows.csv"), "--resume")
    drawn = [tmp_path / f"costs.{kind}" for kind in ("pdf", "svg")]
    answer = call(*given, *results, "--format", "csv", "--figure", str(drawn[0]))
    assert answer.exit_code == 0, answer.output
    rows = list(csv.DictReader(io.StringIO(answer.stdout)))
    assert [row["policy"] for row in rows] == ["rule & co", "constant:2,0", "threshold"]
    assert {row["table"] for row in rows} == {"own my_jobs.csv"}
    assert float(rows[0]["cost_low"]) <= float(rows[0]["cost_mean"]) <= float(rows[0]["cost_high"])
    relative = float(rows[1]["cost_mean"]) / float(rows[0]["cost_mean"]) - 1.0
    assert float(rows[1]["relative_mean"]) == pytest.approx(relative)
    assert rows[0]["relative_mean"] == ""
    latex = call(*given, *results, "--format", "latex", "--figure", str(drawn[1])).stdout
    lines = latex.splitlines()
    assert lines[1:3] == [r"\begin{tabular}{lrrrrrrr}", r"\toprule"]
    assert lines[5].startswith(r"rule \& co & ")
    assert lines[5].count(r"\%") == 1
    assert all(line.endswith(r" \\") for line in (lines[3], *lines[5:8]))
    assert [path.read_bytes()[:5] for path in drawn] == [b"%PDF-", b"<?xml"]
    call(*given, *results, "--figure", str(tmp_path / "again.pdf"))
    assert (tmp_path / "again.pdf").read_bytes() == drawn[0].read_bytes(), "the same data give the same bytes"
    refused = call(*given, "--format", "html")
    assert (refused.exit_code, "--format is 'html'" in refused.stderr) == (2, True)


def test_promote_holds_a_model_to_the_rule_tuned_for_the_jobs(jobs: str, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    given = ("promote", "autoscaling", "all", str(preferring(tmp_path, NOTHING)), "--models-dir", str(models))
    own = ("--world", "exact", "--workload", jobs, "--seeds", "2")
    answer = call(*given, *own, "--json")
    assert answer.exit_code in (0, 1), answer.output
    report = json.loads(answer.stdout)
    assert report["suite"]["world"] == "exact"
    assert report["suite"]["workloads"] == jobs
    assert report["champion"]["policies"]["*"].startswith("queue-rule:horizon_s=")
    recent = call(*given, "--world", "exact", "--recent", jobs, "--json")
    assert recent.exit_code in (0, 1), recent.output
    suite = json.loads(recent.stdout)["suite"]
    assert (suite["world"], suite["recent"], suite["workloads"]) == ("exact", 1, "")
    hidden = tmp_path / "hidden.toml"
    hidden.write_text(WORLD.replace("typical", "typicl"), "utf-8")
    refused = call(*given, "--world", str(hidden), "--workload", jobs)
    assert (refused.exit_code, "mean typical_core_s?" in refused.stderr) == (2, True)
    suite = call(*given, *own, "--traces", "T1")
    assert (suite.exit_code, "its jobs are your own" in suite.stderr) == (2, True)


def test_policies_that_are_named_get_what_the_world_tells(world: str) -> None:
    named = (
        Contender("rule", {"*": "queue-rule", "own": "queue-rule:job_core_s=5"}),
        Contender("hold", {"*": "nothing"}),
    )
    rule, hold = contenders_in_world(named, world_of(world))
    assert rule.texts == {"*": "queue-rule:job_core_s=90", "own": "queue-rule:job_core_s=5"}
    assert hold.texts == {"*": "nothing"}


def test_a_scorer_stands_beside_the_tuned_rule(
    world: str, jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = scorer(tmp_path, {})
    monkeypatch.setattr(contenders, "shipped_models", lambda: [ShippedModel("mine", "any fleet", made.stem, made)])
    rule = tuned_rule(world_of(world), [jobs])
    text = own_contenders(world_of(world), rule)[-1].text("own")
    assert text in (f"{made}:horizon_s=120,idle_s=60,job_core_s=90", f"{made}:horizon_s=600,idle_s=0,job_core_s=90")
