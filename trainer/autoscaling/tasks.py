"""Named training tasks: which world, which traces, in which order, and on what the best checkpoint is chosen.

Seeds are kept apart: training draws from 1,000,000 and more, the choice of checkpoints from 900,000 to 900,999, and
results are reported on 0 to 999 (autoscaler specification §10, §11, §12.6).

The mixture of loads (§7.1) has random batches, their shifts, and loads like job logs. Nothing there is taken from the
recorded windows that are reported: `log_like` draws the features that job logs have in common (§7.3): few users,
parallel jobs split into one-core jobs, a working day, very unequal run times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.workloads.synthetic import train_rand
from trainer.autoscaling.episodes import run_many
from trainer.autoscaling.task_file import TASK_FILE, Load, read_task
from trainer.autoscaling.worlds import policy_in_world

FAMILIES = ("random", "longer", "burst", "idle", "log")
BAGS = "bags"
"""A family beside them, of the lessons of scorers."""
LARGEST_BAG = 0.2
"""Share of a load's work in one of its bags at most."""
LONGEST_JOB_S = 4.0 * HOUR_S
MOST_JOBS = 8000
CALL_S = 60.0

Floats = NDArray[np.float64]


def mixture(first_seed: int, per_family: int, fleet_cores: int) -> tuple[Trace, ...]:
    """Return `per_family` traces of each family of FAMILIES; seed `first_seed` + k draws the k-th of all.

    fleet_cores: cores of the fleet at its limits; batches are scaled from the 140 cores that `train_rand` is made for.
    """
    families = [family for family in FAMILIES for _ in range(per_family)]
    return tuple(load_of(family, first_seed + k, fleet_cores) for k, family in enumerate(families))


def load_of(family: str, seed: int, fleet_cores: int) -> Trace:
    """Return a trace of a family of FAMILIES, or of BAGS; BadInput for another.

    random: `train_rand`. longer: the same with run times up to 2.5 times as long. burst: one of its batches up to 12
    times as large. idle: its first hour, then hours with a short job now and then. log: see `log_like`.
    """
    if family == BAGS:
        return bags_of_tasks(seed, fleet_cores)
    if family not in FAMILIES:
        raise BadInput("family", family, f"give one of {', '.join(FAMILIES)}")
    rng = np.random.default_rng([seed, FAMILIES.index(family)])
    if family == "log":
        return log_like(seed, fleet_cores)
    trace = _thinned(train_rand(seed), fleet_cores / 140.0, rng)
    if family == "longer":
        return replace(trace, name=f"{trace.name}-longer", service_s=trace.service_s * rng.uniform(1.2, 2.5))
    if family == "burst":
        return _burst(trace, int(rng.integers(4, 13)), rng)
    if family == "idle":
        return _idle(trace, rng)
    return trace


def log_like(seed: int, fleet_cores: int) -> Trace:
    """Return jobs as a compressed log of a parallel machine has them.

    Submissions come over 2 to 4 hours, at a rate that swells and ebbs; each is one job, or a parallel one split into 2
    to 64 one-core jobs. Run times are lognormal with a median of 8 to 150 s and a sigma of 1 to 2.2, up to four hours.
    Their work is 10 to 60 % of what `fleet_cores` do in that time.
    """
    rng = np.random.default_rng([seed, len(FAMILIES)])
    span_s = rng.uniform(2.0, 4.0) * HOUR_S
    work_core_s = math.exp(rng.uniform(math.log(0.1), math.log(0.6))) * fleet_cores * span_s
    median_s, sigma = math.exp(rng.uniform(math.log(8.0), math.log(150.0))), rng.uniform(1.0, 2.2)
    parallel, widest = rng.uniform(0.0, 0.8), int(rng.integers(2, 7))
    submissions = MOST_JOBS
    service_s = np.minimum(rng.lognormal(math.log(median_s), sigma, size=submissions), LONGEST_JOB_S)
    width = np.where(rng.random(submissions) < parallel, 2 ** rng.integers(1, widest + 1, size=submissions), 1)
    enough = int(np.searchsorted(np.cumsum(service_s * width), work_core_s)) + 1
    few = int(np.searchsorted(np.cumsum(width), MOST_JOBS))
    kept = max(min(enough, few, submissions), 1)
    depth, phase, waves = rng.uniform(0.0, 0.9), rng.uniform(0.0, 2.0 * math.pi), rng.uniform(0.5, 3.0)
    at = np.linspace(0.0, 1.0, 2000)
    rate = 1.0 + depth * np.sin(2.0 * math.pi * waves * at + phase)
    arrival_s = np.interp(np.sort(rng.random(kept)), np.cumsum(rate) / rate.sum(), at) * span_s
    arrival_s -= arrival_s[0]
    return make_trace(f"log-like-{seed}", np.repeat(arrival_s, width[:kept]), np.repeat(service_s[:kept], width[:kept]))


