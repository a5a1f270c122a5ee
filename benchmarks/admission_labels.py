"""Utilisation at the promise when a cluster goes by what the labels of deployments were like, against without labels.

The worlds. Each seed draws `--labels` labels: mu, lam and sig of each from the laws of preset K. A deployment is of a
label, drawn with Zipf's weights; its own mu, lam and sig are those of the label times Gamma(4, 4) factors, mean 1. A
label belongs to one of ten owners, who have nothing in common. The history is one year in which everybody gets what he
asks for; the run after it draws other deployments of the same labels. The laws are learnt from the history as an agent
does (`domain.rules.admission.labels`: ends in their order, faded, and those that still run), and stay as they are
during the run; an agent would go on learning.

The arms, all under `second:KAPPA`, each with the least kappa of a grid that keeps the promise on the seeds for tuning:
`population` judges by preset K; `pooled` by one law, learnt from the whole history as if all had the same name, which
is what can be known without names; `labels` by label within owner; `shuffled` the same after the names were dealt out
at random, where they say nothing; with `--bound`, `known` by the true law of the label, which bounds what can be
gained. Figures are from seeds that took no part in the tuning, paired: `gain_*` are differences of utilisation in
points, with 95 % intervals over seeds (bootstrap). `failed_*` is the mean over months of the share of refused
scale-outs, which is to be 1e-3 at most. Few seeds carry most failures, so that an arm tuned on few seeds may miss the
promise on others: read the gain together with `failed_*` of both arms.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import arguments, progress, report
from domain.rules.admission.labels import gathered, law_of, law_within
from domain.rules.admission.names import HALF_LIFE_DAYS, Tally
from domain.rules.admission.population import Population
from domain.units import HOUR_S, HOURS_PER_DAY, HOURS_PER_YEAR
from simulator.admission import PRESETS, Cluster, Run, draw_run, play, rule_of
from simulator.admission.engine import ADMITTED, CORE_ENDED, SCALE_REFUSED, SCALED, SHUT_DOWN

ARMS = ("population", "pooled", "labels", "shuffled")
KAPPAS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0)
OWNERS = 10
WITHIN = 4.0
"""Shape of the factors between deployments of one label."""
MOST_EVENTS = 6_000_000
RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class World:
    """The run that is judged, its arrivals' labels, and the laws of each arm by label."""

    run: Run
    label: NDArray[np.int64]
    laws: dict[str, tuple[Population, ...]]


def labelled(
    cluster: Cluster, seed: int, part: int, kinds: NDArray[np.float64], hours: float
) -> tuple[Run, NDArray[np.int64]]:
    """Return arrivals of these labels, (3, L): mu, lam and sig, and the label of each."""
    run = draw_run(cluster, 2 * seed + part, hours=hours)
    dice = np.random.Generator(np.random.PCG64([seed, part, 7]))
    arrivals, count = run.arrivals.copy(), len(run.arrivals)
    share = 1.0 / np.arange(1, kinds.shape[1] + 1)
    label = dice.choice(kinds.shape[1], count, p=share / share.sum())
    mu, lam, sig = kinds[:, label] * dice.gamma(WITHIN, 1.0 / WITHIN, (3, count))
    arrivals["mu"], arrivals["lam"], arrivals["sig"] = mu, lam, sig
    arrivals["theta"] = lam * mu**cluster.population.power
    arrivals["size"] = 1 + dice.poisson(sig)
    return replace(run, arrivals=arrivals), label


