"""Runs that train a rule for each request: a run per seed, the choice among them, the release, and the file.

The choice: each seed's b is raised by the smallest offset, 0 or from 0.01 upwards, with which its worst validation week
has at most 0.9 and the mean of the weeks at most 0.5 of the allowed risk. Of these the largest saving by the objective
is taken. The release: each of further weeks, redrawn and known, keeps the promise, by the chance without sampling and
in RELEASE_EPISODES drawn weeks of usage. A rule that was trained with drifts has to pass a second part: redrawn weeks
with usual drifts, one half of them in mid-week and unknown, behind the shield of an agent. Their mean risk must be
within the allowed one, or not above that of the constant rates behind the same shield.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agent.oversubscription.rule_model import RuleFile, cluster_of
from domain.rules.oversubscription.request_rule import RequestRule
from simulator.oversubscription.layout import ruled, unguarded
from simulator.oversubscription.scenario import Scenario, Week, scenario_of
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.weekly import Assessor, sample
from trainer.kit.checkpoint import config_hash, package_versions
from trainer.kit.files import replace_file, write_json
from trainer.kit.jobs import Job
from trainer.kit.runs import RUN_FILE, SUMMARY_FILE, check_directories, checkpoints_of, listeners, run_all
from trainer.oversubscription.policies import RatesFile, scenario_sha256
from trainer.oversubscription.report import SCORE
from trainer.oversubscription.rule_training import (
    FIRST_DRIFT,
    Change,
    Config,
    Played,
    Stage,
    assessor_of,
    decoded,
    known_weeks,
    raised,
    start_rates,
    train,
    usual_shield,
    validation_weeks,
)
from trainer.oversubscription.unseen import RELEASE, arrivals_of, shifted, unseen_week

RULE_FILE = "rule.json"
WORST, MEAN = 0.9, 0.5
"""Shares of the allowed risk that a chosen rule may have on the validation weeks."""
OFFSETS = tuple(round(0.01 * i, 2) for i in range(81))
"""Tried in order; with the last one next to nothing is oversold."""
RELEASE_EPISODES = 1_000
RELEASE_SEED = 5_000_000_029
FIRST_CHANGED = 10_000
"""Of the redrawn weeks of the release in which usage changes."""


def run(data: Mapping[str, Any]) -> dict[str, Any]:
    """Train as `data` describes, continuing from the last checkpoint; return `run.json`.

    data: config (JSON data of a Config), directory, name, show (bar, lines or silent).
    """
    config, directory = Config.of(data["config"]), Path(data["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    checkpoints = checkpoints_of(directory)
    with listeners(data, checkpoints.last(), SCORE) as listener:
        listener.phase("compiling the simulator, and playing the first weeks")
        learnt = train(config, checkpoints=checkpoints, on_progress=listener)
    summary = {
        "name": str(data["name"]),
        "config": config.plain(),
        "generations": config.whole,
        "wall_s": learnt.wall_s,
        "cpu_s": learnt.cpu_s,
        "point": learnt.point.tolist(),
    }
    write_json(directory / RUN_FILE, summary)
    return summary


def jobs_of(config: Config, seeds: Sequence[int], out: Path, *, resume: bool) -> list[Job]:
    """Return a job per seed; BadInput when a run would go over another one, or resume another configuration."""
    jobs = []
    for seed in seeds:
        data = {"config": replace(config, seed=seed).plain(), "directory": str((out / f"seed-{seed}").resolve())}
        jobs.append(Job(f"seed {seed}", {"name": f"seed {seed}", **data}))
    check_directories(jobs, resume=resume, extendable=())
    return jobs


def train_all(
    jobs: Sequence[Job], out: Path, *, at_once: int, ray: str | None = None, silent: bool = False
) -> dict[str, Any]:
    """Run the jobs, here or on a Ray cluster, choose, release, and write `rule.json` and `summary.json`.

    Returns the summary. Raises JobFailed.
    """
    results = run_all(
        *(run, jobs, SCORE, lambda job: Config.of(job.data["config"]).whole), at_once=at_once, ray=ray, silent=silent
    )
    config = Config.of(results[0]["config"])
    scenario = scenario_of(config.scenario)
    rules = [decoded(np.array(result["point"]), scenario.subscribers) for result in results]
    chosen, facts = choose(scenario, config, rules)
    rule = raised(rules[chosen], facts["offset"])
    release, rates = released(scenario, config, rule), start_rates(scenario, config)
    changes = through_changes(scenario, config, rule, rates) if config.drifts else None
    safe = all(week["released"] for week in release) and (changes is None or changes["released"])
    about = {"seed": results[chosen]["config"]["seed"], "choice": facts, "release": release, "changes": changes}
    training = write_rule(out / RULE_FILE, scenario, config, rule, rates, about)
    summary: dict[str, Any] = {
        "config": training["config"],
        "seeds": [result["config"]["seed"] for result in results],
        "chosen": training["seed"],
        "choice": facts,
        "release": release,
        "changes": changes,
        "feasible": [safe],
        "rule": RULE_FILE,
        "cpu_s": [result["cpu_s"] for result in results],
        "wall_s": [result["wall_s"] for result in results],
    }
    write_json(out / SUMMARY_FILE, summary)
    return summary


def write_rule(
    path: Path, scenario: Scenario, config: Config, rule: RequestRule, rates: RatesFile, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the file of a rule, and return the facts of its training in it.

    rates: for the hours without the rule. about: the seed, and the figures of choice and release.
    """
    cluster = cluster_of(scenario.machine_cores, scenario.beta, scenario.hours, scenario.violation_hours)
    known = (rates.subscribers, scenario.actions, rates.rates, rates.guard, config.alpha, config.objective, cluster)
    training = {
        "config": {name: value for name, value in config.plain().items() if name != "seed"},
        "config_hash": config_hash(config.plain()),
        "seed": about["seed"],
    }
    facts = {
        "scenario": scenario.name,
        "scenario_sha256": scenario_sha256(scenario),
        "start": config.start,
        "training": training,
        "choice": about["choice"],
        "release": about["release"],
        "changes": about["changes"],
        "packages": package_versions(),
    }
    data = RuleFile(rule, *known).as_data() | facts
    replace_file(path, json.dumps(data, indent=1, allow_nan=False) + "\n")
    return training


