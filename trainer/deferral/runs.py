"""A training run of a deferral policy, from its configuration to its model file, and many of them together.

A run's directory holds `checkpoints/`, `curve.csv`, `tensorboard/`, the model, and at the end `run.json`. Weights are
chosen on the calibration seeds; what is reported comes from seeds 0 to 99, which nothing else looks at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from domain.rules.deferral.choosing import DECODINGS, Decoding, packed
from domain.rules.deferral.jobs import Score, objective
from simulator.deferral.scenarios import CALIBRATION_SEEDS, Episode, episode
from simulator.deferral.world import play
from trainer.deferral.export import export
from trainer.deferral.set_transformer import (
    EXTENDABLE,
    IMITATION,
    LOST,
    METHODS,
    PAPER,
    Config,
    SetPolicy,
    judge,
    mean_capacity,
    mean_total,
    network_of,
    preset,
    train,
)
from trainer.kit.checkpoint import config_hash, package_versions, weights_hash
from trainer.kit.files import write_json
from trainer.kit.intervals import compare
from trainer.kit.jobs import Job
from trainer.kit.runs import RUN_FILE, SUMMARY_FILE, check_directories, checkpoints_of, listeners, run_all

REPORT_SEEDS = range(100)
IMITATORS = ("full", "aux-high", "aux-low", "attention")


def run(data: Mapping[str, Any]) -> dict[str, Any]:
    """Train as `data` says, going on from the last checkpoint, export, report on seeds 0 to 99; return `run.json`.

    data: config (JSON data of a Config), directory, name, show (bar, lines or silent), cpu_minutes (None for no end).
    """
    config, directory = Config.of(data["config"]), Path(data["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    checkpoints = checkpoints_of(directory)
    with listeners(data, checkpoints.last(), LOST) as listener:
        listener.phase("compiling the simulator, and playing the first episodes")
        learnt = train(config, checkpoints=checkpoints, on_progress=listener, cpu_minutes=data.get("cpu_minutes"))
    last = checkpoints.last()
    assert last is not None
    cref = mean_capacity(config.scenarios)
    network = network_of(config)
    network.load_state_dict(dict(learnt.weights))
    reports: dict[str, dict[str, dict[str, Any]]] = {}
    for name in config.scenarios:
        seeds = int(data.get("report_seeds", len(REPORT_SEEDS)))
        episodes = [episode(name, seed) for seed in REPORT_SEEDS[:seeds]]
        kinds: tuple[Decoding, ...] = ("prefix",) if config.method == "pointer" else DECODINGS
        reports[name] = {kind: figures(judge(network, cref, episodes, kind, waits=config.waits)) for kind in kinds}
        if config.waits:
            reports[name]["prefix, no waiting"] = figures(judge(network, cref, episodes, "prefix"))
        reports[name]["fallback"] = figures(fallback(name, seeds))
    summary: dict[str, Any] = {
        "name": str(data["name"]),
        "config": config.plain(),
        "config_hash": config_hash(config.plain()),
        "complete": learnt.complete,
        "updates": learnt.updates,
        "steps": int(last.progress["steps"]),
        "wall_s": last.progress["wall_s"],
        "cpu_s": last.progress["cpu_s"],
        "cref": cref,
        "weights_hash": weights_hash(learnt.weights),
        "chosen_on": {"seeds": [CALIBRATION_SEEDS[0], config.evaluation_episodes], "total": learnt.best_total},
        "figures": dict(learnt.figures),
        "reports": reports,
        "packages": package_versions(),
        "model": None,
    }
    if isinstance(network, SetPolicy):
        told = ("config", "config_hash", "complete", "updates", "weights_hash", "chosen_on", "packages")
        means = {name: {kind: one["total"] for kind, one in found.items()} for name, found in reports.items()}
        path = export(
            network,
            cref,
            directory,
            episode(config.scenarios[0], CALIBRATION_SEEDS[0]),
            scenario=config.scenario,
            decoding=config.decoding,
            waits=config.waits,
            training={name: summary[name] for name in told},
            evaluation={"seeds": "0-99", "mean_total": means},
        )
        summary["model"] = path.name
    write_json(directory / RUN_FILE, summary)
    return summary


def figures(scores: Sequence[Score]) -> dict[str, Any]:
    """Return the means of episodes, and the total of each."""
    return {
        "utilisation": float(np.mean([score.utilisation for score in scores])),
        "delay_charge": float(np.mean([score.delay_charge for score in scores])),
        "violation": float(np.mean([score.violation for score in scores])),
        "total": mean_total(scores),
        "totals": [score.total for score in scores],
    }


@cache
def fallback(name: str, seeds: int) -> tuple[Score, ...]:
    """Return what the per-step knapsack comes to on the seeds of the report."""
    chosen: list[Episode] = [episode(name, seed) for seed in REPORT_SEEDS[:seeds]]
    return tuple(objective(made.jobs, play(made, packed()), made.capacity) for made in chosen)


def variants(scenario: str) -> list[Config]:
    """Return the configurations of the full set: as published, and with imitation of the optimum."""
    published = [preset(PAPER, method=method, scenario=scenario) for method in METHODS]
    return [*(preset(IMITATION, method=method, scenario=scenario) for method in IMITATORS), *published]


def place_of(config: Config) -> str:
    """Return the folder of a configuration's seeds: its method, and how it begins."""
    return f"{config.method}-{IMITATION if config.rounds else PAPER}"


