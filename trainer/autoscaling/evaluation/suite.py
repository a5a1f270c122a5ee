"""The suite T1 to T6: which traces, in which world, under which boot seeds a policy is measured on (§11).

T1, T2 and T4 keep the world of the published text: T1 and T2 the training world, T4 `paper-live`. T3, T5 and T6 stand
for use, and run in the `live-like` world unless the training world is asked for: cool-down per type and direction,
removals that drain, sampled CPU and cloud prices are what the shipped policy meets, and a policy that is good only
without them is not worth shipping. Seeds here are 0..999; tuning and training use others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from domain.errors import BadInput
from domain.units import DAY_S, HOUR_S
from domain.workload import Trace, make_trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.recorded import windows
from simulator.workloads.synthetic import coevolution, train_fit, train_rand, train_text

BUSY_MORNING_S = 3600.0
CALL_EVERY_S = 3.0 * HOUR_S
"""On an idle day one short job comes so often after the busy hour; in between a fleet has nothing to do."""
CALL_S = 60.0
BURST = 10


def boot_twice_as_long(config: SimulationConfig) -> SimulationConfig:
    """Return the world in which every VM takes twice as long to boot."""
    return config.boots_scaled(2.0)


def dearer_type(config: SimulationConfig, kind: int, factor: float = 1.5) -> SimulationConfig:
    """Return the world in which one VM type costs `factor` times as much."""
    dearer = replace(config.types[kind], price_per_hour=config.types[kind].price_per_hour * factor)
    return replace(config, types=(*config.types[:kind], dearer, *config.types[kind + 1 :]))


def longer_jobs(trace: Trace, factor: float = 2.0) -> Trace:
    """Return the trace whose jobs take `factor` times as long."""
    return replace(trace, name=f"{trace.name} jobs x{factor:g}", service_s=trace.service_s * factor)


def idle_day(trace: Trace) -> Trace:
    """Return a day that begins with the first hour of the trace and then brings one short job every three hours.

    The last of them comes at the end of the day, so that a fleet which stays up costs money all day.
    """
    _refuse_stages(trace)
    early = trace.arrival_s < BUSY_MORNING_S
    calls = np.arange(CALL_EVERY_S, DAY_S + 1.0, CALL_EVERY_S)
    return make_trace(
        f"{trace.name} idle day",
        np.append(trace.arrival_s[early], calls),
        np.append(trace.service_s[early], np.full(calls.size, CALL_S)),
        width=np.append(trace.width[early], np.ones(calls.size, dtype=np.int64)),
        ram_gb=np.append(trace.ram_gb[early], np.full(calls.size, float(trace.ram_gb.mean()))),
        serial_fraction=trace.serial_fraction,
    )


def burst(trace: Trace, factor: int = BURST) -> Trace:
    """Return the trace with the jobs of one batch, the one in the middle by arrival, `factor` times over."""
    _refuse_stages(trace)
    batches = np.unique(trace.arrival_s)
    struck = trace.arrival_s == batches[batches.size // 2]

    def more(column: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.append(column, np.tile(column[struck], factor - 1))

    return make_trace(
        f"{trace.name} burst x{factor}",
        more(trace.arrival_s),
        more(trace.service_s),
        width=np.append(trace.width, np.tile(trace.width[struck], factor - 1)),
        ram_gb=more(trace.ram_gb),
        serial_fraction=trace.serial_fraction,
    )


def _refuse_stages(trace: Trace) -> None:
    if trace.staged:
        raise BadInput("trace", trace.name, "give one whose jobs arrive at fixed times")


GROUPS: tuple[str, ...] = ("T1", "T2", "T3", "T4", "T5", "T6")
OWN = "own"
"""The group of cases of one's own, which are no part of the suite."""
TITLES: dict[str, str] = {
    "T1": "train-text: the training trace as the text reads",
    "T2": "train-fit: the training trace that fits the published figures",
    "T3": "train-rand: random traces",
    "T4": "co-evolution: the closed loop of the published experiment",
    "T5": "recorded job logs",
    "T6": "shifts: worlds and loads no policy was trained for",
    OWN: "loads of one's own",
}


class World(StrEnum):
    """The world in which T3, T5 and T6 are run."""

    LIVE_LIKE = "live-like"
    TRAINING = "training"

    @classmethod
    def _missing_(cls, value: object) -> World:
        raise BadInput("--world", value, f"choose one of {', '.join(cls)}")


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
        """T1 to T6, or `own`."""
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
    shifted: int | None = None,
) -> tuple[Case, ...]:
    """Return the cases of these groups, the same ones on every call.

    seeds: at most so many cases per family. shifted: so many of each family of T6, instead of the extent's. Raises
    BadInput for a group that does not exist.
    """
    wanted = list(dict.fromkeys(groups))
    unknown = [group for group in wanted if group not in GROUPS]
    if unknown:
        raise BadInput("--traces", unknown[0], f"choose from {', '.join(GROUPS)}")
    if seeds is not None and seeds < 1:
        raise BadInput("--seeds", seeds, "give 1 or more")
    extent = SHORT if short else FULL
    extent = extent if shifted is None else replace(extent, shifted=shifted)
    config = preset("live-like" if world is World.LIVE_LIKE else "train-rand")
    cases = [case for group in GROUPS if group in wanted for case in _cases(group, extent, config, world.value)]
    return tuple(cases if seeds is None else _first_of_each_family(cases, seeds))


def _first_of_each_family(cases: Sequence[Case], most: int) -> list[Case]:
    count: dict[str, int] = {}
    kept = []
    for case in cases:
        count[case.family] = count.get(case.family, 0) + 1
        if count[case.family] <= most:
            kept.append(case)
    return kept


def _cases(group: str, extent: Extent, config: SimulationConfig, world: str) -> list[Case]:
    """Return the cases of a group; config, world: of T3, T5 and T6."""
    if group in ("T1", "T2"):
        name, trace = ("train-text", train_text()) if group == "T1" else ("train-fit", train_fit())
        boots = range(extent.boots)
        return [Case(f"{group} boot {seed}", group, "training", preset(name), trace, seed) for seed in boots]
    if group == "T3":
        return [Case(f"T3 {seed}", "T3", world, config, train_rand(seed), seed) for seed in range(extent.random_traces)]
    if group == "T4":
        config, seeds = preset("paper-live"), range(extent.coevolution)
        return [Case(f"T4 {seed}", "T4", "paper-live", config, coevolution(seed), seed) for seed in seeds]
    if group == "T5":
        return [
            Case(f"T5 {trace.name} boot {seed}", f"T5 {log}", world, config, trace, seed)
            for log, traces in windows().items()
            for trace in traces[: extent.windows]
            for seed in range(extent.window_boots)
        ]
    return _shifts(extent, config, world)


def _shifts(extent: Extent, config: SimulationConfig, world: str) -> list[Case]:
    cases = []
    for seed in range(extent.shifted):
        trace = train_text() if seed == 0 else train_rand(seed)
        kind = seed % len(config.types)
        shifted: list[tuple[str, str, SimulationConfig, Trace]] = [
            ("boot x2", "", boot_twice_as_long(config), trace),
            ("price x1.5", f" {config.types[kind].name}", dearer_type(config, kind), trace),
            ("jobs x2", "", config, longer_jobs(trace)),
            ("idle day", "", config, idle_day(trace)),
            ("burst x10", "", config, burst(trace)),
        ]
        cases += [
            Case(f"T6 {name}{detail} {trace.name}", f"T6 {name}", world, changed, load, seed)
            for name, detail, changed, load in shifted
        ]
    return sorted(cases, key=lambda case: case.family)
