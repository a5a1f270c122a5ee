"""Many oversubscribed clusters side by side, each at its own week and seed, or one with the interface of §2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.observations import oversubscription
from domain.rules.oversubscription import usage
from simulator.compilation import compiled
from simulator.oversubscription.engine import assess_hour, clear, depart, one, place, prefill, use
from simulator.oversubscription.layout import (
    Cluster,
    Copies,
    Flags,
    Floats,
    Guard,
    Ints,
    State,
    Tables,
    Weeks,
    cluster_layout,
    empty_copies,
    stack,
    unguarded,
)
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import Usage, UsageModel, keys_of, usage_of
from simulator.oversubscription.weekly import Placement, check_start, placement_of

offset_belief = compiled(usage.offset_belief)
clipped_moments = compiled(usage.clipped_moments)


@compiled
def believed_profile(mu: float, sd: float, mean: float, variance: float, persistence: float) -> tuple[float, float]:
    """Return mu and sd of a VM's usage before clipping, given the belief on its offset.

    The share common to the owner stays part of the variance.
    """
    return mu + sd * mean, sd * np.sqrt(max(variance + 1.0 - persistence, 0.0))


@compiled
def _due(hours: int) -> bool:
    """Whether a belief is due for an update: at first every hour, then ever more rarely."""
    return hours <= 4 or hours == 6 or hours == 9 or hours == 13 or hours == 18 or (hours >= 24 and hours % 12 == 0)


@compiled
def take_in_beliefs(state: State, weeks: Weeks, guard: Guard) -> None:
    """Bring the moments that the VMs alive contribute to their machines up to what is believed of them."""
    books = state.books[0]
    for i in range(books.alive):
        row = state.alive[i]
        if not _due(state.seen[row]):
            continue
        n, c, k = weeks.subscriber[books.week, row], weeks.cores[books.week, row], state.machine[row]
        mean, variance = offset_belief(state.residual[row], state.seen[row], guard.persistence, guard.shared)
        for hour in range(24):
            mu, sd = believed_profile(guard.mu[n, hour], guard.sd[n, hour], mean, variance, guard.persistence)
            first, second, third = clipped_moments(mu, sd)
            new = (c * guard.factor * (first + guard.excess[n, hour]), c * c * second, c * c * c * third)
            for power in range(3):
                state.day[k, power, hour] += new[power] - state.own[row, power, hour]
                state.own[row, power, hour] = new[power]


OBSERVATIONS = ("obs-o", "obs-o-ext")
COSTS = ("analytic", "sampled", "both")
Vector = NDArray[np.float32]

observe_cluster = compiled(oversubscription.observe_cluster)
observe_extension = compiled(oversubscription.observe_extension)


@compiled
def _begin(
    copies: Copies,
    weeks: Weeks,
    cluster: Cluster,
    guard: Guard,
    tables: Tables,
    warm: bool,
    which: Flags,
    seeds: NDArray[np.uint64],
    week: Ints,
) -> None:
    """Make the chosen copies ready for hour 0 of their weeks."""
    for i in range(len(which)):
        if which[i]:
            state = one(copies, i)
            clear(state, cluster, week[i], seeds[i])
            if warm:
                prefill(state, weeks, cluster, guard, tables)
            depart(state, weeks, cluster, guard, tables)


@compiled
def _step(
    copies: Copies,
    weeks: Weeks,
    cluster: Cluster,
    guard: Guard,
    tables: Tables,
    usage: Usage,
    analytic: bool,
    sampled: bool,
    rates: Floats,
    reward: Floats,
    chance: Floats,
    hot: Flags,
) -> None:
    """Place an hour's requests, assess and draw the usage, and go on to the departures of the next hour."""
    hours = weeks.asked.shape[1]
    for i in range(len(reward)):
        state = one(copies, i)
        books = state.books[0]
        reward[i], chance[i], hot[i] = 0.0, 0.0, False
        if books.hour >= hours:
            continue
        reward[i] = place(state, weeks, cluster, guard, tables, rates[i]) / cluster.unit
        if analytic:
            chance[i] = assess_hour(state, cluster, tables)
        if sampled:
            hot[i] = use(state, weeks, cluster, guard, usage, keys_of(usage, books.seed, hours))
            if guard.posterior:
                take_in_beliefs(state, weeks, guard)
        books.hour += 1
        if books.hour < hours:
            depart(state, weeks, cluster, guard, tables)


