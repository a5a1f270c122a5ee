"""Lessons of a scorer: one episode each, of fleets drawn at large, of the suite's loads, or of one's own loads.

Fleets at large are drawn from one distribution, and the queue rule is tuned for each of them. Training draws 1 to 9 VM
types except 5 and 7; those, and 10 to 12 types and limits above 200, are held out. Everything follows from one seed.

One's own loads are cut into windows. The later ones of each log are left out: nothing is learnt, tuned or chosen on
them, and they decide whether the result is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.fleet import VmType
from domain.rules.queue_rule import RuleSetting
from domain.units import DAY_S, HOUR_S, MINUTE_S
from domain.workload import DEFAULT_RAM_GB, Trace, make_trace
from simulator.autoscaling.branching import BranchedEpisodes
from simulator.autoscaling.configuration import (
    Billing,
    CooldownScope,
    CpuSampling,
    RemovalChoice,
    RemovalMode,
    SimulationConfig,
)
from trainer.autoscaling.evaluation.suite import dearer_type
from trainer.autoscaling.tasks import BAGS, FAMILIES, TRAINING_SEED, load_of

Floats = NDArray[np.float64]
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Yields a function's answers in the order of the items, maybe from several processes."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One episode to learn from: a world, its load, the rule's setting there, and the seed of its boots.

    announcements: coming work that is known, rows of `domain.announcements.rows_of`; None where none is announced.
    """

    config: SimulationConfig
    trace: Trace
    rule: RuleSetting
    seed: int
    announcements: Floats | None = None

    def episodes(self) -> BranchedEpisodes:
        """Return the world to play it in."""
        return BranchedEpisodes(self.config, self.trace, self.rule)


Source = Callable[[int, int], Iterable[Lesson]]
"""Yields `count` lessons from number `first` on; any process can be asked."""

# The suite's loads in one world.

LOADS = (*FAMILIES, BAGS)
LOAD_SHARES = (0.36, 0.1, 0.1, 0.1, 0.17, 0.17)
"""Chance of each family of loads in a lesson."""
SHIFTED = 0.35
"""Share of lessons with longer boots, and of those with another price."""
FOLLOWING_SEED = 10_000_000
"""Loads that follow others are drawn from here on, which nothing else does."""
ANNOUNCED_SHARE = 0.35
"""Share of lessons in which coming work is announced; the others teach to do without."""


def suite_lessons(first: int, count: int, world: SimulationConfig) -> Iterator[Lesson]:
    """Yield lessons of a world with loads of every kind, boots up to 2.4 times as long and one price up or down.

    first, count: which of the seeds from TRAINING_SEED on.
    """
    for seed in range(TRAINING_SEED + first, TRAINING_SEED + first + count):
        rng = np.random.default_rng([seed, 77])
        family, config = str(rng.choice(np.array(LOADS), p=LOAD_SHARES)), world
        if rng.random() < SHIFTED:
            config = config.boots_scaled(rng.uniform(1.0, 2.4))
        if rng.random() < SHIFTED:
            config = dearer_type(config, int(rng.integers(len(config.types))), rng.uniform(0.75, 1.7))
        trace = load_of(family, seed, config.max_cores)
        yield Lesson(config, trace, RuleSetting(), seed, announced_in_part(trace, seed, ANNOUNCED_SHARE))


def fleet_lessons(first: int, count: int) -> Iterator[Lesson]:
    """Yield lessons of fleets at large, each with the queue rule tuned for it."""
    for seed in range(TRAINING_SEED + first, TRAINING_SEED + first + count):
        fleet = fleet_of(seed)
        trace, rule = fleet.trace(0), tuned_rule(fleet, 1, HORIZONS_S[1::2])
        yield Lesson(fleet.config, trace, rule, seed, announced_in_part(trace, seed, ANNOUNCED_SHARE))


def general_lessons(first: int, count: int, world: SimulationConfig) -> Iterator[Lesson]:
    """Yield lessons of one world, and every fourth of fleets at large.

    With every second one of fleets at large the scorer costs more on the selection, where only those gain.
    """
    for number in range(first, first + count):
        yield from suite_lessons(number, 1, world) if number % 4 else fleet_lessons(number, 1)


