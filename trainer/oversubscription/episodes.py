"""Plays a policy on a task and judges it: saved cores, machines, hot hours sampled and assessed (specification §3)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.risk import count_at_least, satisfied
from simulator.oversubscription.batch import OversubscriptionBatch, OversubscriptionSimulation
from simulator.oversubscription.peaks import PeakPlacer
from simulator.oversubscription.usage import UsageModel, usage_of
from simulator.oversubscription.weekly import Assessor, EpisodeResults, Placement, sample
from trainer.kit.jobs import HERE, Pool, Workers
from trainer.oversubscription.policies import OversubscriptionPolicy, Plan, Task

Floats = NDArray[np.float64]
Seeds = NDArray[np.int64]
Block = TypeVar("Block")

SAMPLED, PLAYED = 100, 10
"""Episodes of a case: where their usage alone is drawn, and where each is played."""


@dataclass(frozen=True, slots=True, eq=False)
class Performance:
    """How a policy did on a task. Where it decides by usage, the placement and hours are those of the first episode."""

    policy: str
    task: Task
    model: UsageModel
    placement: Placement
    sampled: EpisodeResults
    by_hour: Floats | None
    """Chance of a hot machine by hour, where the placement is the same in every episode."""
    chance: float | None
    """That the promise is broken, likewise."""
    s_cores: float | None
    peak_machines: float
    rates: Floats

    def as_data(self) -> dict[str, Any]:
        """Return the figures for JSON; rates are fractions."""
        drawn, placed = self.sampled, self.placement
        return {
            "scenario": self.task.scenario.name,
            "week": self.task.week.name,
            "start": self.task.start,
            "policy": self.policy,
            "alpha": self.task.alpha,
            "usage": self.model.text,
            "episodes": drawn.episodes,
            "s_cores": self.s_cores,
            "s_core_hours": placed.s_core_hours,
            "pm_hot_r": drawn.pm_hot_r,
            "c_hot_r": drawn.c_hot_r,
            "c_hot_r_upper_95": drawn.c_hot_r_upper,
            "c_hot_r_analytic": self.chance,
            "satisfied": {f"{alpha:g}": kept for alpha, kept in satisfied(drawn.c_hot_r).items()},
            "satisfied_by_machine": {f"{alpha:g}": kept for alpha, kept in satisfied(drawn.pm_hot_r).items()},
            "keeps_alpha": bool(1.0 - drawn.c_hot_r >= self.task.alpha),
            "mean_hot_hours": float(drawn.hot_hours.mean()),
            "mean_hot_machine_hours": float(drawn.hot_machine_hours.mean()),
            "hot_severity": drawn.severity,
            "expected_hot_hours_analytic": None if self.by_hour is None else float(self.by_hour.sum()),
            "peak_machines": self.peak_machines,
            "rejects": placed.rejects,
            "raised": placed.raised,
            "unsafe": placed.unsafe,
            "requests": placed.week.requests,
            "requested_cores": placed.week.requested_cores,
            "mean_rates": self.rates.mean(axis=0).tolist(),
        }

    def hours(self) -> dict[str, Floats]:
        """Return the week by hour: machines in use, cores of the VMs there and those reserved, chance of a hot one."""
        placed, hours = self.placement, np.arange(self.task.scenario.hours)
        week, there = placed.week, placed.machine >= 0
        alive = [there & (week.arrival <= t) & (week.departure > t) for t in hours]
        return {
            "machines_used": np.array([len(np.unique(placed.machine[some])) for some in alive]),
            "cores_requested": np.array([week.cores[some].sum() for some in alive]),
            "cores_reserved": np.array([(week.cores[some] * placed.rate[some]).sum() for some in alive]),
            "chance_hot": np.full(len(hours), np.nan) if self.by_hour is None else self.by_hour,
        }


def judge(
    policy: OversubscriptionPolicy,
    task: Task,
    *,
    usage: str | UsageModel = "gauss",
    episodes: int = 300,
    seed: int = 0,
    workers: Workers = HERE,
) -> Performance:
    """Play a policy and judge it on episodes seed, seed + 1, ...; raises BadInput.

    A policy that decides by requests and time alone is placed once, and only the usage is drawn anew; one that
    decides by usage plays every episode. workers: of blocks of episodes.
    """
    if episodes < 1:
        raise BadInput("episodes", episodes, "give at least one")
    model = usage_of(usage, task.scenario, task.week) if isinstance(usage, str) else usage
    plan = policy.plan(task)
    seeds = np.arange(seed, seed + episodes)
    if plan.peak is not None or (plan.guard is not None and plan.guard.posterior):
        # The phases are shown here alone.
        bare = Task(task.scenario, task.week, task.start, task.alpha)
        play = partial(_each_episode if plan.peak is None else _by_peak, bare, model, plan, seed)
        return _joined(policy.name, task, model, plan, _in_blocks(play, seeds, PLAYED, workers))
    placement, by_hour, chance, rates = _placed(task, model, plan)
    sampled = EpisodeResults.joined(_in_blocks(partial(sample, placement, model), seeds, SAMPLED, workers))
    peak = float(placement.peak_machines)
    return Performance(policy.name, task, model, placement, sampled, by_hour, chance, placement.s_cores, peak, rates)


def _in_blocks(work: Callable[[Seeds], Block], seeds: Seeds, size: int, workers: Workers) -> list[Block]:
    blocks = [seeds[first : first + size] for first in range(0, len(seeds), size)]
    with Pool(work, workers, name=lambda one: f"episodes {one[0]} to {one[-1]}", weight=len) as pool:
        return list(pool.run(blocks))


def _placed(task: Task, model: UsageModel, plan: Plan) -> tuple[Placement, Floats, float, Floats]:
    """Return where the plan puts the VMs, the chance of a hot machine by hour, of too many, and the rates asked for."""
    if plan.schedule is not None:
        assessor = Assessor(task.scenario, task.week, task.start, model.moments, model.rho, plan.guard, model.shape)
        risk = assessor.assess(plan.schedule)
        return risk.placement, risk.by_hour, risk.c_hot_r, _rates_of(plan, risk.placement, plan.schedule)
    options: dict[str, Any] = {"usage": model, "cost": "analytic", "observation": plan.observation}
    simulation = OversubscriptionSimulation(task.scenario, task.week, start=task.start, guard=plan.guard, **options)
    simulation.reset()
    chances, rates, over = [], [], False
    while not over:
        rates.append(_chosen(plan, simulation))
        _, _, chance, over, _, _ = simulation.step_rates(rates[-1])
        chances.append(chance)
    by_hour = np.array(chances)
    limit = task.scenario.violation_hours
    return simulation.placement(), by_hour, count_at_least(by_hour, limit), np.array(rates)


def _rates_of(plan: Plan, placed: Placement, asked: Floats) -> Floats:
    """Return the rates asked for, (hours, N), or the rates that a rule gave."""
    return asked if plan.guard is None or not len(plan.guard.rule.wanted) else _given_rates(placed, asked.shape)


def _given_rates(placed: Placement, shape: tuple[int, ...]) -> Floats:
    """Return the rates of the VMs, (hours, N): means over the cores requested of an hour.

    Without requests in an hour: the mean over the subscriber's week, 1.0 where it asks for nothing.
    """
    week, given = placed.week, np.where(placed.machine >= 0, placed.rate, 1.0)
    rows = slice(week.warm, None)
    cores, reserved = np.zeros(shape), np.zeros(shape)
    at = (week.arrival[rows], week.subscriber[rows])
    np.add.at(cores, at, week.cores[rows])
    np.add.at(reserved, at, (given * week.cores)[rows])
    total = cores.sum(axis=0)
    usual = np.divide(reserved.sum(axis=0), total, out=np.ones_like(total), where=total > 0.0)
    found: Floats = np.divide(reserved, cores, out=np.tile(usual, (len(cores), 1)), where=cores > 0.0)
    return found


def _chosen(plan: Plan, simulation: OversubscriptionSimulation) -> Floats:
    if plan.schedule is not None:
        row: Floats = plan.schedule[simulation.hour]
        return row
    if plan.choose is None:
        raise BadInput("policy", "plan", "give a schedule or a function that chooses")
    return plan.choose(simulation)


@dataclass(frozen=True, slots=True, eq=False)
class _Episodes:
    """Episodes whose usage changes the placement.

    saved: s_cores, without those of None. first: placement and rates of the task's first episode, if it is among them.
    """

    sampled: EpisodeResults
    saved: tuple[float, ...]
    peaks: tuple[float, ...]
    first: tuple[Placement, Floats] | None


def _joined(name: str, task: Task, model: UsageModel, plan: Plan, parts: Sequence[_Episodes]) -> Performance:
    sampled = EpisodeResults.joined([one.sampled for one in parts])
    saved, peaks = ([value for one in parts for value in getattr(one, column)] for column in ("saved", "peaks"))
    (placement, asked), *_ = (one.first for one in parts if one.first is not None)
    s_cores = float(np.mean(saved)) if saved else None
    rates = _rates_of(plan, placement, asked)
    return Performance(name, task, model, placement, sampled, None, None, s_cores, float(np.mean(peaks)), rates)


def _each_episode(task: Task, model: UsageModel, plan: Plan, first: int, seeds: Seeds) -> _Episodes:
    """Play every episode: the observed usage changes the placement."""
    scenario = task.scenario
    options: dict[str, Any] = {"usage": model, "cost": "sampled", "observation": plan.observation}
    simulation = OversubscriptionSimulation(scenario, task.week, start=task.start, guard=plan.guard, **options)
    batch: OversubscriptionBatch = simulation.batch
    threshold, limit, episodes = scenario.threshold, scenario.violation_hours, len(seeds)
    hot_hours, hot_machine_hours = (np.zeros(episodes, np.int64) for _ in range(2))
    violations, excess = np.zeros(scenario.machines, np.int64), np.zeros(episodes)
    placed: list[Placement] = []
    rates: list[Floats] = []
    for e, seed in enumerate(seeds.tolist()):
        simulation.reset(seed)
        by_machine = np.zeros(scenario.machines, np.int64)
        over = False
        while not over:
            asked = _chosen(plan, simulation)
            if seed == first:
                rates.append(asked)
            over = simulation.step_rates(asked)[3]
            hot = batch.hot[0]
            by_machine += hot
            excess[e] += (batch.usage[0][hot] / threshold - 1.0).sum()
        placed.append(simulation.placement())
        hot_hours[e], hot_machine_hours[e] = batch.books(0)["hot_hours"], by_machine.sum()
        violations += by_machine >= limit
    sampled = EpisodeResults(limit, hot_hours, violations, hot_machine_hours, excess)
    return _episodes(sampled, placed, np.array(rates) if rates else None)


def _by_peak(task: Task, model: UsageModel, plan: Plan, first: int, seeds: Seeds) -> _Episodes:
    """Place every episode by predicted peaks of the usage that judges it."""
    assert plan.peak is not None
    scenario = task.scenario
    placer = PeakPlacer(scenario, task.week, task.start, plan.peak)
    placed = [placer.placement(model, seed) for seed in seeds.tolist()]
    sampled = EpisodeResults.joined([sample(one, model, seeds[e : e + 1]) for e, one in enumerate(placed)])
    shape = (scenario.hours, scenario.subscribers)
    asked = _given_rates(placed[0], shape) if seeds[0] == first else None
    return _episodes(sampled, placed, asked)


def _episodes(sampled: EpisodeResults, placed: Sequence[Placement], asked: Floats | None) -> _Episodes:
    saved = tuple(one.s_cores for one in placed if one.s_cores is not None)
    peaks = tuple(float(one.peak_machines) for one in placed)
    return _Episodes(sampled, saved, peaks, None if asked is None else (placed[0], asked))


def write_hours(judged: Performance, path: Path) -> None:
    """Write the week hour by hour as CSV."""
    columns = judged.hours()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["hour", *columns, *(f"rate_{n}" for n in range(judged.task.scenario.subscribers))])
        rows = zip(*(column.tolist() for column in columns.values()), judged.rates.tolist(), strict=True)
        for hour, (machines, requested, reserved, chance, rates) in enumerate(rows):
            figures = (machines, f"{requested:g}", f"{reserved:.6g}", f"{chance:.6g}")
            writer.writerow([hour, *figures, *(f"{rate:.6g}" for rate in rates)])
