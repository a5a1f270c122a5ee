"""Episodes of deferral drawn with a seed: jobs, and the capacity that on-demand work leaves (specification §7).

The draws come in the order of the specification, so that independent implementations agree number for number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from domain.errors import BadInput
from domain.rules.deferral.jobs import Ints, Jobs
from domain.units import HOURS_PER_DAY, HOURS_PER_WEEK
from simulator.checked_toml import Place, Table, read_table, unknown_name

Floats = NDArray[np.float64]

TRAINING_SEED = 1_000_000
"""Training episodes have seeds from this; evaluation has 0 to 99."""
CALIBRATION_SEEDS = range(TRAINING_SEED, TRAINING_SEED + 40)
"""The only episodes on which a constant may be tuned."""

REFERENCE_WORK = 3.024
"""Mean core-steps of a job of core case 1 and duration case 3; capacity is scaled by the mean work over this."""
DROP_SEED = 777
"""The recurring drops of an episode are drawn with this plus its seed."""
WEEKEND = (5, 6)
MOST_DRAWN = 10_000_000
"""Jobs drawn in an episode: a larger mean is a mistake in the parameters."""

CORE_SIZES, DURATIONS = (1, 2, 4, 8), (1, 2, 3, 4, 5, 6)
CORE_CASES: Mapping[int, tuple[float, ...]] = {
    1: (0.51, 0.37, 0.08, 0.04),
    2: (0.25, 0.25, 0.25, 0.25),
    3: (0.4, 0.3, 0.2, 0.1),
}
DURATION_CASES: Mapping[int, tuple[float, ...]] = {
    1: (1 / 6,) * 6,
    2: (0.4, 0.25, 0.15, 0.1, 0.05, 0.05),
    3: (0.6, 0.25, 0.1, 0.05, 0.0, 0.0),
}

Positive = Annotated[int, Field(ge=1, le=1_000_000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Hour = Annotated[float, Field(ge=0.0, lt=24.0)]


class Scenario(Table):
    """Parameters of the generator; the defaults are the scenario `valley`."""

    steps: Annotated[int, Field(ge=1, le=100_000, description="hours of an episode, 1 to 100000")] = 168
    lam: Annotated[float, Field(ge=0.0, le=100_000.0, description="mean jobs per step, 0 to 100000")] = 8.4
    arr_amp: Annotated[Share, Field(description="how much arrivals swing over the day, 0 to 1")] = 0.35
    arr_peak: Annotated[Hour, Field(description="the hour with most arrivals, 0 to 23")] = 1.0
    lead_max: Annotated[int, Field(ge=0, le=100_000, description="most steps between submission and start, 0+")] = 6
    win_p0: Annotated[Share, Field(description="share of jobs with a window of zero steps, 0 to 1")] = 0.63
    win_q: Annotated[float, Field(ge=0.0, lt=1.0, description="chance that a window is longer, 0 to below 1")] = 0.57
    win_max: Annotated[int, Field(ge=0, le=100_000, description="most steps of a window, 0 or more")] = 6
    cap_mean: Annotated[float, Field(ge=0.0, le=1e9, description="mean capacity before scaling, 0 or more")] = 25.7
    cap_amp: Annotated[float, Field(ge=0.0, le=10.0, description="how much capacity swings over the day, 0 to 10")] = (
        0.25
    )
    cap_peak: Annotated[Hour, Field(description="the hour with most capacity, 0 to 23")] = 3.0
    weekend: Annotated[float, Field(ge=-1.0, le=10.0, description="more capacity at weekends, a share, -1 to 10")] = (
        0.08
    )
    ar_phi: Annotated[float, Field(gt=-1.0, lt=1.0, description="correlation from step to step, above -1, below 1")] = (
        0.5
    )
    ar_sigma: Annotated[float, Field(ge=0.0, le=1e9, description="deviation of the noise of a step, 0 or more")] = 1.9
    burst_p: Annotated[Share, Field(description="chance that a burst begins in a step, 0 to 1")] = 0.0
    burst_frac: Annotated[Share, Field(description="share of capacity that a burst takes, 0 to 1")] = 0.6
    burst_len: Annotated[Positive, Field(description="steps of a burst, 1 or more")] = 3
    core_case: Annotated[int, Field(ge=1, le=3, description="1, 2 or 3: how often 1, 2, 4 and 8 cores are drawn")] = 1
    duration_case: Annotated[int, Field(ge=1, le=3, description="1, 2 or 3: how often 1 to 6 steps are drawn")] = 3
    cores: Annotated[
        tuple[Positive, ...] | None, Field(strict=False, min_length=1, description="core sizes, in place of core_case")
    ] = None
    core_p: Annotated[
        tuple[Share, ...] | None, Field(strict=False, min_length=1, description="the chance of each of `cores`")
    ] = None
    durations: Annotated[
        tuple[Positive, ...] | None, Field(strict=False, min_length=1, description="steps, in place of duration_case")
    ] = None
    duration_p: Annotated[
        tuple[Share, ...] | None, Field(strict=False, min_length=1, description="the chance of each of `durations`")
    ] = None
    cap_auto_scale: Annotated[bool, Field(description="true to scale capacity by the mean work of a job")] = True
    realtime: Annotated[bool, Field(description="true for jobs that are known, and must start, at their step")] = False
    drop_p: Annotated[Share, Field(description="chance that capacity drops on a day at drop_hour, 0 to 1")] = 0.0
    drop_hour: Annotated[int, Field(ge=0, le=23, description="the hour of the drop, 0 to 23")] = 9
    drop_frac: Annotated[Share, Field(description="share of capacity that a drop takes, 0 to 1")] = 0.5
    drop_len: Annotated[Positive, Field(description="steps of a drop, 1 or more")] = 3

    @property
    def core_classes(self) -> tuple[Ints, Floats]:
        """Return core sizes and their chances."""
        sizes, chances = self.cores or CORE_SIZES, self.core_p or CORE_CASES[self.core_case]
        return np.array(sizes, dtype=np.int64), np.array(chances)

    @property
    def duration_classes(self) -> tuple[Ints, Floats]:
        """Return durations in steps and their chances."""
        steps, chances = self.durations or DURATIONS, self.duration_p or DURATION_CASES[self.duration_case]
        return np.array(steps, dtype=np.int64), np.array(chances)

    @property
    def scale(self) -> float:
        """Return what capacity is multiplied by."""
        if not self.cap_auto_scale:
            return 1.0
        (sizes, core_p), (steps, duration_p) = self.core_classes, self.duration_classes
        return float(sizes @ core_p) * float(steps @ duration_p) / REFERENCE_WORK


VALLEY = Scenario()
SCENARIOS: Mapping[str, Scenario] = {
    "valley": VALLEY,
    "core2": Scenario(core_case=2),
    "core3": Scenario(core_case=3),
    "dur1": Scenario(duration_case=1),
    "dur2": Scenario(duration_case=2),
    "core2_fixed": Scenario(core_case=2, cap_auto_scale=False),
    "realtime": Scenario(realtime=True),
    "bursty": Scenario(burst_p=0.03),
    "bursty_long": Scenario(burst_p=0.03, duration_case=1),
    "sched_drop": Scenario(duration_case=1, drop_p=0.7),
}


@dataclass(frozen=True, slots=True)
class Episode:
    """Jobs and the capacity of every step: what is played.

    capacity: int64 [T], cores that on-demand work leaves. start_h: hour of the week of step 0, 0 is Monday, midnight.
    """

    jobs: Jobs
    capacity: Ints
    start_h: int
    name: str = ""
    seed: int = 0

    @property
    def steps(self) -> int:
        """Return T."""
        return int(self.capacity.size)

    @property
    def hours(self) -> Ints:
        """Return the hour of the week of each step, [T]."""
        return (self.start_h + np.arange(self.steps)) % HOURS_PER_WEEK


def scenario_of(name: str) -> Scenario:
    """Return a scenario by its name; BadInput if there is none."""
    if name not in SCENARIOS:
        raise BadInput("scenario", name, unknown_name(name, SCENARIOS).replace("field", "scenario"))
    return SCENARIOS[name]


def read_scenario(path: Path) -> Scenario:
    """Return the scenario of a TOML file: parameters that it does not name are those of `valley`.

    Raises BadInput for a file that cannot be read, FileRefused naming every wrong field.
    """
    return read_table(path, Scenario, _conflicts)


def _conflicts(data: Mapping[str, Any]) -> Iterable[tuple[Place, str]]:
    for values, chances, case in (("cores", "core_p", "core_case"), ("durations", "duration_p", "duration_case")):
        given, shares = data.get(values), data.get(chances)
        if given is not None and case in data:
            yield (case,), f"give {case}, or {values} with {chances}, not both"
        if (given is None) != (shares is None):
            yield (chances if shares is None else values,), f"give {values} and {chances} together"
        if not isinstance(given, list) or not isinstance(shares, list):
            continue
        if len(given) != len(shares):
            yield (chances,), f"give as many chances as there are {values}: {len(given)}"
        elif all(isinstance(share, int | float) for share in shares) and abs(sum(shares) - 1.0) > 1e-9:
            yield (chances,), f"give chances that sum to 1; these sum to {sum(shares):g}"
    lam, steps = data.get("lam", VALLEY.lam), data.get("steps", VALLEY.steps)
    if isinstance(lam, int | float) and isinstance(steps, int) and lam * steps > MOST_DRAWN:
        yield ("lam",), f"give so much that lam times steps is at most {MOST_DRAWN}"


def episode(scenario: str | Scenario, seed: int) -> Episode:
    """Return the episode of a scenario, by name or by its parameters, and a seed; jobs are in order of submission.

    Raises BadInput for an unknown name or a seed below 0.
    """
    if seed < 0:
        raise BadInput("seed", seed, "give 0 or more")
    made = scenario_of(scenario) if isinstance(scenario, str) else scenario
    rng = np.random.default_rng(seed)
    start_h = int(rng.integers(0, HOURS_PER_WEEK))
    hours = start_h + np.arange(made.steps)
    capacity = _dropped(made, _capacity(made, hours, rng), hours, seed)
    jobs = _jobs(made, hours, rng)
    return Episode(jobs, capacity, start_h, scenario if isinstance(scenario, str) else "", seed)


def _capacity(made: Scenario, hours: Ints, rng: np.random.Generator) -> Ints:
    hour, weekday = hours % HOURS_PER_DAY, hours // HOURS_PER_DAY % 7
    swing = made.cap_amp * np.cos(2 * np.pi * (hour - made.cap_peak) / HOURS_PER_DAY)
    mean = made.cap_mean * (1 + swing + made.weekend * np.isin(weekday, WEEKEND))
    x = rng.normal() * made.ar_sigma / np.sqrt(1 - made.ar_phi**2)
    raw = np.empty(made.steps)
    for t in range(made.steps):
        x = made.ar_phi * x + rng.normal() * made.ar_sigma
        raw[t] = mean[t] + x
    t = 0
    while made.burst_p > 0 and t < made.steps:
        if rng.random() < made.burst_p:
            raw[t : t + made.burst_len] *= 1 - made.burst_frac
            t += made.burst_len
        t += 1
    return np.maximum(0, np.floor(raw * made.scale)).astype(np.int64)


def _dropped(made: Scenario, capacity: Ints, hours: Ints, seed: int) -> Ints:
    """Return the capacity with the recurring drops of the scenario, which have a generator of their own."""
    if made.drop_p == 0:
        return capacity
    rng = np.random.default_rng(DROP_SEED + seed)
    left = capacity.copy()
    for t in np.flatnonzero(hours % HOURS_PER_DAY == made.drop_hour).tolist():
        if rng.random() < made.drop_p:
            left[t : t + made.drop_len] = (left[t : t + made.drop_len] * (1 - made.drop_frac)).astype(np.int64)
    return left


def _jobs(made: Scenario, hours: Ints, rng: np.random.Generator) -> Jobs:
    hour = hours % HOURS_PER_DAY
    rate = made.lam * (1 + made.arr_amp * np.cos(2 * np.pi * (hour - made.arr_peak) / HOURS_PER_DAY))
    earliest = np.repeat(np.arange(made.steps), rng.poisson(rate))
    cores = _classes(rng, *made.core_classes, earliest.size)
    duration = _classes(rng, *made.duration_classes, earliest.size)
    return windows(made, rng, cores, duration, earliest)


def _classes(rng: np.random.Generator, values: Ints, chances: Floats, count: int) -> Ints:
    """Draw `count` values by the inverse of their cumulative chances."""
    place = np.searchsorted(np.cumsum(chances), rng.random(count), side="right")
    # The sum of the chances may be a hair below 1.
    return values[np.minimum(place, values.size - 1)]


def windows(made: Scenario, rng: np.random.Generator, cores: Ints, duration: Ints, earliest: Ints) -> Jobs:
    """Return jobs with lead times and windows drawn (§7, steps 7 to 9), in order of submission."""
    count, last = earliest.size, made.steps - 1
    lead = rng.integers(0, made.lead_max + 1, count)
    u, k = rng.random(count), rng.geometric(1 - made.win_q, count)
    window = np.where(u < made.win_p0, 0, np.minimum(made.win_max, k))
    latest, submitted = np.minimum(last, earliest + window), np.maximum(0, earliest - lead)
    jobs = Jobs(cores, duration, earliest, latest, submitted)
    jobs = jobs.take(np.argsort(submitted, kind="stable"))
    if made.realtime:
        jobs = jobs._replace(latest=jobs.earliest, submitted=jobs.earliest)
        jobs = jobs.take(np.argsort(jobs.submitted, kind="stable"))
    return Jobs(*(np.ascontiguousarray(column, dtype=np.int64) for column in jobs))
