"""Each benchmark runs in its smallest form and prints one JSON object with the figures it promises."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.collectors.graphite.installation import NotInstallable, installed

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = {
    "answers": "--runs 1 --requests 20",
    "tick": "--runs 1 --vms 40 --few 20 --fleets 2 --ticks 3 --warm-up 2",
    "page": "--runs 1 --fleets 6 --vms 24 --turns 2",
    "ledger": "--runs 1 --decisions 40 --rows 4000",
    "ingest": "--runs 1 --vms 200 --rounds 3",
    "inputs": "--runs 1 --vms 50 --rounds 3",
    "learning": "--weeks 2 --lessons 3",
    "learning_export": "--minutes 3000",
    "learning_pools": "--weeks 1 --episodes 2 --scenario azure_like",
    "footprint": "--runs 1 --idle 0.1",
    "soak": "--hours 0.1 --vms 60 --fleets 2",
    "coevolution_calibration": "--runs 1",
    "autoscaling_simulator": "--runs 1 --copies 16 --steps 50 --jobs 3000",
    "policy_inference": "--runs 1 --steps 100",
    "ppo_throughput": "--limit 1 --patience 0.1",
    "autoscaling_baselines": "--short",
    "autoscaling_policy": "--train --seeds 1 --fleets 1 --episodes 2 --selection 3",
    "held_out_worlds": "--fleets 1",
    "scorer_distance": "--fleets 2",
    "scorer_fine_tuning": "--fleets 1 --lessons 4 --judged 1 --general 2",
    "fresh_cases": "release --count 2 --no-logs --jobs 1",
    "dry_run": "--minutes 15 --policies queue-rule --seeds 1993 --no-whole --busy 1",
    "dry_run_policies": "--seeds 1993 --job-core-s 60",
    "dry_run_workloads": "--seeds 100 --squeezes 8 --loads 0.15",
    "admission_simulator": "--runs 1 --years 0.03 --peer-hours 12",
    "admission_grids": "--arrivals 4 --capacity 60 --hours 60",
    "admission_tolerance": "--seeds 2 --asked 1 --capacity 200 --hours 200",
    "admission_labels": "--labels 4 --tuning 1 --seeds 2 --capacity 200 --hours 200",
    "oversubscription": "--runs 1 --episodes 3 --times 2",
    "placement": "--runs 1 --orders 1 --hosts 20 --many-hosts 40 --decisions 20",
    "deferral": "--runs 1 --episodes 2 --decisions 10 --training 1",
    "admission_decision": "--runs 1 --live 60 --many 120 --decisions 40 --full 2",
    "oversubscription_decision": "--runs 1 --machines 4 --subscribers 3 --many-machines 8 --many-subs 4 --times 3",
    "admission_fit": "--runs 1 --rows 20000 --simulated 1000",
}
PROMISED = {
    "answers": {"tcp_p50_ms", "unix_p50_ms", "tcp_over_unix", "tcp_post_16_p50_ms", "unix_get_16_p99_ms"},
    "tick": {
        *("p50_ms", "p99_ms", "p99_ms_quietest_run", "cpu_p50_ms", "cpu_p99_ms", "peak_rss_mb", "growth"),
        *("aggregate_ms", "decide_ms", "record_ms", "observe_ms", "ratio_vs_bare_write", "aws_parse_ms"),
        *("ratio_plain_python_vs_aggregate", "vms_per_tick", "intents_per_tick"),
    },
    "page": {"overview_ms", "overview_cpu_ms", "again_ms", "fleet_ms", "history_ms", "overview_kb"},
    "ledger": {"decisions_per_s", "decisions_per_s_by_20", "ratio_vs_bare_sqlite", "explain_ms", "list_ms", "rows"},
    "ingest": {"lines_per_cpu_s", "carbon_lines_per_cpu_s", "ratio_vs_carbon", "lines_per_s", "carbon_lines_per_s"},
    "inputs": {
        *("mapped_lines_per_cpu_s", "folded_lines_per_cpu_s", "own_lines_per_cpu_s", "carbon_lines_per_cpu_s"),
        "ratio_vs_carbon",
    },
    "learning_export": {
        *("export_year_s", "export_year_cpu_s", "export_year_mb", "world_year_s", "world_year_mb", "row_bytes"),
    },
    "learning": {
        *("learn_vs_shipped", "learn_vs_once", "learn_vs_hindsight", "shipped_vs_hindsight", "halfway", "worst_week"),
        *("promotions", "rolled_back", "regretted_promotions", "weeks"),
    },
    "ppo_throughput": {
        *("branching_cpu_s", "reached_branching", "ppo_cpu_s", "reached_ppo", "ppo_by_branching"),
        *("sb3_cpu_s", "reached_sb3", "sb3_by_branching"),
    },
    "learning_pools": {
        *("upper_azure_like_shipped_steady", "upper_azure_like_bare_after", "upper_azure_like_ma_drift"),
        *("saved_azure_like_strict_steady", "upper_azure_like_rates_1_steady"),
    },
    "footprint": {"ready_s", "idle_rss_mb", "peak_rss_mb", "stop_s", "threads", "bare_imports_rss_mb", "rss_vs_bare"},
    "soak": {
        *("rss_last_vs_tenth", "rss_last_hour_mb", "peak_rss_mb", "unexplained_decisions", "replay_differs"),
        *("ledger_mb_per_day", "ledger_last_vs_first", "ticks_per_s", "tick_p99_ms", "decisions"),
    },
    "coevolution_calibration": {
        *("minutes_70", "minutes_92", "utilisation_70", "utilisation_92", "speed_up"),
        *("ratio_vs_published_70", "ratio_vs_published_92", "one_core_minutes_70", "one_job_minutes_92"),
    },
    "autoscaling_simulator": {
        *("batch_steps_per_s", "gym_steps_per_s", "reference_steps_per_s", "reset_us", "growth", "compile_or_load_s"),
        *("ratio_vs_reference", "gym_ratio_vs_reference", "ratio_vs_published_best"),
    },
    "policy_inference": {
        *("p50_us", "decision_p50_us", "torch_p50_us", "torch_network_p50_us", "torch_module_p50_us"),
        *("ratio_vs_torch", "resident_mb_added", "torch_resident_mb_added"),
    },
    "autoscaling_baselines": {
        *("T2_constant", "T2_queue_rule", "T2_bound", "T2_queue_rule_vs_constant", "T2_queue_rule_vs_bound"),
    },
    "dry_run": {
        *(f"{figure}{end}" for figure in ("lived_by_simulated", "lived_off", "fleet_wall_s") for end in ("", "_busy")),
        *("clock_jumps", "fast_by_slow"),
    },
    "dry_run_workloads": {
        f"8_{runs}_0.15_{label}"
        for runs in (8, 24)
        for label in ("best_constant", "target_tracking", "maximum", "done")
    },
    "dry_run_policies": {
        *("learned", "queue_rule", "threshold", "learned_60", "queue_rule_60", "constant", "ratio_vs_queue_rule"),
    },
    "autoscaling_policy": {
        "mean_of_nine",
        "worst_family",
        "T3",
        "T3_announced_true",
        "T3_announced_half",
        "zero_shot_mean",
        "zero_shot_worst",
        "dry_run_mean",
        "decision_p99_ms",
        "decision_cpu_p99_ms",
        "train_cpu_s",
        *("T1_dollars", "T1_rule_dollars", "T2_dollars", "T2_rule_dollars"),
    },
    "held_out_worlds": {"worlds", "other_settings"},
    "scorer_distance": {"far", "ratio_with_guard", "worst_with_guard"},
    "scorer_fine_tuning": {
        *("zero_shot", "fine_tuned", "specialist", "degradation", "degradation_worst", "fine_tuned_degradation"),
        *("steps_from_nothing", "steps_fine_tuned", "share_of_steps"),
    },
    "fresh_cases": {
        *("mean_of_nine", "worst_family", "other_mean_of_nine", "other_worst_family"),
        *("difference", "difference_low", "difference_high"),
    },
    "admission_grids": {"agreement_near", "agreement_all", "arrivals_near", "arrivals_all", "seconds"},
    "admission_tolerance": {
        *("points_off", "points", "points_low", "points_high"),
        *("wrongly_refused", "wrongly_admitted", "seconds", "ratio_vs_exact"),
    },
    "admission_labels": {
        *(f"{figure}_{arm}" for figure in ("kappa", "utilisation") for arm in ("population", "pooled", "labels")),
        *("kappa_shuffled", "utilisation_shuffled", "cpu_s"),
    },
    "admission_simulator": {
        *("zeroth_s", "second_0obs_s", "second_50obs_s", "second_T_s", "events_per_s", "refresh_us"),
        *("unoptimised_s", "ratio_vs_unoptimised", "ratio_vs_published_best", "ratio_vs_published_worst"),
        "compile_or_load_s",
    },
    "oversubscription_decision": {
        *("decision_p50_ms", "decision_p99_ms", "decision_cpu_p99_ms", "shield_p50_ms", "shield_p99_ms"),
        *("shield_cpu_p99_ms", "recorded_p99_ms", "fold_ms", "hour_ms", "vms", "growth", "shield_growth"),
        *("ratio_vs_naive_decision", "ratio_vs_naive_shield", "many_decision_p99_ms", "many_shield_p99_ms"),
        "many_hour_ms",
    },
    "oversubscription": {
        *("analytic_episodes_per_s", "sampled_episodes_per_s", "stepped_episodes_per_s", "shielded_episodes_per_s"),
        *("plain_episodes_per_s", "ratio_vs_plain", "large_analytic_s", "large_requests", "growth_per_request"),
    },
    "placement": {
        *(
            f"{one}_{figure}"
            for one in ("bf", "tiers17", "tiers17a")
            for figure in ("placements_per_cpu_s", "twin_placements_per_cpu_s", "ratio_vs_twin")
        ),
        *(
            f"{pool}{figure}"
            for pool in ("", "many_")
            for figure in ("decision_p50_ms", "decision_p99_ms", "decision_cpu_p99_ms", "feasible")
        ),
    },
    "deferral": {
        *(
            f"{policy}_{figure}"
            for policy in ("fifo", "knapsack")
            for figure in ("steps_per_cpu_s", "twin_steps_per_cpu_s", "ratio_vs_twin")
        ),
        *("milp_p50_ms", "milp_p99_ms", "milp_max_ms", "milp_cpu_p99_ms", "milp_unanswered"),
        *("training_cpu_minutes", "training_total"),
        *("learned_p50_ms", "learned_p99_ms", "learned_cpu_p99_ms"),
    },
    "admission_fit": {
        *("read_s", "parse_s", "sort_s", "plain_s", "ratio_vs_plain", "fit_s", "empirical_bayes_s", "two_step_s"),
        *("rows", "rows_per_s", "table_mb", "peak_rss_mb", "largest_error", "compile_or_load_s"),
    },
    "admission_decision": {
        *("cached_p50_ms", "cached_p99_ms", "cached_p99_cpu_ms", "full_p50_ms", "full_p99_ms", "full_p99_cpu_ms"),
        *("typical_p99_ms", "durable_p99_ms", "cached_10k_p99_ms", "full_10k_ms", "bytes_per_deployment", "restart_ms"),
        *("resident_kb_per_deployment", "one_by_one_cpu_ms", "ratio_vs_one_by_one"),
    },
}
MAY_BE_ZERO = {
    *("difference", "difference_low", "difference_high"),
    *("degradation", "degradation_worst", "fine_tuned_degradation", "steps_fine_tuned", "share_of_steps"),
    *("points_off", "points", "points_low", "points_high", "wrongly_refused", "wrongly_admitted"),
    "other_settings",
    *("promotions", "rolled_back", "regretted_promotions"),
    *("reached_branching", "reached_ppo", "sb3_cpu_s", "reached_sb3", "sb3_by_branching"),
    "resident_kb_per_deployment",
    *("clock_jumps", "intents_per_tick", "unexplained_decisions", "replay_differs", "milp_unanswered"),
}
TARGETS = {
    "learning_pools": {"hot_azure_like_shipped_steady", "hot_azure_like_ma_steady"},
    "answers": {"tcp_over_unix"},
    "tick": {"p99_ms", "peak_rss_mb"},
    "page": {"overview_cpu_ms"},
    "ledger": {"explain_ms"},
    "ingest": {"lines_per_cpu_s", "ratio_vs_carbon"},
    "inputs": {"mapped_lines_per_cpu_s", "folded_lines_per_cpu_s"},
    "learning": {"learn_vs_shipped", "worst_week", "regretted_promotions"},
    "ppo_throughput": {"sb3_by_branching"},
    "learning_export": {"export_year_s", "export_year_mb", "world_year_mb", "row_bytes"},
    "footprint": {"ready_s", "idle_rss_mb", "heavy_import_count"},
    "soak": {"rss_last_vs_tenth", "unexplained_decisions", "replay_differs"},
    "autoscaling_simulator": {"batch_steps_per_s", "gym_steps_per_s", "reset_us", "growth"},
    "policy_inference": {"ratio_vs_torch"},
    "coevolution_calibration": {"minutes_off_70", "minutes_off_92", "utilisation_off_70", "utilisation_off_92"},
    "autoscaling_baselines": set(),
    "dry_run": {"clock_jumps", "lived_off", "lived_off_busy"},
    "dry_run_policies": {"ratio_vs_queue_rule"},
    "dry_run_workloads": set(),
    "autoscaling_policy": {
        "mean_of_nine",
        "worst_family",
        "T3",
        "T3_announced_true",
        "T3_announced_half",
        "zero_shot_mean",
        "zero_shot_worst",
        "dry_run_mean",
        "decision_p99_ms",
        "T1_dollars",
        "T2_dollars",
    },
    "held_out_worlds": set(),
    "scorer_distance": set(),
    "scorer_fine_tuning": {"degradation", "share_of_steps"},
    "fresh_cases": {"worst_family"},
    "admission_grids": {"agreement_near"},
    "admission_tolerance": {"points_off"},
    "admission_labels": set(),
    "admission_simulator": {"zeroth_s", "second_0obs_s", "second_50obs_s", "second_T_s"},
    "oversubscription_decision": {"decision_p99_ms", "shield_p99_ms"},
    "oversubscription": {"analytic_episodes_per_s", "sampled_episodes_per_s"},
    "placement": {
        *("bf_placements_per_cpu_s", "tiers17_placements_per_cpu_s", "decision_p99_ms", "many_decision_p99_ms"),
    },
    "deferral": {
        *("fifo_steps_per_cpu_s", "milp_p99_ms", "learned_p99_ms"),
        *("training_cpu_minutes", "training_total"),
    },
    "admission_fit": {"read_s", "fit_s"},
    "admission_decision": {"cached_p99_ms", "full_p99_ms"},
}


CHEAPEST = ("ledger", "scorer_distance")
"""One of the daemon and one of the learned policies."""


def run(name: str, directory: Path) -> dict[str, Any]:
    """Run a benchmark as a program; return its one line of output."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *SMALLEST[name].split()]
    done = subprocess.run(
        [*command, "--directory", str(directory)], check=False, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
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
    assert PROMISED[name] <= answer.keys()
    assert all(answer[figure] > 0 for figure in PROMISED[name] - MAY_BE_ZERO)
    assert set(answer["targets_met"]) == TARGETS[name]
    assert {"processor", "cores", "python"} <= answer["machine"].keys()


GRAPHITE = ("ingest", "inputs")


def install_what_it_needs(name: str) -> None:
    if name in GRAPHITE:
        try:
            installed()
        except NotInstallable as reason:
            pytest.skip(f"needs a real carbon: {reason}")


@pytest.mark.parametrize("name", CHEAPEST)
def test_the_cheapest_benchmark_of_a_kind_prints_its_figures_in_this_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--json", *SMALLEST[name].split(), "--directory", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [name, *words])
    status = importlib.import_module(f"benchmarks.{name}").main()
    check(name, answer_of(status, *capsys.readouterr()))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    # The first to need a real Graphite installs it.
    [pytest.param(name, marks=[pytest.mark.timeout(1300)] * (name in GRAPHITE)) for name in sorted(SMALLEST)],
)
def test_a_benchmark_prints_its_figures_as_one_json_object(name: str, tmp_path: Path) -> None:
    install_what_it_needs(name)
    check(name, run(name, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_every_benchmark_is_run_here() -> None:
    with_a_command = {p.stem for p in (ROOT / "benchmarks").glob("*.py") if "def main(" in p.read_text("utf-8")}
    assert with_a_command == SMALLEST.keys()
