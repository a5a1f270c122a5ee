"""Runs drawn more often the worse they look, and weights that make up for it (admission specification §6.1)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from domain.errors import BadInput
from domain.rules.admission.na import conditional_na
from simulator.admission import Run
from simulator.admission.presets import HOURS_PER_MONTH
from trainer.admission.bootstrap import Floats
from trainer.admission.table import Runs

KAPPA = 3.0
"""Standard deviations by which the caricature takes a deployment to be larger than expected: Cantelli's 90 %."""
QUANTILES = (0.9, 0.98)
FLOOR = 0.1
"""No bucket is drawn less often than this share of its probability."""


def badness(run: Run) -> float:
    """Return how full the cluster gets in a caricature of the run that takes milliseconds.

    All arrivals of a month come on its first day, their types known and their sizes as expected, shutdowns included;
    one is let in while the sum of mean + KAPPA standard deviations stays within the capacity. The figure is the
    highest sum of means of the first days, in capacities. It depends on what is drawn before the run is played alone,
    which keeps the weighted estimates unbiased.
    """
    arrivals, capacity = run.arrivals, run.cluster.capacity
    law = run.cluster.population
    month = (arrivals["time"] // HOURS_PER_MONTH).astype(np.int64)
    months = int(month[-1]) + 1 if len(month) else 0
    mu = np.maximum(arrivals["mu"], 1e-200)
    rho, sig, size = arrivals["theta"] / mu, arrivals["sig"], arrivals["size"].astype(np.float64)
    inside = np.zeros(0, dtype=np.int64)
    worst = 0.0
    for now in range(months):
        age = (now - month[inside]) * HOURS_PER_MONTH
        r, s = rho[inside], sig[inside]
        mean, square = conditional_na(size[inside], mu[inside] * age, r, r * r, s, s * s, law.lifetimes)
        spread = np.sqrt(np.maximum(np.asarray(square) - np.asarray(mean) ** 2, 0.0))
        room = capacity - float(np.sum(np.asarray(mean) + KAPPA * spread))
        new = np.flatnonzero(month == now)
        taken = _let_in(size[new].tolist(), room)
        worst = max(worst, float(np.sum(mean)) + float(size[new][taken].sum()))
        inside = np.concatenate([inside, new[taken]])
    return worst / capacity


def _let_in(sizes: list[float], room: float) -> list[int]:
    """Return the places of those that fit, one after the other."""
    taken = []
    for place, size in enumerate(sizes):
        if size <= room:
            room -= size
            taken.append(place)
    return taken


def buckets_of(values: Floats, cuts: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the bucket of each badness, 0 for the best."""
    return np.searchsorted(np.asarray(cuts), values, side="right").astype(np.int64)


@dataclass(frozen=True, slots=True)
class Scheme:
    """Buckets by badness, how likely each is, and how often a run in it is drawn anew."""

    cuts: tuple[float, ...]
    probabilities: tuple[float, ...]
    redraws: tuple[float, ...]
    """Chance that a run in this bucket is dropped, and every later draw in this bucket or a better one; last 0."""

    def __post_init__(self) -> None:
        p, r = self.probabilities, self.redraws
        if len(p) != len(r) or len(self.cuts) != len(p) - 1 or any(x <= 0.0 for x in p) or abs(sum(p) - 1.0) > 1e-9:
            raise BadInput("probabilities", p, "give one above 0 per bucket, together 1, and one cut fewer")
        if any(not 0.0 <= x < 1.0 for x in r) or r[-1] != 0.0:
            raise BadInput("redraws", r, "give chances from 0 to below 1, the last one 0")

    @property
    def drawn(self) -> tuple[float, ...]:
        """How likely each bucket is to be drawn in the end."""
        return tuple(
            a * (1.0 - r) for a, r in zip(reached(self.probabilities, self.redraws), self.redraws, strict=True)
        )

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of a run in each bucket; its mean over weighted runs is 1."""
        return tuple(p / q for p, q in zip(self.probabilities, self.drawn, strict=True))


def reached(p: Sequence[float], r: Sequence[float]) -> list[float]:
    """Return how likely a draw ends up being looked at in each bucket: a_i of specification §6.1."""
    a: list[float] = []
    for i, own in enumerate(p):
        a.append(own * (1.0 + sum(a[j] * r[j] / sum(p[j + 1 :]) for j in range(i))))
    return a


def redraws_for(p: Sequence[float], q: Sequence[float]) -> tuple[float, ...]:
    """Return the redraw chances that draw bucket i with chance q_i; raises BadInput where the scheme cannot."""
    r: list[float] = []
    for i, wanted in enumerate(q[:-1]):
        a = reached(p, [*r, *[0.0] * (len(p) - i)])[i]
        if not 0.0 < wanted <= a * (1.0 + 1e-9):
            raise BadInput("q", tuple(q), f"bucket {i} is reached with chance {a:.4g}, so ask for no more, and above 0")
        r.append(max(0.0, 1.0 - wanted / a))
    return (*r, 0.0)


def best_chances(p: Sequence[float], squares: Sequence[float], floor: float = FLOOR) -> tuple[float, ...]:
    """Return the chances q_i, p_i times the root of the bucket's mean square, that estimate a mean best.

    squares: E[f^2 | bucket] of a pilot; one below that of a better bucket counts as high as that one, without which
    redraws could not reach the chances. No q_i is below `floor` times p_i.
    """
    chances = np.asarray(p) * np.sqrt(np.maximum.accumulate(np.asarray(squares, dtype=np.float64)))
    if not chances.sum() > 0.0:
        return tuple(p)
    chances /= chances.sum()
    for _ in range(50):
        chances = np.maximum(chances, floor * np.asarray(p))
        chances /= chances.sum()
    return tuple(float(chance) for chance in chances)


def scheme_of(values: Floats, squares: Sequence[float] | None = None, quantiles: Sequence[float] = QUANTILES) -> Scheme:
    """Return the scheme with cuts at the quantiles of plainly drawn badness; without `squares` it redraws nothing."""
    cuts = tuple(float(cut) for cut in np.quantile(values, quantiles))
    ends = (0.0, *quantiles, 1.0)
    p = tuple(high - low for low, high in itertools.pairwise(ends))
    r = (0.0,) * len(p) if squares is None else redraws_for(p, best_chances(p, squares))
    return Scheme(cuts, p, r)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A run that was kept: its seed, bucket and weight, and how many seeds were looked at for it."""

    seed: int
    bucket: int
    weight: float
    looked_at: int


def draw_weighted(
    scheme: Scheme, count: int, first_seed: int, badness_of: Callable[[int], float], generator: np.random.Generator
) -> Iterator[Drawn]:
    """Draw so many runs by the redraw scheme, seed after seed from `first_seed` on (admission specification §6.1)."""
    seed = first_seed
    for _ in range(count):
        barred, looked = -1, 0
        while True:
            bucket = int(buckets_of(np.array([badness_of(seed)]), scheme.cuts)[0])
            seed, looked = seed + 1, looked + 1
            if bucket <= barred:
                continue
            if generator.random() < scheme.redraws[bucket]:
                barred = bucket
                continue
            yield Drawn(seed - 1, bucket, scheme.weights[bucket], looked)
            break


def failed_share(runs: Runs) -> Floats:
    """Return the mean over months of the share of requests that failed, per run; 0 without requests."""
    known = runs.requests > 0
    shares = np.where(known, runs.failures / np.maximum(runs.requests, 1), 0.0)
    return np.asarray(shares.sum(axis=1) / np.maximum(known.sum(axis=1), 1), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its standard error."""

    value: float
    error: float


def weighted_mean(values: Floats, weights: Floats) -> Mean:
    """Return the unbiased estimate (1/N) sum w f, with its standard error."""
    product = values * weights
    return Mean(float(product.mean()), float(product.std(ddof=1) / np.sqrt(len(product))))


def effective_size(weights: Floats) -> float:
    """Return (sum w)^2 / sum w^2, the runs that weighted ones are worth for a figure that knows no bucket."""
    return float(weights.sum() ** 2 / (weights**2).sum())


def worth(plain: Floats, weighted: Floats, weights: Floats) -> float:
    """Return how many plain runs one weighted run is worth for the mean failure rate: the ratio of variances."""
    variance = float((weighted * weights).var(ddof=1))
    return float(plain.var(ddof=1)) / variance if variance > 0.0 else float("nan")


def best_worth(p: Sequence[float], q: Sequence[float], squares: Sequence[float], mean: float) -> float:
    """Return the same for chances q, from a pilot's mean squares by bucket and its mean (no run is played)."""
    plain = float(np.dot(p, squares)) - mean**2
    weighted = float(np.sum(np.asarray(p) ** 2 * np.asarray(squares) / np.asarray(q))) - mean**2
    return plain / weighted if weighted > 0.0 else float("nan")
