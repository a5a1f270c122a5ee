"""A training campaign: one configuration, or a grid of them, each with several seeds; its directories and summary.

In the campaign's directory stand `summary.json` and, for each configuration, `curves.svg` and a directory per seed
(see `trainer.autoscaling.runs`); with a grid, each configuration has a directory of its own, named after what it
varies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from domain.errors import BadInput
from trainer.autoscaling.configuration import PPOConfig, changes_of
from trainer.autoscaling.goals import held_out_unit, marks_of
from trainer.autoscaling.runs import CHECKPOINTS_FOLDER, HELD_OUT
from trainer.kit.checkpoint import Checkpoints, OtherConfiguration, check_resumable, write_json
from trainer.kit.curves import curve_of, draw_curves, summary_of
from trainer.kit.intervals import Interval
from trainer.kit.progress import CURVE_FILE
from trainer.kit.sweeps import Job, grid_of

SUMMARY_FILE, CURVES_FILE = "summary.json", "curves.svg"


@dataclass(frozen=True, slots=True)
class Variant:
    """One configuration of a campaign: its name (empty without a grid), the configuration, and where its runs stand."""

    name: str
    config: PPOConfig
    directory: Path


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is trained: every variant with every seed."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    directory: Path

    def run_directory(self, variant: Variant, seed: int) -> Path:
        """Return where a run stands."""
        return variant.directory / f"seed-{seed}"


def campaign_of(config: PPOConfig, seeds: Sequence[int], sweeps: Sequence[str], directory: Path) -> Campaign:
    """Return the campaign of a configuration, seeds and `field=value,value` sweeps; BadInput for a wrong field."""
    variants = []
    for changes in grid_of(sweeps):
        name = ",".join(f"{field}={value}" for field, value in changes.items())
        # A value may be a path or a policy's text; the directory's name keeps what any file system takes.
        folder = "".join(sign if sign.isalnum() or sign in "=.,-_+" else "_" for sign in name)
        varied = replace(config, **changes_of("--sweep", changes))
        variants.append(Variant(name, varied, directory / folder if name else directory))
    if "seed" in {field for changes in grid_of(sweeps) for field in changes}:
        raise BadInput("--sweep", "seed", "give seeds by --seeds, such as --seeds 0-4")
    return Campaign(tuple(variants), tuple(seeds), directory)


def jobs_of(campaign: Campaign, goals: Mapping[str, Mapping[str, float]], episodes: int) -> list[Job]:
    """Return a job per run, seeds of one variant together. goals: cost by baseline, per training task."""
    jobs = []
    for variant in campaign.variants:
        for seed in campaign.seeds:
            name = f"{variant.name} seed {seed}".strip()
            data = {
                "name": name,
                "config": replace(variant.config, seed=seed).plain(),
                "directory": str(campaign.run_directory(variant, seed).resolve()),
                "goals": dict(goals[variant.config.task]),
                "marks": marks_of(variant.config.task, goals[variant.config.task]),
                "episodes": episodes,
            }
            jobs.append(Job(name, data))
    return jobs


def check_directories(jobs: Sequence[Job], *, resume: bool) -> None:
    """Raise BadInput when a run would go over another one, or resume one of another configuration."""
    for job in jobs:
        directory = Path(job.data["directory"])
        found = Checkpoints(directory / CHECKPOINTS_FOLDER).last()
        if found is None:
            continue
        try:
            check_resumable(found, job.data["config"], directory)
        except OtherConfiguration:
            if resume:
                raise
        if not resume:
            raise BadInput("--out", str(directory), "it holds a run: give --resume to go on with it, or another --out")


def conclude(campaign: Campaign, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write `summary.json` and each variant's `curves.svg`, and return the summary.

    results: what the runs returned, in the order of the jobs. The best run is the one that was cheapest on the
    held-out episodes by which checkpoints are chosen, not on those that are reported.
    """
    left = list(results)
    variants = []
    for variant in campaign.variants:
        runs, left = left[: len(campaign.seeds)], left[len(campaign.seeds) :]
        places = [campaign.run_directory(variant, seed) for seed in campaign.seeds]
        named = {f"seed {seed}": run for seed, run in zip(campaign.seeds, runs, strict=True)}
        goals, task = runs[0]["goals"], variant.config.task
        curves = {name: curve_of(place / CURVE_FILE, HELD_OUT) for name, place in zip(named, places, strict=True)}
        draw_curves(
            curves, marks_of(task, goals), variant.directory / CURVES_FILE, title=task, unit=held_out_unit(task)
        )
        first = runs[0]["report"]
        alone = Interval(first["cost"], first["low"], first["high"], first["episodes"])
        chosen = min(range(len(runs)), key=lambda at: runs[at]["selection_cost"])
        variants.append(
            {
                "variant": variant.name,
                "task": task,
                **summary_of({name: run["report"]["cost"] for name, run in named.items()}, goals, alone),
                "cpu_s": sum(run["cpu_s"] for run in runs),
                "best": {
                    "seed": campaign.seeds[chosen],
                    "selection_cost": runs[chosen]["selection_cost"],
                    "cost": runs[chosen]["report"]["cost"],
                    "model": str((places[chosen] / runs[chosen]["model"]).relative_to(campaign.directory)),
                },
                "curves": str((variant.directory / CURVES_FILE).relative_to(campaign.directory)),
            }
        )
    summary = {"seeds": list(campaign.seeds), "variants": variants}
    write_json(campaign.directory / SUMMARY_FILE, summary)
    return summary
