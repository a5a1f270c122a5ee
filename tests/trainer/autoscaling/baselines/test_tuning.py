"""Tuning: on seeds of its own, reported on others; the best constant fleet by trying all (§9.1 to §9.4)."""

import itertools
import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.settings import load_settings
from domain.errors import BadInput
from domain.fleet import VmType
from domain.workload import make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit
from trainer.autoscaling.baselines.tuning import (
    GRIDS,
    TUNING_SEED,
    Objective,
    best_constant,
    cases_of,
    least_rent,
    tune,
)
from trainer.autoscaling.policies import run_policy
from trainer.autoscaling.policy_names import policy_of

FIXED_BOOT = preset("train-text", boot_low_s=71.0, boot_high_s=71.0)
SMALL = make_trace("small", [0.0] * 40 + [600.0] * 20, [90.0] * 60)


@pytest.mark.parametrize("name", sorted(GRIDS))
def test_every_setting_of_a_grid_is_a_policy(name: str) -> None:
    texts = GRIDS[name](FIXED_BOOT)
    assert len(set(texts)) == len(texts) > 50
    assert {policy_of(text).name for text in texts} != {texts[0]}


def test_the_setting_found_is_the_best_of_the_grid_on_the_tuning_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"queue-rule:horizon_s={h},idle_s={i}" for h, i in itertools.product((60, 120, 300), (0, 120))]
    monkeypatch.setitem(GRIDS, "queue-rule", lambda config: texts)  # type: ignore[arg-type]
    config = preset("train-text")
    tuning = cases_of(config, lambda seed: SMALL, TUNING_SEED, 3)
    reporting = cases_of(config, lambda seed: SMALL, 0, 2)
    seen: list[tuple[int, int]] = []
    tuned = tune("queue-rule", tuning, reporting, on_run=lambda done, total: seen.append((done, total)))

    def mean(text: str) -> float:
        return sum(run_policy(policy_of(text), config, SMALL, seed).cost for seed in tuning.seeds) / 3

    assert tuned.policy == min(texts, key=mean)
    assert tuned.objective == pytest.approx(mean(tuned.policy))
    assert [run.cost for run in tuned.runs] == [
        run_policy(policy_of(tuned.policy), config, SMALL, seed).cost for seed in (0, 1)
    ]
    assert [done for done, _ in seen] == list(range(1, 6 * 2 + 6 * 3 + 2 + 1))


def test_tuning_on_reported_seeds_is_refused() -> None:
    cases = cases_of(FIXED_BOOT, lambda seed: SMALL, 0, 2)
    with pytest.raises(BadInput, match="other seeds"):
        tune("threshold", cases, cases)
    with pytest.raises(BadInput, match="queue-rule-single"):
        tune("oracle", cases_of(FIXED_BOOT, lambda seed: SMALL, TUNING_SEED, 1), cases)


def test_run_time_may_be_priced_in_place_of_waiting() -> None:
    run = run_policy(policy_of("nothing"), FIXED_BOOT, SMALL)
    assert Objective().of(run, SMALL.jobs) == run.cost
    assert Objective(0.03).of(run, SMALL.jobs) == pytest.approx(run.rent + 0.03 * run.run_time_s / 60)
    assert Objective().of(run, SMALL.jobs + 1) == float("inf")


def test_the_best_constant_fleet_is_the_published_one() -> None:
    best = best_constant(FIXED_BOOT, [train_fit()])
    assert best.cost == pytest.approx(6.615, abs=5e-4)
    # 2 to 140 cores in steps of 2
    assert best.fleets == 70
    assert best.tried < best.fleets


def test_a_constant_fleet_that_leaves_jobs_undone_is_not_the_best() -> None:
    config = replace(FIXED_BOOT, max_steps=240, waiting_price_per_hour=0.0)
    sizes = best_constant(config, [train_fit()]).sizes
    assert run_policy(policy_of(f"constant:{','.join(map(str, sizes))}"), config, train_fit()).jobs_finished == 1551


def test_no_fleet_is_passed_over_that_is_better() -> None:
    types = (VmType("small", 1, 4.0, 0.10), VmType("large", 3, 12.0, 0.24))
    config = SimulationConfig(types=types, limits=(4, 4), minimum=(1, 0), initial=(1, 1))
    best = best_constant(config, [SMALL])
    every = [(a, b) for a in range(1, 5) for b in range(5)]
    costs = {sizes: run_policy(policy_of(f"constant:{sizes[0]},{sizes[1]}"), config, SMALL) for sizes in every}
    assert best.fleets == len(every)
    assert best.cost == min(run.cost for run in costs.values())
    assert costs[best.sizes].cost == best.cost
    assert all(least_rent(config, sizes, [SMALL]) <= run.rent + 1e-9 for sizes, run in costs.items())


