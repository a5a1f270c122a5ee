"""The usage of VMs' cores: the five models of §2, each drawn by index, so that policies meet the same usage.

Standard normal numbers come from the ziggurat of Marsaglia and Tsang (2000) in the form of Doornik (An Improved
Ziggurat Method, 2005), fed by the Weyl sequence of `simulator.admission.streams`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription.usage import Moments, moments_of
from domain.units import HOURS_PER_DAY
from simulator.admission.streams import key_of, mixed, uniform
from simulator.compilation import compiled
from simulator.oversubscription.layout import Floats, Ints
from simulator.oversubscription.scenario import Scenario, Week, read_usage
from simulator.oversubscription.vm_days import DayShape, pool_of

_STEP = np.uint64(0x9E3779B97F4A7C15)
_11, _LAYER = np.uint64(11), np.uint64(127)
_UNIT = 1.0 / 9007199254740992.0
LAYERS = 128
_TAIL = 3.442619855899
_AREA = 9.91256303526217e-3


def _edges() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the right ends of the layers, widest first, and 0 behind the last."""
    edges = np.zeros(LAYERS + 1)
    density = math.exp(-0.5 * _TAIL * _TAIL)
    edges[0], edges[1] = _AREA / density, _TAIL
    for i in range(2, LAYERS):
        edges[i] = math.sqrt(-2.0 * math.log(_AREA / edges[i - 1] + density))
        density = math.exp(-0.5 * edges[i] * edges[i])
    return edges


_EDGE = _edges()
_INSIDE = _EDGE[1:] / _EDGE[:-1]


@compiled
def _uniform(word: np.uint64) -> float:
    """Return a word's upper 53 bits as a number in (0, 1)."""
    return (float(word >> _11) + 0.5) * _UNIT


@compiled
def _in_tail(word: np.uint64, negative: bool) -> float:
    """Return a normal number beyond the layers."""
    while True:
        word = mixed(word + _STEP)
        x = math.log(_uniform(word)) / _TAIL
        word = mixed(word + _STEP)
        if -2.0 * math.log(_uniform(word)) >= x * x:
            return x - _TAIL if negative else _TAIL - x


@compiled
def _outside(word: np.uint64, layer: int, u: float) -> tuple[bool, float]:
    """Return whether a point beyond the inner part of its layer is taken, and its place."""
    if layer == 0:
        return True, _in_tail(word, u < 0.0)
    second = _uniform(mixed(word + _STEP))
    x = u * _EDGE[layer]
    outer = math.exp(-0.5 * (_EDGE[layer] * _EDGE[layer] - x * x))
    inner = math.exp(-0.5 * (_EDGE[layer + 1] * _EDGE[layer + 1] - x * x))
    return bool(inner + second * (outer - inner) < 1.0), x


@compiled
def _normal_of(word: np.uint64) -> float:
    """Return the standard normal number of a mixed word."""
    while True:
        u = 2.0 * _uniform(word) - 1.0
        layer = int(word & _LAYER)
        if abs(u) < _INSIDE[layer]:
            return float(u * _EDGE[layer])
        taken, x = _outside(word, layer, u)
        if taken:
            return x
        word = mixed(word ^ _STEP)


@compiled
def normal(key: np.uint64, index: np.uint64) -> float:
    """Return draw number `index` of a sequence of standard normals."""
    return _normal_of(mixed(key + index * _STEP))


DRAWN, SERIES, DAYS = 0, 1, 2
MODELS = ("gauss", "gauss_corr", "replay", "persistent", "bootstrap")
LOG_SEED = 2_011
"""Seed of the stored realisation that `replay` repeats and that the baselines read as their log."""
_NOISE, _OFFSET, _SHARED, _DAY = (np.uint64(stream) for stream in (1, 2, 3, 4))
_SHIFT = np.uint64(16)


