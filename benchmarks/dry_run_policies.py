"""What the dry run's hour costs under the policies: the agent's rails and settings, over several choices of jobs.

`trimtab dry-run` tells this for one choice of jobs (`--seed`); one is too few to tell policies apart. Dollars of rent
and waiting, means over the seeds. `learned_<n>` and `queue_rule_<n>`: the agent expects a job of <n> core-seconds
(`QUEUE_RULE__JOB_CORE_S`) until one has finished; without a number: as the dry run has it. Notes have every seed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from agent.autoscaling.fleets import managed_fleets
from agent.autoscaling.policies.learned_models import ModelShelf
from agent.autoscaling.policies.ppo_lstm import LEARNED
from agent.rehearsal.scenario import INITIAL, POLICY, beside_learned, environment, recorded_trace
from agent.rehearsal.summary import FleetParameters, best_constant, run_agent
from agent.settings import load_settings
from benchmarks.report import Target, arguments, progress, report
from domain.workload import Trace

SEEDS = (*range(15), 1993)
JOB_CORE_S = (60.0, 120.0, 150.0, 240.0)
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy by its text, and what the agent expects of a job."""

    name: str
    policy: str
    parameters: FleetParameters


def contenders(directory: Path, model: str, job_core_s: Sequence[float]) -> tuple[Contender, ...]:
    """Return the policies with the settings of the dry run; model: a file, or nothing for the one that comes along."""
    rule, parameters = _parameters(directory, {})
    asked = {POLICY: LEARNED}
    _, as_learned = _parameters(directory, {**asked, **beside_learned(asked)})
    learned = f"model:{Path(model).resolve()}" if model else LEARNED
    if not rule.startswith("queue-rule:"):
        raise AssertionError(f"the dry run's fleet is not by default run by the queue rule, but by {rule}")
    found = [
        Contender("learned", learned, as_learned),
        Contender("queue_rule", rule, parameters),
        Contender("threshold", "threshold", parameters),
    ]
    for size in job_core_s:
        terms = None if parameters.terms is None else replace(parameters.terms, job_core_s=size)
        found.append(Contender(f"learned_{size:g}", learned, replace(parameters, job_core_s=size, terms=terms)))
        found.append(Contender(f"queue_rule_{size:g}", f"{rule},job_core_s={size}", parameters))
    return tuple(found)


def _parameters(directory: Path, overrides: Mapping[str, str]) -> tuple[str, FleetParameters]:
    settings = load_settings(environment(directory, "http://127.0.0.1:1", "", "", "act", overrides))
    (managed,) = managed_fleets(settings)
    aggregation = managed.aggregation
    return managed.policy, FleetParameters(
        managed.fleet, managed.limits, aggregation.idle_s, aggregation.job_core_s, aggregation.terms
    )


def cost(contender: Contender, trace: Trace, seed: int, shelf: ModelShelf) -> float:
    """Return the hour's cost, dollars."""
    done = run_agent(contender.policy, contender.parameters, trace, INITIAL, HOUR_S, seed, shelf)
    return done.cost


def main() -> int:
    """Simulate every contender on every choice of jobs and report the means."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="choices of jobs")
    parser.add_argument("--job-core-s", type=float, nargs="*", default=list(JOB_CORE_S), help="expected sizes of a job")
    parser.add_argument("--model", default="", help="a model file instead of the one that comes with the agent")
    parser.add_argument("--directory", type=Path, help="not needed; nothing is kept")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    notes: dict[str, object] = {"seeds": options.seeds}
    with TemporaryDirectory() as kept:
        shelf = ModelShelf(Path(kept))
        traces = {seed: recorded_trace("nasa", seed)[0] for seed in options.seeds}
        for contender in contenders(Path(kept), options.model, options.job_core_s):
            progress(contender.name)
            costs = [cost(contender, trace, seed, shelf) for seed, trace in traces.items()]
            figures[contender.name] = fmean(costs)
            notes[contender.name] = [round(one, 4) for one in costs]
            fleet = contender.parameters.fleet
    progress("best constant fleet in hindsight")
    figures["constant"] = fmean(best_constant(fleet, trace, HOUR_S, seed).cost for seed, trace in traces.items())
    figures["ratio_vs_queue_rule"] = figures["learned"] / figures["queue_rule"]
    return report(
        "dry_run_policies",
        figures,
        as_json=options.json,
        packages=("numpy", "onnxruntime"),
        targets=(Target("ratio_vs_queue_rule", 1.0),),
        notes=notes,
    )


if __name__ == "__main__":
    sys.exit(main())