def histories_of(run: Run) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (7, N), what `History` holds of each deployment by the end of a run without a limit, and when it ended."""
    endless = replace(run, cluster=replace(run.cluster, capacity=10_000_000))
    log = play(endless, rule_of("zeroth:1e9"), log=MOST_EVENTS).log
    if len(log) == MOST_EVENTS:
        raise RuntimeError(f"the history has more than {MOST_EVENTS} events: give fewer arrivals")
    count, whose, kind, cores, at = len(run.arrivals), log["deployment"], log["kind"], log["cores"], log["time"]

    def summed(which: NDArray[np.bool_], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(whose[which], weight[which], count).astype(np.float64)

    one = np.ones(len(log))
    asked = (kind == SCALED) | (kind == SCALE_REFUSED)
    change = np.select(
        [(kind == ADMITTED) | (kind == SCALED), kind == CORE_ENDED, kind == SHUT_DOWN], [cores, -one, -cores]
    )
    left = summed(change != 0.0, change)
    ended_at = np.zeros(count)
    np.maximum.at(ended_at, whose, at)
    last = np.where(left > 0.5, run.hours, ended_at)
    came = run.arrivals["time"]
    size = run.arrivals["size"].astype(np.float64)
    rows = np.array(
        [
            summed(kind == CORE_ENDED, one),
            summed(change != 0.0, change * (run.hours - at)),
            summed(asked, one),
            last - came,
            summed(asked, cores - one) + size - 1.0,
            summed(asked, one) + 1.0,
            summed(kind == SHUT_DOWN, one),
        ]
    )
    return rows, last


def learnt(
    population: Population,
    parts: NDArray[np.float64],
    last: NDArray[np.float64],
    label: NDArray[np.int64],
    labels: int,
    hours: float,
) -> tuple[Population, ...]:
    """Return the law of each label after a history, learnt as an agent does.

    parts: (9, N), what `gathered` says of each deployment. Those that still run have `last` at the end: nothing fades.
    """
    counts = parts * 0.5 ** ((hours - last) / (HALF_LIFE_DAYS * HOURS_PER_DAY))

    def tally(which: NDArray[np.bool_]) -> Tally:
        sums = counts[:, which].sum(axis=1)
        return Tally(hours * HOUR_S, float(which.sum()), tuple(float(part) for part in sums), population.power)

    owners = [tally(label % OWNERS == owner) for owner in range(OWNERS)]
    return tuple(law_of(population, owners[n % OWNERS], tally(label == n)) for n in range(labels))


def world_of(cluster: Cluster, seed: int, labels: int, hours: float) -> World:
    """Draw a world and learn its history."""
    law = cluster.population
    dice = np.random.Generator(np.random.PCG64([seed, 3]))
    kinds = np.array(
        [
            dice.gamma(shape, 1.0 / rate, labels)
            for shape, rate in (
                (law.mu_shape, law.mu_rate),
                (law.lam_shape, law.lam_rate),
                (law.sig_shape, law.sig_rate),
            )
        ]
    )
    kinds = np.maximum(kinds, 1e-9)
    past, past_label = labelled(cluster, seed, 0, kinds, hours)
    run, label = labelled(cluster, seed, 1, kinds, hours)
    rows, last = histories_of(past)
    parts = gathered(law, rows)
    whole = Tally(0.0, float(rows.shape[1]), tuple(float(part) for part in parts.sum(axis=1)), law.power)
    shuffled = dice.permutation(past_label)
    pairs = [part for kind in kinds for part in (np.full(labels, WITHIN), WITHIN / kind)]
    numbers = np.array([*pairs, np.full(labels, law.power), np.full(labels, law.lifetimes)]).T.tolist()
    true = tuple(Population(*row) for row in numbers)
    laws = {
        "population": (law,) * labels,
        "pooled": (law_within(law, whole, 0.5),) * labels,
        "labels": learnt(law, parts, last, past_label, labels, past.hours),
        "shuffled": learnt(law, parts, last, shuffled, labels, past.hours),
        "known": true,
    }
    return World(run, np.array([label, dice.permutation(label)]), laws)


def outcome(world: World, arm: str, kappa: float) -> tuple[float, float]:
    """Return utilisation and the share of refused scale-outs of an arm."""
    arrivals = world.run.arrivals.copy()
    arrivals["law"] = 1 + world.label[int(arm == "shuffled")]
    played = play(replace(world.run, arrivals=arrivals, laws=world.laws[arm]), rule_of(f"second:{kappa:g}"))
    return played.utilisation, played.sla_metric


def interval(values: NDArray[np.float64], dice: np.random.Generator) -> tuple[float, float, float]:
    """Return mean and 95 % percentile interval over seeds."""
    means = values[dice.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--labels", type=int, default=60, help="labels of a world (default 60)")
    parser.add_argument("--tuning", type=int, default=12, help="seeds on which kappa is chosen (default 12)")
    parser.add_argument("--seeds", type=int, default=30, help="held-out seeds (default 30)")
    parser.add_argument("--capacity", type=int, default=2000, help="cores of the cluster (default 2000)")
    parser.add_argument("--rate", type=float, default=0.2, help="arrivals per hour (default 0.2)")
    parser.add_argument(
        "--hours", type=float, default=HOURS_PER_YEAR, help="length of history and run (default a year)"
    )
    parser.add_argument("--directory", help="ignored: this benchmark writes nothing")
    parser.add_argument("--bound", action="store_true", help="measure the true laws too, for minutes more")
    given = parser.parse_args()
    cluster = replace(PRESETS["K"], capacity=given.capacity, arrival_rate=given.rate)
    began = time.process_time()
    worlds = []
    for seed in range(given.tuning + given.seeds):
        worlds.append(world_of(cluster, seed, given.labels, given.hours))
        progress(f"world {seed + 1} of {given.tuning + given.seeds}, {time.process_time() - began:.0f} s")
    figures: dict[str, float] = {}
    fronts: dict[str, Any] = {}
    found: dict[str, NDArray[np.float64]] = {}
    arms = (*ARMS, "known") if given.bound else ARMS
    for arm in arms:
        front = {}
        for kappa in KAPPAS:
            front[kappa] = np.array([outcome(world, arm, kappa) for world in worlds[: given.tuning]]).mean(axis=0)
            if front[kappa][1] <= cluster.sla:
                break
        fronts[arm] = {f"{kappa:g}": [float(part) for part in pair] for kappa, pair in front.items()}
        kappa = next((kappa for kappa, pair in front.items() if pair[1] <= cluster.sla), KAPPAS[-1])
        found[arm] = np.array([outcome(world, arm, kappa) for world in worlds[given.tuning :]])
        figures |= {f"kappa_{arm}": kappa}
        figures |= {
            f"utilisation_{arm}": float(found[arm][:, 0].mean()),
            f"failed_{arm}": float(found[arm][:, 1].mean()),
        }
        progress(f"{arm}: kappa {kappa}, {time.process_time() - began:.0f} s")
    dice = np.random.Generator(np.random.PCG64(11))
    pairs = [("labels", "pooled"), ("labels", "population"), ("shuffled", "pooled"), ("shuffled", "population")]
    for one, other in [*pairs, ("known", "pooled")] if given.bound else pairs:
        points = 100.0 * (found[one][:, 0] - found[other][:, 0])
        name = f"gain_{one}_over_{other}"
        figures[name], figures[f"{name}_low"], figures[f"{name}_high"] = interval(points, dice)
    figures["cpu_s"] = time.process_time() - began
    notes = {name: getattr(given, name) for name in ("labels", "tuning", "seeds", "capacity", "rate", "hours")} | {
        "fronts": fronts
    }
    return report("admission_labels", figures, as_json=given.json, packages=("numba", "numpy"), notes=notes)


if __name__ == "__main__":
    sys.exit(main())