class Usage(NamedTuple):
    """A usage model as compiled code takes it."""

    kind: int
    own: float
    """Weight of the noise of a VM and hour; then of the VM's offset and of what the subscriber's VMs share."""
    offset: float
    shared: float
    mu: Floats
    sd: Floats
    fixed: bool
    """Whether every episode has the usage of `fixed_seed`."""
    fixed_seed: np.uint64
    series: Floats
    """SERIES: usage by row of the week and hour, nan where it is drawn."""
    days: Floats
    """DAYS: measured VM-days, (D, 24); those of subscriber n from days_first[n] to days_first[n + 1]."""
    days_first: NDArray[np.int64]


class Keys(NamedTuple):
    """The starts of one episode's sequences, and the shared part of subscribers' usage by hour, (N, hours)."""

    noise: np.uint64
    offset: np.uint64
    day: np.uint64
    shared: Floats


@dataclass(frozen=True, slots=True)
class UsageModel:
    """A usage model, its moments for the risk engine, and the text that names it."""

    text: str
    usage: Usage
    moments: Moments
    rho: float = 0.0
    persistence: float = 0.0
    shape: DayShape | None = None
    """Where VM-days are drawn whole: the correlation of their hours."""


def usage_of(text: str, scenario: Scenario, week: Week) -> UsageModel:
    """Return the model of a text; raises BadInput.

    gauss; gauss_corr:rho=0.05; persistent:psi=0.85,rho=0; replay, replay:seed=7 or replay:FILE (columns id, hour,
    usage); bootstrap:FILE (see `simulator.oversubscription.vm_days`).
    """
    name, _, rest = text.partition(":")
    mu, sd = scenario.mu, scenario.sd
    if name == "bootstrap":
        pool = pool_of(Path(rest) if rest else None, mu)
        drawn = _drawn(mu, sd)._replace(kind=DAYS, days=pool.days, days_first=pool.first)
        return UsageModel(text, drawn, pool.moments, shape=pool.shape)
    moments = moments_of(mu, sd)
    if name == "replay" and rest and not rest.startswith("seed="):
        table = read_usage(Path(rest), week.ids, scenario.hours)
        return UsageModel(
            text,
            _drawn(mu, sd)._replace(kind=SERIES, series=table, fixed=True, fixed_seed=np.uint64(LOG_SEED)),
            moments,
        )
    if name not in MODELS:
        raise BadInput("usage", text, f"choose one of {', '.join(MODELS)}")
    given = _settings(
        text, rest, {"gauss_corr": ("rho",), "persistent": ("psi", "rho"), "replay": ("seed",)}.get(name, ())
    )
    if name == "replay":
        seed = given.get("seed", float(LOG_SEED))
        if seed < 0 or seed != int(seed) or seed > 2.0**53:
            raise BadInput("usage", text, "give the seed as a whole number, 0 or more")
        return UsageModel(text, _drawn(mu, sd)._replace(fixed=True, fixed_seed=np.uint64(int(seed))), moments)
    rho = given.get("rho", 0.05 if name == "gauss_corr" else 0.0)
    psi = given.get("psi", 0.85) if name == "persistent" else 0.0
    if not (0.0 <= rho <= 1.0 and 0.0 <= psi <= 1.0 and rho + psi <= 1.0):
        raise BadInput("usage", text, "give shares of the variance, 0 or more and together at most 1")
    return UsageModel(text, _drawn(mu, sd, psi, rho), moments, rho, psi)


def _drawn(mu: Floats, sd: Floats, psi: float = 0.0, rho: float = 0.0) -> Usage:
    return Usage(
        DRAWN,
        own=math.sqrt(max(1.0 - psi - rho, 0.0)),
        offset=math.sqrt(psi),
        shared=math.sqrt(rho),
        mu=mu,
        sd=sd,
        fixed=False,
        fixed_seed=np.uint64(0),
        series=np.zeros((0, 0)),
        days=np.zeros((0, HOURS_PER_DAY)),
        days_first=np.zeros(1, np.int64),
    )


def _settings(text: str, rest: str, known: tuple[str, ...]) -> dict[str, float]:
    given: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        name, _, value = part.partition("=")
        if name not in known:
            raise BadInput("usage", text, f"settings are {', '.join(known)}" if known else "it takes no settings")
        try:
            given[name] = float(value)
        except ValueError:
            raise BadInput("usage", text, f"give {name} as a number") from None
        if not math.isfinite(given[name]):
            raise BadInput("usage", text, f"give {name} as a finite number")
    return given