@pytest.mark.exhaustive
def test_the_verb_prints_settings_that_simulate_takes(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("arrival_s,service_s\n" + "0,90\n" * 30 + "600,90\n" * 10, "utf-8")
    options = ["--workload", str(jobs), "--policy", "constant", "--policy", "bound", "--policy", "target-tracking"]
    few = ["--seeds", "1", "--report-seeds", "1", "--time-limit", "5", "--json"]
    answer = CliRunner().invoke(app, ["tune", "autoscaling", *options, *few])
    assert answer.exit_code == 0, answer.output
    found = {one["name"]: one for one in json.loads(answer.stdout)["policies"]}
    assert set(found) == {"constant", "bound", "bound-single", "target-tracking"}
    bound, single, constant = (found[name]["cost"] for name in ("bound", "bound-single", "constant"))
    assert bound - 1e-9 <= single <= constant
    assert policy_of(found["target-tracking"]["policy"]).name.startswith("target-tracking:")
    assert found["target-tracking"]["settings"] == 288


def test_the_verb_refuses_a_policy_it_has_no_grid_for() -> None:
    answer = CliRunner().invoke(app, ["tune", "autoscaling", "--policy", "oracle"])
    assert answer.exit_code == 2
    assert "choose from: queue-rule" in answer.stderr


def test_several_workloads_count_by_what_they_cost_together(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"queue-rule:horizon_s={h},idle_s={i}" for h, i in itertools.product((60, 300, 900), (0, 120))]
    monkeypatch.setitem(GRIDS, "queue-rule", lambda config: texts)  # type: ignore[arg-type]
    other = make_trace("other", [0.0] * 90, [600.0] * 90)
    config = preset("live-like")
    tuning = cases_of(config, [lambda seed: SMALL, lambda seed: other], TUNING_SEED, 3)
    reporting = cases_of(config, [lambda seed: SMALL, lambda seed: other], 0, 1)
    assert [trace.name for trace in tuning.first(2).traces] == ["small", "other"] * 2
    tuned = tune("queue-rule", tuning, reporting, adapt=lambda text: f"{text},job_core_s=90")

    def mean(text: str) -> float:
        pairs = zip(tuning.traces, tuning.seeds, strict=True)
        return sum(run_policy(policy_of(text), config, trace, seed).cost for trace, seed in pairs) / 6

    assert tuned.policy == min((f"{text},job_core_s=90" for text in texts), key=mean)
    assert tuned.objective == pytest.approx(mean(tuned.policy))
    assert len(tuned.runs) == 2


def test_a_horizon_at_the_end_of_the_grid_is_followed_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GRIDS, "queue-rule", lambda config: [f"queue-rule:horizon_s={h}" for h in (3600, 1800)])
    waiting_is_free = preset("exact", waiting_price_per_hour=0.0)
    tuning, reporting = (cases_of(waiting_is_free, lambda seed: SMALL, first, 1) for first in (TUNING_SEED, 0))
    assert tune("queue-rule", tuning, reporting).settings == 2
    wider = tune("queue-rule", tuning, reporting, widen=True)
    assert (wider.settings, wider.finalists[0].policy) == (6, wider.policy)
    assert {"queue-rule:horizon_s=28800", "queue-rule:horizon_s=5400"} <= {tried.policy for tried in wider.finalists}


def test_the_verb_tunes_any_world_and_writes_settings_that_say_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    grid = [
        f"queue-rule:horizon_s={h},idle_s=60,single=false,busy_counts={b},skip_cooling=false"
        for h, b in itertools.product((60, 120), ("true", "false"))
    ]
    monkeypatch.setitem(GRIDS, "queue-rule", lambda config: grid)  # type: ignore[arg-type]
    world, jobs, settings = tmp_path / "one.toml", tmp_path / "jobs.csv", tmp_path / "tuned.env"
    head = "version = 1\n[jobs]\nsizes = 'unknown'\ntypical_core_s = 90\n"
    head += "[[vm_types]]\nname = 'a'\ncores = 6\nmemory_gb = 8\nprice_per_hour = 0.3\nlimit = 900\nminimum = 1\n"
    world.write_text(f"{head}[[vm_types]]\n{head.partition('[[vm_types]]')[2].replace(chr(39) + 'a', chr(39) + 'b')}")
    jobs.write_text("arrival_s,service_s\n" + "0,90\n" * 30 + "600,90\n" * 10, "utf-8")
    options = [
        "--world",
        str(world),
        "--workload",
        str(jobs),
        "--workload",
        "nasa",
        "--seeds",
        "1",
        "--report-seeds",
        "1",
    ]
    called = ["tune", "autoscaling", *options, "--policy", "queue-rule", "--settings", str(settings), "--fleet", "crew"]
    answer = CliRunner().invoke(app, [*called, "--json"])
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    assert [one["workload"] for one in data["made_by"]["workloads"]] == [str(jobs), "nasa"]
    best = data["policies"][0]["policy"]
    assert best.endswith("busy_counts=true,skip_cooling=false,job_core_s=90")
    lines = settings.read_text("utf-8").splitlines()
    assert shlex.split(lines[0].removeprefix("# Found by: trimtab "))[:2] == ["tune", "autoscaling"]
    assert f"--world {world}" in lines[0]
    assert lines[1].startswith("# World one, SHA-256 ")
    values = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    group = {"VM_TYPE": "m5a.large", "CORES": "2", "MEMORY_GB": "8", "PRICE_PER_HOUR": "0.1", "MAX": "3"}
    groups = {f"TRIMTAB_FLEETS__crew__GROUPS__s__{name}": value for name, value in group.items()}
    fleet = load_settings({"TRIMTAB_AWS__REGION": "us-east-1", **values, **groups}).fleets["crew"]
    assert fleet.queue_rule.job_core_s == 90
    assert f"horizon_s={fleet.queue_rule.horizon_s:g}," in best
    assert fleet.idle_s == 60
    # What is there is not written over, and a world of 900 x 900 fleets has too many to try.
    assert "--force" in CliRunner().invoke(app, called).stderr
    refused = CliRunner().invoke(app, ["tune", "autoscaling", "--world", str(world), "--policy", "constant"])
    assert (refused.exit_code, "fixed fleets" in refused.stderr) == (2, True)
