"""All baselines on T1 and T2: tuned on seeds of their own, beside the best constant fleet and the bound (§9, §18).

Costs are means over the reporting seeds, each rule at its tuned setting; ratios are to the best constant fleet and to
the clairvoyant bound of the same run. Notes have the settings.
"""

from __future__ import annotations

import sys
from statistics import fmean

from benchmarks.report import arguments, progress, report
from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit, train_text
from trainer.autoscaling.baselines.clairvoyant import solve
from trainer.autoscaling.baselines.tuning import TUNING_SEED, best_constant, cases_of, tune
from trainer.autoscaling.policy_names import run_many

RULES = ("queue-rule", "queue-rule-single", "threshold", "target-tracking")


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
    parser.add_argument("--only", choices=("T1", "T2"), action="append", help="some of the traces")
    parser.add_argument("--short", action="store_true", help="constant fleet, queue rule and bound of T2, untuned")
    chosen = parser.parse_args(argv)
    notes: dict[str, str] = {"boot": chosen.boot, "seeds": str(chosen.seeds)}
    figures: dict[str, float] = {}
    if chosen.short:
        figures = small_figures(chosen.limit, notes)
    else:
        boot = {"boot_low_s": 71.0, "boot_high_s": 71.0} if chosen.boot == "const" else {}
        # A constant boot time leaves nothing to the seed.
        seeds = 1 if chosen.boot == "const" else chosen.seeds
        config = preset("train-text", **boot)
        for name, trace in (("T1", train_text()), ("T2", train_fit())):
            if name in (chosen.only or (name,)):
                figures |= training_figures(name, config, trace, seeds, chosen.limit, notes)
    return report("autoscaling_baselines", figures, as_json=chosen.json, packages=("numba", "scipy"), notes=notes)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInput as fault:
        sys.exit(str(fault))