@compiled
def keys_of(usage: Usage, seed: np.uint64, hours: int) -> Keys:
    """Return the sequences of the episode with this seed."""
    own = usage.fixed_seed if usage.fixed else np.uint64(seed)
    subscribers = usage.mu.shape[0]
    shared = np.zeros((subscribers if usage.shared > 0.0 else 0, hours))
    key = key_of(own, _SHARED)
    for n in range(shared.shape[0]):
        for t in range(hours):
            shared[n, t] = normal(key, (np.uint64(n) << _SHIFT) | np.uint64(t))
    return Keys(key_of(own, _NOISE), key_of(own, _OFFSET), key_of(own, _DAY), shared)


class Tiled(NamedTuple):
    """A profile hour after hour, (N, hours), and the weight of a VM's noise."""

    mu: Floats
    sd: Floats
    own: float


class Stays(NamedTuple):
    """VMs whose usage is added up, all (VMs,): rows of the week, subscribers, cores, hours from and to, places."""

    row: Ints
    subscriber: Ints
    cores: Floats
    first: Ints
    end: Ints
    place: Ints
    """Row of the total; negative for a VM that is left out."""


_BLOCK = 1024
"""Draws at once: few enough to stay in the nearest cache."""


@compiled
def _draw(words: NDArray[np.uint64], normals: Floats, beyond: Ints) -> None:
    """Fill in the standard normal number of each mixed word. beyond: room for one number more than there are words."""
    count = 0
    # Without a branch: one word in eighty lies beyond the inner part of its layer, and waits in a list.
    for j in range(words.size):
        x, layer = 2.0 * _uniform(words[j]) - 1.0, words[j] & _LAYER
        normals[j] = x * _EDGE[layer]
        beyond[count] = j
        count += abs(x) >= _INSIDE[layer]
    for i in range(count):
        normals[beyond[i]] = _normal_of(words[beyond[i]])


