"""A cluster with its population, presets T, H and K, and the deployments of a run, drawn before any policy decides."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.admission.population import POPULATIONS, Population
from domain.units import HOURS_PER_YEAR
from simulator.admission.engine import ARRIVAL, HALVES, ONE_KIND, WEIGHED

HOURS_PER_RUN = 3 * HOURS_PER_YEAR
"""Three years, the length of a run (admission specification, units)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster and the population it is offered (admission specification §1, §11); BadInput names a wrong field."""

    name: str
    population: Population
    capacity: int
    """Cores."""
    arrival_rate: float
    """Arriving deployments per hour."""
    sla: float
    """Share of scale-out requests that may fail."""
    absorb: bool = True
    """False lets a deployment at 0 cores come back; for tests against the closed form (§4.2)."""
    initial_size: str = "drawn"
    """drawn: a deployment starts with one draw of its request-size law, an observation of that law. empirical: with one
    of `sizes`, each as likely, which is no observation."""
    sizes: tuple[int, ...] = ()
    """Cores; empty unless the first size is empirical."""

    def __post_init__(self) -> None:
        for name in ("capacity", "arrival_rate", "sla"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
                raise BadInput(name, value, "give a finite number")
        if self.capacity <= 0 or int(self.capacity) != self.capacity:
            raise BadInput("capacity", self.capacity, "give whole cores, 1 or more")
        if self.arrival_rate < 0:
            raise BadInput("arrival_rate", self.arrival_rate, "give deployments per hour, 0 or more")
        if not 0.0 < self.sla < 1.0:
            raise BadInput("sla", self.sla, "give a share between 0 and 1, such as 1e-3")
        if self.initial_size not in ("drawn", "empirical"):
            raise BadInput("initial_size", self.initial_size, "give drawn or empirical")
        if (self.initial_size == "empirical") != bool(self.sizes):
            raise BadInput("sizes", self.sizes, "give the sizes to draw from if initial_size is empirical, else none")
        wrong: list[object] = [size for size in self.sizes if type(size) is not int or size < 1]
        if wrong:
            raise BadInput("sizes", wrong[0], "give whole cores, 1 or more")


_OPTIONAL = ("absorb", "initial_size", "sizes")
PRESETS = {name: Cluster(name, law, 20_000, 1.0, 1e-3 if name == "K" else 1e-4) for name, law in POPULATIONS.items()}
"""Trace-matched, heavy-tailed, growing (admission specification §11)."""


def cluster_of(text: str) -> Cluster:
    """Return preset T, H or K, or the cluster in a .json or .toml file.

    The file holds the fields of Cluster and Population side by side, or `preset` and the fields that differ from it.
    Raises BadInput.
    """
    if text in PRESETS:
        return PRESETS[text]
    path = Path(text)
    if path.suffix not in (".json", ".toml"):
        raise BadInput("preset", text, "give T, H, K or a .json or .toml file")
    try:
        content = path.read_text("utf-8")
        given: Any = json.loads(content) if path.suffix == ".json" else tomllib.loads(content)
    except (OSError, ValueError) as error:
        raise BadInput("preset", text, f"give a file that can be read: {error}") from None
    if not isinstance(given, dict):
        raise BadInput("preset", text, "give one object with the cluster's fields")
    return _from_fields(given, path.stem)


def _from_fields(given: dict[str, Any], name: str) -> Cluster:
    laws = tuple(field.name for field in fields(Population))
    own = tuple(field.name for field in fields(Cluster) if field.name != "population")
    named = {"name": name} | given
    base = named.pop("preset", None)
    unknown = sorted(named.keys() - {*laws, *own})
    if unknown:
        raise BadInput(unknown[0], named[unknown[0]], f"take it out; known are preset, {', '.join((*own, *laws))}")
    if base is not None:
        if base not in PRESETS:
            raise BadInput("preset", base, "give T, H or K as the base")
        start = PRESETS[base]
        named = {"absorb": True, "capacity": start.capacity, "arrival_rate": start.arrival_rate} | named
        named = {"sla": start.sla} | asdict(start.population) | named
    missing = [field for field in (*laws, *own) if field not in named and field not in _OPTIONAL]
    if missing:
        raise BadInput(missing[0], None, "give it, or name a preset as the base")
    for law in laws:
        if isinstance(named[law], bool) or not isinstance(named[law], (int, float)):
            raise BadInput(law, named[law], "give a number")
    population = Population(**{law: float(named.pop(law)) for law in laws})
    if not isinstance(named.get("sizes", ()), (list, tuple)):
        raise BadInput("sizes", named["sizes"], "give a list of whole cores")
    named["sizes"] = tuple(named.get("sizes", ()))
    return Cluster(population=population, **named)


LONGEST_GAP_H = 1e6
"""A gap between scale-outs is observed no longer than this; then it is censored (admission specification §8)."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run before it is played: its arrivals, records of layout ARRIVAL in order of time."""

    cluster: Cluster
    seed: int
    hours: float
    observations: int
    arrivals: NDArray[np.void]
    labels: str = "labelled"
    weights: str = "evidence"
    scale_outs: str = "gaps"
    laws: tuple[Population, ...] = ()
    """Those that arrivals may be judged by in place of the population, such as laws of labels; of its power."""

    def __post_init__(self) -> None:
        for law in self.laws:
            if (law.power, law.lifetimes) != (self.cluster.population.power, self.cluster.population.lifetimes):
                raise BadInput("laws", law.power, "give laws with the power and the lifetimes of the population")
        wrong = [int(number) for number in np.unique(self.arrivals["law"]) if not 0 <= number <= len(self.laws)]
        if wrong:
            raise BadInput("law", wrong[0], f"give 0, or the number of one of the run's {len(self.laws)} laws")