def jobs_of(
    configs: Sequence[Config],
    seeds: Sequence[int],
    out: Path,
    *,
    resume: bool,
    cpu_minutes: float | None = None,
    report_seeds: int = len(REPORT_SEEDS),
) -> list[Job]:
    """Return a job for each configuration and seed; BadInput when a run would go over another one."""
    jobs = []
    for config in configs:
        for seed in seeds:
            name = f"{place_of(config)}/seed-{seed}"
            data = {"config": replace(config, seed=seed).plain(), "directory": str((out / name).resolve())}
            limits = {"cpu_minutes": cpu_minutes, "report_seeds": report_seeds}
            jobs.append(Job(name, {"name": name, **data, **limits}))
    check_directories(jobs, resume=resume, extendable=EXTENDABLE)
    return jobs


def train_all(
    jobs: Sequence[Job], out: Path, *, at_once: int, ray: str | None = None, silent: bool = False
) -> dict[str, Any]:
    """Run the jobs, here or on a Ray cluster, write `summary.json` and return it. Raises JobFailed.

    Of the seeds of a configuration the one with the highest mean total on the calibration seeds is its best.
    """

    def steps_of(job: Job) -> int:
        config = Config.of(job.data["config"])
        return config.updates * config.steps * config.environments

    results = run_all(run, jobs, LOST, steps_of, at_once=at_once, ray=ray, silent=silent)
    by_place: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        by_place.setdefault(place_of(Config.of(result["config"])), []).append(result)
    summary = {"variants": {place: summarised(place, found) for place, found in by_place.items()}}
    write_json(out / SUMMARY_FILE, summary)
    return summary


def summarised(place: str, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the seeds of one configuration came to: by scenario and decoding, and against the knapsack."""
    best = int(np.argmax([result["chosen_on"]["total"] for result in results]))
    found: dict[str, Any] = {}
    for name, first in results[0]["reports"].items():
        found[name] = {}
        for kind in (kind for kind in first if kind != "fallback"):
            means = [result["reports"][name][kind]["total"] for result in results]
            found[name][kind] = {"mean": float(np.mean(means)), "std": float(np.std(means)), "by_seed": means}
            own, theirs = (results[best]["reports"][name][one]["totals"] for one in (kind, "fallback"))
            if len(own) > 1:
                apart = compare(own, theirs).difference
                found[name][kind]["best_against_knapsack"] = [apart.mean, apart.low, apart.high]
    return {
        "seeds": [result["config"]["seed"] for result in results],
        "complete": [result["complete"] for result in results],
        "cpu_s": [result["cpu_s"] for result in results],
        "best": results[best]["config"]["seed"],
        "model": None if results[best]["model"] is None else f"{results[best]['name']}/{results[best]['model']}",
        "reports": found,
        "auxiliary": [
            {
                name: value
                for name, value in result["figures"].items()
                if name.startswith(("auxiliary/", "persistence/"))
            }
            for result in results
        ],
    }