@compiled
def _observe(
    copies: Copies,
    weeks: Weeks,
    cluster: Cluster,
    tables: Tables,
    extended: bool,
    sampled: bool,
    out: Vector,
    local: Vector,
    mask: Flags,
) -> None:
    """Fill in the observations of every copy; after the last hour there are no requests."""
    hours, subscribers = weeks.asked.shape[1], weeks.asked.shape[2]
    capacity = np.array([cluster.cores, cluster.memory, cluster.network]) * cluster.machines
    nothing = np.zeros((subscribers, 3))
    for i in range(out.shape[0]):
        state = one(copies, i)
        books = state.books[0]
        asked = weeks.asked[books.week, books.hour] if books.hour < hours else nothing
        observe_cluster(state.present, asked, books.hour % 24, capacity, out[i], local[i])
        for n in range(subscribers):
            mask[i, n] = asked[n, 0] > 0.0
        if extended:
            expected = books.expected_hot_hours
            assess_hour(state, cluster, tables)
            so_far = float(books.hot_hours) if sampled else expected
            books.expected_hot_hours = expected
            hottest = 0.0
            for k in range(books.opened):
                hottest = max(hottest, state.chance[k])
            observe_extension(
                state.vms_of,
                tables.mean,
                tables.variance,
                books.hour % 24,
                cluster.machines,
                hottest,
                books.used,
                so_far,
                cluster.violation_hours,
                out[i],
                local[i],
            )


