"""How likely a pool as it stands breaks its promise, which machines would be the first, and by whom (§12.1, §13)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent.oversubscription.arrays import Floats, hot_probabilities
from agent.oversubscription.loads import Loads
from agent.oversubscription.memory import Counts
from agent.oversubscription.profiles import Profiles
from agent.oversubscription.records import MachineRisk, PoolRisk
from agent.oversubscription.rules import PoolRules
from domain.rules.oversubscription.risk import count_at_least

SHOWN: Final = 10
TWO_SIDED_95: Final = 1.96
WARNING_PROBABILITY: Final = 0.2


@dataclass(frozen=True, slots=True)
class Assessed:
    """The pool's risk; each subscriber's part of it, in the order of the profiles; and what the next hour may bring.

    next_hot: chance that any machine is hot in the next hour. likely: machines, with their chance, that are hot in the
    next hour more likely than the warning allows.
    """

    risk: PoolRisk
    by_subscriber: Floats
    next_hot: float
    likely: tuple[tuple[str, float], ...]


def assess(
    loads: Loads,
    profiles: Profiles,
    rules: PoolRules,
    counts: Counts,
    hours_of_day: Sequence[int],
    hot_hours_seen: int,
    closed: Collection[str],
    multiplier: float | None,
) -> Assessed:
    """Return the risk of the hours whose hours of the day these are; the first is the next one."""
    used = slice(0, loads.used)
    mean, variance, third = loads.mean[used], loads.variance[used], loads.third[used]
    probability = hot_probabilities(mean, variance, third, rules.threshold_cores)
    open_left = TWO_SIDED_95 * loads.by_owner[used] @ profiles.error
    low = hot_probabilities(mean - open_left, variance, third, rules.threshold_cores)
    high = hot_probabilities(mean + open_left, variance, third, rules.threshold_cores)
    hours = np.asarray(hours_of_day, dtype=np.int64)
    any_one = _any_hot(probability)
    by_machine = probability.sum(axis=1)
    order = np.argsort(-by_machine, kind="stable")[:SHOWN].tolist()
    peaks = probability.argmax(axis=1)
    now = probability[:, hours[0]]
    total = mean.sum(axis=1)
    weights = np.divide(by_machine, total, out=np.zeros_like(total), where=total > 0.0)
    return Assessed(
        risk=PoolRisk(
            violation=count_at_least(any_one[hours], rules.violation),
            violation_low=count_at_least(_any_hot(low)[hours], rules.violation),
            violation_high=count_at_least(_any_hot(high)[hours], rules.violation),
            expected_hot_hours=float(any_one[hours].sum()),
            hot_hours_seen=hot_hours_seen,
            riskiest=tuple(
                MachineRisk(
                    machine=loads.names[k],
                    peak_hour=int(peaks[k]),
                    peak_probability=float(probability[k, peaks[k]]),
                    hot_hours=float(by_machine[k]),
                    cores_in_use=float(mean[k, hours[0]]),
                    closed=loads.names[k] in closed,
                )
                for k in order
            ),
            machines_used=loads.used,
            peak_machines=max(counts.peak_machines, loads.used),
            machines_without=_machines_without(loads, rules),
            saved_share=counts.saved_cores / counts.requested_cores if counts.requested_cores > 0.0 else None,
            multiplier=multiplier,
        ),
        by_subscriber=weights @ loads.by_owner[used] * profiles.mean.sum(axis=1),
        next_hot=float(any_one[hours[0]]),
        likely=tuple((loads.names[k], float(now[k])) for k in np.flatnonzero(now > WARNING_PROBABILITY).tolist()),
    )


def _any_hot(probability: Floats) -> Floats:
    """Return by hour of the day the chance that at least one machine is hot, as `risk.any_hot` does."""
    with np.errstate(divide="ignore"):
        found: Floats = -np.expm1(np.log1p(-probability).sum(axis=0))
    return found


def _machines_without(loads: Loads, rules: PoolRules) -> int:
    memory = rules.machine_memory_gb * len(loads.names) - float(loads.free_memory.sum())
    network = rules.machine_network_gbit * len(loads.names) - float(loads.free_network.sum())
    needed = (
        float(loads.requested.sum()) / rules.machine_cores,
        memory / rules.machine_memory_gb,
        network / rules.machine_network_gbit,
    )
    return math.ceil(max(needed) - 1e-9)