def draw_run(
    cluster: Cluster,
    seed: int,
    *,
    observations: int = 0,
    hours: float = HOURS_PER_RUN,
    labels: str = "labelled",
    weights: str = "evidence",
    scale_outs: str = "gaps",
) -> Run:
    """Draw the arrivals of a run (admission specification §2, §8).

    observations: of each of an arrival's processes as many were seen before: core lifetimes, scale-outs, sizes asked
    for. scale_outs: seen as `gaps` between them, censored at 1e6 hours, or as `counts` of as many single hours.
    labels: `labelled`, or `unlabelled`: the user has two kinds of deployments, both seen so often, and what comes is
    one of them without saying which. weights: of the two kinds by `evidence`, or `static`, one half each. The same seed
    gives the same deployments with the same futures whatever the other arguments. Raises BadInput.
    """
    if seed < 0:
        raise BadInput("seed", seed, "give a whole number from 0")
    if observations < 0:
        raise BadInput("observations", observations, "give a whole number from 0")
    if not (np.isfinite(hours) and hours > 0):
        raise BadInput("hours", hours, "give a number above 0")
    for name, word, words in (
        ("labels", labels, ("labelled", "unlabelled")),
        ("weights", weights, ("evidence", "static")),
        ("scale_outs", scale_outs, ("gaps", "counts")),
    ):
        if word not in words:
            raise BadInput(name, word, f"give {words[0]} or {words[1]}")
    children = np.random.SeedSequence(seed).spawn(7)
    timing, kinds, sizes, streams, before = (np.random.Generator(np.random.PCG64(child)) for child in children[:5])
    times = _arrival_times(timing, cluster.arrival_rate, hours)
    count = len(times)
    arrivals = np.zeros(count, dtype=ARRIVAL)
    arrivals["time"] = times
    _draw_kinds(kinds, arrivals, cluster.population)
    if cluster.initial_size == "empirical":
        arrivals["size"] = sizes.choice(np.asarray(cluster.sizes, dtype=np.int64), count)
    else:
        arrivals["size"] = 1 + sizes.poisson(arrivals["sig"])
    arrivals["stream"] = streams.integers(0, 2**64, count, dtype=np.uint64)
    if observations:
        _observe(before, arrivals, observations, scale_outs)
    arrivals["kinds"] = ONE_KIND
    if labels == "unlabelled":
        other = np.zeros(count, dtype=ARRIVAL)
        of_other, before_other = (np.random.Generator(np.random.PCG64(child)) for child in children[5:])
        _draw_kinds(of_other, other, cluster.population)
        if observations:
            _observe(before_other, other, observations, scale_outs)
        for name in ("deaths", "core_hours", "requests", "gap_hours", "extra", "sizes"):
            arrivals[f"other_{name}"] = other[f"seen_{name}"]
        arrivals["kinds"] = WEIGHED if weights == "evidence" else HALVES
    return Run(cluster, seed, hours, observations, arrivals, labels, weights, scale_outs)


def _draw_kinds(generator: np.random.Generator, arrivals: NDArray[np.void], law: Population) -> None:
    """Fill in the rates of each arrival's kind."""
    mu, lam, sig = generator.spawn(3)
    count = len(arrivals)
    arrivals["mu"] = mu.gamma(law.mu_shape, 1.0 / law.mu_rate, count)
    arrivals["lam"] = lam.gamma(law.lam_shape, 1.0 / law.lam_rate, count)
    arrivals["sig"] = sig.gamma(law.sig_shape, 1.0 / law.sig_rate, count)
    arrivals["theta"] = arrivals["lam"] * arrivals["mu"] ** law.power


def _arrival_times(generator: np.random.Generator, rate: float, hours: float) -> NDArray[np.float64]:
    if rate <= 0.0:
        return np.zeros(0)
    parts, last = [], 0.0
    while last < hours:
        part = last + np.cumsum(generator.exponential(1.0 / rate, 4096))
        parts.append(part)
        last = float(part[-1])
    times = np.concatenate(parts)
    return times[times < hours]


def _observe(generator: np.random.Generator, arrivals: NDArray[np.void], count: int, scale_outs: str) -> None:
    """Fill in the prior observations of each arrival's processes (admission specification §8)."""
    lifetimes, gaps, sizes = generator.spawn(3)
    shape = (len(arrivals), count)
    tiny = np.finfo(np.float64).tiny
    arrivals["seen_deaths"] = count
    arrivals["seen_core_hours"] = lifetimes.exponential(size=shape).sum(axis=1) / np.maximum(arrivals["mu"], tiny)
    if scale_outs == "counts":
        arrivals["seen_requests"] = gaps.poisson(arrivals["theta"][:, None], size=shape).sum(axis=1)
        arrivals["seen_gap_hours"] = count
    else:
        waits = gaps.exponential(size=shape) / np.maximum(arrivals["theta"], tiny)[:, None]
        arrivals["seen_requests"] = (waits <= LONGEST_GAP_H).sum(axis=1)
        arrivals["seen_gap_hours"] = np.minimum(waits, LONGEST_GAP_H).sum(axis=1)
    arrivals["seen_extra"] = sizes.poisson(arrivals["sig"] * count)
    arrivals["seen_sizes"] = count