class OversubscriptionBatch:
    """So many clusters of one scenario, stepped together (oversubscription specification §2).

    Arrays that `reset` and `step` return belong to the batch and are overwritten by the next step. An episode ends
    after the scenario's hours; a copy that is over stays over, with reward and cost 0, until it is reset.
    """

    def __init__(
        self,
        scenario: Scenario,
        weeks: Sequence[str | Week],
        copies: int,
        *,
        start: str = "cold",
        usage: str | UsageModel = "gauss",
        cost: str = "analytic",
        observation: str = "obs-o",
        guard: Guard | None = None,
    ) -> None:
        """Make the clusters; raises BadInput.

        usage: a text as `usage_of` takes it. cost: analytic (the chance of a hot machine), sampled (0 or 1), or both,
        where the cost is the sampled one. observation: obs-o as published or obs-o-ext.
        """
        check_start(start)
        if copies < 1 or not weeks:
            raise BadInput("copies", copies, "give at least one copy and one week")
        for name, value, known in (("cost", cost, COSTS), ("observation", observation, OBSERVATIONS)):
            if value not in known:
                raise BadInput(name, value, f"choose one of {', '.join(known)}")
        self.scenario, self.start, self.cost, self.observation = scenario, start, cost, observation
        self.weeks = tuple(scenario.week(week) if isinstance(week, str) else week for week in weeks)
        self.model = usage_of(usage, scenario, self.weeks[0]) if isinstance(usage, str) else usage
        self.guard = unguarded(scenario) if guard is None else guard
        if self.guard.posterior and cost == "analytic":
            raise BadInput("cost", cost, "choose sampled or both: beliefs come from usage")
        if len(self.model.usage.series) and len(self.weeks) > 1:
            raise BadInput("usage", self.model.text, "measured series go with one week")
        self._weeks, self._cluster = stack(scenario, self.weeks), cluster_layout(scenario)
        self._tables = Tables(*self.model.moments, self.model.rho)
        self.subscribers, self.hours, self.copies = scenario.subscribers, scenario.hours, copies
        vms = self._weeks.cores.shape[1]
        self._copies = empty_copies(
            copies, self.subscribers, vms, self._cluster, self.guard, observed=True, drawn=cost != "analytic"
        )
        self._extended = observation == "obs-o-ext"
        self.n_features = len(oversubscription.cluster_names(self.subscribers, self._extended))
        self.n_local = len(oversubscription.local_names(self._extended))
        self.actions = np.array(scenario.actions)
        self.obs: Vector = np.zeros((copies, self.n_features), np.float32)
        self.local: Vector = np.zeros((copies, self.subscribers, self.n_local), np.float32)
        """Each subscriber's observation, (B, N, 9 or 13)."""
        self.mask: Flags = np.zeros((copies, self.subscribers), np.bool_)
        """Whether each subscriber has requests in this hour, (B, N)."""
        self.reward, self.chance = np.zeros(copies), np.zeros(copies)
        """chance: of any hot machine in the hour just played, where the cost is analytic or both."""
        self.any_hot: Flags = np.zeros(copies, np.bool_)

    def reset(self, seeds: NDArray[np.integer], week_index: NDArray[np.integer] | None = None) -> Vector:
        """Begin an episode in every copy and return observations, (B, features); seeds and indices of weeks: (B,)."""
        return self.reset_where(np.ones(self.copies, np.bool_), seeds, week_index)

    def reset_where(
        self, which: Flags, seeds: NDArray[np.integer], week_index: NDArray[np.integer] | None = None
    ) -> Vector:
        """Begin an episode in the chosen copies, the others stay as they are; raises BadInput."""
        week = np.zeros(self.copies, np.int64) if week_index is None else np.asarray(week_index).astype(np.int64)
        if week.shape != (self.copies,) or np.shape(seeds) != (self.copies,):
            raise BadInput("seeds", np.shape(seeds), f"give {self.copies} seeds and as many indices of weeks")
        if not np.all((week >= 0) & (week < len(self.weeks))):
            raise BadInput("week_index", week.tolist(), f"give indices from 0 to {len(self.weeks) - 1}")
        chosen = np.asarray(seeds).astype(np.uint64)
        warm = self.start == "warm"
        _begin(self._copies, self._weeks, self._cluster, self.guard, self._tables, warm, which, chosen, week)
        return self._observed()

    def step(self, actions: NDArray[np.integer]) -> tuple[Vector, Floats, Floats, Flags]:
        """Play an hour at levels by index, (B, N), and return observations, rewards, costs and which copies are over.

        The entries of subscribers without requests are ignored, but must be levels. Raises BadInput.
        """
        given = np.asarray(actions)
        if given.shape != (self.copies, self.subscribers) or not np.issubdtype(given.dtype, np.integer):
            raise BadInput("actions", given.shape, f"give whole numbers, ({self.copies}, {self.subscribers})")
        if given.min(initial=0) < 0 or given.max(initial=0) >= len(self.actions):
            raise BadInput("actions", int(given.max(initial=0)), f"give levels from 0 to {len(self.actions) - 1}")
        return self.step_rates(self.actions[given])

    def step_rates(self, rates: Floats) -> tuple[Vector, Floats, Floats, Flags]:
        """Play an hour at any rates in (0, 1], (B, N), as `step` does."""
        given = np.ascontiguousarray(rates, dtype=np.float64)
        if given.shape != (self.copies, self.subscribers) or not np.all((given > 0.0) & (given <= 1.0)):
            raise BadInput("rates", given.shape, f"give rates above 0 and up to 1, ({self.copies}, {self.subscribers})")
        _step(
            *(self._copies, self._weeks, self._cluster, self.guard, self._tables, self.model.usage),
            *(self.cost != "sampled", self.cost != "analytic", given, self.reward, self.chance, self.any_hot),
        )
        cost = self.chance if self.cost == "analytic" else self.any_hot.astype(np.float64)
        return self._observed(), self.reward, cost, self.over

    def _observed(self) -> Vector:
        sampled = self.cost != "analytic"
        outputs = (self.obs, self.local, self.mask)
        _observe(self._copies, self._weeks, self._cluster, self._tables, self._extended, sampled, *outputs)
        return self.obs

    @property
    def hour(self) -> Ints:
        """The hour that comes next, (B,); the scenario's hours when a copy is over."""
        return self._copies.books["hour"]

    @property
    def over(self) -> Flags:
        """Which copies are over, (B,)."""
        ended: Flags = self.hour >= self.hours
        return ended

    @property
    def hot(self) -> Flags:
        """Which machines were hot in the hour just played, (B, K); needs sampled usage."""
        return self._copies.hot

    @property
    def usage(self) -> Floats:
        """Cores in use of each machine in the hour just played, (B, K); needs sampled usage."""
        return self._copies.usage

    @property
    def chances(self) -> Floats:
        """Chance of each machine to be hot, (B, K); needs analytic cost."""
        return self._copies.chance

    def books(self, i: int) -> dict[str, float]:
        """Return a copy's figures so far: machines used, rejects, cores requested and saved, hot hours."""
        row = self._copies.books[i]
        return {name: row[name].item() for name in row.dtype.names or ()}

    def placement(self, i: int) -> Placement:
        """Return where a copy has put its VMs so far."""
        return placement_of(self.scenario, self.weeks[int(self._copies.books["week"][i])], self._copies, i)

    def state(self, i: int) -> dict[str, NDArray[Any]]:
        """Return a copy's state as arrays, for `restore`."""
        return {name: array[i : i + 1].copy() for name, array in self._copies._asdict().items()}

    def restore(self, i: int, state: Mapping[str, NDArray[Any]]) -> None:
        """Put a copy back into a state that a batch of the same scenario, weeks and guard returned; raises BadInput."""
        for name, array in self._copies._asdict().items():
            if name not in state or state[name].shape != array[i : i + 1].shape:
                raise BadInput("state", name, "give a state of the same scenario, weeks and guard")
        for name, array in self._copies._asdict().items():
            array[i : i + 1] = state[name]
        self._observed()


