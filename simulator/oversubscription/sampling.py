"""Evaluation episodes of a week that was placed once: only the usage is drawn anew (specification §3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.rules.oversubscription.verdict import clopper_pearson_upper
from simulator.oversubscription.compiled import compiled
from simulator.oversubscription.layout import Floats, Ints
from simulator.oversubscription.usage import Usage, UsageModel, add_usage, keys_of, offset_of
from simulator.oversubscription.weekly import Placement


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What so many episodes brought."""

    limit: int
    """So many hot hours break the promise."""
    hot_hours: Ints
    """Hours with a hot machine, by episode."""
    machine_violations: Ints
    """Episodes in which each machine broke the promise, (machines,)."""
    hot_machine_hours: Ints
    """Hot hours of all machines together, by episode."""
    excess: Floats
    """Sum over those of usage / threshold - 1, by episode."""

    @property
    def episodes(self) -> int:
        """How many episodes there were."""
        return len(self.hot_hours)

    @property
    def violations(self) -> int:
        """Episodes in which the cluster broke the promise."""
        return int((self.hot_hours >= self.limit).sum())

    @property
    def c_hot_r(self) -> float:
        """Share of the episodes in which the cluster broke the promise."""
        return self.violations / self.episodes

    @property
    def pm_hot_r(self) -> float:
        """Share of the episodes in which the worst machine broke it."""
        return float(self.machine_violations.max(initial=0)) / self.episodes

    @property
    def c_hot_r_upper(self) -> float:
        """One-sided 95 % bound on the cluster's chance, by Clopper and Pearson."""
        return clopper_pearson_upper(self.violations, self.episodes)

    @property
    def severity(self) -> float:
        """Mean of usage / threshold - 1 over hot machine-hours; 0 without any."""
        hours = int(self.hot_machine_hours.sum())
        return float(self.excess.sum()) / hours if hours else 0.0


@compiled
def _episodes(
    machine: Ints,
    subscriber: Ints,
    cores: Floats,
    arrival: Ints,
    departure: Ints,
    usage: Usage,
    seeds: NDArray[np.uint64],
    hours: int,
    opened: int,
    threshold: float,
    limit: int,
    hot_hours: Ints,
    machine_violations: Ints,
    hot_machine_hours: Ints,
    excess: Floats,
) -> None:
    used = np.zeros((opened, hours))
    hot_by_hour = np.zeros(hours, np.bool_)
    for e in range(len(seeds)):
        keys = keys_of(usage, seeds[e], hours)
        used[:] = 0.0
        for row in range(len(machine)):
            k = machine[row]
            if k < 0:
                continue
            n, c = subscriber[row], cores[row]
            offset = offset_of(usage, keys, row)
            stay = (max(arrival[row], 0), min(departure[row], hours))
            add_usage(usage, keys, row, n, stay, offset, c, used[k])
        hot_by_hour[:] = False
        for k in range(opened):
            count = 0
            for t in range(hours):
                if used[k, t] >= threshold:
                    count += 1
                    hot_by_hour[t] = True
                    excess[e] += used[k, t] / threshold - 1.0
            hot_machine_hours[e] += count
            machine_violations[k] += count >= limit
        hot_hours[e] = hot_by_hour.sum()


def sample(placement: Placement, model: UsageModel, seeds: NDArray[np.integer]) -> Sampled:
    """Return what the episodes with these seeds bring; the same placement and seeds give the same answer."""
    scenario, week, count = placement.scenario, placement.week, len(seeds)
    sampled = Sampled(
        scenario.violation_hours,
        np.zeros(count, np.int64),
        np.zeros(max(placement.opened, 1), np.int64),
        np.zeros(count, np.int64),
        np.zeros(count),
    )
    _episodes(
        placement.machine,
        week.subscriber,
        week.cores,
        week.arrival,
        week.departure,
        model.usage,
        np.asarray(seeds).astype(np.uint64),
        scenario.hours,
        placement.opened,
        scenario.threshold,
        scenario.violation_hours,
        sampled.hot_hours,
        sampled.machine_violations,
        sampled.hot_machine_hours,
        sampled.excess,
    )
    return sampled
