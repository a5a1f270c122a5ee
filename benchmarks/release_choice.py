"""Which of several trained policies to ship: by their cost on validation loads alone, none of which is reported.

The loads are those of `trimtab evaluate` (T3, logs, T6) on seeds from FIRST_SEED on, which neither training nor the
choice of checkpoints has seen: random batches, generated loads like job logs for recorded ones, and T6's shifts.
Per family the ratio of summed cost to the queue rule's. A policy that keeps a fleet above its minimum for more than
MOST_IDLE_MIN minutes after the last job is rejected; of the others the one with the least ratio in its worst family is
chosen.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.models.shipped import shipped_models
from benchmarks.report import arguments, progress, report
from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.reference import SimulationConfig, preset
from trainer.autoscaling.evaluation import suite as shifts
from trainer.autoscaling.evaluation.episode import run_episode
from trainer.autoscaling.evaluation.suite import Case
from trainer.autoscaling.policies.registry import policy_of
from trainer.autoscaling.tasks import RELEASE_PAR, SELECTION_SEED, dry_run_world, load_of

FIRST_SEED = SELECTION_SEED + 100
"""The choice of checkpoints takes those before."""
MOST_IDLE_MIN = 15.0
RANDOM, LOGS, SHIFTED = 24, 24, 10
WORLDS: Mapping[str, SimulationConfig] = {"release": preset("live-like"), "release-small": dry_run_world()}


@dataclass(frozen=True, slots=True)
class Found:
    """A policy on the validation loads: ratio to the queue rule per family, longest minutes above the minimum."""

    ratios: Mapping[str, float]
    idle_min: float
    released: bool = True

    @property
    def worst(self) -> float:
        """The ratio of the dearest family."""
        return max(self.ratios.values())

    @property
    def kept(self) -> bool:
        """Whether idle fleets are given back in time."""
        return self.released and self.idle_min <= MOST_IDLE_MIN


def chosen(found: Sequence[Found]) -> int | None:
    """Return the place of the policy that the rule chooses; None where all are rejected. The first of equals."""
    kept = [place for place, one in enumerate(found) if one.kept]
    return min(kept, key=lambda place: found[place].worst, default=None)


def validation_cases(config: SimulationConfig, share: float = 1.0) -> tuple[Case, ...]:
    """Return the cases; share: of each family, at least one."""

    def count(full: int) -> range:
        return range(FIRST_SEED, FIRST_SEED + max(round(share * full), 1))

    def case(family: str, world: SimulationConfig, trace: Trace, seed: int) -> Case:
        return Case(f"{family} {seed}", family, "validation", world, trace, seed)

    cases = [case("random", config, load_of("random", seed, config.max_cores), seed) for seed in count(RANDOM)]
    cases += [case("logs", config, load_of("log", seed, config.max_cores), seed) for seed in count(LOGS)]
    for seed in count(SHIFTED):
        trace = load_of("random", seed, config.max_cores)
        dearer = shifts.dearer_type(config, seed % len(config.types))
        cases += [
            case("boot x2", shifts.boot_twice_as_long(config), trace, seed),
            case("price x1.5", dearer, trace, seed),
            case("jobs x2", config, shifts.longer_jobs(trace), seed),
            case("idle day", config, shifts.idle_day(trace), seed),
            case("burst x10", config, shifts.burst(trace), seed),
        ]
    return tuple(cases)


def look_at(text: str, cases: Sequence[Case], par: Mapping[str, float]) -> Found:
    """Return how a policy does; par: what the queue rule pays for each family, dollars, or nothing to tell dollars."""
    policy = policy_of(text)
    costs: dict[str, float] = {}
    idle_min, released = 0.0, True
    for case in cases:
        run = run_episode(policy, case)
        costs[case.family] = costs.get(case.family, 0.0) + run.measures.cost
        idle_min, released = max(idle_min, run.idle.worst_min or 0.0), released and run.idle.released
    return Found({family: cost / par.get(family, 1.0) for family, cost in costs.items()}, idle_min, released)


def main() -> int:
    """Look at the models, the one that ships first, and name the one to ship."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--task", choices=list(WORLDS), default="release", help="whose world and fleet")
    parser.add_argument("--models", nargs="*", default=[], help="model files, besides the one that ships")
    parser.add_argument("--share", type=float, default=1.0, help="share of the cases")
    parser.add_argument("--directory", type=Path, help="not needed; nothing is kept")
    options = parser.parse_args()
    ships = [str(model.path) for model in shipped_models() if model.name == f"lstm-{options.task}"]
    texts = list(dict.fromkeys([*ships, *options.models]))
    if not texts:
        raise BadInput("--models", "", f"name a model file: none ships for {options.task}")
    cases = validation_cases(WORLDS[options.task], options.share)
    progress("queue rule")
    par = look_at(RELEASE_PAR, cases, {}).ratios
    found = []
    for text in texts:
        progress(text)
        found.append(look_at(text, cases, par))
    place = chosen(found)
    best = found[0 if place is None else place]
    return report(
        "release_choice",
        {"worst": best.worst, "idle_min": best.idle_min, "ships_worst": found[0].worst, "cases": len(cases)},
        as_json=options.json,
        packages=("numpy", "onnxruntime"),
        notes={
            "task": options.task,
            "chosen": None if place is None else Path(texts[place]).name,
            **{
                Path(text).name: {
                    "kept": one.kept,
                    "idle_min": one.idle_min,
                    "worst": round(one.worst, 4),
                    **{family: round(ratio, 4) for family, ratio in one.ratios.items()},
                }
                for text, one in zip(texts, found, strict=True)
            },
        },
    )


if __name__ == "__main__":
    sys.exit(main())
