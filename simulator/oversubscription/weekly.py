"""A whole week placed once: the chance of every machine and hour to be hot (§12.1), and episodes drawn anew (§3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.oversubscription import risk
from domain.rules.oversubscription.request_rule import RequestRule
from domain.rules.oversubscription.risk import clopper_pearson_upper
from domain.rules.oversubscription.usage import Moments, moments_of
from simulator.compilation import compiled
from simulator.oversubscription.engine import assess_hour, clear, depart, one, place, prefill
from simulator.oversubscription.layout import (
    Cluster,
    Copies,
    Floats,
    Guard,
    Ints,
    Tables,
    Weeks,
    cluster_layout,
    empty_copies,
    ruled,
    stack,
    unguarded,
)
from simulator.oversubscription.scenario import STARTS, Scenario, Week
from simulator.oversubscription.usage import Stays, Usage, UsageModel, add_usage, keys_of
from simulator.oversubscription.vm_days import DayShape, any_hot, correlated_risk

count_at_least = compiled(risk.count_at_least)


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The machine and the rate of every VM in a policy's week."""

    scenario: Scenario
    week: Week
    machine: Ints
    """By row of the week; negative where the VM was left out or rejected."""
    rate: Floats
    opened: int
    """Machines that ever had a VM come before this index."""
    peak_machines: int
    """The most machines with VMs at once."""
    rejects: int
    raised: int = 0
    """Requests whose rate a guard raised, and below those for which it found no safe machine."""
    unsafe: int = 0

    @property
    def s_cores(self) -> float | None:
        """Share of the requested cores that was not reserved; rejected requests count as reserved (§3).

        None without any requested core.
        """
        return self._saved(np.ones(self.week.requests))

    @property
    def s_core_hours(self) -> float | None:
        """The same weighted by the hours each VM is there within the week."""
        end = np.minimum(self.week.departure, self.scenario.hours)[self.week.warm :]
        return self._saved((end - self.week.arrival[self.week.warm :]).astype(np.float64))

    @property
    def machine_hours(self) -> int:
        """Hours of the week that machines have a VM, over all machines."""
        hours, there = self.scenario.hours, self.machine >= 0
        row = self.machine[there] * (hours + 1)
        first, end = np.maximum(self.week.arrival, 0)[there], np.minimum(self.week.departure, hours)[there]
        size = self.opened * (hours + 1)
        changes = np.bincount(row + first, minlength=size) - np.bincount(row + end, minlength=size)
        vms = np.cumsum(changes.reshape(-1, hours + 1), axis=1)
        return int((vms > 0).sum())

    @property
    def machines_in_use(self) -> float:
        """Machines with a VM, mean of the hours."""
        return self.machine_hours / self.scenario.hours

    def _saved(self, weights: Floats) -> float | None:
        asked = slice(self.week.warm, None)
        cores = self.week.cores[asked] * weights
        rates = np.where(self.machine[asked] >= 0, self.rate[asked], 1.0)
        total = float(cores.sum())
        return 1.0 - float((rates * cores).sum()) / total if total > 0.0 else None


@dataclass(frozen=True, slots=True, eq=False)
class Risk:
    """The probability that a week's machines run hot, without sampling."""

    placement: Placement
    by_hour: Floats
    """Chance of any hot machine, (hours,)."""
    by_machine: Floats
    """Chance of each machine in each hour, (hours, opened machines)."""
    c_hot_r: float
    """Chance that so many hours as break the promise have a hot machine."""

    @property
    def pm_hot_r(self) -> float:
        """The same for the worst single machine."""
        limit = self.placement.scenario.violation_hours
        columns = np.ascontiguousarray(self.by_machine.T)
        return max((float(count_at_least(column, limit)) for column in columns if column.any()), default=0.0)

    @property
    def expected_hot_hours(self) -> float:
        """Expected hours of the week with a hot machine."""
        return float(self.by_hour.sum())


