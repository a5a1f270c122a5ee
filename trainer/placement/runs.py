"""A training run of a placement policy, from its configuration to its policy file, and several seeds together.

A run's directory holds `checkpoints/`, `curve.csv`, `tensorboard/`, `policy.json` and `run.json`. A checkpoint keeps
the values that the search was given: a resumed run goes on bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.mix import mix_of_instances
from domain.rules.placement.policies import Policy, Training, policy_document
from simulator.placement import engine
from simulator.placement.instances import digest_of, instance_of
from trainer.kit.checkpoint import Checkpoint, Clock, config_hash, package_versions, plain
from trainer.kit.files import replace_file, write_json
from trainer.kit.jobs import Job, Pool, Workers
from trainer.kit.progress import Progress
from trainer.kit.runs import RUN_FILE, SUMMARY_FILE, check_directories, checkpoints_of, listeners, run_all
from trainer.placement.swarm import NOMINAL, SELECTION, Floats, History, Plan, Samples, Step, Valuation, search

POLICY_FILE = "policy.json"
LISTED, END = 64, 24
"""Characters of the names of instances in the name of a policy, at most, and of a single one where they are more."""
VALUE = "value"
"""The figure that is searched for: mean cost of the best vector plus its price of the range."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a run searches, where and how.

    hints: declared lifetimes with which each instance is taken, as `simulator.placement.traces` has them. choice:
    instances of the last choice, with the same hints; by default those of the search.
    """

    instances: tuple[str, ...]
    plan: Plan
    samples: Samples
    hints: tuple[str, ...] = ("",)
    choice: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.instances or len(set(self.instances)) < len(self.instances):
            raise BadInput("instances", self.instances, "name at least one instance, each once")

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        data: dict[str, Any] = plain(self)
        return data

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Return what `plain` made."""
        starts = tuple(tuple(start) for start in data["plan"].get("starts", ()))
        plan = Plan(**{**data["plan"], "starts": starts})
        hints, choice = tuple(data.get("hints", ("",))), tuple(data.get("choice", ()))
        return cls(tuple(data["instances"]), plan, Samples(**data["samples"]), hints, choice)

    def taken(self, names: Sequence[str]) -> dict[str, Instance]:
        """Return instances of these names with each of the hints, by label."""
        labels = {f"{name}, hints {hints}" if hints else name: (name, hints) for name in names for hints in self.hints}
        return {label: instance_of(*one) for label, one in labels.items()}

    @property
    def sequences(self) -> int:
        """Sequences that the iterations play at most, without those of refreshes and of the last choice."""
        each = 1 if self.samples.orders == NOMINAL else self.samples.sequences
        return self.plan.iterations * self.plan.population * each * len(self.instances) * len(self.hints)


