"""A week placed by the predicted peak of each machine: it takes a VM while peak + request <= threshold.

Best fit by free capacity, the threshold less the peak; memory and network limit as they do elsewhere. An unused
machine takes any VM. The usage of an hour is known when the hour is over, so VMs that came in this hour count with
their request. The rate of a VM is the mean over its hours of peak / (beta x requested cores) of its machine: a rate
reserves a share of a machine's cores, a peak a share of its threshold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription import peaks, shield
from domain.rules.oversubscription.peaks import PeakPredictor
from domain.units import HOURS_PER_DAY
from simulator.compilation import compiled, inlined
from simulator.oversubscription.layout import NOWHERE, REJECTED, Cluster, Floats, Ints, cluster_layout
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import Stays, Usage, UsageModel, add_usage, keys_of
from simulator.oversubscription.weekly import Placement

write_room = inlined(shield.write_room, fast=True)
best_fit = inlined(shield.best_fit, fast=True)
n_sigma_ratio = compiled(peaks.n_sigma_ratio)
percentile_of = compiled(peaks.percentile_of)


@compiled
def _drawn(usage: Usage, seed: np.uint64, stays: Stays, hours: int) -> Floats:
    """Return the cores in use of each VM and hour, (VMs, hours)."""
    used = np.zeros((stays.row.size, hours))
    add_usage(usage, keys_of(usage, seed, hours), stays, 0, used)
    return used


@compiled
def _foresee(used: Floats, rows: Ints, machine: Ints, end: Ints, t: int, ahead: Floats) -> None:
    """Add the usage to come of VMs to that of their machines, (machines, 24); after their end there is none."""
    for row in rows:
        for hour in range(min(ahead.shape[1], end[row] - t)):
            ahead[machine[row], hour] += used[row, t + hour]


@compiled
def _replace(rising: Floats, old: float, new: float) -> None:
    """Replace one of rising numbers by another."""
    at = np.searchsorted(rising, old)
    while at + 1 < rising.size and rising[at + 1] < new:
        rising[at] = rising[at + 1]
        at += 1
    while at > 0 and rising[at - 1] > new:
        rising[at] = rising[at - 1]
        at -= 1
    rising[at] = new


@compiled
def _predict(
    used: Floats,
    rising: Floats,
    cores: Floats,
    rows: Ints,
    machine: Ints,
    first: Ints,
    t: int,
    settings: tuple[float, float, int, int],
    peak: Floats,
) -> None:
    """Fill in the predicted peak of each machine from the usage of its VMs before hour t.

    rising: the usage in the window of the hour before in rising order, then inf, (VMs, window); it is brought up to t.
    """
    deviations, percentile, window, warmup = settings
    by_ratio, by_vm, warm = np.zeros((peak.size, window)), np.zeros(peak.size), np.zeros(peak.size)
    requested = np.zeros((peak.size, window))
    peak[:] = 0.0
    for row in rows:
        k, seen, c = machine[row], t - first[row], cores[row]
        if percentile >= 0.0:
            _replace(rising[row], used[row, t - 1 - window] if seen > window else np.inf, used[row, t - 1])
        if seen < warmup:
            peak[k] += c
            continue
        known = min(seen, window)
        warm[k] += c
        for lag in range(known if deviations >= 0.0 else 0):
            by_ratio[k, lag] += used[row, t - 1 - lag]
            requested[k, lag] += c
        if percentile >= 0.0:
            by_vm[k] += percentile_of(rising[row, :known], percentile)
    for k in range(peak.size):
        if warm[k] > 0.0:
            ratio = n_sigma_ratio(by_ratio[k], requested[k], deviations) if deviations >= 0.0 else 0.0
            peak[k] += max(ratio * warm[k], by_vm[k])


@compiled
def _place(
    columns: tuple[Floats, Floats, Floats],
    first: Ints,
    end: Ints,
    arriving: Ints,
    used: Floats,
    cluster: Cluster,
    settings: tuple[float, float, int, int],
    oracle: bool,
    machine: Ints,
    rate: Floats,
) -> tuple[int, int, int]:
    """Fill in machine and rate of each VM; return machines opened, the most at once, and rejected VMs."""
    cores, memory, network = columns
    free, asked = np.empty(cluster.machines), np.zeros(cluster.machines)
    free_memory, free_network = np.full(cluster.machines, cluster.memory), np.full(cluster.machines, cluster.network)
    room, peak = np.empty(cluster.machines), np.zeros(cluster.machines)
    ahead, rising = np.zeros((cluster.machines, HOURS_PER_DAY)), np.full((cores.size, settings[2]), np.inf)
    vms = np.zeros(cluster.machines, np.int64)
    alive, count, opened, used_now, most, rejects = np.empty(cores.size, np.int64), 0, 0, 0, 0, 0
    for t in range(used.shape[1]):
        staying = 0
        for i in range(count):
            row = alive[i]
            if end[row] > t:
                alive[staying] = row
                staying += 1
                continue
            k = machine[row]
            asked[k] -= cores[row]
            free_memory[k] += memory[row]
            free_network[k] += network[row]
            vms[k] -= 1
            if vms[k] == 0:
                used_now -= 1
                asked[k], free_memory[k], free_network[k] = 0.0, cluster.memory, cluster.network
        count = staying
        if oracle:
            ahead[:opened] = 0.0
            _foresee(used, alive[:count], machine, end, t, ahead)
            for k in range(opened):
                peak[k] = ahead[k].max()
        else:
            _predict(used, rising, cores, alive[:count], machine, first, t, settings, peak[:opened])
        for row in range(arriving[t], arriving[t + 1]):
            c, looked = cores[row], min(opened + 1, cluster.machines)
            for k in range(looked):
                free[k] = cluster.threshold - peak[k] if vms[k] > 0 else max(cluster.threshold, c)
            write_room(free, free_memory, free_network, c, memory[row], network[row], room[:looked])
            k = best_fit(room[:looked])
            if k < 0:
                rejects += 1
                machine[row] = REJECTED
                continue
            machine[row] = k
            asked[k] += c
            free_memory[k] -= memory[row]
            free_network[k] -= network[row]
            used_now += vms[k] == 0
            vms[k] += 1
            opened, most = max(opened, k + 1), max(most, used_now)
            alive[count] = row
            count += 1
            if oracle:
                _foresee(used, alive[count - 1 : count], machine, end, t, ahead)
                peak[k] = ahead[k].max()
            else:
                peak[k] += c
        for i in range(count):
            k = machine[alive[i]]
            rate[alive[i]] += peak[k] / asked[k] * (cluster.cores / cluster.threshold)
    for row in range(cores.size):
        if machine[row] >= 0:
            rate[row] /= end[row] - first[row]
    return opened, most, rejects


class PeakPlacer:
    """Places a week by the usage of an episode, for any number of episodes."""

    def __init__(self, scenario: Scenario, week: Week, start: str, predictor: PeakPredictor) -> None:
        """Take a week; BadInput for a warm start, where VMs would be on machines without any usage known."""
        if start != "cold":
            raise BadInput("start", start, "choose cold: a predictor needs the usage of each VM since it began")
        self.scenario, self.week, self.predictor = scenario, week, predictor
        hours, asked = scenario.hours, slice(week.warm, None)
        self._first = week.arrival[asked]
        self._end = np.minimum(week.departure[asked], hours)
        self._arriving = np.searchsorted(self._first, np.arange(hours + 1))
        self._columns = (week.cores[asked], week.memory_gb[asked], week.network_gbps[asked])
        rows = np.arange(week.warm, len(week.ids))
        self._stays = Stays(rows, week.subscriber[asked], week.cores[asked], self._first, self._end, rows - week.warm)

    def usage(self, model: UsageModel, seed: int) -> Floats:
        """Return the cores in use of each request's VM by hour in the seed's episode, (requests, hours)."""
        return _drawn(model.usage, np.uint64(seed), self._stays, self.scenario.hours)

    def placement(self, model: UsageModel, seed: int) -> Placement:
        """Return where the VMs go when the usage is that of the seed's episode."""
        week, one = self.week, self.predictor
        used = self.usage(model, seed)
        machine: NDArray[np.int64] = np.full(len(week.ids), NOWHERE, np.int64)
        rate = np.zeros(len(week.ids))
        settings = (
            -1.0 if one.deviations is None else one.deviations,
            -1.0 if one.percentile is None else one.percentile,
            one.window_h,
            one.warmup_h,
        )
        asked = slice(week.warm, None)
        opened, most, rejects = _place(
            *(self._columns, self._first, self._end, self._arriving, used, cluster_layout(self.scenario), settings),
            *(one.oracle, machine[asked], rate[asked]),
        )
        return Placement(self.scenario, week, machine, rate, opened, most, rejects)
