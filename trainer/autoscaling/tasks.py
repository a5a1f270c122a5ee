"""Named training tasks: which world, which traces, in which order, and how the best checkpoint is chosen.

Seeds are kept apart: training draws from 1,000,000 and more, the choice of checkpoints from 900,000 to 900,999, and
results are reported on 0 to 999 (autoscaler specification §10, §11, §12.6).

The mixture of loads (§7.1) has random batches, their shifts, and loads like job logs. Nothing there is taken from the
recorded windows that are reported: `log_like` draws the features that job logs have in common (§7.3): few users,
parallel jobs split into one-core jobs, a working day, very unequal run times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from domain.errors import BadInput, Mistake, TrimtabError
from domain.units import HOUR_S, MINUTE_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import ENDING, World, world_text
from simulator.checked_toml import FileRefused, Place, Table, read_table, toml_text, value_text, written
from simulator.workloads.named import workload_of
from simulator.workloads.synthetic import train_rand
from trainer.autoscaling.policy_names import run_many
from trainer.autoscaling.worlds import SEEDED, policy_in_world, world_of

FAMILIES = ("random", "longer", "burst", "idle", "log")
BAGS = "bags"
"""A further family, of the lessons of scorers."""
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
    Their work is 10 to 60 % of the capacity of `fleet_cores` in that time.
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
    """Return a load of bags of like jobs, as job logs of grids and clusters have them.

    Over 2 to 5 hours; gaps between bags are lognormal with a sigma of 0.5 to 2.5, sizes of bags with a median of 1 to
    16 and a sigma of 0.5 to 2. A bag has one run time, lognormal with a median of 8 to 240 s and a sigma of 0.8 to 2.2,
    which its jobs vary by a sigma of 0 to 0.6; it is submitted at once or, every second one, over up to two minutes.
    The work is 15 to 60 % of the capacity of `fleet_cores` in that time.
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

    progress_reward, time_price_per_minute: dollars, added to those of a run's configuration (§18: with a
    discount below 1 a closed loop rewards delay unless progress is paid and time has a price). par, families: of each
    selection trace, its cost under a rule, and its family; checkpoints are then chosen by the ratio.
    report: traces that results are reported on, none for a task that ships. rule: the policy that
    results are measured against, "" for the baselines of the suite. tells_sizes: whether its world shows the work of
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


FOLDER = Path(__file__).parent / "task_files"


TASKS = ("train-text", "train-fit", "train-rand", "coevolution-rent", "mixture")
"""The tasks that ship with the program."""


@cache
def task_of(name: str) -> Task:
    """Return a task by name, or that of a FILE.toml; BadInput lists the tasks, FileRefused the mistakes."""
    if name.endswith(".toml"):
        return task_in(Path(name))
    if name not in TASKS:
        raise BadInput("task", name, f"choose one of {', '.join(TASKS)}, or give FILE.toml")
    return task_in(FOLDER / f"{name}.toml", own=False)


# Task files: TOML that people write. Every wrong field is named at once, with the fault of its world or workload.


VERSION = 1
MOST_SEEDS = 100_000
WORLD_FILE, TASK_FILE = "world.toml", "task.toml"
"""Names of the files of `write_task`."""

OWN_SEED, OWN_SELECTION_SEED, OWN_REPORT_SEED = 1_000_000, 900_000, 0
OWN_TRACES, OWN_SELECTION, OWN_REPORT = 64, 16, 30
"""Seeds of workloads that vary by them, in a task of `write_task`: to train on, to choose by, to report."""


class SeedsTable(Table):
    """Seeds in a row."""

    first: int = Field(ge=0, le=2**62, description="the first seed, a whole number of 0 or more")
    count: int = Field(ge=1, le=MOST_SEEDS, description=f"how many seeds, a whole number in 1..{MOST_SEEDS}")


class LoadTable(Table):
    """One load: a trace, or one for each seed."""

    workload: str | None = Field(default=None, description="a workload, as --workload takes it")
    family: str | None = Field(default=None, description="a family of random loads: random, longer, burst, idle, log")
    seeds: SeedsTable | None = Field(default=None, description="{ first = N, count = N }")
    share: float | None = Field(default=None, gt=0.0, description="the chance of the load's traces together, above 0")


class StageTable(Table):
    """A world with its loads, until a share of all steps is done."""

    world: str = Field(description=f"a world: the name of one, or FILE{ENDING} in the folder of this file")
    until: float = Field(
        default=1.0, gt=0.0, le=1.0, description="the share of all steps at its end, above 0 and up to 1"
    )
    changes: dict[str, Any] = Field(
        default={}, description="{ FIELD = VALUE } for fields of the world, as --set has them"
    )
    loads: list[LoadTable] = Field(min_length=1, description="one load or more")


