"""Requests of containers that end, from distributions fitted to a public trace (`data/fitted.json`).

Sizes have the shares of the trace, and a request repeats the size of the one before with a chance. The logarithm of a
life is a mixture of normal distributions that all sizes share, with weights by size, and a request that repeats a
size stays in the component of the one before with a chance. No life is above the longest of the trace. Arrivals are
Poisson with a rate by hour of the day, times a gamma variable of mean 1 for each hour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from domain.units import HOUR_S

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
    hours = np.bincount((arrival_s // HOUR_S).astype(np.int64))[:-1].astype(np.float64)
    rhythm = np.array([hours[k::24].mean() for k in range(24)])
    expected = rhythm[np.arange(hours.size) % 24]
    extra = float(((hours - expected) ** 2 - expected).sum() / (expected**2).sum())
    shares = number / number.sum()
    same, component = which[1:] == which[:-1], chances.argmax(axis=1)
    by_chance = float((shares**2).sum())
    agree = float((component[1:] == component[:-1])[same].mean())
    alike = float((weights[which[1:][same]] ** 2).sum(axis=1).mean())
    return {
        "sizes": sizes.tolist(),
        "shares": _rounded(shares),
        "means": _rounded(means),
        "spreads": _rounded(spreads),
        "weights": [_rounded(row) for row in weights],
        "longest_s": float(life_s.max()),
        "per_hour": _rounded(rhythm),
        "dispersion": round(max(extra, 0.0), 4),
        "repeat": round(max(0.0, (float(same.mean()) - by_chance) / (1.0 - by_chance)), 4),
        "alike": round(max(0.0, (agree - alike) / (1.0 - alike)), 4),
    }


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
    arrival_s = _arrivals(known, rows, draws)
    sizes, shares = np.array(known["sizes"]), np.array(known["shares"])
    which = draws.choice(len(sizes), rows, p=shares / shares.sum())
    totals = np.cumsum(np.array(known["weights"]), axis=1)
    repeats = (draws.random(rows) < known["repeat"]).tolist()
    alike = (draws.random(rows) < known["alike"]).tolist()
    for k in range(1, rows):
        if repeats[k]:
            which[k] = which[k - 1]
    component = (draws.random(rows)[:, None] * totals[which, -1:] > totals[which]).sum(axis=1)
    for k in range(1, rows):
        if alike[k] and which[k] == which[k - 1]:
            component[k] = component[k - 1]
    means, spreads = np.array(known["means"]), np.array(known["spreads"])
    life_s = np.exp(means[component] + spreads[component] * draws.standard_normal(rows))
    # A record ends after days: a tail beyond its longest life would hold hosts that no trace has.
    while (over := np.flatnonzero(life_s > known["longest_s"])).size:
        z = draws.standard_normal(over.size)
        life_s[over] = np.exp(means[component[over]] + spreads[component[over]] * z)
    return arrival_s, np.maximum(life_s, LEAST_LIFE_S), sizes[which, 0], sizes[which, 1]


def _arrivals(known: Mapping[str, Any], rows: int, draws: np.random.Generator) -> Floats:
    per_hour, extra = np.array(known["per_hour"]), known["dispersion"]
    found: list[Floats] = []
    number = 0
    for hour in count():
        rate = per_hour[hour % 24]
        if extra > 0.0:
            rate = rate * draws.gamma(1.0 / extra, extra)
        found.append((hour + np.sort(draws.random(draws.poisson(rate)))) * HOUR_S)
        number += found[-1].size
        if number > rows:
            break
    moments = np.concatenate(found)[:rows]
    first: Floats = moments - moments[0]
    return first
