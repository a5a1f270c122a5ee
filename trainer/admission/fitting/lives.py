"""Deployments drawn from a population and lived alone, none refused, inside a window: for tables and for comparison.

The process is the simulator's (admission specification §2), with its random numbers in its order. In a written table
every core is a machine of its own, since cores end one by one in the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.admission import belief
from domain.rules.admission.population import Population
from domain.units import HOUR_S
from simulator.admission import streams
from simulator.admission.streams import extra_cores, key_of, mixed, uniform
from simulator.compilation import compiled, drop_stale

__all__ = ["compiled"]

drop_stale([Path(__file__).parent], [Path(belief.__file__), Path(streams.__file__)])


Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
NONE: Floats = np.zeros(0)
PEAK, ACTIVATED, ENDED, REQUESTS, DEAD, LAST, EVENTS = range(7)
"""Columns of what `_lives` counts; LAST is the number of cores that ended at the last instant."""


@dataclass(frozen=True, slots=True)
class Deployments:
    """Deployments before they live, arrays (N,)."""

    mu: Floats
    theta: Floats
    sig: Floats
    initial: Counts
    keys: NDArray[np.uint64]
    hours: Floats
    """From its arrival to the end of the window."""


@dataclass(frozen=True, slots=True)
class Lives:
    """What became of them, arrays (N,); the fields that a table of machines tells too are named as in `Histories`."""

    peak: Counts
    activated: Counts
    ended: Counts
    scale_outs: Counts
    dead: NDArray[np.bool_]
    last_cores: Counts
    events: Counts
    core_hours: Floats


@compiled
def _lives(
    keys: NDArray[np.uint64],
    initial: Counts,
    mus: Floats,
    thetas: Floats,
    sigs: Floats,
    lifetimes: float,
    window_h: Floats,
    counts: Counts,
    areas: Floats,
    began: Floats,
    over: Floats,
    born: Floats,
) -> None:
    """Live every deployment until its window ends; fill in what is counted of it, and its core-hours.

    The beginning and end of every core are written to `began` and `over`, deployment by deployment, unless they have no
    room; a core that lives on ends at infinity. `born` has room for the cores that live at a time.
    """
    kept, at = len(began) > 0, 0
    for i in range(len(keys)):
        key, mu, theta, sig, hours, counted = keys[i], mus[i], thetas[i], sigs[i], window_h[i], counts[i]
        stop, alive, now, draws, area = mu / lifetimes, initial[i], 0.0, np.uint64(0), 0.0
        counted[PEAK] = counted[ACTIVATED] = alive
        if kept:
            born[:alive] = 0.0
        while alive > 0:
            rate = alive * mu + theta + stop
            after = now - math.log(uniform(key, draws)) / rate if rate > 0.0 else np.inf
            if not after < hours:
                break
            area += alive * (after - now)
            now = after
            which = uniform(key, draws + np.uint64(1)) * rate
            third = draws + np.uint64(2)
            counted[EVENTS] += 1
            if which < alive * mu:
                if kept:
                    # The number that a scale-out takes for its size says here which core it is.
                    chosen = min(int(uniform(key, third) * alive), alive - 1)
                    began[at], over[at] = born[chosen], now
                    born[chosen] = born[alive - 1]
                    at += 1
                alive -= 1
                counted[ENDED] += 1
                counted[LAST] = 1
            elif which < alive * mu + theta:
                cores = 1 + extra_cores(sig, key, third)
                if kept:
                    born[alive : alive + cores] = now
                alive += cores
                counted[REQUESTS] += 1
                counted[ACTIVATED] += cores
                counted[PEAK] = max(counted[PEAK], alive)
            else:
                if kept:
                    began[at : at + alive] = born[:alive]
                    over[at : at + alive] = now
                    at += alive
                counted[ENDED] += alive
                counted[LAST] = alive
                alive = 0
            draws += np.uint64(3)
        if alive > 0:
            area += alive * (hours - now)
            if kept:
                began[at : at + alive] = born[:alive]
                over[at : at + alive] = np.inf
                at += alive
        counted[DEAD] = alive == 0
        areas[i] = area


@compiled
def _begin(seed: np.uint64, sig: Floats, keys: NDArray[np.uint64], sizes: Counts) -> None:
    """Fill in the start of each deployment's sequence of random numbers and its first size, from a seed."""
    for i in range(len(keys)):
        keys[i] = key_of(seed, np.uint64(i))
        sizes[i] = 1 + extra_cores(sig[i], mixed(keys[i]), np.uint64(0))


