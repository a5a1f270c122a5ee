"""All baselines on T1, T2 and T4: tuned on seeds of their own, beside the best constant fleet and the bound (§9, §18).

Costs are means over the reporting seeds, each rule at its tuned setting; ratios are to the best constant fleet and to
the clairvoyant bound of the same run. T4 reports rent and minutes; its rules are chosen for rent plus MINUTE_PRICE
dollars a minute, and (`as_fast`) for the least rent in no more minutes than the 75 % threshold with one period (the
faster of two: with and without the CPU of VMs that warm up), on T4_GRID_SEEDS tuning seeds. Notes have the settings.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

from benchmarks.report import arguments, progress, report
from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import Measures
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import coevolution, train_fit, train_text
from trainer.autoscaling.baselines.clairvoyant import solve
from trainer.autoscaling.baselines.tuning import TUNING_SEED, best_constant, cases_of, explore, tune
from trainer.autoscaling.episodes import run_many

MINUTE_PRICE = 0.03
RULES = ("queue-rule", "queue-rule-single", "threshold", "target-tracking")
T4_FIXED = {
    "threshold_1": "threshold:high=0.75,low=0.75,periods=1",
    "threshold_3": "threshold:high=0.75,low=0.75,periods=3",
    "threshold_1_counting_new": "threshold:high=0.75,low=0.75,periods=1,exclude_warming=false",
    "nothing": "nothing",
}
T4_ONE_PERIOD = ("threshold_1", "threshold_1_counting_new")
T4_GRID_SEEDS = 6
T4_RULES = ("threshold", "queue-rule", "queue-rule-single", "fixed-ramp", "fixed-ramp-single")


def training_figures(
    name: str, config: SimulationConfig, trace: Trace, seeds: int, limit_s: float, notes: dict[str, str]
) -> dict[str, float]:
    """Return the costs of all baselines on one trace of the training world."""
    tuning = cases_of(config, lambda seed: trace, TUNING_SEED, seeds)
    reporting = cases_of(config, lambda seed: trace, 0, seeds)
    progress(f"{name}: constant fleets")
    constant = best_constant(config, [trace])
    notes[f"{name}_constant"] = str(constant.sizes)
    figures = {f"{name}_constant": constant.cost}
    for rule in RULES:
        progress(f"{name}: {rule}")
        tuned = tune(rule, tuning, reporting)
        notes[f"{name}_{rule}"] = tuned.policy
        figures[f"{name}_{rule}".replace("-", "_")] = fmean(run.cost for run in tuned.runs)
    for single, suffix in ((False, ""), (True, "_single")):
        progress(f"{name}: bound{suffix}")
        figures[f"{name}_bound{suffix}"] = solve(config, trace, single=single, time_limit_s=limit_s).bound
        plan = f"plan:single={str(single).lower()},time_limit_s={limit_s}"
        figures[f"{name}_plan{suffix}"] = fmean(run.cost for run in run_many(plan, config, [trace], reporting.seeds))
    for rule, bound in (("queue_rule", "bound"), ("queue_rule_single", "bound_single")):
        figures[f"{name}_{rule}_vs_constant"] = figures[f"{name}_{rule}"] / constant.cost
        figures[f"{name}_{rule}_vs_bound"] = figures[f"{name}_{rule}"] / figures[f"{name}_{bound}"]
    return figures


def loop_figures(seeds: int, notes: dict[str, str]) -> dict[str, float]:
    """Return rent in dollars and run time in minutes of all baselines on the closed loop, T4."""
    config = preset("paper-live")
    tuning = cases_of(config, coevolution, TUNING_SEED, seeds)
    reporting = cases_of(config, coevolution, 0, seeds)
    figures: dict[str, float] = {}
    for name, text in T4_FIXED.items():
        figures |= _rent_and_minutes(name, run_many(text, config, reporting.traces, reporting.seeds))
    few = tuning.first(T4_GRID_SEEDS)
    rivals = [run_many(T4_FIXED[name], config, few.traces, few.seeds) for name in T4_ONE_PERIOD]
    fastest = min(fmean(run.run_time_s for run in runs) for runs in rivals)
    for rule in T4_RULES:
        progress(f"T4: {rule}")
        every = explore(rule, few)
        chosen = {
            rule: min(every, key=lambda one: fmean(_priced(run) for run in one[1])),
            f"{rule}-as-fast": min(
                (one for one in every if fmean(run.run_time_s for run in one[1]) <= fastest),
                key=lambda one: fmean(run.rent for run in one[1]),
            ),
        }
        for name, (policy, _) in chosen.items():
            notes[f"T4_{name}"] = policy
            runs = run_many(policy, config, reporting.traces, reporting.seeds)
            figures |= _rent_and_minutes(name.replace("-", "_"), runs)
    for name in (rule.replace("-", "_") for rule in T4_RULES):
        figures[f"T4_{name}_as_fast_rent_vs_threshold_1"] = (
            figures[f"T4_{name}_as_fast_rent"] / figures["T4_threshold_1_rent"]
        )
    return figures


def _priced(run: Measures) -> float:
    return run.rent + MINUTE_PRICE * run.run_time_s / 60.0


def _rent_and_minutes(name: str, runs: list[Measures]) -> dict[str, float]:
    rent, minutes = fmean(run.rent for run in runs), fmean(run.run_time_s for run in runs) / 60.0
    return {f"T4_{name}_rent": rent, f"T4_{name}_min": minutes}


def small_figures(limit_s: float, notes: dict[str, str]) -> dict[str, float]:
    """Return constant fleet, queue rule and bound of T2 alone, untuned: the short form."""
    config, trace = preset("train-fit", boot_low_s=71.0, boot_high_s=71.0), train_fit()
    constant = best_constant(config, [trace])
    notes["T2_constant"] = str(constant.sizes)
    rule = run_many("queue-rule:horizon_s=240,idle_s=0", config, [trace], [0])[0].cost
    bound = solve(config, trace, single=False, time_limit_s=limit_s, relaxed=True).bound
    return {
        "T2_constant": constant.cost,
        "T2_queue_rule": rule,
        "T2_bound": bound,
        "T2_queue_rule_vs_constant": rule / constant.cost,
        "T2_queue_rule_vs_bound": rule / bound,
    }


def main(argv: list[str] | None = None) -> int:
    """Run and print."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--seeds", type=int, default=6, help="tuning seeds, and as many reporting seeds")
    parser.add_argument("--boot", choices=("const", "uniform"), default="const", help="71 s, or 45 to 97 s (U)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a bound, and for a plan not kept")
    parser.add_argument("--only", choices=("T1", "T2", "T4"), action="append", help="some of the traces")
    parser.add_argument("--short", action="store_true", help="constant fleet, queue rule and bound of T2, untuned")
    parser.add_argument("--directory", type=Path, help="not used: nothing is written")
    chosen = parser.parse_args(argv)
    notes: dict[str, str] = {"boot": chosen.boot, "seeds": str(chosen.seeds), "minute_price": str(MINUTE_PRICE)}
    figures: dict[str, float] = {}
    if chosen.short:
        figures = small_figures(chosen.limit, notes)
    else:
        boot = {"boot_low_s": 71.0, "boot_high_s": 71.0} if chosen.boot == "const" else {}
        # A constant boot time leaves nothing to the seed.
        seeds = 1 if chosen.boot == "const" else chosen.seeds
        for name, trace in (("T1", train_text()), ("T2", train_fit())):
            if name in (chosen.only or (name,)):
                config = preset("train-text", **boot)
                figures |= training_figures(name, config, trace, seeds, chosen.limit, notes)
        if "T4" in (chosen.only or ("T4",)):
            figures |= loop_figures(chosen.seeds, notes)
    return report("autoscaling_baselines", figures, as_json=chosen.json, packages=("numba", "scipy"), notes=notes)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInput as fault:
        sys.exit(str(fault))