REGIMES = 0.5
"""Share of the lessons of one world in which the kind of load changes."""
MOST_PAUSE_S = 4.0 * HOUR_S
"""Longest time without a job between two kinds of load."""


def changing_lessons(first: int, count: int, world: SimulationConfig) -> Iterator[Lesson]:
    """Yield `general_lessons`; in half of those of the world another kind of load follows, after a pause, or two do."""
    for number in range(first, first + count):
        (lesson,) = general_lessons(number, 1, world)
        rng = np.random.default_rng([lesson.seed, 80])
        if number % 4 and rng.random() < REGIMES:
            parts = [
                load_of(str(rng.choice(np.array(LOADS))), FOLLOWING_SEED + 2 * lesson.seed + k, world.max_cores)
                for k in range(int(rng.integers(1, 3)))
            ]
            lesson = _followed_by(lesson, parts, rng)
        yield lesson


def _followed_by(lesson: Lesson, parts: Sequence[Trace], rng: np.random.Generator) -> Lesson:
    """Return the lesson with further loads, each after a pause; they are announced where the first is."""
    whole, rows, at = [lesson.trace], [lesson.announcements], [0.0]
    for part in parts:
        at.append(at[-1] + float(whole[-1].arrival_s.max()) + rng.uniform(0.0, MOST_PAUSE_S))
        whole.append(part)
        rows.append(None if lesson.announcements is None else announced(part, rng))

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in whole])

    trace = make_trace(
        f"{lesson.trace.name} and {len(parts)} more",
        np.concatenate([part.arrival_s + begun for part, begun in zip(whole, at, strict=True)]),
        column("service_s"),
        width=column("width"),
        ram_gb=column("ram_gb"),
        serial_fraction=lesson.trace.serial_fraction,
    )
    known = [row + np.array([begun, 0.0, 0.0, 0.0]) for row, begun in zip(rows, at, strict=True) if row is not None]
    return replace(lesson, trace=trace, announcements=np.concatenate(known) if known else None)


# Fleets at large.

