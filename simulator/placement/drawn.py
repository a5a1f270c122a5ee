"""Requests of containers that end, from distributions fitted to a public trace (`data/fitted.json`).

Arrivals: batches at one moment, in ticks of the trace. Their number in an hour is Poisson with a rate by hour of the
day, times a gamma variable of mean 1 for each hour, times exp(s z - s^2 / 2) with z an autoregression from hour to
hour. Sizes have the shares of the trace, and a request repeats the size of the one before with a chance, in a batch
with another one. The logarithm of a life is a mixture of normal distributions with weights by size, or those of large
batches, plus a slope times s z; a life in the tail is drawn from the quantiles of the trace's tail. A request that
repeats a size stays in the component of the one before with a chance, and a request of a batch repeats the life of
the one before with a chance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from domain.units import DAY_S, HOUR_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Table = tuple[Floats, Floats, Ints, Ints]
"""Arrivals and lives in seconds, cores, and memory in GB, [rows] each."""

FILE: Final = Path(__file__).with_name("data") / "fitted.json"
COMPONENTS: Final = 6
"""Normal distributions of ln life."""
ITERATIONS: Final = 40
"""Of expectation and maximisation."""
PSEUDO: Final = 3.0
"""Lives of the whole trace that are added to the lives of each size."""
LEAST_SPREAD: Final = 0.05
LEAST_LIFE_S: Final = 1.0
TAIL: Final = 0.02
"""Share of the longest lives of the trace, which no normal distribution describes."""
TAIL_POINTS: Final = 33
LAGS: Final = 96
"""Hours over which the fit of the slow changes of the rate looks."""
BESIDE: Final = 8
"""Other requests that may come in the tick of a batch."""
LARGE_BATCH: Final = 12
"""Requests of a moment from which on their lives have a distribution that does not depend on sizes."""
COMMON: Final = 0.25
"""Share of the gaps between moments from which on the most common gap is the tick of a trace; else it is a second."""


def fitted(table: Table) -> dict[str, Any]:
    """Return the parameters of a trace: shares, mixture, rate by hour of the day, repetition; rounded."""
    arrival_s, life_s, cores, memory_gb = table
    sizes, which = np.unique(np.stack([cores, memory_gb], axis=1), axis=0, return_inverse=True)
    which = which.reshape(-1)
    number = np.bincount(which).astype(np.float64)
    x = np.log(life_s)
    means, spreads, chances = _mixture(x)
    shared = chances.mean(axis=0)
    weights = np.tile(shared, (len(sizes), 1))
    for _ in range(ITERATIONS):
        z = (x[:, None] - means) / spreads
        chances = weights[which] * np.exp(-0.5 * z * z) / spreads
        chances /= chances.sum(axis=1, keepdims=True)
        weights = np.array([np.bincount(which, one, len(sizes)) for one in chances.T]).T
        weights = (weights + PSEUDO * shared) / (number + PSEUDO)[:, None]
    shares = number / number.sum()
    together, component = np.diff(arrival_s) == 0.0, chances.argmax(axis=1)
    same, equal = which[1:] == which[:-1], np.abs(np.diff(x)) < LEAST_SPREAD
    again = same & ~together
    by_chance = float((shares**2).sum())
    far = x.size // 2
    equal_by_chance = float((np.abs(x[far:] - x[: x.size - far]) < LEAST_SPREAD).mean())
    agree = float((component[1:] == component[:-1])[again].mean())
    alike = float((weights[which[1:][again]] ** 2).sum(axis=1).mean())
    large = _in_large_batch(arrival_s)
    day = (arrival_s[~large] // DAY_S).astype(np.int64)
    by_day = np.bincount(day)
    # Sizes do not change with the rate in a draw: lives take the change of the work, cores times life.
    work = x[~large] + np.log(cores[~large])
    slope = np.polyfit(np.log(by_day[day]), work, 1)[0]
    return {
        "sizes": sizes.tolist(),
        "shares": _rounded(shares),
        "means": _rounded(means),
        "spreads": _rounded(spreads),
        "weights": [_rounded(row) for row in weights],
        "tail_s": np.quantile(life_s, np.linspace(1.0 - TAIL, 1.0, TAIL_POINTS)).round(1).tolist(),
        **_fitted_arrivals(arrival_s),
        "in_large_batch": _rounded(chances[large].mean(axis=0) if large.any() else shared),
        "life_by_rate": round(float(slope), 4),
        "repeat": _beyond(same[~together], by_chance),
        "repeat_in_batch": _beyond(same[together], by_chance),
        "alike": round(max(0.0, (agree - alike) / (1.0 - alike)), 4),
        "equal_in_batch": _beyond(equal[together], equal_by_chance),
    }


def _beyond(seen: NDArray[np.bool_], by_chance: float) -> float:
    """Return the chance of a repetition that explains a share where `by_chance` agree without any; 0 without pairs."""
    share = float(seen.mean()) if seen.size else 0.0
    return round(max(0.0, (share - by_chance) / max(1.0 - by_chance, 1e-9)), 4)


def _in_large_batch(arrival_s: Floats) -> NDArray[np.bool_]:
    """Return whether each row is one of LARGE_BATCH or more of a moment, bool [rows]."""
    _, which, rows = np.unique(arrival_s, return_inverse=True, return_counts=True)
    found: NDArray[np.bool_] = rows[which.reshape(-1)] >= LARGE_BATCH
    return found


def _fitted_arrivals(arrival_s: Floats) -> dict[str, Any]:
    """Return tick, sizes of batches, rate by hour of the day and its changes: of each hour, and slow ones."""
    moments, rows = np.unique(arrival_s, return_counts=True)
    gaps, times = np.unique(np.diff(moments), return_counts=True)
    tick_s = float(gaps[times.argmax()]) if times.max() >= COMMON * times.sum() else 1.0
    batches = _batches(rows, round(float(arrival_s[-1]) / tick_s) + 1)
    size = np.arange(1, batches.size + 1)
    hours = np.bincount((arrival_s // HOUR_S).astype(np.int64))[:-1].astype(np.float64)
    rhythm = np.array([hours[k::24].mean() for k in range(24)])
    expected = rhythm[np.arange(hours.size) % 24]
    off = hours - expected
    by_batches = float((size**2 @ batches) / (size @ batches)) * expected
    extra = float((off**2 - by_batches).sum() / (expected**2).sum())
    lags = np.arange(1, LAGS + 1)
    # E[u_t u_(t+k)] = exp(s^2 rho^k) for the slow factor u: s^2 by least squares of the logarithm, rho on a grid.
    seen = np.array([(off[k:] @ off[:-k]) / (expected[k:] @ expected[:-k]) for k in lags])
    logs = np.log1p(np.maximum(seen, -0.9))
    best = (math.inf, 0.0, 1.0)
    for hours_long in np.geomspace(3.0, 500.0, 100).tolist():
        powers = np.exp(-lags / hours_long)
        variance = max(0.0, float(logs @ powers) / float(powers @ powers))
        best = min(best, (float(((logs - variance * powers) ** 2).sum()), variance, hours_long))
    _, variance, hours_long = best
    return {
        "tick_s": tick_s,
        "batches": [[k, round(share, 6)] for k, share in zip(size.tolist(), batches.tolist(), strict=True) if share],
        "per_hour": _rounded(rhythm),
        "dispersion": round(max(0.0, (1.0 + extra) / math.exp(variance) - 1.0), 4),
        "slow": [round(math.sqrt(variance), 4), round(hours_long, 2)],
    }


def _batches(rows: Ints, ticks: int) -> Floats:
    """Return the shares of batches of 1, 2, ... requests from the rows of each tick that has any.

    Batches come as a Poisson process, so that n p(n) = rate sum over j of j f(j) p(n - j) (Panjer's recursion), solved
    for the shares f. Without it a coarse tick would make batches of requests that have nothing to do with each other.
    """
    seen = np.bincount(rows, minlength=int(rows.max()) + BESIDE).astype(np.float64) / ticks
    seen[0] = 1.0 - rows.size / ticks
    rate, found = -math.log(seen[0]), np.zeros(seen.size)
    for n in range(1, seen.size):
        smaller = np.arange(1, n)
        known = rate / n * float((smaller * found[1:n]) @ seen[n - smaller])
        found[n] = (seen[n] - known) / (rate * seen[0])
    # A rare batch was seen with one number of other requests in its tick: a share below 0 is part of the one before.
    for n in range(seen.size - 1, 1, -1):
        if found[n] < 0.0:
            found[n - 1], found[n] = found[n - 1] + found[n], 0.0
    shares: Floats = found[1:] / found.sum()
    return shares


def _rounded(values: Floats) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


def _mixture(x: Floats) -> tuple[Floats, Floats, Floats]:
    """Return means and deviations [COMPONENTS] of a mixture of normals, and the chance of each at each x, [rows, C]."""
    means = np.quantile(x, (np.arange(COMPONENTS) + 0.5) / COMPONENTS)
    spreads, shares = (
        np.full(COMPONENTS, max(float(x.std()) / 2.0, LEAST_SPREAD)),
        np.full(COMPONENTS, 1.0 / COMPONENTS),
    )
    chances = np.zeros((x.size, COMPONENTS))
    for _ in range(ITERATIONS):
        z = (x[:, None] - means) / spreads
        density = np.log(shares) - np.log(spreads) - 0.5 * z * z
        chances = np.exp(density - density.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        number = chances.sum(axis=0) + 1e-9
        means, shares = (chances * x[:, None]).sum(axis=0) / number, number / x.size
        spreads = np.sqrt((chances * (x[:, None] - means) ** 2).sum(axis=0) / number)
        spreads = np.maximum(spreads, LEAST_SPREAD)
    return means, spreads, chances


@lru_cache(maxsize=1)
def parameters() -> Mapping[str, Mapping[str, Any]]:
    """Return the fitted parameters by trace."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(FILE.read_text("utf-8"))
    return found


def drawn(known: Mapping[str, Any], rows: int, seed: int) -> Table:
    """Return a number of requests, the first at second 0."""
    draws = np.random.default_rng(seed)
    arrival_s, u = _arrivals(known, rows, draws)
    together = np.diff(arrival_s, prepend=-1.0) == 0.0
    sizes, shares = np.array(known["sizes"]), np.array(known["shares"])
    which = draws.choice(len(sizes), rows, p=shares / shares.sum())
    totals = np.cumsum(np.array([*known["weights"], known["in_large_batch"]]), axis=1)
    repeats = draws.random(rows) < np.where(together, known["repeat_in_batch"], known["repeat"])
    for k in np.flatnonzero(repeats[1:]) + 1:
        which[k] = which[k - 1]
    row = np.where(_in_large_batch(arrival_s), len(sizes), which)
    component = (draws.random(rows)[:, None] * totals[row, -1:] > totals[row]).sum(axis=1)
    alike = (draws.random(rows) < known["alike"]) & ~together & (np.diff(which, prepend=-1) == 0)
    for k in np.flatnonzero(alike):
        component[k] = component[k - 1]
    means, spreads = np.array(known["means"]), np.array(known["spreads"])
    x = means[component] + spreads[component] * draws.standard_normal(rows)
    life_s = np.exp(x + known["life_by_rate"] * (u - u.mean()))
    tail_s = np.log(known["tail_s"])
    rank = draws.random(rows) * (tail_s.size - 1)
    tail = life_s > known["tail_s"][0]
    life_s[tail] = np.exp(np.interp(rank[tail], np.arange(tail_s.size), tail_s))
    for k in np.flatnonzero(together & (draws.random(rows) < known["equal_in_batch"])):
        life_s[k] = life_s[k - 1]
    return arrival_s, np.maximum(life_s, LEAST_LIFE_S), sizes[which, 0], sizes[which, 1]


def _arrivals(known: Mapping[str, Any], rows: int, draws: np.random.Generator) -> tuple[Floats, Floats]:
    per_hour, extra, tick_s = np.array(known["per_hour"]), known["dispersion"], known["tick_s"]
    sizes, shares = np.array(known["batches"]).T
    spread, hours_long = known["slow"]
    shares, stays = shares / shares.sum(), math.exp(-1.0 / hours_long)
    found: list[Floats] = []
    logs: list[Floats] = []
    number, z = 0, draws.standard_normal()
    for hour in count():
        rate = per_hour[hour % 24] / (sizes @ shares) * math.exp(spread * z - 0.5 * spread * spread)
        if extra > 0.0:
            rate *= draws.gamma(1.0 / extra, extra)
        moments = (hour + np.sort(draws.random(draws.poisson(rate)))) * HOUR_S // tick_s * tick_s
        found.append(np.repeat(moments, draws.choice(sizes, moments.size, p=shares).astype(np.int64)))
        logs.append(np.full(found[-1].size, spread * z))
        number += found[-1].size
        z = stays * z + math.sqrt(1.0 - stays * stays) * draws.standard_normal()
        if number > rows:
            break
    moments, u = np.concatenate(found)[:rows], np.concatenate(logs)[:rows]
    # A trace begins with its first request, and its hours are counted from there.
    begin = moments[0] // HOUR_S * HOUR_S
    moments[moments == moments[0]] = begin
    return moments - begin, u