class LoadsTable(Table):
    """Loads in the last stage's world."""

    loads: list[LoadTable] = Field(min_length=1, description="one load or more")


class TaskTable(Table):
    """A task file."""

    version: Literal[1] = Field(description=f"{VERSION}, the version that this program reads")
    description: str = Field(default="", description="a text")
    progress_reward: float = Field(default=0.0, ge=0.0, le=1e9, description="dollars over an episode, 0 or more")
    time_price_per_minute: float = Field(default=0.0, ge=0.0, le=1e9, description="dollars, 0 or more")
    rule: str | None = Field(
        default=None, min_length=1, description="a policy that every trace is measured by, as `simulate` takes it"
    )
    stages: list[StageTable] = Field(min_length=1, description="one table [[stages]] or more")
    selection: LoadsTable | None = Field(default=None, description="a table [selection] with loads")
    report: LoadsTable | None = Field(default=None, description="a table [report] with loads")


def _conflicts(data: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    """Yield the conflicts among several fields."""
    stages = [stage if isinstance(stage, Mapping) else {} for stage in _list(data.get("stages"))]
    for k, stage in enumerate(stages):
        until = stage.get("until", 1.0)
        if k + 1 == len(stages) and until != 1.0:
            yield ("stages", k, "until"), "give 1 in the last stage, or leave it out"
        later = stages[k + 1].get("until", 1.0) if k + 1 < len(stages) else None
        if _number(until) and _number(later) and until >= later:
            yield ("stages", k, "until"), "give less than in the next stage"
        yield from _of_loads(stage.get("loads"), ("stages", k, "loads"))
    for name in ("selection", "report"):
        table = data.get(name)
        if isinstance(table, Mapping):
            yield from _of_loads(table.get("loads"), (name, "loads"))


def _of_loads(given: object, place: Place) -> Iterator[tuple[Place, str]]:
    loads = [load if isinstance(load, Mapping) else {} for load in _list(given)]
    shared = any("share" in load for load in loads)
    for k, load in enumerate(loads):
        if ("workload" in load) == ("family" in load):
            yield (*place, k, "workload"), "give a workload or a family, one of the two"
        if "family" in load and "seeds" not in load:
            yield (*place, k, "seeds"), "give the seeds of the family's traces, { first = N, count = N }"
        if shared and "share" not in load:
            yield (*place, k, "share"), "give a share to every load of the list, or to none"


def _list(given: object) -> list[Any]:
    return given if isinstance(given, list) else []


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Load:
    """The traces of a load, with the boot seed of each; name: of their family or workload. share: None for none."""

    name: str
    traces: tuple[Trace, ...]
    seeds: tuple[int, ...]
    share: float | None


@dataclass(slots=True)
class _Reader:
    folder: Path
    mistakes: dict[Place, Mistake] = field(default_factory=dict)

    def refuse(self, place: Place, value: object, error: TrimtabError) -> None:
        remedy = error.remedy if isinstance(error, BadInput) else str(error)
        self.mistakes.setdefault(place, Mistake(written(place), value_text(value), remedy))

    def world(self, stage: StageTable, place: Place) -> World:
        text = str(self.folder / stage.world) if stage.world.endswith(ENDING) else stage.world
        try:
            world = world_of(text)
        except TrimtabError as error:
            self.refuse((*place, "world"), stage.world, error)
            return World()
        try:
            changes = [f"{name}={_text(value)}" for name, value in stage.changes.items()]
            return world_of(text, changes=changes)
        except TrimtabError as error:
            self.refuse((*place, "changes"), stage.changes, error)
            return world

    def loads(self, tables: Sequence[LoadTable], world: World, place: Place) -> tuple[Load, ...]:
        found = []
        for k, load in enumerate(tables):
            key = "workload" if load.family is None else "family"
            seeds = range(1) if load.seeds is None else range(load.seeds.first, load.seeds.first + load.seeds.count)
            try:
                traces = tuple(self.trace(load, seed, world) for seed in seeds)
            except TrimtabError as error:
                self.refuse((*place, k, key), getattr(load, key), error)
                continue
            name = load.family or Path(str(load.workload)).name
            found.append(Load(name, traces, tuple(seeds), load.share))
        return tuple(found)

    def trace(self, load: LoadTable, seed: int, world: World) -> Trace:
        if load.family is not None:
            return load_of(load.family, seed, world.config.max_cores)
        text = str(load.workload)
        name, colon, rest = text.partition(":")
        if name.endswith((".csv", ".swf", ".swf.gz")):
            text = f"{self.folder / name}{colon}{rest}"
        if load.seeds is not None:
            text = f"{text},seed={seed}" if colon else f"{text}:seed={seed}"
        return workload_of(text, max(world.config.cores))


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return value if isinstance(value, str) else value_text(value)


def task_in(path: Path, *, own: bool = True) -> Task:
    """Return the task of a file, named after it.

    With a rule, rewards are divided by the rule's cost of a trace, so that large loads do not count for more, and
    checkpoints are chosen by the ratio to that. own: where the file leaves them out, checkpoints are chosen and results
    reported on the last stage's traces, with other boots. Raises BadInput, and FileRefused with every mistake in it.
    """
    table = read_table(path, TaskTable, _conflicts)
    reader = _Reader(path.parent)
    worlds = [reader.world(stage, ("stages", k)) for k, stage in enumerate(table.stages)]
    loads = [
        reader.loads(stage.loads, world, ("stages", k, "loads"))
        for k, (stage, world) in enumerate(zip(table.stages, worlds, strict=True))
    ]
    last = worlds[-1]
    selection = reader.loads(table.selection.loads, last, ("selection", "loads")) if table.selection else loads[-1]
    report = reader.loads(table.report.loads, last, ("report", "loads")) if table.report else selection
    if reader.mistakes:
        raise FileRefused(str(path), reader.mistakes.values())
    rule = policy_in_world(table.rule, last) if table.rule else ""

    def par(world: World, loads: Sequence[Load]) -> tuple[float, ...]:
        pairs = ((trace, seed) for load in loads for trace, seed in zip(load.traces, load.seeds, strict=True))
        return tuple(run_many(rule, world.config, (trace,), (seed,))[0].cost for trace, seed in pairs) if rule else ()

    return Task(
        path.stem if path.name != TASK_FILE else path.absolute().parent.name,
        tuple(
            Stage(world.config, _traces(some), _weights(some), stage.until, par(world, some))
            for stage, world, some in zip(table.stages, worlds, loads, strict=True)
        ),
        _traces(selection),
        progress_reward=table.progress_reward,
        time_price_per_minute=table.time_price_per_minute,
        par=par(last, selection),
        families=tuple(load.name for load in selection for _ in load.traces) if rule else (),
        report=_traces(report) if own else (),
        rule=(rule or policy_in_world("queue-rule", last)) if own else "",
        tells_sizes=not any(world.expected_job_core_s for world in worlds),
    )


def _traces(loads: Sequence[Load]) -> tuple[Trace, ...]:
    return tuple(trace for load in loads for trace in load.traces)


def _weights(loads: Sequence[Load]) -> tuple[float, ...]:
    if any(load.share is None for load in loads):
        return ()
    return tuple((load.share or 0.0) / len(load.traces) for load in loads for _ in load.traces)


def write_task(world: World, workloads: Sequence[str], folder: Path, *, resume: bool = False) -> Path:
    """Write a world, and a task of one stage in it, into a folder; return the task's file.

    Workloads that vary by seed are trained on, chosen by and reported on other seeds. resume: the files must be the
    same, else BadInput is raised.
    """

    def loads(first: int, count: int) -> list[dict[str, Any]]:
        return [
            {"workload": text, "seeds": {"first": first, "count": count}}
            if text in SEEDED
            else {"workload": moved(text)}
            for text in workloads
        ]

    def moved(text: str) -> str:
        name, colon, rest = text.partition(":")
        is_file = name.endswith((".csv", ".swf", ".swf.gz"))
        return f"{Path(name).absolute()}{colon}{rest}" if is_file else text

    data = {
        "version": VERSION,
        "description": f"{', '.join(workloads)} in world {world.name}",
        "selection": {"loads": loads(OWN_SELECTION_SEED, OWN_SELECTION)},
        "report": {"loads": loads(OWN_REPORT_SEED, OWN_REPORT)},
        "stages": [{"world": WORLD_FILE, "loads": loads(OWN_SEED, OWN_TRACES)}],
    }
    texts = {WORLD_FILE: world_text(world), TASK_FILE: toml_text(data)}
    for name, text in texts.items():
        path = folder / name
        if resume and path.is_file() and path.read_text("utf-8") != text:
            raise BadInput("--resume", str(path), "it is another world or other loads: give those, or another --out")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return folder / TASK_FILE
