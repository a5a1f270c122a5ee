"""Plays a policy on a task and judges it: saved cores, machines, hot hours sampled and assessed (specification §3)."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.peaks import PeakPredictor
from domain.rules.oversubscription.risk import count_at_least, satisfied
from simulator.oversubscription.batch import OversubscriptionBatch, OversubscriptionSimulation
from simulator.oversubscription.peaks import PeakPlacer
from simulator.oversubscription.usage import UsageModel, usage_of
from simulator.oversubscription.weekly import Assessor, EpisodeResults, Placement, sample
from trainer.oversubscription.policies import OversubscriptionPolicy, Plan, Task

Floats = NDArray[np.float64]


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
    usage: str = "gauss",
    episodes: int = 300,
    seed: int = 0,
) -> Performance:
    """Play a policy and judge it on episodes seed, seed + 1, ...; raises BadInput.

    A policy that decides by requests and time alone is placed once, and only the usage is drawn anew; one that
    decides by usage plays every episode.
    """
    if episodes < 1:
        raise BadInput("episodes", episodes, "give at least one")
    model, plan = usage_of(usage, task.scenario, task.week), policy.plan(task)
    if plan.peak is not None:
        return _by_peak(policy.name, task, model, plan.peak, np.arange(seed, seed + episodes))
    if plan.guard is not None and plan.guard.posterior:
        return _each_episode(policy.name, task, model, plan, episodes, seed)
    placement, by_hour, chance, rates = _placed(task, model, plan)
    seeds = np.arange(seed, seed + episodes)
    sampled = sample(placement, model, seeds)
    peak = float(placement.peak_machines)
    return Performance(policy.name, task, model, placement, sampled, by_hour, chance, placement.s_cores, peak, rates)


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


def _each_episode(name: str, task: Task, model: UsageModel, plan: Plan, episodes: int, seed: int) -> Performance:
    """Play every episode: the observed usage changes the placement."""
    scenario = task.scenario
    options: dict[str, Any] = {"usage": model, "cost": "sampled", "observation": plan.observation}
    simulation = OversubscriptionSimulation(scenario, task.week, start=task.start, guard=plan.guard, **options)
    batch: OversubscriptionBatch = simulation.batch
    threshold, limit = scenario.threshold, scenario.violation_hours
    hot_hours, hot_machine_hours = (np.zeros(episodes, np.int64) for _ in range(2))
    violations, excess = np.zeros(scenario.machines, np.int64), np.zeros(episodes)
    saved, peaks = np.zeros(episodes), np.zeros(episodes)
    first: Placement | None = None
    rates: list[Floats] = []
    for e in range(episodes):
        simulation.reset(seed + e)
        by_machine = np.zeros(scenario.machines, np.int64)
        over = False
        while not over:
            asked = _chosen(plan, simulation)
            if e == 0:
                rates.append(asked)
            over = simulation.step_rates(asked)[3]
            hot = batch.hot[0]
            by_machine += hot
            excess[e] += (batch.usage[0][hot] / threshold - 1.0).sum()
        placed = simulation.placement()
        first = placed if first is None else first
        hot_hours[e], hot_machine_hours[e] = batch.books(0)["hot_hours"], by_machine.sum()
        violations += by_machine >= limit
        saved[e], peaks[e] = placed.s_cores or 0.0, placed.peak_machines
    assert first is not None
    sampled = EpisodeResults(limit, hot_hours, violations, hot_machine_hours, excess)
    s_cores = None if first.s_cores is None else float(saved.mean())
    given = _rates_of(plan, first, np.array(rates))
    return Performance(name, task, model, first, sampled, None, None, s_cores, float(peaks.mean()), given)


def _by_peak(
    name: str, task: Task, model: UsageModel, predictor: PeakPredictor, seeds: NDArray[np.int64]
) -> Performance:
    """Place every episode by predicted peaks of the usage that judges it."""
    scenario, placer = task.scenario, PeakPlacer(task.scenario, task.week, task.start, predictor)
    placed = [placer.placement(model, int(seed)) for seed in seeds]
    each = [sample(one, model, seeds[e : e + 1]) for e, one in enumerate(placed)]
    violations = np.zeros(scenario.machines, np.int64)
    for one in each:
        violations[: len(one.machine_violations)] += one.machine_violations
    hot_hours, hot_machine_hours, excess = (
        np.concatenate([getattr(one, column) for one in each])
        for column in ("hot_hours", "hot_machine_hours", "excess")
    )
    sampled = EpisodeResults(scenario.violation_hours, hot_hours, violations, hot_machine_hours, excess)
    saved = [one.s_cores for one in placed if one.s_cores is not None]
    peak, s_cores = float(np.mean([one.peak_machines for one in placed])), float(np.mean(saved)) if saved else None
    rates = _given_rates(placed[0], (scenario.hours, scenario.subscribers))
    return Performance(name, task, model, placed[0], sampled, None, None, s_cores, peak, rates)


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
