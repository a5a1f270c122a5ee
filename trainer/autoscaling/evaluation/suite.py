"""The suite T1 to T6: which traces, in which world, under which boot seeds a policy is measured on (§11).

T1, T2 and T4 keep the world of the published text: T1 and T2 the training world, T4 `paper-live`. T3, T5 and T6 stand
for use, and run in the `live-like` world unless the training world is asked for: cool-down per type and direction,
removals that drain, sampled CPU and cloud prices are what the shipped policy meets, and a policy that is good only
without them is not worth shipping. Seeds here are 0..999; tuning and training use others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.reference import SimulationConfig, preset
from simulator.workloads.recorded import windows
from simulator.workloads.synthetic import coevolution, train_fit, train_rand, train_text
from trainer.autoscaling.evaluation import shifts

GROUPS: tuple[str, ...] = ("T1", "T2", "T3", "T4", "T5", "T6")
TITLES: dict[str, str] = {
    "T1": "train-text: the training trace as the text reads",
    "T2": "train-fit: the training trace that fits the published figures",
    "T3": "train-rand: random traces",
    "T4": "co-evolution: the closed loop of the published experiment",
    "T5": "recorded job logs",
    "T6": "shifts: worlds and loads no policy was trained for",
}


class World(StrEnum):
    """The world in which T3, T5 and T6 are run."""

    LIVE_LIKE = "live-like"
    TRAINING = "training"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One episode to run: a world, a trace and a boot seed.

    family: what is reported and gated together, for example `T6 burst`; its first word is the group. world: the
    preset's name, for people.
    """

    name: str
    family: str
    world: str
    config: SimulationConfig
    trace: Trace
    seed: int

    @property
    def group(self) -> str:
        """T1 to T6."""
        return self.family.split()[0]

    @property
    def key(self) -> str:
        """SHA-256 (hex) over everything that decides an episode besides the policy."""
        text = f"{self.config!r} {self.trace.digest} {self.seed}"
        return hashlib.sha256(text.encode("utf-8")).hexdigest()


@dataclass(frozen=True, slots=True)
class Extent:
    """How many seeds or traces of each kind are run."""

    boots: int
    random_traces: int
    coevolution: int
    windows: int
    window_boots: int
    shifted: int


FULL = Extent(boots=30, random_traces=100, coevolution=30, windows=3, window_boots=3, shifted=10)
SHORT = Extent(boots=3, random_traces=6, coevolution=3, windows=1, window_boots=1, shifted=2)


def suite(
    groups: Iterable[str] = GROUPS,
    *,
    short: bool = False,
    world: World = World.LIVE_LIKE,
    seeds: int | None = None,
) -> tuple[Case, ...]:
    """Return the cases of these groups, the same ones on every call.

    seeds: at most so many cases per family. Raises BadInput for a group that does not exist.
    """
    wanted = list(dict.fromkeys(groups))
    unknown = [group for group in wanted if group not in GROUPS]
    if unknown:
        raise BadInput("--traces", unknown[0], f"choose from {', '.join(GROUPS)}")
    if seeds is not None and seeds < 1:
        raise BadInput("--seeds", seeds, "give 1 or more")
    extent = SHORT if short else FULL
    cases = [case for group in GROUPS if group in wanted for case in _MAKERS[group](extent, _world(world), world.value)]
    return tuple(cases if seeds is None else _first_of_each_family(cases, seeds))


def _first_of_each_family(cases: Sequence[Case], most: int) -> list[Case]:
    count: dict[str, int] = {}
    kept = []
    for case in cases:
        count[case.family] = count.get(case.family, 0) + 1
        if count[case.family] <= most:
            kept.append(case)
    return kept


def _world(world: World) -> SimulationConfig:
    return preset("live-like" if world is World.LIVE_LIKE else "train-rand")


def _t1(extent: Extent, _: SimulationConfig, __: str) -> list[Case]:
    trace = train_text()
    return [
        Case(f"T1 boot {seed}", "T1", "training", preset("train-text"), trace, seed) for seed in range(extent.boots)
    ]


def _t2(extent: Extent, _: SimulationConfig, __: str) -> list[Case]:
    trace = train_fit()
    return [Case(f"T2 boot {seed}", "T2", "training", preset("train-fit"), trace, seed) for seed in range(extent.boots)]


def _t3(extent: Extent, config: SimulationConfig, world: str) -> list[Case]:
    return [Case(f"T3 {seed}", "T3", world, config, train_rand(seed), seed) for seed in range(extent.random_traces)]


def _t4(extent: Extent, _: SimulationConfig, __: str) -> list[Case]:
    config = preset("paper-live")
    return [
        Case(f"T4 {seed}", "T4", "paper-live", config, coevolution(seed), seed) for seed in range(extent.coevolution)
    ]


def _t5(extent: Extent, config: SimulationConfig, world: str) -> list[Case]:
    return [
        Case(f"T5 {trace.name} boot {seed}", f"T5 {log}", world, config, trace, seed)
        for log, traces in windows().items()
        for trace in traces[: extent.windows]
        for seed in range(extent.window_boots)
    ]


def _t6(extent: Extent, config: SimulationConfig, world: str) -> list[Case]:
    cases = []
    for seed in range(extent.shifted):
        trace = train_text() if seed == 0 else train_rand(seed)
        kind = seed % len(config.types)
        shifted: list[tuple[str, str, SimulationConfig, Trace]] = [
            ("boot x2", "", shifts.boot_twice_as_long(config), trace),
            ("price x1.5", f" {config.types[kind].name}", shifts.dearer_type(config, kind), trace),
            ("jobs x2", "", config, shifts.longer_jobs(trace)),
            ("idle day", "", config, shifts.idle_day(trace)),
            ("burst x10", "", config, shifts.burst(trace)),
        ]
        cases += [
            Case(f"T6 {name}{detail} {trace.name}", f"T6 {name}", world, changed, load, seed)
            for name, detail, changed, load in shifted
        ]
    return sorted(cases, key=lambda case: case.family)


_MAKERS: dict[str, Callable[[Extent, SimulationConfig, str], list[Case]]] = {
    "T1": _t1,
    "T2": _t2,
    "T3": _t3,
    "T4": _t4,
    "T5": _t5,
    "T6": _t6,
}
