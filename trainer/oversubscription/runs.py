"""One training run of the learned policy, from its configuration to its model file, and several of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from trainer.kit.checkpoint import config_hash, package_versions
from trainer.kit.files import replace_file, write_json
from trainer.kit.jobs import Job
from trainer.kit.progress import CURVE_FILE
from trainer.kit.runs import CURVES_FILE, RUN_FILE, SUMMARY_FILE, check_directories, checkpoints_of, listeners, run_all
from trainer.oversubscription.c2marl import EXTENDABLE, Config, network_of, train
from trainer.oversubscription.calibration import fit_learned_shield, fitting_weeks
from trainer.oversubscription.episodes import judge
from trainer.oversubscription.model_file import export
from trainer.oversubscription.policies import OversubscriptionPolicy, Task, policy_of
from trainer.oversubscription.report import learning
from trainer.oversubscription.unseen import arrivals_of, unseen_week

RESERVED = "held_out/reserved"
"""Share of the requested cores that the greedy policy reserves; the lowest safe one is kept."""
REPORT_EPISODES = 2_000
REPORT_SEED = 3_000_000_019
UNSEEN_WEEKS, UNSEEN_EPISODES = 8, 300
"""Weeks drawn anew that no training and no choice of a policy sees."""


def run(data: Mapping[str, Any]) -> dict[str, Any]:
    """Train as `data` says, going on from the last checkpoint, export, judge on fresh episodes; return `run.json`.

    data: config (JSON data of a Config), directory, name, show (bar, lines or silent). Plain data, so that any
    process can be asked.
    """
    config, directory = Config.of(data["config"]), Path(data["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    checkpoints = checkpoints_of(directory)
    with listeners(data, checkpoints.last(), RESERVED) as listener:
        listener.phase("compiling the simulator, and playing the first episodes")
        learnt = train(config, checkpoints=checkpoints, on_progress=listener)
    last = checkpoints.last()
    wall_s, cpu_s = (0.0, 0.0) if last is None else (last.progress["wall_s"], last.progress["cpu_s"])
    scenario = scenario_of(config.scenario)
    network = network_of(config, scenario)
    network.load_state_dict(dict(learnt.weights))
    training = {
        "config": config.plain(),
        "config_hash": config_hash(config.plain()),
        "seed": config.seed,
        "episodes": learnt.episodes,
        "lambda": learnt.price,
        "weights_hash": learnt.weights_hash,
        "packages": package_versions(),
    }
    path = export(network, config, scenario, directory, training=training, evaluation=asdict(learnt.best))
    policy = policy_of(str(path))
    known, fresh = _weeks(config, scenario)
    reports = _judged(policy, path.name, known, config, scenario, REPORT_EPISODES)
    unseen = _judged(policy, path.name, fresh, config, scenario, UNSEEN_EPISODES)
    summary = {
        "name": str(data["name"]),
        "config": config.plain(),
        "episodes": learnt.episodes,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "weights_hash": learnt.weights_hash,
        "lambda": learnt.price,
        "selected": asdict(learnt.best),
        "model": path.name,
        "reports": reports,
        "unseen": unseen,
        "shield": behind_shield(policy, path.name, config, scenario),
    }
    write_json(directory / RUN_FILE, summary)
    return summary


def behind_shield(
    policy: OversubscriptionPolicy, name: str, config: Config, scenario: Scenario
) -> dict[str, Any] | None:
    """Return what `run.json` says of a model behind the loosest shield that holds; None where none does."""
    found = fit_learned_shield(policy, scenario, fitting_weeks(scenario), start=config.start, alpha=config.alpha)
    if found is None:
        return None
    known, fresh = _weeks(config, scenario)
    text = f"shield:base=({name}),b={found.policy.budget:g}"
    return found.as_data() | {
        "reports": _judged(found.policy, text, known[:1], config, scenario, REPORT_EPISODES),
        "unseen": _judged(found.policy, text, fresh, config, scenario, UNSEEN_EPISODES),
    }


def _weeks(config: Config, scenario: Scenario) -> tuple[list[Week], list[Week]]:
    """Return the weeks that were learnt from, and those of the report, which nothing else looks at."""
    arrivals = arrivals_of(scenario)
    fresh = [unseen_week(arrivals, i) for i in range(UNSEEN_WEEKS)]
    return [scenario.week(week) for week in config.weeks], fresh


def _judged(
    policy: OversubscriptionPolicy,
    name: str,
    weeks: Sequence[Week],
    config: Config,
    scenario: Scenario,
    episodes: int,
) -> list[dict[str, Any]]:
    tasks = [Task(scenario, week, config.start, config.alpha) for week in weeks]
    judged = [judge(policy, task, episodes=episodes, seed=REPORT_SEED) for task in tasks]
    return [one.as_data() | {"policy": name} for one in judged]


def jobs_of(config: Config, seeds: Sequence[int], out: Path, *, resume: bool) -> list[Job]:
    """Return a job per seed; BadInput when a run would go over another one, or go on with another configuration."""
    jobs = []
    for seed in seeds:
        data = {"config": replace(config, seed=seed).plain(), "directory": str((out / f"seed-{seed}").resolve())}
        jobs.append(Job(f"seed {seed}", {"name": f"seed {seed}", **data}))
    check_directories(jobs, resume=resume, extendable=EXTENDABLE)
    return jobs


def train_all(
    jobs: Sequence[Job], out: Path, *, at_once: int, ray: str | None = None, silent: bool = False
) -> dict[str, Any]:
    """Run the jobs, here or on a Ray cluster, write `summary.json` and return it. Raises JobFailed."""
    hours = scenario_of(jobs[0].data["config"]["scenario"]).hours
    results = run_all(
        *(run, jobs, RESERVED, lambda job: job.data["config"]["episodes"] * hours),
        at_once=at_once,
        ray=ray,
        silent=silent,
    )
    first = [result["reports"][0] for result in results]
    summary: dict[str, Any] = {
        "config": {name: value for name, value in results[0]["config"].items() if name != "seed"},
        "seeds": [result["config"]["seed"] for result in results],
        "figures": {
            name: {
                "mean": float(np.mean([report[name] for report in first])),
                "std": float(np.std([report[name] for report in first])),
                "by_seed": [report[name] for report in first],
            }
            for name in ("s_cores", "pm_hot_r", "c_hot_r", "c_hot_r_analytic", "peak_machines")
        },
        "unseen": {
            name: [float(fold([week[figure] for week in result["unseen"]])) for result in results]
            for name, figure, fold in (
                ("s_cores", "s_cores", np.mean),
                ("c_hot_r_mean", "c_hot_r", np.mean),
                ("c_hot_r_worst", "c_hot_r", np.max),
            )
        },
        "shield_budgets": [None if result["shield"] is None else result["shield"]["budget"] for result in results],
        "feasible": [result["selected"]["feasible"] for result in results],
        "cpu_s": [result["cpu_s"] for result in results],
        "wall_s": [result["wall_s"] for result in results],
        "models": [str(Path(f"seed-{result['config']['seed']}") / result["model"]) for result in results],
    }
    write_json(out / SUMMARY_FILE, summary)
    # Machines of a cluster may have kept their curves.
    folders = [Path(job.data["directory"]) for job in jobs if (Path(job.data["directory"]) / CURVE_FILE).is_file()]
    if folders:
        config = results[0]["config"]
        replace_file(out / CURVES_FILE, learning({f"{config['scenario']}, {config['start']}": folders}))
    return summary
