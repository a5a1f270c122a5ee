"""Each benchmark runs in its smallest form and prints one JSON object with the figures it promises."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks import scale_agents
from tests.collectors.graphite.installation import NotInstallable, installed
from tests.stages import exhaustive

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = {
    "answers": "--runs 1 --requests 20",
    "tick": "--runs 1 --vms 40 --few 20 --fleets 2 --ticks 3 --warm-up 2",
    "page": "--runs 1 --fleets 6 --vms 24 --turns 2",
    "ledger": "--runs 1 --decisions 40 --rows 4000",
    "ingest": "--runs 1 --vms 200 --rounds 3 --seconds 1 --lines-per-s 3000",
    "inputs": "--runs 1 --vms 50 --rounds 3",
    "learning": "--weeks 2 --lessons 3",
    "learning_pools": "--weeks 1 --episodes 2 --scenario azure_like",
    "loss_watch": "--years 1 --draws 1",
    "promotions": "--years 2 --tests 3",
    "footprint": "--runs 1 --idle 0.1",
    "soak": "--hours 0.1 --vms 60 --fleets 2",
    "autoscaling_simulator": "--runs 1 --copies 16 --steps 50 --jobs 3000",
    "policy_inference": "--runs 1 --steps 100",
    "ppo_throughput": "--runs 1 --limit 1 --peer-limit 0.1",
    "autoscaling_baselines": "--short",
    "held_out_worlds": "--fleets 1",
    "regret": "--fleets 1 --days 2 --boots 2",
    "self_tuning": "--cases 1 --years 1",
    "rule_defaults": "--fleets 2 --held-out 0 --stretches 1",
    "autoscaling_memory": "--seeds 0 --episodes 2 --selection 3 --cases 1",
    "dry_run": "--minutes 15 --policies queue-rule --seeds 1993 --no-whole --busy 1",
    "admission_simulator": "--runs 1 --years 0.03 --peer-hours 12",
    "oversubscription": "--runs 1 --episodes 3 --times 2",
    "placement_lifetimes": "--runs 1 --cases 1 --hosts 50",
    "placement_fleet": "--hours 2 --seeds 1 --fleets 1",
    "placement": "--runs 1 --orders 1 --hosts 20 --many-hosts 40 --decisions 20",
    "devices": "--runs 1 --steps 4096 --environments 2 --lessons 2",
    "deferral": "--runs 1 --episodes 2 --decisions 10 --training 1",
    "admission_decision": "--runs 1 --live 60 --many 120 --decisions 40 --full 2",
    "oversubscription_ablation": "--cpu-s 0.2 --seeds 0 --unseen 1 --decisions 8 --episodes 2",
    "oversubscription_policy": "--unseen 0 --episodes 0",
    "oversubscription_equal_risk": "--small --weeks 1 --episodes 1 --only azure_like --usage gauss",
    "oversubscription_decision": "--runs 1 --machines 4 --subscribers 3 --many-machines 8 --many-subs 4 --times 3",
    "scale_out": "--runs 1 --cpu-s 2 --fleets 6 --vms-per-fleet 6 --agents 2 --speed 30 --minutes 1 --kills 1",
    "admission_fit": "--runs 1 --rows 20000 --simulated 1000",
}
RATES = ("false_promotions_per_year", "low", "high")
PROMISED = tomllib.loads(Path(__file__).with_name("figures.toml").read_text("utf-8"))
HALVES = ("judged", "chosen_on")
MAY_BE_ZERO = {
    "other_settings",
    *("promotions", "rolled_back", "regretted_promotions"),
    *(f"{half}_{null}above{single}" for half in HALVES for null in ("", "null_") for single in ("", "_single")),
    *(f"{half}_surely_above" for half in HALVES),
    *("apart", "changed_cases", "false_changes_per_year", "false_nights_per_year"),
    *("alone_cut_short", "coupled_cut_short"),
    *("false_promotions_per_year_high", "false_promotions_per_year_low"),
    *(f"{draw}{name}" for draw in ("", "normal_", "heavy_", "autocorrelated_") for name in RATES),
    *(
        f"alarms_{name}"
        for name in ("stated", "bias_known", "bias_of_a_day", "usual", "quiet", "bias_by_week", "heavy")
    ),
    *("nights_to_promote_10", "promoted_5_first_night"),
    *("reached_branching", "reached_ppo"),
    "resident_kb_per_deployment",
    "load_before",
    *("clock_jumps", "intents_per_tick", "unexplained_decisions", "replay_differs"),
    *("milp_unanswered", "milp_loaded_unanswered"),
}
OF_A_PEER_THAT_MAY_BE_MISSING = {
    *("ratio_limit", "ratio_vs_sb3", "reached_sb3", "sb3_by_branching", "sb3_cpu_s", "sb3_steps_per_cpu_s"),
    *("time_to_quality_is_bound", "time_to_quality_ratio"),
    *("ray_speed_up", "start_s", *scale_agents.FIGURES),
    *("ppo_ratio", "sets_ratio", "scorer_ratio", "ppo_apart", "sets_apart", "scorer_apart"),
}
RESUMABLE = (
    *("self_tuning", "autoscaling_memory", "oversubscription_ablation"),
    *("oversubscription_policy", "oversubscription_equal_risk"),
)
"""They keep results in their directory, from which a run that was stopped continues."""
CHEAPEST = ("ledger", "held_out_worlds")
"""One of the daemon and one of the learned policies."""


def run(name: str, directory: Path) -> dict[str, Any]:
    """Run a benchmark as a program; return its one line of output."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *SMALLEST[name].split()]
    command += ["--directory", str(directory)]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=600)
    return answer_of(done.returncode, done.stdout, done.stderr)


