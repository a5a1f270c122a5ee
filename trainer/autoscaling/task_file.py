"""Task files: what to learn, as TOML that people write: worlds, loads with shares, and what checkpoints are chosen on.

Every wrong field is named at once, what a world or a workload of it is refused for among them. Files that a task names
are looked for beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from domain.errors import BadInput, Mistake, TrimtabError
from domain.workload import Trace
from simulator.autoscaling.world_file import ENDING, World, world_text
from simulator.checked_toml import FileRefused, Place, Table, read_table, toml_text, value_text, written
from simulator.workloads.named import workload_of
from trainer.autoscaling.worlds import SEEDED, world_of

VERSION = 1
MOST_SEEDS = 100_000
WORLD_FILE, TASK_FILE = "world.toml", "task.toml"
"""Names of what `write_task` writes."""

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
    """Yield what is wrong among several fields."""
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
    """The traces of a load, with the boot seed of each; name: what they are an example of. share: None for none."""

    name: str
    traces: tuple[Trace, ...]
    seeds: tuple[int, ...]
    share: float | None


@dataclass(frozen=True, slots=True)
class StageLoads:
    """A stage as read."""

    world: World
    until: float
    loads: tuple[Load, ...]


@dataclass(frozen=True, slots=True)
class TaskContent:
    """A task file with its worlds and traces. selection, report: none where the file leaves them out."""

    table: TaskTable
    stages: tuple[StageLoads, ...]
    selection: tuple[Load, ...]
    report: tuple[Load, ...]


FamilyTrace = Callable[[str, int, int], Trace]
"""Returns the trace of a family and a seed for a fleet of so many cores."""


@dataclass(slots=True)
class _Reading:
    folder: Path
    family_trace: FamilyTrace
    mistakes: dict[Place, Mistake] = field(default_factory=dict)

    def refuse(self, place: Place, value: object, error: TrimtabError) -> None:
        remedy = error.remedy if isinstance(error, BadInput) else str(error)
        self.mistakes.setdefault(place, Mistake(written(place), value_text(value), remedy))

    def world(self, stage: StageTable, place: Place) -> World:
        try:
            world = world_of(str(self.folder / stage.world) if stage.world.endswith(ENDING) else stage.world)
        except TrimtabError as error:
            self.refuse((*place, "world"), stage.world, error)
            return World()
        try:
            changes = [f"{name}={_text(value)}" for name, value in stage.changes.items()]
            return world_of(
                str(self.folder / stage.world) if stage.world.endswith(ENDING) else stage.world, changes=changes
            )
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
            return self.family_trace(load.family, seed, world.config.max_cores)
        text = str(load.workload)
        name, colon, rest = text.partition(":")
        if name.endswith((".csv", ".swf", ".swf.gz")):
            text = f"{self.folder / name}{colon}{rest}"
        if load.seeds is not None:
            text = f"{text},seed={seed}" if colon else f"{text}:seed={seed}"
        return workload_of(text, max(world.config.cores))


def _text(value: object) -> str:
    return (
        ",".join(map(_text, value))
        if isinstance(value, list)
        else value
        if isinstance(value, str)
        else value_text(value)
    )


def read_task(path: Path, family_trace: FamilyTrace) -> TaskContent:
    """Return what a task file holds; raises BadInput, and FileRefused with every mistake in it."""
    table = read_table(path, TaskTable, _conflicts)
    reading = _Reading(path.parent, family_trace)
    stages = []
    for k, stage in enumerate(table.stages):
        world = reading.world(stage, ("stages", k))
        stages.append(StageLoads(world, stage.until, reading.loads(stage.loads, world, ("stages", k, "loads"))))
    last = stages[-1].world
    selection = reading.loads(table.selection.loads, last, ("selection", "loads")) if table.selection else ()
    report = reading.loads(table.report.loads, last, ("report", "loads")) if table.report else ()
    if reading.mistakes:
        raise FileRefused(str(path), reading.mistakes.values())
    return TaskContent(table, tuple(stages), selection, report)


def write_task(world: World, workloads: Sequence[str], folder: Path, *, resume: bool = False) -> Path:
    """Write a world, and a task of one stage in it, into a folder; return the task's file.

    Workloads that vary by seed are trained on, chosen by and reported on other seeds. resume: what is there has to be
    the same, else BadInput is raised.
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
