"""Policies of deferral on the same episodes: totals, paired differences, the gap to the optimum, forecast coverage.

Every schedule passes the independent check before a figure of it counts. Episodes are played in any number of
processes; the figures are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.deferral.forecast import Forecast, History, fit
from domain.rules.deferral.jobs import Ints, Score, occupancy
from domain.units import HOURS_PER_DAY
from simulator.deferral.scenarios import (
    CALIBRATION_SEEDS,
    SCENARIOS,
    Episode,
    Scenario,
    episode,
    read_scenario,
    scenario_of,
)
from trainer.deferral.policies import OPTIMUM, checked_schedule, policy_of
from trainer.kit.files import code_version
from trainer.kit.intervals import FEWEST_CASES, Interval, mean_interval
from trainer.kit.jobs import HERE, Pool, Workers
from trainer.kit.report import Check

Floats = NDArray[np.float64]

STANDARD = ("fifo", "sjf", "tetris", "fifo:skip", "sjf:skip", "els:skip", "knapsack", "rolling", OPTIMUM)
"""Always compared; comparisons without the skip variants are not acceptable (§9)."""
REFERENCE = "fifo:skip"
FEWEST = FEWEST_CASES
"""Nothing is said to be kept or missed on fewer episodes."""
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
AHEAD = (1, 3, 6, 9)
"""Quantiles, and steps ahead, whose coverage is counted."""
TRACE_WINDOWS = 4
"""Weeks of a log that are played with each week of a load."""
SOURCES = ("domain/rules/deferral", "simulator/deferral", "trainer/deferral", "agent/deferral/rolling.py")


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What is played: a scenario, by number of seed, or given episodes.

    name: of the scenario, a file or a trace. episodes: in place of the scenario; seed k is the k-th of them. recorded:
    hours before them that a forecast is fitted to, none for no forecast.
    """

    name: str
    scenario: Scenario | None
    episodes: tuple[Episode, ...] = ()
    recorded: tuple[History, ...] = ()

    def episode(self, seed: int) -> Episode:
        """Return an episode; BadInput for a number that a trace does not have."""
        if self.scenario is not None:
            return episode(self.scenario, seed)
        if not 0 <= seed < len(self.episodes):
            raise BadInput("--seeds", seed, f"{self.name} has {len(self.episodes)} windows: give 0 to one less")
        return self.episodes[seed]

    def forecast(self) -> Forecast | None:
        """Return the forecast that is fitted to its training seeds, or to what was recorded before a trace."""
        if self.scenario is None:
            return fit(self.recorded) if self.recorded else None
        drawn = (episode(self.scenario, seed) for seed in CALIBRATION_SEEDS)
        return fit([History(one.start_h, one.capacity) for one in drawn])


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy by label; several texts are seeds of one method."""

    label: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Day:
    """Core-steps by hour of the day, (24) each: capacity, work that runs, and that part of it which was deferred."""

    capacity: Floats
    running: Floats
    deferred: Floats

    @property
    def columns(self) -> tuple[Floats, Floats, Floats]:
        """Return the three."""
        return self.capacity, self.running, self.deferred


@dataclass(frozen=True, slots=True, eq=False)
class _Play:
    score: Score
    fallbacks: int
    day: Day


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    subject: Subject
    seed: int
    texts: tuple[str, ...]
    forecast: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    offered: int
    capacity: int
    played: Mapping[str, _Play]
    below: Floats
    """Steps whose capacity was at most the quantile, by level and steps ahead; in the last row the steps counted."""


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """A contender on a subject, by episode; with several texts, the mean of them.

    totals, utilisation, delay_charge, violation, expired: (episodes,). spread: of the mean totals over its texts.
    to_reference: mean of the paired differences of the total to REFERENCE. to_optimum: mean total over that of the
    optimum. fallbacks: steps that the knapsack decided in its place. day: means.
    """

    label: str
    totals: Floats
    utilisation: Floats
    delay_charge: Floats
    violation: Floats
    expired: Floats
    spread: float
    to_reference: Interval
    to_optimum: float | None
    fallbacks: int
    day: Day

    @property
    def total(self) -> float:
        """Mean total."""
        return float(self.totals.mean())

    def as_data(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        cases = self.totals.size
        versus = self.to_reference
        return {
            "policy": self.label,
            "total": self.total,
            "standard_error": float(self.totals.std(ddof=1) / np.sqrt(cases)) if cases > 1 else None,
            "utilisation": float(self.utilisation.mean()),
            "delay_charge": float(self.delay_charge.mean()),
            "violation": float(self.violation.mean()),
            "expired_core_steps": float(self.expired.mean()),
            "spread_over_seeds": self.spread,
            f"to_{REFERENCE}": {"mean": versus.mean, "low": versus.low, "high": versus.high},
            "share_of_optimum": self.to_optimum,
            "fallbacks": self.fallbacks,
            "by_episode": self.totals.tolist(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """All contenders on one subject.

    offered, capacity: mean core-steps of an episode. coverage: share of the steps at or below each of LEVELS, by AHEAD,
    NaN for what is further ahead than any episode is long; None without a forecast.
    """

    subject: Subject
    seeds: tuple[int, ...]
    offered: float
    capacity: float
    figures: tuple[Figures, ...]
    coverage: Floats | None

    def of(self, label: str) -> Figures | None:
        """Return the figures of a contender, None where it was not played."""
        return next((one for one in self.figures if one.label == label), None)

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data, with what it was made by."""
        rows = [] if self.coverage is None else self.coverage.tolist()
        covered = [[None if np.isnan(share) else share for share in row] for row in rows] or None
        return {
            "scenario": self.subject.name,
            "code": code_version(SOURCES),
            "seeds": list(self.seeds),
            "offered": self.offered,
            "capacity": self.capacity,
            "coverage": {"levels": list(LEVELS), "ahead": list(AHEAD), "at_or_below": covered},
            "policies": [one.as_data() for one in self.figures],
        }


