"""Episodes made of records: on-demand load of a week of VM requests, deferrable jobs of a job log (specification §8).

The 14-day packing trace that the specification adapts is not redistributed. The VMs of an oversubscription scenario
stand in for its high priority, the jobs of a log in the Standard Workload Format for its low one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from domain.errors import BadInput, TraceError
from domain.rules.deferral.jobs import Ints
from domain.units import DAY_S, HOUR_S, HOURS_PER_DAY, HOURS_PER_WEEK
from simulator.deferral.scenarios import CORE_SIZES, DURATIONS, REFERENCE_WORK, VALLEY, Episode, Scenario, windows
from simulator.oversubscription.scenario import PACKAGED, scenario_of
from simulator.workloads.swf import SkipReason, SwfOptions, WidthRule, read_swf
from simulator.workloads.tables import ENDINGS, read_jobs

LONGEST = max(DURATIONS)
TOO_LONG = "too_long"


class LogJobs(NamedTuple):
    """The jobs of a log that can be deferrable ones, in order of submission: int64 [N]."""

    hour: Ints
    """On the log's own clock."""
    cores: Ints
    """1, 2, 4 or 8: the processors of the log, rounded up to a class."""
    duration: Ints
    """Run time, rounded up to hours."""
    span_h: int
    """Hours of the log: whole days, unless it is shorter than one."""
    dropped: Mapping[str, int]
    """Lines of the log that are none of them, by reason."""


class Counts(NamedTuple):
    """What an episode was made of."""

    log_jobs: int
    """Jobs of the log that can be deferrable ones."""
    dropped: Mapping[str, int]
    """Lines of the log that are none of them, by reason."""
    weeks: int
    """Weeks of the log that were laid over each other to reach the arrival rate."""
    found: int
    """Jobs of these weeks in the hours of the episode."""
    kept: int
    """Jobs of the episode."""
    rate: float
    """Jobs per step."""


@cache
def log_jobs(path: Path) -> LogJobs:
    """Read a log, plain or .gz; raises TraceError naming file, line and field, also for one without a usable job.

    A CSV or Parquet table has the columns submit, runtime and cores; its clock begins with the day of its first job.
    Dropped and counted: jobs without submit time, run time or processors, parts of a job that was swapped out, jobs of
    more than 8 processors, of more than 6 hours.
    """
    options = SwfOptions(width_rule=WidthRule.CAP, largest_vm_cores=max(CORE_SIZES), from_s=0.0)
    is_table = path.name.endswith(ENDINGS)
    trace, report = read_jobs(path, {}, options) if is_table else read_swf(path, options)
    first_s = trace.arrival_s.min(initial=math.inf) // DAY_S * DAY_S if is_table and trace.jobs else 0.0
    hours = np.ceil(trace.service_s / HOUR_S).astype(np.int64)
    short = hours <= LONGEST
    if not short.any():
        raise TraceError(f"log {path.name}", 0, f"give a log with jobs of at most {LONGEST} hours on 1 to 8 processors")
    arrival = ((trace.arrival_s[short] - first_s) // HOUR_S).astype(np.int64)
    classes = np.array(CORE_SIZES)
    cores = classes[np.searchsorted(classes, trace.width[short])]
    span_h = int(arrival.max()) + 1
    if span_h >= HOURS_PER_DAY:
        # The log goes around at its end, so that hours of the day stay what they are.
        span_h -= span_h % HOURS_PER_DAY
    inside = arrival < span_h
    dropped = {
        why.value: count for why, count in report.dropped.items() if why not in (SkipReason.HEADER, SkipReason.BLANK)
    }
    dropped[TOO_LONG] = int((~short).sum())
    counts = MappingProxyType({why: count for why, count in dropped.items() if count})
    return LogJobs(arrival[inside], cores[inside], np.maximum(1, hours[short][inside]), span_h, counts)


def load_of(name: str) -> Ints:
    """Return the on-demand load of a week of VM requests, cores of each hour, [120].

    name: a scenario of oversubscription and one of its weeks, such as `azure_like-s0` or `FOLDER-s0`; VMs that run
    before the first hour count. Raises BadInput and TraceError as the scenario does.
    """
    scenario, dash, week = name.rpartition("-")
    if not dash:
        raise BadInput("load", name, f"give a scenario and a week, such as {PACKAGED[0]}-s0")
    made = scenario_of(scenario)
    vms, hours = made.week(week), made.hours
    change = np.zeros(hours + 1)
    np.add.at(change, np.clip(vms.arrival, 0, hours), vms.cores)
    np.subtract.at(change, np.clip(vms.departure, 0, hours), vms.cores)
    # Cores may be fractions; what is left of an hour's sum by rounding must not count as a core.
    return np.ceil(np.cumsum(change[:-1]) - 1e-6).astype(np.int64)


def trace_episode(
    load: str, log: Path, *, window: int = 0, seed: int = 0, scenario: Scenario = VALLEY
) -> tuple[Episode, Counts]:
    """Return an episode of the load's hours, and what it was made of.

    window: the hours of the log that begin with its day of that number, from 0; the log goes around at its end. Hours
    one, two and more weeks later are laid over them until there are `scenario.lam` jobs per step, of which so many are
    drawn with `seed`. Lead times and windows are drawn as the scenario's are. Capacity is what the load leaves below
    its maximum, scaled so that its mean is to the work of the jobs as in `valley`.

    Raises BadInput for a window or seed below 0, and as `load_of` and `log_jobs` do.
    """
    if window < 0 or seed < 0:
        raise BadInput("window" if window < 0 else "seed", min(window, seed), "give 0 or more")
    demand, jobs = load_of(load), log_jobs(log)
    steps, wanted = demand.size, round(scenario.lam * demand.size)
    hour, number, weeks = _hours_of(jobs, window * HOURS_PER_DAY, steps, wanted)
    rng = np.random.default_rng(seed)
    picked = np.sort(rng.permutation(number.size)[:wanted])
    picked = picked[np.argsort(hour[picked], kind="stable")]
    earliest, cores, duration = hour[picked], jobs.cores[number[picked]], jobs.duration[number[picked]]
    spare = demand.max() - demand
    mean = scenario.cap_mean * (float((cores * duration).sum()) / steps) / (scenario.lam * REFERENCE_WORK)
    alpha = mean / float(spare.mean()) if spare.any() else 0.0
    capacity = np.rint(alpha * spare).astype(np.int64)
    made = scenario.model_copy(update={"steps": steps})
    name = f"{load}, {log.name}, window {window}"
    episode = Episode(windows(made, rng, cores, duration, earliest), capacity, 0, name, seed)
    counts = Counts(jobs.hour.size, jobs.dropped, weeks, number.size, picked.size, picked.size / steps)
    return episode, counts


def _hours_of(jobs: LogJobs, begin_h: int, steps: int, wanted: int) -> tuple[Ints, Ints, int]:
    """Return the step and the number of each job found, and the weeks looked at, until there are enough."""
    rounds = math.ceil(steps / jobs.span_h) + 1
    hours, numbers, seen = [], [], set()
    begin = begin_h % jobs.span_h
    while begin not in seen:
        seen.add(begin)
        for turn in range(rounds):
            at = jobs.hour - begin + turn * jobs.span_h
            inside = np.flatnonzero((at >= 0) & (at < steps))
            hours.append(at[inside])
            numbers.append(inside)
        if sum(found.size for found in numbers) >= wanted:
            break
        begin = (begin + HOURS_PER_WEEK) % jobs.span_h
    return np.concatenate(hours), np.concatenate(numbers), len(seen)