def run(data: Mapping[str, Any]) -> dict[str, Any]:
    """Search as `data` says, going on from the last checkpoint; write the policy and return `run.json`.

    data: config (JSON data of a Config), directory, name, show (bar, lines or silent), workers and ray (of
    `trainer.kit.jobs.Workers`, which value points), created (ISO 8601).
    """
    config, directory = Config.of(data["config"]), Path(data["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    taken, choice = config.taken(config.instances), config.taken(config.choice)
    instances = [*taken.values()]
    checkpoints = checkpoints_of(directory)
    last = checkpoints.last()
    clock, played = Clock(last), 0 if last is None else int(last.progress["steps"])
    valuation = Valuation(instances, config.plan.family, config.samples, [*choice.values()])
    workers = Workers(int(data.get("workers", 1)), data.get("ray"))

    def progress(step: Step) -> dict[str, Any]:
        return {"update": step.iteration + 1, "steps": played + valuation.played, **clock.spent()}

    pool = Pool(valuation.value, workers, name=lambda point: "a point of the search")
    with pool, listeners(data, last, VALUE) as listener:
        listener.phase("compiling the simulator, and playing the first population")

        def on_step(step: Step, history: History) -> None:
            at = progress(step)
            checkpoints.save(Checkpoint(config.plain(), at, history.as_state()))
            figures = {VALUE: step.value, "mean": step.mean, "width": step.width}
            listener(Progress(**at, total_steps=config.sequences, figures=figures, best_cost=step.value))

        history = None if last is None else History.of_state(last.state)
        objective = partial(valuation, run=pool.run)
        found = search(config.plan, objective, history=history, on_step=on_step)
    costs = valuation.costs(found.theta, SELECTION)
    policy = Policy(
        f"{config.plan.family} {config.plan.method} on {_listed(config.instances)}, seed {config.plan.seed}",
        config.plan.family,
        tuple(found.theta.tolist()),
        instances[0].hosts[0].capacity[0],
        Training(
            instances=tuple(digest_of(instance) for instance in instances),
            shuffles=tuple(config.samples.seen(len(found.steps), config.plan.refresh)),
            objective=found.value,
            standard_error=float(np.mean([_standard_error(one) for one in costs])),
            simulator=engine.VERSION,
            created=str(data["created"]),
            mix=mix_of_instances(instances),
        ),
    )
    write_json(directory / POLICY_FILE, policy_document(policy))
    chosen = choice or taken
    nominal = {label: int(engine.play(instance, policy).peak) for label, instance in chosen.items()}
    summary = {
        "name": str(data["name"]),
        "config": config.plain(),
        "config_hash": config_hash(config.plain()),
        **progress(found.steps[-1]),
        "iterations": len(found.steps),
        "evaluations": found.evaluations,
        "value": found.value,
        "nominal": nominal,
        "chosen_on": {
            name: {"mean": float(one.mean()), "range": float(np.ptp(one)), "sequences": len(one)}
            for name, one in zip(chosen, costs, strict=True)
        },
        "curve": [step.value for step in found.steps],
        "policy": POLICY_FILE,
        "theta": found.theta.tolist(),
        "packages": package_versions(),
    }
    write_json(directory / RUN_FILE, summary)
    return summary


def _listed(instances: Sequence[str]) -> str:
    """Return the names of instances, of many the first and the last: a policy's name has 128 characters at most."""
    whole = ", ".join(instances)
    if len(whole) <= LISTED:
        return whole
    # Of the path of a file the end.
    first, last = (one if len(one) <= END else f"...{one[-END:]}" for one in (instances[0], instances[-1]))
    return first if len(instances) == 1 else f"{len(instances)} instances, {first} to {last}"


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def jobs_of(
    config: Config, seeds: Sequence[int], out: Path, *, workers: Workers, created: str, resume: bool
) -> list[Job]:
    """Return a job per seed; BadInput when a run would go over another one, or go on with another configuration.

    workers: of the points of each run.
    """
    where = {"workers": workers.count, "ray": workers.ray, "created": created}
    jobs = []
    for seed in seeds:
        own = replace(config, plan=replace(config.plan, seed=seed)).plain()
        place = str((out / f"seed-{seed}").resolve())
        jobs.append(Job(f"seed {seed}", {"name": f"seed {seed}", "config": own, "directory": place, **where}))
    check_directories(jobs, resume=resume, extendable=())
    return jobs


def train_all(
    jobs: Sequence[Job], out: Path, *, at_once: int, ray: str | None = None, silent: bool = False
) -> dict[str, Any]:
    """Run the jobs, here or on a Ray cluster; write `summary.json` and the best policy, and return the summary.

    The best is that of the lowest value on the samples of the last choice. Raises JobFailed.
    """
    results = run_all(
        *(run, jobs, VALUE, lambda job: Config.of(job.data["config"]).sequences),
        at_once=at_once,
        ray=ray,
        cores=int(jobs[0].data["workers"]),
        silent=silent,
    )
    values = [float(result["value"]) for result in results]
    best = int(np.argmin(values))
    seeds = [int(result["config"]["plan"]["seed"]) for result in results]
    document = (out / f"seed-{seeds[best]}" / POLICY_FILE).read_bytes()
    summary: dict[str, Any] = {
        "config": results[0]["config"],
        "seeds": seeds,
        "values": values,
        "best": seeds[best],
        "nominal": [result["nominal"] for result in results],
        "chosen_on": [result["chosen_on"] for result in results],
        "steps": [result["steps"] for result in results],
        "cpu_s": [result["cpu_s"] for result in results],
        "wall_s": [result["wall_s"] for result in results],
        "policies": [f"seed-{seed}/{POLICY_FILE}" for seed in seeds],
        "policy": POLICY_FILE,
    }
    replace_file(out / POLICY_FILE, document)
    write_json(out / SUMMARY_FILE, summary)
    return summary