def trace_subject(load: str, log: Path) -> Subject:
    """Return windows of a trace: on-demand load of an oversubscription scenario, jobs of a log (§8).

    The first half of its weeks is played, each with TRACE_WINDOWS weeks of the log; the forecast is fitted to the other
    half. Raises BadInput for a scenario with a single week, TraceError for a log that cannot be used.
    """
    from simulator.deferral.traces import trace_episode
    from simulator.oversubscription.scenario import scenario_of

    weeks = scenario_of(load).weeks
    if len(weeks) < 2:
        raise BadInput("--trace", load, "give a scenario with two weeks or more: the forecast is fitted to others")
    half = len(weeks) // 2
    drawn = [
        [trace_episode(f"{load}-{week}", log, window=7 * k, seed=k)[0] for k in range(TRACE_WINDOWS)] for week in weeks
    ]
    recorded = [History(one.start_h, one.capacity) for week in drawn[half:] for one in week]
    return Subject(f"{load},{log.name}", None, tuple(one for week in drawn[:half] for one in week), tuple(recorded))


def scenario_and_log(text: str) -> tuple[str, Path]:
    """Return the parts of a trace's text, SCENARIO,LOG; BadInput for another form."""
    scenario, _, log = text.partition(",")
    if not scenario or not log:
        raise BadInput("--trace", text, "give SCENARIO,LOG such as azure_like,LOG.swf.gz")
    return scenario, Path(log)


def subjects_of(scenarios: Sequence[str], traces: Sequence[str]) -> list[Subject]:
    """Return the scenarios, files and traces of options by their names; BadInput for another name."""
    found: dict[str, Subject] = {}
    for name in scenarios:
        if name == "all":
            found |= {key: Subject(key, made) for key, made in SCENARIOS.items()}
        elif name.endswith(".toml"):
            label = Path(name).stem
            # A file with the name of a scenario is not held to the requirements of that scenario.
            label = name if label in SCENARIOS else label
            found[label] = Subject(label, read_scenario(Path(name)))
        else:
            found[name] = Subject(name, scenario_of(name))
    for text in traces:
        found[text] = trace_subject(*scenario_and_log(text))
    return list(found.values())