@compiled
def _add_days(usage: Usage, keys: Keys, stays: Stays, origin: int, total: Floats) -> None:
    rows, subscriber, cores, firsts, ends, place = stays
    for i in range(rows.size):
        n, k, base = subscriber[i], place[i], np.uint64(rows[i]) << _SHIFT
        if k < 0:
            continue
        start, end = usage.days_first[n], usage.days_first[n + 1]
        for t in range(firsts[i], ends[i]):
            at = start + int(uniform(keys.day, base | np.uint64(t // 24)) * (end - start))
            total[k, t - origin] += cores[i] * usage.days[min(at, end - 1), t % 24]


@compiled
def _add_plain(stays: Stays, some: tuple[int, int], normals: Floats, usage: Tiled, origin: int, total: Floats) -> None:
    """Add the usage of VMs in these places, which is their noise alone, from its normal numbers."""
    _, subscriber, cores, firsts, ends, place = stays
    drawn, mu, sd, own = 0, usage.mu, usage.sd, usage.own
    for i in range(some[0], some[1]):
        count, n, c, at = ends[i] - firsts[i], subscriber[i], cores[i], firsts[i] - origin
        if place[i] < 0 or count <= 0:
            continue
        e, added = normals[drawn : drawn + count], total[place[i], at : at + count]
        means, spreads = mu[n, at : at + count], sd[n, at : at + count]
        for j in range(count):
            added[j] += c * min(max(means[j] + spreads[j] * (own * e[j]), 0.0), 1.0)
        drawn += count


@compiled
def _add_mixed(
    stays: Stays, some: tuple[int, int], normals: Floats, usage: Usage, keys: Keys, origin: int, total: Floats
) -> None:
    """Add the usage of VMs in these places, which has more parts than their noise, or was measured."""
    rows, subscriber, cores, firsts, ends, place = stays
    own, shared, series, common, kind = usage.own, usage.shared, usage.series, keys.shared, usage.kind
    drawn, mu, sd = 0, usage.mu, usage.sd
    for i in range(some[0], some[1]):
        if place[i] < 0:
            continue
        row, n, c = rows[i], subscriber[i], cores[i]
        offset = usage.offset * normal(keys.offset, np.uint64(row)) if usage.offset > 0.0 else 0.0
        for t in range(firsts[i], ends[i]):
            e = own * normals[drawn] + offset
            if shared > 0.0:
                e += shared * common[n, t]
            u = min(max(mu[n, t % 24] + sd[n, t % 24] * e, 0.0), 1.0)
            if kind == SERIES and not np.isnan(series[row, t]):
                u = series[row, t]
            total[place[i], t - origin] += c * u
            drawn += 1


@compiled
def add_usage(usage: Usage, keys: Keys, stays: Stays, origin: int, total: Floats) -> None:
    """Add the usage of VMs to a total by place and hour, (places, hours); its first hour is `origin`.

    Of each VM and hour: cores times the share of its requested cores that it uses, in [0, 1].
    """
    if usage.kind == DAYS:
        _add_days(usage, keys, stays, origin, total)
        return
    # Arrays are taken out of the tuples before the loop, where that would cost more than the draws.
    rows, firsts, ends, place, hours = stays.row, stays.first, stays.end, stays.place, total.shape[1]
    plain = usage.kind == DRAWN and usage.offset == 0.0 and usage.shared == 0.0
    mu, sd = np.empty((usage.mu.shape[0], hours)), np.empty((usage.mu.shape[0], hours))
    for t in range(hours if plain else 0):
        mu[:, t], sd[:, t] = usage.mu[:, (origin + t) % 24], usage.sd[:, (origin + t) % 24]
    tiled = Tiled(mu, sd, usage.own)
    words, normals = np.empty(_BLOCK + hours, np.uint64), np.empty(_BLOCK + hours)
    beyond, start, end = np.empty(_BLOCK + hours + 1, np.int64), 0, 0
    while end < rows.size:
        drawn = 0
        while end < rows.size and drawn < _BLOCK:
            first, count = firsts[end], ends[end] - firsts[end] if place[end] >= 0 else 0
            key = keys.noise + (np.uint64(rows[end]) << _SHIFT | np.uint64(first)) * _STEP
            for j in range(count):
                words[drawn + j] = key + np.uint64(j) * _STEP
            drawn += max(count, 0)
            end += 1
        for j in range(drawn):
            words[j] = mixed(words[j])
        _draw(words[:drawn], normals, beyond)
        if plain:
            _add_plain(stays, (start, end), normals, tiled, origin, total)
        else:
            _add_mixed(stays, (start, end), normals, usage, keys, origin, total)
        start = end


DAY_BEFORE_H = HOURS_PER_DAY


@compiled
def _peaks(usage: Usage, seed: np.uint64, stays: Stays, peaks: Floats) -> None:
    drawn = np.zeros((stays.row.size, peaks.shape[1]))
    add_usage(usage, keys_of(usage, seed, peaks.shape[1]), stays, 0, drawn)
    for row in range(stays.row.size):
        n = stays.subscriber[row]
        for t in range(stays.first[row], stays.end[row]):
            if not drawn[row, t] <= peaks[n, t]:
                peaks[n, t] = drawn[row, t]


def peak_log(scenario: Scenario, week: Week, seed: int = LOG_SEED) -> Floats:
    """Return the largest usage among each subscriber's VMs by hour, (N, 24 + hours), nan in hours without VMs.

    The first 24 hours are the day before the week. The VMs that a warm start begins with are in the log of a cold start
    too: they ran, elsewhere.
    """
    usage = usage_of("gauss", scenario, week).usage
    parts = []
    for shift, hours, drawn in ((-DAY_BEFORE_H, DAY_BEFORE_H, seed + 1), (0, scenario.hours, seed)):
        peaks = np.full((scenario.subscribers, hours), np.nan)
        first, end = np.maximum(week.arrival - shift, 0), np.minimum(week.departure - shift, hours)
        rows = np.arange(len(week.ids))
        _peaks(usage, np.uint64(drawn), Stays(rows, week.subscriber, np.ones(rows.size), first, end, rows), peaks)
        parts.append(peaks)
    return np.concatenate(parts, axis=1)