Info = dict[str, Any]


class OversubscriptionSimulation:
    """One copy of `OversubscriptionBatch`: arrays without the first axis, copied, and an info at each step.

    info: hour; mask (N,); hot (K,) and usage_cores (K,), where usage is drawn; chance (of any hot machine) and chances
    (K,), where it is assessed; machines_used, rejects, raised, unsafe.
    """

    def __init__(
        self,
        scenario: Scenario,
        week: str | Week = "s0",
        *,
        start: str = "cold",
        usage: str | UsageModel = "gauss",
        cost: str = "both",
        observation: str = "obs-o",
        guard: Guard | None = None,
    ) -> None:
        """Make the cluster; arguments as `OversubscriptionBatch` takes them. Raises BadInput."""
        options: dict[str, Any] = {"start": start, "usage": usage, "cost": cost, "observation": observation}
        self.batch = OversubscriptionBatch(scenario, [week], 1, guard=guard, **options)
        self.scenario, self.week = scenario, self.batch.weeks[0]

    def reset(self, seed: int = 0) -> tuple[Vector, Info]:
        """Begin the episode of a seed."""
        return self.batch.reset(np.array([seed]))[0].copy(), self.info()

    def step(self, actions: Sequence[int] | NDArray[np.integer]) -> tuple[Vector, float, float, bool, bool, Info]:
        """Play an hour at levels by index, (N,): observation, reward, cost, terminated, truncated (never), info."""
        return self._result(self.batch.step(np.asarray(actions)[None]))

    def step_rates(self, rates: Floats) -> tuple[Vector, float, float, bool, bool, Info]:
        """Play an hour at any rates in (0, 1], (N,), as `step` does."""
        return self._result(self.batch.step_rates(np.asarray(rates, dtype=np.float64)[None]))

    def _result(self, step: tuple[Vector, Floats, Floats, Flags]) -> tuple[Vector, float, float, bool, bool, Info]:
        seen, reward, cost, over = step
        return seen[0].copy(), float(reward[0]), float(cost[0]), bool(over[0]), False, self.info()

    @property
    def hour(self) -> int:
        """The hour that comes next."""
        return int(self.batch.hour[0])

    def local(self) -> Vector:
        """Return what each subscriber sees, (N, 9 or 13)."""
        local: Vector = self.batch.local[0].copy()
        return local

    def mask(self) -> Flags:
        """Return which subscribers have requests in this hour, (N,)."""
        mask: Flags = self.batch.mask[0].copy()
        return mask

    def info(self) -> Info:
        """Return the info of the cluster now."""
        books = self.batch.books(0)
        info: Info = {
            "hour": books["hour"],
            "mask": self.mask(),
            "machines_used": books["used"],
            "rejects": books["rejects"],
            "raised": books["raised"],
            "unsafe": books["unsafe"],
        }
        if self.batch.cost != "analytic":
            info |= {"hot": self.batch.hot[0].copy(), "usage_cores": self.batch.usage[0].copy()}
        if self.batch.cost != "sampled":
            info |= {"chance": float(self.batch.chance[0]), "chances": self.batch.chances[0].copy()}
        return info

    def placement(self) -> Placement:
        """Return where the VMs have been put so far."""
        return self.batch.placement(0)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        return self.batch.state(0)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put the cluster back into a state; raises BadInput."""
        self.batch.restore(0, state)