@compiled
def _play(
    copies: Copies,
    weeks: Weeks,
    cluster: Cluster,
    guard: Guard,
    tables: Tables,
    warm: bool,
    rates: Floats,
    by_hour: Floats,
    by_machine: Floats,
    keep: bool,
    changed: Tables,
    change_h: int,
) -> float:
    """Play one week at the rates of each hour (hours, N) and return the chance that the promise is broken.

    changed: moments that usage has from an hour on, unknown to rates, guard and rule.
    """
    state = one(copies, 0)
    clear(state, cluster, 0, np.uint64(0))
    books = state.books[0]
    if warm:
        prefill(state, weeks, cluster, guard, tables)
    for t in range(by_hour.shape[0]):
        books.hour = t
        depart(state, weeks, cluster, guard, tables)
        place(state, weeks, cluster, guard, tables, rates[t])
        by_hour[t] = assess_hour(state, cluster, tables if t < change_h else changed)
        if keep:
            by_machine[t, : books.opened] = state.chance[: books.opened]
    return count_at_least(by_hour, cluster.violation_hours)


@dataclass(slots=True, eq=False)
class Assessor:
    """Assesses rates on one week again and again, in the same memory."""

    scenario: Scenario
    week: Week
    start: str = "cold"
    moments: Moments | None = None
    rho: float = 0.0
    guard: Guard | None = None
    shape: DayShape | None = None
    """Of VM-days that are drawn whole: then their hours are not independent."""
    changed: tuple[Tables, int] | None = None
    """Usage from an hour of the week on, unknown to rates, guard and rule; None: it does not change."""
    weeks: Weeks = field(init=False)
    cluster: Cluster = field(init=False)
    tables: Tables = field(init=False)
    copies: Copies = field(init=False)
    _by_hour: Floats = field(init=False)

    def __post_init__(self) -> None:
        check_start(self.start)
        scenario = self.scenario
        self.guard = unguarded(scenario) if self.guard is None else self.guard
        if self.guard.posterior:
            raise BadInput("guard", "posterior", "beliefs come from usage: sample whole episodes instead")
        moments = moments_of(scenario.mu, scenario.sd) if self.moments is None else self.moments
        self.weeks, self.cluster = stack(scenario, [self.week]), cluster_layout(scenario)
        self.tables = Tables(*moments, self.rho)
        vms = self.weeks.cores.shape[1]
        self.copies = empty_copies(1, scenario.subscribers, vms, self.cluster, self.guard)
        self._by_hour = np.zeros(scenario.hours)

    def c_hot_r(self, rates: Floats) -> float:
        """Return the chance that the promise is broken at rates (N,) by subscriber, or (hours, N)."""
        return self._run(rates, self._by_hour, np.zeros((0, 0)))

    def markov(self) -> float:
        """Return Markov's bound on the chance that `c_hot_r` last returned: expected hot hours over those too many."""
        return float(self._by_hour.sum()) / self.scenario.violation_hours

    def rejects(self) -> int:
        """Return the rejected VMs of the last run."""
        return int(self.copies.books["rejects"][0])

    def follow(self, rule: RequestRule) -> None:
        """Set the rate of each request by another rule from now on; BadInput where none did, nor a guard."""
        guard = self.guard
        if guard is None or not guard.watched:
            raise BadInput("guard", "none", "begin with a guard or a rule: without one there are no moments")
        self.guard = ruled(guard, rule, self.scenario.hours)

    def placement(self) -> Placement:
        """Return where the last run put the VMs."""
        return placement_of(self.scenario, self.week, self.copies, 0)

    def assess(self, rates: Floats) -> Risk:
        """Return placement and risk at rates (N,) or (hours, N)."""
        by_hour = np.zeros(self.scenario.hours)
        by_machine = np.zeros((self.scenario.hours, self.scenario.machines))
        c_hot_r = self._run(rates, by_hour, by_machine)
        placed = self.placement()
        return Risk(placed, by_hour, np.ascontiguousarray(by_machine[:, : placed.opened]), c_hot_r)

    def _run(self, rates: Floats, by_hour: Floats, by_machine: Floats) -> float:
        hours, subscribers = self.scenario.hours, self.scenario.subscribers
        given = np.ascontiguousarray(np.broadcast_to(np.asarray(rates, dtype=np.float64), (hours, subscribers)))
        if not np.all((given > 0.0) & (given <= 1.0)):
            raise BadInput("rates", given.min(axis=0).tolist(), "give rates above 0 and up to 1")
        guard, warm, keep = self.guard, self.start == "warm", by_machine.size > 0
        assert guard is not None
        args = (self.copies, self.weeks, self.cluster, guard, self.tables, warm, given, by_hour, by_machine, keep)
        changed, change_h = (self.tables, hours) if self.changed is None else self.changed
        chance = float(_play(*args, changed, change_h))
        return chance if self.shape is None else self._correlated(self.shape, by_hour, by_machine)

    def _correlated(self, shape: DayShape, by_hour: Floats, by_machine: Floats) -> float:
        week, books = self.week, self.copies.books[0]
        found = np.zeros((self.scenario.hours, int(books["opened"])))
        vms = (week.subscriber, week.cores, week.arrival, week.departure)
        machine, limit = self.copies.machine[0, : len(week.ids)].astype(np.int64), self.scenario.violation_hours
        chance = correlated_risk(machine, vms, shape, self.scenario.threshold, limit, found)
        by_hour[:] = [any_hot(row) for row in found]
        if by_machine.size:
            by_machine[:, : found.shape[1]] = found
        return chance