def bags_of_tasks(seed: int, fleet_cores: int) -> Trace:
    """Return the load of users who submit bags of like jobs, as job logs of grids and clusters have them.

    Over 2 to 5 hours; gaps between bags are lognormal with a sigma of 0.5 to 2.5, sizes of bags with a median of 1 to
    16 and a sigma of 0.5 to 2. A bag has one run time, lognormal with a median of 8 to 240 s and a sigma of 0.8 to 2.2,
    which its jobs vary by a sigma of 0 to 0.6; it is submitted at once or, every second one, over up to two minutes.
    The work is 15 to 60 % of what `fleet_cores` do in that time.
    """
    rng = np.random.default_rng([seed, len(FAMILIES) + 1])
    span_s = rng.uniform(2.0, 5.0) * HOUR_S
    work_core_s = math.exp(rng.uniform(math.log(0.15), math.log(0.6))) * fleet_cores * span_s
    middle, spread = math.exp(rng.uniform(0.0, math.log(16.0))), rng.uniform(0.5, 2.0)
    median_s, sigma = math.exp(rng.uniform(math.log(8.0), math.log(240.0))), rng.uniform(0.8, 2.2)
    sizes = np.clip(np.rint(rng.lognormal(math.log(middle), spread, size=MOST_JOBS)), 1, MOST_JOBS // 4).astype(int)
    lengths_s = np.minimum(rng.lognormal(math.log(median_s), sigma, size=MOST_JOBS), LONGEST_JOB_S)
    sizes = np.clip(sizes, 1, np.maximum(LARGEST_BAG * work_core_s / lengths_s, 1.0).astype(int))
    enough = int(np.searchsorted(np.cumsum(lengths_s * sizes), work_core_s)) + 1
    few = int(np.searchsorted(np.cumsum(sizes), MOST_JOBS))
    bags = max(min(enough, few, MOST_JOBS), 2)
    sizes, lengths_s = sizes[:bags], lengths_s[:bags]
    gaps = rng.lognormal(0.0, rng.uniform(0.5, 2.5), size=bags - 1)
    begins_s = np.concatenate([[0.0], np.cumsum(gaps)]) / gaps.sum() * span_s
    over_s = np.where(rng.random(bags) < 0.5, rng.uniform(0.0, 120.0, size=bags), 0.0)
    jobs = int(sizes.sum())
    arrival_s = np.repeat(begins_s, sizes) + np.repeat(over_s, sizes) * rng.random(jobs)
    varied = rng.lognormal(0.0, rng.uniform(0.0, 0.6), size=jobs)
    service_s = np.minimum(np.repeat(lengths_s, sizes) * varied, LONGEST_JOB_S)
    order = np.argsort(arrival_s, kind="stable")
    return make_trace(f"bags-{seed}", arrival_s[order] - arrival_s[order[0]], service_s[order])


def _thinned(trace: Trace, share: float, rng: np.random.Generator) -> Trace:
    if share >= 1.0:
        return trace
    kept = rng.random(trace.jobs) < share
    kept[-1] = True
    return make_trace(trace.name, trace.arrival_s[kept] - trace.arrival_s[kept][0], trace.service_s[kept])


def _burst(trace: Trace, factor: int, rng: np.random.Generator) -> Trace:
    batches = np.unique(trace.arrival_s)
    struck = np.flatnonzero(trace.arrival_s == batches[int(rng.integers(batches.size // 4, batches.size - 1))])
    more = rng.choice(struck, size=(factor - 1) * struck.size)
    return make_trace(
        f"{trace.name}-burst",
        np.append(trace.arrival_s, trace.arrival_s[more]),
        np.append(trace.service_s, trace.service_s[more]),
    )


def _idle(trace: Trace, rng: np.random.Generator) -> Trace:
    early = trace.arrival_s < HOUR_S
    calls = HOUR_S + np.cumsum(rng.uniform(0.5, 3.0, size=4)) * HOUR_S
    return make_trace(
        f"{trace.name}-idle",
        np.append(trace.arrival_s[early], calls),
        np.append(trace.service_s[early], np.full(calls.size, CALL_S)),
    )


TRAINING_SEED, SELECTION_SEED = 1_000_000, 900_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One world with its traces, each drawn with its share in `weights`, until `until` (0..1) of all steps are done.

    scales: dollars per trace by which its rewards are divided, so that large loads do not count for more; none for 1.
    """

    config: SimulationConfig
    traces: tuple[Trace, ...]
    weights: tuple[float, ...] = ()
    until: float = 1.0
    scales: tuple[float, ...] = ()

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """Chance of each trace."""
        weights = np.asarray(self.weights or (1.0,) * len(self.traces))
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares

    @property
    def jobs(self) -> tuple[int, ...]:
        """Jobs of each trace."""
        return tuple(trace.jobs for trace in self.traces)


@dataclass(frozen=True, slots=True)
class Task:
    """What to learn: stages in order; the last one's world with `selection` traces judges checkpoints.

    progress_reward, time_price_per_minute: dollars, added to what the configuration of a run asks for (§18: with a
    discount below 1 a closed loop rewards delay unless progress is paid and time has a price). par, families: of each
    selection trace, what a rule pays for it, and what it is an example of; checkpoints are then chosen by the ratio.
    report: traces that results are reported on, none for those that the task's name stands for. rule: the policy that
    results are measured against, "" for the baselines of the suite. tells_sizes: whether its world tells the work of
    waiting jobs.
    """

    name: str
    stages: tuple[Stage, ...]
    selection: tuple[Trace, ...]
    progress_reward: float = 0.0
    time_price_per_minute: float = 0.0
    par: tuple[float, ...] = ()
    families: tuple[str, ...] = ()
    report: tuple[Trace, ...] = ()
    rule: str = ""
    tells_sizes: bool = True

    @property
    def world(self) -> SimulationConfig:
        """The configuration that the policy is meant for."""
        return self.stages[-1].config

    def step_price(self, price_per_minute: float, world: SimulationConfig) -> float:
        """Return the price of a step, dollars, where a minute of run time costs so much in any task."""
        return (price_per_minute + self.time_price_per_minute) * world.step_s / MINUTE_S

    def score(self, costs: Floats) -> float:
        """Return the mean cost of held-out episodes, dollars; with a par, the mean ratio to it and a penalty.

        costs [episodes], over the selection's traces in turn. The ratio is the mean over families of their mean ratios.
        Half of the excess of the dearest family over 1 is added: a policy that is cheap on the whole and dear on one
        kind of load is not wanted.
        """
        if not self.par:
            return float(costs.mean())
        which = np.arange(costs.size) % len(self.selection)
        ratios = costs / np.asarray(self.par)[which]
        families = np.asarray(self.families or ("",) * len(self.selection))[which]
        means = [float(ratios[families == family].mean()) for family in dict.fromkeys(families.tolist())]
        return float(np.mean(means)) + 0.5 * max(max(means) - 1.0, 0.0)

    def stage_at(self, share: float) -> int:
        """Return which stage is on after a share (0..1) of all steps."""
        return next((k for k, stage in enumerate(self.stages) if share < stage.until), len(self.stages) - 1)


def task_in(path: Path, *, own: bool = True) -> Task:
    """Return the task of a file, named after it.

    With a rule, rewards are divided by what it pays for a trace, so that large loads do not count for more, and
    checkpoints are chosen by the ratio to that. own: where the file leaves them out, checkpoints are chosen and results
    reported on the last stage's traces, with boots of their own. Raises BadInput, FileRefused.
    """
    found = read_task(path, load_of)
    last = found.stages[-1]
    given = found.table.rule or ""
    rule = policy_in_world(given, last.world) if given else ""

    def par(config: SimulationConfig, loads: Sequence[Load]) -> tuple[float, ...]:
        pairs = ((trace, seed) for load in loads for trace, seed in zip(load.traces, load.seeds, strict=True))
        return tuple(run_many(rule, config, (trace,), (seed,))[0].cost for trace, seed in pairs) if rule else ()

    stages = tuple(
        Stage(s.world.config, _traces(s.loads), _weights(s.loads), s.until, par(s.world.config, s.loads))
        for s in found.stages
    )
    selection = found.selection or last.loads
    families = tuple(load.name for load in selection for _ in load.traces) if rule else ()
    return Task(
        path.stem if path.name != TASK_FILE else path.absolute().parent.name,
        stages,
        _traces(selection),
        progress_reward=found.table.progress_reward,
        time_price_per_minute=found.table.time_price_per_minute,
        par=par(last.world.config, selection),
        families=families,
        report=_traces(found.report or selection) if own else (),
        rule=(rule or policy_in_world("queue-rule", last.world)) if own else "",
        tells_sizes=not any(stage.world.expected_job_core_s for stage in found.stages),
    )


def _traces(loads: Sequence[Load]) -> tuple[Trace, ...]:
    return tuple(trace for load in loads for trace in load.traces)


def _weights(loads: Sequence[Load]) -> tuple[float, ...]:
    if any(load.share is None for load in loads):
        return ()
    return tuple((load.share or 0.0) / len(load.traces) for load in loads for _ in load.traces)


FOLDER = Path(__file__).parent / "task_files"


TASKS = ("train-text", "train-fit", "train-rand", "coevolution-rent", "mixture")
"""The tasks that ship with the program."""


@cache
def task_of(name: str) -> Task:
    """Return a task by name, or that of a FILE.toml; BadInput lists what there is, FileRefused what is wrong."""
    if name.endswith(".toml"):
        return task_in(Path(name))
    if name not in TASKS:
        raise BadInput("task", name, f"choose one of {', '.join(TASKS)}, or give FILE.toml")
    return task_in(FOLDER / f"{name}.toml", own=False)
