"""Weeks that nothing was tuned on: arrivals drawn anew for the same subscribers, and shifted profiles (§6, §9 B5).

How a week is drawn. Per subscriber and hour the number of requests is negative binomial with shape 3; its mean is a
constant and one daily harmonic, fitted to the requests of the scenario's own weeks. Cores, memory, network and lifetime
of each request are those of one of the subscriber's own requests, drawn with replacement; so are the VMs of a warm
start, as many as one of the weeks has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.rates import LEVEL_SPREAD, TURN_H
from domain.units import HOURS_PER_DAY
from simulator.oversubscription.scenario import Scenario, Week, week_of

Floats = NDArray[np.float64]

SHAPE = 3.0
"""Of the negative binomial arrivals, measured on the packaged weeks as 2.4 to 3.9 by subscriber."""
LEAST_SHARE = 0.05
"""An hour's mean is at least this share of the subscriber's."""
CALIBRATION, EVALUATION, SHIFTED, TRAINING, VALIDATION, RELEASE = 1, 2, 3, 4, 5, 6
"""Streams of seeds that never meet: weeks to hold a calibration to, for the report, of shifted profiles, to learn from,
to choose by, to release on."""
DRAWN = "unseen"
"""Begins the name of a week drawn anew; its seed follows."""


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """What is known of a scenario's requests: means by subscriber and hour of day, (N, 24), and the weeks."""

    scenario: Scenario
    weeks: tuple[Week, ...]
    mean: Floats


def arrivals_of(scenario: Scenario, weeks: Sequence[str] = ()) -> Arrivals:
    """Fit the arrivals to weeks of a scenario, all of them when none is named; raises BadInput."""
    read = tuple(scenario.week(name) for name in (weeks or scenario.weeks))
    counts = np.zeros((scenario.subscribers, scenario.hours))
    for week in read:
        np.add.at(counts, (week.subscriber[week.warm :], week.arrival[week.warm :]), 1.0 / len(read))
    if not counts.any():
        raise BadInput("weeks", [week.name for week in read], "give weeks with requests")
    turn = 2.0 * np.pi * np.arange(scenario.hours) / HOURS_PER_DAY
    waves = np.stack([np.ones(scenario.hours), np.cos(turn), np.sin(turn)], axis=1)
    fitted = counts @ np.linalg.pinv(waves).T @ waves[: min(24, scenario.hours)].T
    day = np.resize(np.arange(fitted.shape[1]), 24)
    level = counts.mean(axis=1, keepdims=True)
    return Arrivals(scenario, read, np.maximum(fitted[:, day], LEAST_SHARE * level))


def unseen_week(arrivals: Arrivals, seed: int, stream: int = EVALUATION) -> Week:
    """Return a week of a seed; the same seed and stream give the same week."""
    draws = np.random.default_rng((seed, stream))
    scenario, weeks = arrivals.scenario, arrivals.weeks
    mean = arrivals.mean[:, np.arange(scenario.hours) % HOURS_PER_DAY]
    counts = draws.poisson(draws.gamma(SHAPE, mean / SHAPE))
    columns: list[tuple[NDArray[Any], ...]] = []
    for n in range(scenario.subscribers):
        hours = np.repeat(np.arange(scenario.hours), counts[n])
        own = np.concatenate([_rows(week, week.subscriber[week.warm :] == n) for week in weeks], axis=1)
        if own.shape[1] and len(hours):
            picked = own[:, draws.integers(own.shape[1], size=len(hours))]
            stay = picked[5] - picked[4]
            columns.append((picked[0], picked[1], picked[2], picked[3], hours, hours + stay, np.zeros(len(hours))))
    present = np.concatenate([_present(week) for week in weeks], axis=1)
    many = int(draws.choice([week.warm for week in weeks]))
    if many:
        picked = present[:, draws.integers(present.shape[1], size=many)]
        columns.append((*picked, np.ones(many)))
    subscriber, cores, memory, network, arrival, departure, warm = (
        np.concatenate([column[i] for column in columns]) for i in range(7)
    )
    # Requests of an hour come subscriber by subscriber, as in the packaged weeks: like VMs then share machines.
    order = np.lexsort((draws.random(len(cores)), subscriber, arrival))
    return week_of(
        f"{DRAWN}{seed}",
        ids=np.arange(len(cores)),
        subscriber=subscriber[order].astype(np.int64),
        cores=cores[order],
        memory_gb=memory[order],
        network_gbps=network[order],
        arrival=arrival[order].astype(np.int64),
        departure=departure[order].astype(np.int64),
        warm_only=warm[order].astype(np.bool_),
    )


def week_named(scenario: Scenario, text: str) -> Week:
    """Return a week of the scenario by name, or `unseen3`: the fourth of those that reports are made on; BadInput."""
    number = text.removeprefix(DRAWN)
    if text in scenario.weeks or text == number or not number.isdecimal():
        return scenario.week(text)
    return unseen_week(arrivals_of(scenario), int(number))


def shifted(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with profiles as they might be on other days: levels and times of day moved, seeded."""
    draws = np.random.default_rng((seed, SHIFTED))
    factor = np.exp(LEVEL_SPREAD * draws.normal(size=scenario.subscribers))[:, None]
    turns = draws.integers(-TURN_H, TURN_H + 1, size=scenario.subscribers)
    mu = np.stack([np.roll(row, turn) for row, turn in zip(scenario.mu, turns, strict=True)]) * factor
    sd = np.stack([np.roll(row, turn) for row, turn in zip(scenario.sd, turns, strict=True)]) * factor
    return replace(scenario, mu=mu, sd=sd, _weeks={})


def _rows(week: Week, chosen: NDArray[np.bool_]) -> Floats:
    asked = slice(week.warm, None)
    columns = (week.subscriber, week.cores, week.memory_gb, week.network_gbps, week.arrival, week.departure)
    return np.stack([column[asked][chosen].astype(np.float64) for column in columns])


def _present(week: Week) -> Floats:
    before = slice(0, week.warm)
    columns = (week.subscriber, week.cores, week.memory_gb, week.network_gbps, week.arrival, week.departure)
    return np.stack([column[before].astype(np.float64) for column in columns])
