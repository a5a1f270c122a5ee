"""Tuning: on seeds of its own, reported on others; the best constant fleet by trying all (§9.1 to §9.4)."""

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.commands.main import program
from domain.errors import BadInput
from domain.fleet import VmType
from domain.workload import make_trace
from simulator.autoscaling.reference import SimulationConfig, preset
from simulator.workloads.synthetic import train_fit
from trainer.autoscaling.baselines.constant import best_constant, least_rent
from trainer.autoscaling.baselines.grids import GRIDS
from trainer.autoscaling.baselines.tuning import TUNING_SEED, Objective, cases_of, tune
from trainer.autoscaling.episodes import run_policy
from trainer.autoscaling.policies import policy_of

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
    told: list[tuple[int, int]] = []
    tuned = tune("queue-rule", tuning, reporting, on_run=lambda done, total: told.append((done, total)))

    def mean(text: str) -> float:
        return sum(run_policy(policy_of(text), config, SMALL, seed).cost for seed in tuning.seeds) / 3

    assert tuned.policy == min(texts, key=mean)
    assert tuned.objective == pytest.approx(mean(tuned.policy))
    assert [run.cost for run in tuned.runs] == [
        run_policy(policy_of(tuned.policy), config, SMALL, seed).cost for seed in (0, 1)
    ]
    assert [done for done, _ in told] == list(range(1, 6 * 2 + 6 * 3 + 2 + 1))


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


def test_the_verb_prints_settings_that_simulate_takes(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("arrival_s,service_s\n" + "0,90\n" * 30 + "600,90\n" * 10, "utf-8")
    options = ["--workload", str(jobs), "--policy", "constant", "--policy", "bound", "--policy", "target-tracking"]
    few = ["--seeds", "1", "--report-seeds", "1", "--time-limit", "5", "--json"]
    answer = CliRunner().invoke(program(), ["tune", "autoscaling", *options, *few])
    assert answer.exit_code == 0, answer.output
    found = {one["name"]: one for one in json.loads(answer.stdout)["policies"]}
    assert set(found) == {"constant", "bound", "bound-single", "target-tracking"}
    bound, single, constant = (found[name]["cost"] for name in ("bound", "bound-single", "constant"))
    assert bound - 1e-9 <= single <= constant
    assert policy_of(found["target-tracking"]["policy"]).name.startswith("target-tracking:")
    assert found["target-tracking"]["settings"] == 288


def test_the_verb_refuses_a_policy_it_has_no_grid_for() -> None:
    answer = CliRunner().invoke(program(), ["tune", "autoscaling", "--policy", "oracle"])
    assert answer.exit_code == 2
    assert "choose from: queue-rule" in answer.stderr