def uniforms(count: int, seed: int) -> Floats:
    """Return numbers (3, count) in (0, 1) for mu, lam and sig, the same for every population: see `drawn_from`."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))
    return np.clip(generator.random((3, count)), 1e-12, 1.0 - 1e-12)


def drawn_from(population: Population, quantiles: Floats, hours: Floats, seed: int) -> Deployments:
    """Return deployments at the given quantiles (3, N) of the population, which have `hours` (N,) to live.

    The same quantiles and seed under two populations are common random numbers.
    """
    from scipy.special import gammaincinv

    mu = gammaincinv(population.mu_shape, quantiles[0]) / population.mu_rate
    lam = gammaincinv(population.lam_shape, quantiles[1]) / population.lam_rate
    sig = gammaincinv(population.sig_shape, quantiles[2]) / population.sig_rate
    keys, initial = np.empty(len(mu), dtype=np.uint64), np.empty(len(mu), dtype=np.int64)
    _begin(np.uint64(seed), sig, keys, initial)
    return Deployments(mu, lam * mu**population.power, sig, initial, keys, hours)


def cores_of(drawn: Deployments, lifetimes: float) -> tuple[Counts, Floats, Floats]:
    """Return deployment, beginning and end of every core, hours from the deployment's arrival; infinite: lives on."""
    lives = lives_of(drawn, lifetimes)
    total = int(lives.activated.sum())
    began, over = np.empty(total), np.empty(total)
    lives_of(drawn, lifetimes, began, over, most=int(lives.peak.max()))
    return np.repeat(np.arange(len(drawn.mu)), lives.activated), began, over


def lives_of(drawn: Deployments, lifetimes: float, began: Floats = NONE, over: Floats = NONE, most: int = 0) -> Lives:
    """Live every deployment to the end of the window.

    began, over: to be filled in with every core's, where they have room. most: cores of a deployment at a time.
    """
    counted, area = np.zeros((len(drawn.mu), 7), dtype=np.int64), np.empty(len(drawn.mu))
    _lives(
        *(drawn.keys, drawn.initial, drawn.mu, drawn.theta, drawn.sig, lifetimes, drawn.hours),
        *(counted, area, began, over, np.empty(most)),
    )
    return Lives(
        peak=counted[:, PEAK],
        activated=counted[:, ACTIVATED],
        ended=counted[:, ENDED],
        scale_outs=counted[:, REQUESTS],
        dead=counted[:, DEAD] == 1,
        last_cores=np.where(counted[:, DEAD] == 1, counted[:, LAST], 0),
        events=counted[:, EVENTS],
        core_hours=area,
    )


WINDOW_H = 720.0
GRID_S = 300


def write_table(
    path: Path,
    population: Population,
    deployments: int,
    *,
    seed: int = 0,
    window_h: float = WINDOW_H,
    grid_s: int = GRID_S,
    id_characters: int = 0,
) -> int:
    """Write a table in the format of `vm_table`, .csv or .csv.gz, and return its rows.

    Deployments come at even chances over the window, and times are on a clock of `grid_s` seconds, as Azure's are on
    one of 300. id_characters: ids are filled up to this length, such as Azure's 64. Raises BadInput.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    if deployments < 1:
        raise BadInput("deployments", deployments, "give a whole number from 1")
    if not window_h * HOUR_S > 2.0 * grid_s > 0.0:
        raise BadInput("grid_s", grid_s, "give a step above 0 and far below the window")
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 2])))
    arrival_h = np.sort(generator.random(deployments)) * window_h
    drawn = drawn_from(population, uniforms(deployments, seed), window_h - arrival_h, seed)
    owner, began, over = cores_of(drawn, population.lifetimes)
    last_mark = int(window_h * HOUR_S / grid_s - 1e-9) * grid_s

    def marked(hours: np.ndarray) -> np.ndarray:
        seconds = np.minimum((arrival_h[owner] + hours) * HOUR_S, float(last_mark))
        return np.asarray(np.floor(seconds / grid_s) * grid_s, dtype=np.int64)

    count = len(owner)
    names = pa.array([f"d{i:07d}".ljust(id_characters, "x") for i in range(deployments)])
    users = pa.array([f"u{i // 6:07d}".ljust(id_characters, "x") for i in range(deployments)])
    table = pa.table(
        {
            "vmid": pc.utf8_rpad(pa.array(np.arange(count)).cast(pa.string()), id_characters, "x"),
            "subscriptionid": pa.DictionaryArray.from_arrays(owner.astype(np.int32), users).cast(pa.string()),
            "deploymentid": pa.DictionaryArray.from_arrays(owner.astype(np.int32), names).cast(pa.string()),
            "vmcreated": marked(began),
            "vmdeleted": marked(over),
            "maxcpu": np.full(count, 90.0),
            "avgcpu": np.full(count, 10.0),
            "p95maxcpu": np.full(count, 50.0),
            "vmcategory": pa.repeat("Unknown", count),
            "vmcorecount": np.ones(count, dtype=np.int8),
            "vmmemory": np.full(count, 2, dtype=np.int8),
        }
    )
    with pa.output_stream(str(path), compression="gzip" if path.suffix == ".gz" else None) as out:
        csv.write_csv(table, out, csv.WriteOptions(include_header=False, quoting_style="none"))
    return count