def check_start(start: str) -> None:
    """Raise BadInput unless the start is cold or warm."""
    if start not in STARTS:
        raise BadInput("start", start, "choose cold or warm")


def placement_of(scenario: Scenario, week: Week, copies: Copies, i: int) -> Placement:
    """Return where a copy's week put its VMs so far."""
    books, count = copies.books[i], len(week.ids)
    return Placement(
        scenario,
        week,
        copies.machine[i, :count].astype(np.int64),
        copies.rate[i, :count].copy(),
        *(int(books[name]) for name in ("opened", "peak", "rejects", "raised", "unsafe")),
    )


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeResults:
    """The results of a number of episodes."""

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

    @classmethod
    def joined(cls, parts: Sequence[EpisodeResults]) -> EpisodeResults:
        """Return the results of some episodes followed by those of others; at least one part."""
        violations = np.zeros(max(len(part.machine_violations) for part in parts), np.int64)
        for part in parts:
            violations[: len(part.machine_violations)] += part.machine_violations
        hot_hours, hot_machine_hours, excess = (
            np.concatenate([getattr(part, column) for part in parts])
            for column in ("hot_hours", "hot_machine_hours", "excess")
        )
        return cls(parts[0].limit, hot_hours, violations, hot_machine_hours, excess)

    @property
    def episodes(self) -> int:
        """The number of episodes."""
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
    stays: Stays,
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
        used[:] = 0.0
        add_usage(usage, keys_of(usage, seeds[e], hours), stays, 0, used)
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


def sample(placement: Placement, model: UsageModel, seeds: NDArray[np.integer]) -> EpisodeResults:
    """Return what the episodes with these seeds bring; the same placement and seeds give the same answer."""
    scenario, week, count = placement.scenario, placement.week, len(seeds)
    sampled = EpisodeResults(
        scenario.violation_hours,
        np.zeros(count, np.int64),
        np.zeros(max(placement.opened, 1), np.int64),
        np.zeros(count, np.int64),
        np.zeros(count),
    )
    rows, first = np.arange(len(week.ids)), np.maximum(week.arrival, 0)
    end = np.minimum(week.departure, scenario.hours)
    _episodes(
        Stays(rows, week.subscriber, week.cores, first, end, placement.machine),
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