def answer_of(status: int, output: str, errors: str) -> dict[str, Any]:
    # 1 says that a target was missed, which a busy machine may well do.
    assert status in (0, 1), errors
    lines = output.splitlines()
    assert len(lines) == 1, output + errors
    answer: dict[str, Any] = json.loads(lines[0])
    return answer


def check(name: str, answer: dict[str, Any]) -> None:
    """Compare the figures of a benchmark with those that it promises."""
    assert answer["benchmark"] == name
    promised = set(PROMISED[name]["figures"])
    assert promised <= answer.keys()
    assert all(answer[figure] > 0 for figure in promised - MAY_BE_ZERO - OF_A_PEER_THAT_MAY_BE_MISSING)
    assert set(answer["targets_met"]) == set(PROMISED[name]["targets"])
    assert {"processor", "cores", "python"} <= answer["machine"].keys()


GRAPHITE = ("ingest", "inputs")


@pytest.mark.parametrize("name", CHEAPEST)
def test_the_cheapest_benchmark_of_a_kind_prints_its_figures_in_this_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--json", *SMALLEST[name].split(), "--directory", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [name, *words])
    status = importlib.import_module(f"benchmarks.{name}").main()
    check(name, answer_of(status, *capsys.readouterr()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", exhaustive(*sorted(SMALLEST.keys() - set(GRAPHITE))))
def test_a_benchmark_prints_its_figures_as_one_json_object(name: str, tmp_path: Path) -> None:
    check(name, run(name, tmp_path))
    assert bool(list(tmp_path.iterdir())) == (name in RESUMABLE)


# The first to need a real Graphite installs it.
@pytest.mark.needs_libcairo
@pytest.mark.timeout(1300)
@pytest.mark.parametrize("name", GRAPHITE)
def test_a_benchmark_beside_a_real_carbon_does_so_too(name: str, tmp_path: Path) -> None:
    try:
        installed()
    except NotInstallable as reason:
        pytest.skip(f"needs a real carbon: {reason}")
    check(name, run(name, tmp_path))


def test_every_benchmark_is_run_here() -> None:
    with_a_command = {p.stem for p in (ROOT / "benchmarks").glob("*.py") if "def main(" in p.read_text("utf-8")}
    assert with_a_command == SMALLEST.keys() == PROMISED.keys()