def choose(
    scenario: Scenario, config: Config, rules: Sequence[RequestRule], check: Callable[[], None] = lambda: None
) -> tuple[int, dict[str, Any]]:
    """Return the place of the chosen rule, and the figures of the choice with the offset of each.

    check: called before each offset; an error of it ends the choice.
    """
    stage = Stage(scenario, validation_weeks(scenario, config), config.start)
    by_seed: list[dict[str, Any]] = []
    for rule in rules:
        for offset in OFFSETS:
            check()
            played = stage.play(raised(rule, offset))
            passed = _passes(played, config)
            if passed:
                break
        by_seed.append(
            {"offset": offset, "passed": passed, "saved": float(played.saved(config.objective).mean())} | played.means()
        )
    best = max(range(len(rules)), key=lambda at: (by_seed[at]["passed"], by_seed[at]["saved"]))
    return best, {"weeks": len(stage.assessors), "by_seed": by_seed, **by_seed[best]}


def _passes(played: Played, config: Config) -> bool:
    allowed = 1.0 - config.alpha
    return bool(played.risk.max() <= WORST * allowed and played.risk.mean() <= MEAN * allowed)


def release_weeks(scenario: Scenario, config: Config) -> list[Week]:
    """Return the weeks that a rule is released on: nothing was learnt or chosen on the redrawn ones."""
    arrivals = arrivals_of(scenario, config.weeks)
    redrawn = [unseen_week(arrivals, i, RELEASE) for i in range(config.released)]
    return [*redrawn, *known_weeks(scenario, config)]


def released(
    scenario: Scenario, config: Config, rule: RequestRule, check: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Return the figures of each week of the release; `released`: whether it keeps the promise.

    check: called before each week; an error of it ends the release.
    """
    guard, allowed = ruled(unguarded(scenario), rule, scenario.hours), 1.0 - config.alpha
    seeds, found = np.arange(RELEASE_SEED, RELEASE_SEED + RELEASE_EPISODES), []
    for week in release_weeks(scenario, config):
        check()
        risk = Assessor(scenario, week, config.start, guard=guard).assess(np.ones(scenario.subscribers))
        placed = risk.placement
        hot = sample(placed, usage_of("gauss", scenario, week), seeds).c_hot_r
        found.append(
            {
                "week": week.name,
                "c_hot_r_analytic": risk.c_hot_r,
                "c_hot_r": hot,
                "s_cores": placed.s_cores,
                "s_core_hours": placed.s_core_hours,
                "peak_machines": placed.peak_machines,
                "rejects": placed.rejects,
                "released": not placed.rejects and max(risk.c_hot_r, hot) <= allowed,
            }
        )
    return found


def through_changes(
    scenario: Scenario,
    config: Config,
    rule: RequestRule,
    rates: RatesFile,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Return the risk of redrawn weeks with usual drifts, of the rule and of its constant rates behind a shield.

    `released`: see the head of this module. check: called before each week; an error of it ends the release.
    """
    arrivals, ones, constant = arrivals_of(scenario, config.weeks), np.ones(scenario.subscribers), np.array(rates.rates)
    risks = []
    for number in range(FIRST_CHANGED, FIRST_CHANGED + config.released):
        check()
        week = unseen_week(arrivals, number, RELEASE)
        change = Change(shifted(scenario, FIRST_DRIFT + number), number % 2 == 0)
        by_rule = assessor_of(
            *(scenario, week, config.start, change),
            lambda known: ruled(usual_shield(known), rule, known.hours),
        ).assess(ones)
        by_rates = assessor_of(scenario, week, config.start, change, usual_shield).assess(constant)
        risks.append([1.0 if one.placement.rejects else one.c_hot_r for one in (by_rule, by_rates)])
    own, of_rates = np.array(risks).T
    limit = max(1.0 - config.alpha, float(of_rates.mean()))
    return {
        "weeks": len(own),
        "mean": float(own.mean()),
        "worst": float(own.max()),
        "rates_mean": float(of_rates.mean()),
        "rates_worst": float(of_rates.max()),
        "released": bool(own.mean() <= limit),
    }