def contenders_of(given: Sequence[tuple[str, str]]) -> list[Contender]:
    """Return the standard policies and those given as (label, text), a label that comes again with one more text.

    Raises BadInput for a label that is taken or a text that names no policy.
    """
    texts: dict[str, list[str]] = {}
    for label, text in given:
        if label in STANDARD:
            raise BadInput("label", label, f"choose another one: these are taken: {', '.join(STANDARD)}")
        policy_of(text)
        texts.setdefault(label, []).append(text)
    return [*(Contender(text, (text,)) for text in STANDARD), *(Contender(k, tuple(v)) for k, v in texts.items())]


def evaluate(
    subject: Subject,
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    *,
    workers: Workers = HERE,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Return the figures of contenders on the episodes of some seeds. Raises BadInput, ScheduleWrong."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise BadInput("--seeds", list(seeds), "give at least one seed, each once")
    on_progress(f"{subject.name}: forecast")
    texts = tuple(dict.fromkeys(text for one in contenders for text in one.texts))
    forecast = subject.forecast()
    document = None if forecast is None else forecast.as_document()
    cases = [_Case(subject, seed, texts, document) for seed in seeds]
    outcomes = []
    with Pool(_play, workers, name=lambda case: f"{case.subject.name}, seed {case.seed}") as pool:
        for number, outcome in enumerate(pool.run(cases), start=1):
            on_progress(f"{subject.name}: {number} of {len(cases)} episodes")
            outcomes.append(outcome)
    best = np.array([one.played[OPTIMUM].score.total for one in outcomes]) if OPTIMUM in texts else None
    reference = np.array([one.played[REFERENCE].score.total for one in outcomes])
    figures = tuple(_figures(one, outcomes, reference, best) for one in contenders)
    below, played = np.split(np.sum([one.below for one in outcomes], axis=0), [-1])
    return Evaluation(
        subject,
        tuple(seeds),
        float(np.mean([one.offered for one in outcomes])),
        float(np.mean([one.capacity for one in outcomes])),
        figures,
        np.divide(below, played, out=np.full_like(below, np.nan), where=played > 0) if played.any() else None,
    )


def _play(case: _Case) -> _Outcome:
    """Return what each policy makes of one episode, once its schedule was checked."""
    played = case.subject.episode(case.seed)
    forecast = None if case.forecast is None else Forecast.parse(case.forecast)
    found: dict[str, _Play] = {}
    for text in case.texts:
        name = f"{case.subject.name}, seed {case.seed}"
        start, score, fallbacks = checked_schedule(policy_of(text), name, played, forecast)
        found[text] = _Play(score, fallbacks, day_of(played, start))
    offered, capacity = int(played.jobs.revenue.sum()), int(played.capacity.sum())
    return _Outcome(offered, capacity, found, _below(played, forecast))


def day_of(played: Episode, start: Ints) -> Day:
    """Return mean core-steps by hour of the day under a schedule [N]; deferred: started after the earliest start."""
    hours = played.hours % HOURS_PER_DAY
    seen = np.maximum(np.bincount(hours, minlength=HOURS_PER_DAY), 1)
    later = np.where(start > played.jobs.earliest, start, -1)
    rows = (played.capacity, *(occupancy(played.jobs, own, played.steps) for own in (start, later)))
    return Day(*(np.bincount(hours, weights=row, minlength=HOURS_PER_DAY) / seen for row in rows))


def _below(played: Episode, forecast: Forecast | None) -> Floats:
    counts = np.zeros((len(LEVELS) + 1, len(AHEAD)))
    if forecast is None:
        return counts
    ahead = np.array(AHEAD)
    for t in range(played.steps - 1):
        known = played.capacity[max(0, t - HOURS_PER_DAY) : t + 1]
        quantiles = forecast.quantiles(known, int(played.hours[t]), int(ahead[-1]), LEVELS)[:, ahead - 1]
        inside = t + ahead < played.steps
        real = played.capacity[np.minimum(t + ahead, played.steps - 1)]
        counts[:-1] += (real <= quantiles) & inside
        counts[-1] += inside
    return counts


def _figures(one: Contender, outcomes: Sequence[_Outcome], reference: Floats, best: Floats | None) -> Figures:
    scores = [[outcome.played[text].score for outcome in outcomes] for text in one.texts]

    def column(field: str) -> Floats:
        values = np.array([[float(getattr(score, field)) for score in row] for row in scores])
        return np.asarray(values.mean(axis=0), dtype=np.float64)

    totals = column("total")
    by_text = np.array([[score.total for score in row] for row in scores]).mean(axis=1)
    days = [outcome.played[text].day.columns for outcome in outcomes for text in one.texts]
    return Figures(
        one.label,
        totals,
        column("utilisation"),
        column("delay_charge"),
        column("violation"),
        column("expired_core_steps"),
        float(by_text.std(ddof=1)) if by_text.size > 1 else 0.0,
        mean_interval(totals - reference),
        float(totals.mean() / best.mean()) if best is not None and best.mean() > 0 else None,
        sum(outcome.played[text].fallbacks for outcome in outcomes for text in one.texts),
        Day(*np.mean(days, axis=0)),
    )


_ASKED: tuple[tuple[str, str, str, str, float, int | None], ...] = (
    ("A4", "valley", "knapsack", "total", 3665.0, 100),
    ("A4", "valley", "knapsack", "share", 0.988, None),
    ("§10.2", "valley", "rolling", "share", 0.993, None),
    ("A8", "sched_drop", "rolling", "total", 7700.0, 8),
    ("A8", "sched_drop", "rolling", "violation", 10.0, 8),
)
"""Of a policy on a scenario: least total or share of the optimum, or most violation; on so many seeds from 0 on."""


def checks_of(done: Sequence[Evaluation]) -> list[Check]:
    """Return what the specification asks of these figures; kept is None on fewer than FEWEST episodes, or on others."""
    by_name = {one.subject.name: one for one in done}
    checks = []
    for key, scenario, policy, figure, limit, number in _ASKED:
        own = by_name[scenario].of(policy) if scenario in by_name else None
        if own is None:
            continue
        value = {"total": own.total, "share": own.to_optimum, "violation": float(own.violation.mean())}[figure]
        if value is None:
            continue
        sign, least = ("at most", -1.0) if figure == "violation" else ("at least", 1.0)
        shown = f"{value:.2%}" if figure == "share" else f"{value:.1f}"
        wanted = f"{limit:.1%}" if figure == "share" else f"{limit:g}"
        kept = least * value >= least * limit
        asked = f"{policy} on {scenario}: {figure} {sign} {wanted}"
        if number is not None:
            asked += f", seeds 0 to {number - 1}"
        checks.append(_check(key, asked, shown, kept, own))
        if number is not None and by_name[scenario].seeds != tuple(range(number)):
            # A total of other episodes cannot be held to it.
            checks[-1] = replace(checks[-1], kept=None)
    pair = by_name.get("realtime"), by_name.get("valley")
    if pair[0] is not None and pair[1] is not None:
        # The better of the two online policies that are always played.
        both = [max((one.of(name) for name in ("knapsack", "rolling")), key=_total) for one in pair if one is not None]
        if both[0] is not None and both[1] is not None:
            shown, kept = f"{both[0].total:.1f} and {both[1].total:.1f}", both[0].total < both[1].total
            checks.append(_check("A7", "best total in real time below that with deferral", shown, kept, both[0]))
    for one in done:
        for own in one.figures:
            if own.label not in STANDARD or own.label in ("knapsack", "rolling"):
                shown = f"{own.to_reference.mean:+.1f} [{own.to_reference.low:+.1f}, {own.to_reference.high:+.1f}]"
                asked = f"{own.label} on {one.subject.name}: not below {REFERENCE} in the mean"
                checks.append(_check("A11", asked, shown, own.to_reference.mean >= 0.0, own))
    return checks


def _total(one: Figures | None) -> float:
    return -np.inf if one is None else one.total


def _check(key: str, asked: str, found: str, kept: bool, own: Figures) -> Check:
    return Check(key, asked, found, kept if own.totals.size >= FEWEST else None)