TRAINED_TYPES, HELD_OUT_TYPES = (1, 2, 3, 4, 6, 8, 9), (5, 7, 10, 11, 12)
CORES = (1, 2, 4, 8, 16, 32, 48, 64, 96)
MOST_LIMIT, MOST_CORES, MOST_JOBS = 200, 6_000, 20_000
SHORTEST_JOB_S, LONGEST_JOB_S = 5.0, 6 * HOUR_S
ARRIVALS = ("batch", "diurnal", "bursty", "log")
HORIZONS_S = (60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
IDLE_S = (0.0, 120.0, 300.0, 600.0)
TUNED_ON = 4
"""Loads of a world that its rule is tuned on; none of them is the one it is measured on."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A drawn world with the parameters of its loads.

    load: of ARRIVALS. work_core_s, span_s: total work of a load, and its duration. length_s, sigma: median and
    spread of job lengths. sizes_known: whether the work of waiting jobs is known.
    """

    seed: int
    config: SimulationConfig
    load: str
    work_core_s: float
    span_s: float
    length_s: float
    sigma: float
    sizes_known: bool

    def trace(self, number: int) -> Trace:
        """Return the world's load of a number: 0 is measured, the others are for tuning and training."""
        rng = np.random.default_rng([self.seed, 1, number])
        mean_s = self.length_s * math.exp(self.sigma**2 / 2.0)
        jobs = int(min(max(self.work_core_s / mean_s, 3), MOST_JOBS))
        lengths = self.length_s * np.exp(self.sigma * rng.standard_normal(jobs))
        arrivals = _ARRIVALS[self.load](rng, jobs, self.span_s)
        order = np.argsort(arrivals, kind="stable")
        return make_trace(
            f"fleet-{self.seed}-{number}",
            arrivals[order] - arrivals.min(),
            np.clip(lengths, SHORTEST_JOB_S, LONGEST_JOB_S)[order],
            width=np.ones(jobs, dtype=np.int64),
            ram_gb=np.full(jobs, DEFAULT_RAM_GB),
        )


def _batches(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    times = np.cumsum(rng.uniform(600.0, 2400.0, size=max(int(span_s / 1500.0), 1)))
    shares = rng.gamma(2.0, size=times.size)
    found: Floats = rng.choice(times, size=jobs, p=shares / shares.sum())
    return found


def _diurnal(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    return _at_rate(rng, jobs, span_s, 1.0 + rng.uniform(0.4, 0.95) * np.sin(_turns(rng, rng.uniform(0.5, 2.0))))


def _bursty(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    """A quiet rate with stretches of a many times higher one."""
    turns = np.cumsum(rng.random(2000) < 0.02)
    high = rng.random(int(turns[-1]) + 1) < rng.uniform(0.1, 0.4)
    return _at_rate(rng, jobs, span_s, np.where(high[turns], rng.uniform(4.0, 20.0), 1.0))


def _log_like(rng: np.random.Generator, jobs: int, span_s: float) -> Floats:
    """Submissions of one job or of many at once, at a rate that swells and ebbs."""
    single = rng.random(jobs) < rng.uniform(0.2, 1.0)
    sizes = np.where(single, 1, 2 ** rng.integers(1, 7, size=jobs))
    kept = int(np.searchsorted(np.cumsum(sizes), jobs)) + 1
    rate = 1.0 + rng.uniform(0.0, 0.9) * np.sin(_turns(rng, rng.uniform(0.5, 3.0)))
    submissions = np.sort(_at_rate(rng, kept, span_s, rate))
    return np.repeat(submissions, sizes[:kept])[:jobs]


def _turns(rng: np.random.Generator, waves: float) -> Floats:
    found: Floats = 2.0 * math.pi * waves * np.linspace(0.0, 1.0, 2000) + rng.uniform(0.0, 2.0 * math.pi)
    return found


def _at_rate(rng: np.random.Generator, jobs: int, span_s: float, rate: Floats) -> Floats:
    passed = np.cumsum(rate) / rate.sum()
    found: Floats = np.interp(rng.random(jobs), passed, np.linspace(0.0, 1.0, rate.size)) * span_s
    return found


_ARRIVALS = {"batch": _batches, "diurnal": _diurnal, "bursty": _bursty, "log": _log_like}


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    """Return a draw that is uniform in its logarithm."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def fleet_of(seed: int, types: Sequence[int] = TRAINED_TYPES, limit: tuple[int, int] = (1, MOST_LIMIT)) -> Fleet:
    """Return the fleet of a seed, with one of these numbers of VM types and limits in this range."""
    rng = np.random.default_rng([seed, 0])
    kinds = int(rng.choice(np.array(types)))
    cores = np.sort(rng.choice(np.array(CORES), size=kinds, replace=kinds > len(CORES)))
    per_core = _between(rng, 0.02, 0.12)
    prices = per_core * cores.astype(np.float64)
    if rng.random() < 0.5:
        prices = per_core * cores ** rng.uniform(0.85, 1.1) * np.exp(0.15 * rng.standard_normal(kinds))
    limits = np.array([round(_between(rng, *limit)) for _ in range(kinds)])
    shrunk = min(1.0, MOST_CORES / float((limits * cores).sum()))
    limits = np.maximum((limits * shrunk).astype(np.int64), 1)
    minimum = np.zeros(kinds, dtype=np.int64)
    if rng.random() < 0.6:
        minimum[int(rng.integers(kinds))] = 1
    boot_s = _between(rng, 20.0, 450.0)
    drains = rng.random() < 0.7
    config = SimulationConfig(
        types=tuple(
            VmType(f"type-{k}", int(c), 4.0 * float(c), float(round(p, 6)))
            for k, (c, p) in enumerate(zip(cores, prices, strict=True))
        ),
        limits=tuple(limits.tolist()),
        minimum=tuple(minimum.tolist()),
        initial=tuple(minimum.tolist()),
        waiting_price_per_hour=round(per_core * _between(rng, 0.25, 4.0), 6),
        boot_low_s=boot_s,
        boot_high_s=min(boot_s * rng.uniform(1.0, 1.6), 600.0),
        cooldown_s=0.0 if rng.random() < 0.3 else float(round(rng.uniform(30.0, 600.0))),
        cooldown_scope=CooldownScope.PER_DIRECTION if rng.random() < 0.7 else CooldownScope.PER_TYPE,
        removal_choice=RemovalChoice.LEAST_WORK_LOST if drains or rng.random() < 0.5 else RemovalChoice.NEWEST,
        removal_mode=RemovalMode.DRAIN if drains else RemovalMode.IMMEDIATE,
        cpu_sampling=CpuSampling.INSTANT,
        billing=Billing.STEP if rng.random() < 0.5 else Billing.EXACT,
        max_steps=4_000,
    )
    span_s = rng.uniform(3.0, 8.0) * HOUR_S
    length_s = _between(rng, 10.0, 1.5 * HOUR_S)
    return Fleet(
        seed=seed,
        config=config,
        load=str(rng.choice(np.array(ARRIVALS))),
        work_core_s=_between(rng, 0.03, 0.5) * config.max_cores * span_s,
        span_s=span_s,
        length_s=length_s,
        sigma=rng.uniform(0.2, 1.5),
        sizes_known=bool(rng.random() < 0.7),
    )


def tuned_rule(fleet: Fleet, loads: int = TUNED_ON, horizons_s: Sequence[float] = HORIZONS_S) -> RuleSetting:
    """Return the setting of the queue rule that costs least on a fleet's tuning loads."""
    typical = 0.0 if fleet.sizes_known else fleet.length_s * math.exp(fleet.sigma**2 / 2.0)
    return best_rule(fleet.config, [fleet.trace(number) for number in range(1, loads + 1)], typical, horizons_s)


def best_rule(
    config: SimulationConfig,
    traces: Sequence[Trace],
    job_core_s: float = 0.0,
    horizons_s: Sequence[float] = HORIZONS_S,
    first_seed: int = 1,
    spread: Map = map,
) -> RuleSetting:
    """Return the setting of the queue rule that costs least on these loads; job_core_s: see `RuleSetting`."""
    settings = [RuleSetting(horizon, idle, job_core_s) for horizon, idle in product(horizons_s, IDLE_S)]
    lessons = [Lesson(config, trace, RuleSetting(), seed) for seed, trace in enumerate(traces, start=first_seed)]
    costs = np.sum(list(spread(_rule_costs, [(lesson, settings) for lesson in lessons])), axis=0)
    return settings[int(costs.argmin())]


def _rule_costs(item: tuple[Lesson, Sequence[RuleSetting]]) -> Floats:
    lesson, settings = item
    return np.array([replace(lesson, rule=rule).episodes().play(lesson.seed).cost for rule in settings])


# Announcements of a trace's work: true ones, some of them then late, wrong or missing.

PAUSE_S = 60.0
"""Arrivals that lie no further apart belong to one burst."""
LONGEST_BURST_S = 600.0
"""A longer burst is announced in pieces of this length."""
LATE_MIN = (5.0, 20.0)
"""By how much work may come later than announced, minutes."""
WRONG = (0.3, 3.0)
"""The factors between which a wrong number of jobs lies."""


def bursts(trace: Trace) -> Floats:
    """Return the true announcements of a trace, rows of `domain.announcements.rows_of`, one per burst of arrivals."""
    times, work = trace.arrival_s, trace.service_s * np.maximum(trace.width, 1)
    burst = np.concatenate([[0], np.cumsum(np.diff(times) > PAUSE_S)])
    begun = times[np.searchsorted(burst, burst)]
    piece = np.floor((times - begun) / LONGEST_BURST_S)
    fresh = np.flatnonzero(np.concatenate([[True], (np.diff(burst) > 0) | (np.diff(piece) > 0)]))
    last = np.append(fresh[1:], times.size) - 1
    jobs = (last - fresh + 1).astype(np.float64)
    return np.column_stack([times[fresh], jobs, np.add.reduceat(work, fresh) / jobs, times[last] - times[fresh]])


def announced(
    trace: Trace,
    rng: np.random.Generator,
    missing: float = 0.0,
    late: float = 0.0,
    wrong: float = 0.0,
    cancelled: float = 0.0,
) -> Floats:
    """Return the announcements of a trace, rows of `domain.announcements.rows_of`, in seconds of the trace.

    missing, late, wrong: shares of the bursts that are not announced, that come 5 to 20 minutes later than announced,
    and whose number of jobs is announced as 0.3 to 3 times the true one. cancelled: announcements of work that never
    comes, as a share of the bursts.
    """
    true = bursts(trace)
    fate = rng.random(len(true))
    hasty = (fate >= missing) & (fate < missing + late)
    off = (fate >= missing + late) & (fate < missing + late + wrong)
    rows = true.copy()
    rows[:, 0] -= hasty * MINUTE_S * rng.uniform(*LATE_MIN, size=len(true))
    factor = np.exp(rng.uniform(math.log(WRONG[0]), math.log(WRONG[1]), size=len(true)))
    rows[:, 1] = np.where(off, np.maximum(np.rint(rows[:, 1] * factor), 1.0), rows[:, 1])
    never = true[rng.random(len(true)) < cancelled]
    never[:, 0] = rng.uniform(0.0, max(float(trace.arrival_s.max()), 1.0), size=len(never))
    found: Floats = np.concatenate([rows[fate >= missing], never])
    return found


def announced_in_part(trace: Trace, seed: int, share: float) -> Floats | None:
    """Return announcements as a lesson has them: None in most, else true ones or damaged ones, half and half.

    seed: of the lesson. share: of lessons that have announcements.
    """
    rng = np.random.default_rng([seed, 78])
    if rng.random() >= share:
        return None
    if rng.random() < 0.5:
        return announced(trace, rng)
    missing, late, wrong = rng.uniform(0.2, 0.8) * rng.dirichlet([1.0, 1.0, 1.0])
    return announced(trace, rng, missing, late, wrong, 0.2 * rng.random() if rng.random() < 0.5 else 0.0)


# One's own loads.

LEFT_OUT = 0.4
"""Share of the windows, the later ones, that only judge."""
LEAST_WINDOWS = 4
"""Windows to learn from, and windows to judge by, at least."""
DAYS, WINDOWS = 8, 16
"""Logs of DAYS in all are cut into days, shorter ones into WINDOWS windows of an hour or more."""
OWN_SEED, RULE_SEED = 3_000_000_000, 2_700_000_000
"""Boot seeds of lessons and of tuning the rule."""
THINNED, SCALED = 0.25, 0.1
"""Jobs that a lesson leaves out at most, as a share, and how far it moves their lengths (sigma of the logarithm)."""
MOST_TUNED_ON = 6
"""Windows that the rule is tuned on."""


@dataclass(frozen=True, slots=True)
class Loads:
    """One's own loads, cut by time.

    parts: of each log, the part to learn from. learnt, left_out: windows of before and after the cut. window_s: their
    length.
    """

    parts: tuple[Trace, ...]
    learnt: tuple[Trace, ...]
    left_out: tuple[Trace, ...]
    window_s: float

    @property
    def plain(self) -> dict[str, Any]:
        """Their length and digests, as JSON data."""
        digests = {name: [trace.digest for trace in getattr(self, name)] for name in ("learnt", "left_out")}
        return {"window_s": self.window_s, **digests}


def loads_of(traces: Sequence[Trace]) -> Loads:
    """Cut traces into windows, and leave out the later ones; BadInput where too few have jobs."""
    for trace in traces:
        if trace.staged:
            raise BadInput("--workload", trace.name, "give one whose jobs arrive at fixed times")
    spans = [float(trace.arrival_s.max()) + 1.0 for trace in traces]
    window_s = DAY_S if sum(spans) >= DAYS * DAY_S else max(sum(spans) / WINDOWS, HOUR_S)
    cut = [
        [found for k in range(max(math.ceil(span / window_s - 0.5), 1)) if (found := _window(trace, k, window_s))]
        for trace, span in zip(traces, spans, strict=True)
    ]
    many = [windows for windows in cut if len(windows) > 1]
    # Logs of one window each keep their order: the later ones are left out.
    lone = [windows[0] for windows in cut if len(windows) == 1]
    learnt, left_out, parts = [], [], []
    for trace, windows in zip(traces, cut, strict=True):
        if len(windows) > 1:
            kept = _kept(len(windows))
            learnt += windows[:kept]
            left_out += windows[kept:]
            end_s = window_s * (1 + int(windows[kept - 1].name.rpartition("#")[2]))
            parts.append(cut_out(trace, 0.0, end_s, f"{trace.name}#0-{kept}"))
    if lone:
        kept = _kept(len(lone)) if len(lone) > 1 else 0 if many else 1
        learnt += lone[:kept]
        left_out += lone[kept:]
        parts += lone[:kept]
    if min(len(learnt), len(left_out)) < LEAST_WINDOWS:
        remedy = (
            f"they make {len(learnt)} windows of {window_s / HOUR_S:.3g} h to learn from and {len(left_out)} to judge "
            f"by, and {LEAST_WINDOWS} of each are needed: give a longer log, or more of them"
        )
        raise BadInput("--workload", ", ".join(trace.name for trace in traces), remedy)
    return Loads(tuple(parts), tuple(learnt), tuple(left_out), window_s)


def _kept(windows: int) -> int:
    return windows - max(round(LEFT_OUT * windows), 1)


def _window(trace: Trace, number: int, window_s: float) -> Trace | None:
    found = (trace.arrival_s >= number * window_s) & (trace.arrival_s < (number + 1) * window_s)
    if found.sum() < 2:
        return None
    return cut_out(trace, number * window_s, (number + 1) * window_s, f"{trace.name}#{number}")


def cut_out(trace: Trace, begin_s: float, end_s: float, name: str) -> Trace:
    """Return the jobs that arrive in [begin_s, end_s), seconds from its begin."""
    return _of(trace, (trace.arrival_s >= begin_s) & (trace.arrival_s < end_s), begin_s, 1.0, name)


def _of(trace: Trace, kept: NDArray[np.bool_], begin_s: float, longer: float, name: str) -> Trace:
    return make_trace(
        name,
        trace.arrival_s[kept] - begin_s,
        trace.service_s[kept] * longer,
        width=trace.width[kept],
        ram_gb=trace.ram_gb[kept],
        serial_fraction=trace.serial_fraction,
    )


@dataclass(frozen=True, slots=True)
class OwnLessons:
    """Yields lessons of one world: windows that begin anywhere, with some jobs left out and lengths moved a little.

    Exact branches know the future of their trace. Windows that never come twice alike keep a network from learning it
    by heart.
    """

    config: SimulationConfig
    rule: RuleSetting
    loads: Loads

    def __call__(self, first: int, count: int) -> Iterator[Lesson]:
        """Yield those of numbers from `first` on."""
        for number in range(first, first + count):
            yield Lesson(self.config, self._trace(number), self.rule, OWN_SEED + number)

    def _trace(self, number: int) -> Trace:
        rng, window_s = np.random.default_rng([number, 83]), self.loads.window_s
        spans = np.array([float(part.arrival_s.max()) + 1.0 for part in self.loads.parts])
        for _ in range(20):
            part = self.loads.parts[int(rng.choice(len(spans), p=spans / spans.sum()))]
            begin_s = rng.uniform(0.0, max(float(part.arrival_s.max()) - window_s, 0.0))
            kept = (part.arrival_s >= begin_s) & (part.arrival_s < begin_s + window_s)
            kept &= rng.random(part.jobs) >= rng.uniform(0.0, THINNED)
            if kept.sum() > 1:
                return _of(part, kept, begin_s, math.exp(SCALED * rng.standard_normal()), f"own-{number}")
        return self.loads.learnt[number % len(self.loads.learnt)]


def rule_for_loads(config: SimulationConfig, loads: Loads, typical_core_s: float, spread: Map = map) -> RuleSetting:
    """Return the setting of the queue rule that costs least on windows that are learnt from.

    typical_core_s: of a job, in a world that hides the work of jobs; else 0.
    """
    every = max(len(loads.learnt) // MOST_TUNED_ON, 1)
    windows = loads.learnt[::every][:MOST_TUNED_ON]
    horizons_s = sorted({*HORIZONS_S, RuleSetting().horizon_s})
    return best_rule(config, windows, typical_core_s, horizons_s, RULE_SEED, spread)
