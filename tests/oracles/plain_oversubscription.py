"""A week of the oversubscription simulator in plain Python: the oracle of the compiled one.

Every request scans all machines and every machine's usage is summed over its VMs; only the random numbers are shared.
`benchmarks.oversubscription` measures the compiled simulator against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from domain.rules.oversubscription.usage import clipped_moments
from simulator.oversubscription.layout import Floats
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import Keys, UsageModel, keys_of, normal

_NORMAL = NormalDist()


@dataclass
class PlainWeek:
    """What became of a week: by hour the machines' usage and chance to be hot, and where VMs went."""

    machine: list[int]
    free: list[float]
    usage: list[list[float]] = field(default_factory=list)
    chance: list[list[float]] = field(default_factory=list)
    saved: float = 0.0
    rejects: int = 0
    peak: int = 0


def play_plainly(
    scenario: Scenario, week: Week, rates: Floats, model: UsageModel, seed: int, start: str = "cold"
) -> PlainWeek:
    """Play a week at rates by hour and subscriber, (hours, N); usage is drawn as the models `gauss` and its kin do."""
    count, machines = len(week.ids), scenario.machines
    free = [scenario.machine_cores] * machines
    memory, network = [scenario.machine_memory_gb] * machines, [scenario.machine_network_gbps] * machines
    inside: list[list[int]] = [[] for _ in range(machines)]
    played = PlainWeek([-1] * count, free)
    given = [scenario.prefill_rate] * count
    keys = keys_of(model.usage, np.uint64(seed), scenario.hours)

    def arrive(row: int) -> bool:
        need = given[row] * week.cores[row]
        best = -1
        for k in range(machines):
            fits = free[k] >= need - 1e-9 and memory[k] >= week.memory_gb[row] and network[k] >= week.network_gbps[row]
            if fits and (best < 0 or free[k] < free[best] - 1e-9):
                best = k
        if best < 0:
            played.rejects += 1
            return False
        played.machine[row] = best
        free[best] -= need
        memory[best] -= week.memory_gb[row]
        network[best] -= week.network_gbps[row]
        inside[best].append(row)
        played.peak = max(played.peak, sum(map(bool, inside)))
        return True

    for row in range(week.warm if start == "warm" else 0):
        arrive(row)
    for t in range(scenario.hours):
        for k, rows in enumerate(inside):
            for row in [row for row in rows if week.departure[row] == t]:
                rows.remove(row)
                free[k] += given[row] * week.cores[row]
                memory[k] += week.memory_gb[row]
                network[k] += week.network_gbps[row]
        for row in range(week.warm, count):
            if week.arrival[row] == t:
                given[row] = float(rates[t, week.subscriber[row]])
                if arrive(row):
                    played.saved += (1.0 - given[row]) * week.cores[row]
        drawn = [sum(_use(scenario, week, model, keys, row, t) * week.cores[row] for row in rows) for rows in inside]
        played.usage.append(drawn)
        played.chance.append([_chance(scenario, week, rows, t) for rows in inside])
    return played


def _use(scenario: Scenario, week: Week, model: UsageModel, keys: Keys, row: int, t: int) -> float:
    n, usage = int(week.subscriber[row]), model.usage
    e = usage.own * normal(np.uint64(keys.noise), np.uint64(row * 65536 + t))
    if usage.offset:
        e += usage.offset * normal(np.uint64(keys.offset), np.uint64(row))
    if usage.shared:
        e += usage.shared * keys.shared[n, t]
    return float(min(max(scenario.mu[n, t % 24] + scenario.sd[n, t % 24] * e, 0.0), 1.0))


def _chance(scenario: Scenario, week: Week, rows: list[int], t: int) -> float:
    """Return a machine's chance to be hot: the normal tail corrected for skewness, summed VM by VM."""
    if not rows:
        return 0.0
    mean = variance = third = 0.0
    for row in rows:
        n, c = week.subscriber[row], float(week.cores[row])
        moments = clipped_moments(float(scenario.mu[n, t % 24]), float(scenario.sd[n, t % 24]))
        mean += c * moments[0]
        variance += c**2 * moments[1]
        third += c**3 * moments[2]
    sigma = variance**0.5
    z = (scenario.threshold - mean) / sigma
    tail: float = _NORMAL.cdf(-z) + third / sigma**3 / 6.0 * (z * z - 1.0) * _NORMAL.pdf(z)
    return min(max(float(tail), 0.0), 1.0)
