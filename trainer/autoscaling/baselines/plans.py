"""Clairvoyant plans: lists of actions made for one trace, good in the simulator and a teacher for learners (§9.5).

A list is bettered by trying changes of it in the simulator: annealing of many lists at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES, Order
from simulator.autoscaling.batch import AutoscalingBatch
from simulator.autoscaling.configuration import SimulationConfig
from trainer.autoscaling.baselines.clairvoyant import EXTRA_STEPS, first_end_s, solve
from trainer.autoscaling.policies import Action, AnySimulation, QueueRulePolicy, ScriptPolicy, SimulatedPolicy, begin

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ACTION_SETS = ("act-7", "act-multi")
PLAN_SEEDS = tuple(range(500_000, 500_006))
"""Boot times that a plan is made for where they vary; reports use others."""
SOLVER_SHARE = 0.4
REACH = 10
"""How many steps away an action may be moved."""
RENEW_EVERY = 40
"""After so many rounds the worse half of the lists is replaced by copies of the better half."""
_IDLE = MULTI_CHANGES.index(0)


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Effort of a search.

    chains: lists bettered side by side. rounds: changes tried of each, at most. time_limit_s: seconds, at most. warm,
    cold: dollars by which a change may be worse and still have a fair chance, at the first and the last round. seed: of
    the changes. The result is a function of these only when the rounds end before the time does.
    """

    chains: int = 32
    rounds: int = 100_000
    time_limit_s: float = 60.0
    warm: float = 0.01
    cold: float = 0.0002
    seed: int = 0


class Replay:
    """Costs of action lists, each the mean over the same seeds of boot times."""

    def __init__(self, config: SimulationConfig, trace: Trace, chains: int, seeds: Sequence[int], multi: bool) -> None:
        self.chains, self.copies = chains, len(seeds)
        self.idle = _IDLE if multi else 0
        self._batch = AutoscalingBatch(config, [trace], chains * len(seeds), actions="act-multi" if multi else "act-7")
        self._seeds = np.tile(np.array(seeds, dtype=np.int64), chains)

    def costs(self, lists: Ints) -> Floats:
        """Return dollars per list, shape (chains,), for lists of shape (chains, steps) or (chains, steps, N)."""
        batch = self._batch
        batch.reset(self._seeds)
        in_order = np.ascontiguousarray(np.repeat(lists, self.copies, axis=0).swapaxes(0, 1))
        nothing = np.full_like(in_order[0], self.idle)
        for step in range(batch.config.max_steps):
            _, _, over, cut = batch.step(in_order[step] if step < len(in_order) else nothing)
            if (over | cut).all():
                break
        total = batch.rent + batch.penalty
        # A list that leaves jobs undone is no plan.
        total[cut] = np.inf
        return np.asarray(total.reshape(self.chains, self.copies).mean(axis=1))


def better(
    config: SimulationConfig,
    trace: Trace,
    first: Sequence[Ints],
    seeds: Sequence[int],
    settings: SearchSettings | None = None,
) -> tuple[Ints, float]:
    """Return the best list found and its mean cost in dollars over `seeds`, starting from the lists `first`.

    first: act-7 indices of shape (steps,), or indices into MULTI_CHANGES of shape (steps, N), all of one shape.
    """
    settings = settings or SearchSettings()
    multi = first[0].ndim == 2
    rng = np.random.default_rng(settings.seed)
    replay = Replay(config, trace, settings.chains, seeds, multi)
    current = np.stack([first[i % len(first)] for i in range(settings.chains)])
    costs = replay.costs(current)
    best, least = current[costs.argmin()].copy(), float(costs.min())
    begun = time.monotonic()
    for done in range(settings.rounds):
        elapsed = max(done / settings.rounds, (time.monotonic() - begun) / settings.time_limit_s)
        if elapsed >= 1.0:
            break
        heat = settings.warm * (settings.cold / settings.warm) ** elapsed
        tried = current.copy()
        for row in tried:
            for _ in range(int(rng.integers(1, 4))):
                _change(row, rng, len(config.types))
        found = replay.costs(tried)
        with np.errstate(over="ignore", invalid="ignore"):
            taken = rng.random(settings.chains) < np.exp(np.minimum((costs - found) / heat, 0.0))
        current[taken], costs[taken] = tried[taken], found[taken]
        if found.min() < least:
            best, least = tried[found.argmin()].copy(), float(found.min())
        if done % RENEW_EVERY == RENEW_EVERY - 1:
            order = costs.argsort()
            half = settings.chains // 2
            current[order[half:]] = current[order[: settings.chains - half]]
            costs[order[half:]] = costs[order[: settings.chains - half]]
    return best, least


def _change(row: Ints, rng: np.random.Generator, kinds: int) -> None:
    """Change one thing in a list of act-7 indices (steps,), or of indices into MULTI_CHANGES (steps, N), in place."""
    single, steps = row.ndim == 1, len(row)
    idle, levels = (0, 1 + 2 * kinds) if single else (_IDLE, len(MULTI_CHANGES))
    column = row if single else row[:, int(rng.integers(kinds))]
    change, at = rng.integers(4), int(rng.integers(steps))
    if change > 0 and column[at] == idle:
        # Most steps do nothing: look at one that does something.
        acting = np.flatnonzero(column != idle)
        at = int(rng.choice(acting)) if acting.size else at
    near = int(np.clip(at + rng.integers(-REACH, REACH + 1), 0, steps - 1))
    later = min(at + int(rng.integers(1, 3 * REACH)), steps - 1)
    if change == 0:
        column[at] = rng.integers(levels)
    elif change == 1:
        column[at], column[near] = column[near], column[at]
    elif change == 2:
        column[at] = idle
    elif single:
        kind = int(rng.integers(kinds))
        column[near], column[later] = 2 * kind + 1, 2 * kind + 2
    else:
        up = 1 if rng.random() < 0.5 else -1
        column[at] = np.clip(column[at] + up, 0, levels - 1)
        column[later] = np.clip(column[later] - up, 0, levels - 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions per step: act-7 indices, or a change (of MULTI_CHANGES) per type; cost: dollars in the simulator.

    bound: dollars that no policy with these actions beats.
    """

    actions: tuple[Action, ...]
    cost: float
    bound: float


@lru_cache(maxsize=64)
def plan_of(config: SimulationConfig, trace: Trace, single: bool, time_limit_s: float) -> Plan:
    """Return the kept plan for this world and trace, else a new one."""
    return kept_plan(config, trace, single) or make_plan(config, trace, single=single, time_limit_s=time_limit_s)


def make_plan(
    config: SimulationConfig,
    trace: Trace,
    *,
    single: bool,
    time_limit_s: float = 60.0,
    seed: int = 0,
) -> Plan:
    """Solve the clairvoyant model, then better its fleet and the queue rule's in the simulator.

    Where boot times vary the plan is made
    for the mean over PLAN_SEEDS, so that it does not hang on one of them. The solver and the search stop by the clock:
    two machines may find different plans. Raises `Unavailable`.
    """
    world = solve(config, trace, single=single, time_limit_s=SOLVER_SHARE * time_limit_s)
    changes = world
    if not single:
        # Sizes that one action can reach; the bound above holds for any.
        changes = solve(
            config,
            trace,
            single=False,
            largest_change=max(MULTI_CHANGES),
            time_limit_s=SOLVER_SHARE * time_limit_s,
        )
    steps = int(np.ceil(first_end_s(config, trace) / config.step_s)) + EXTRA_STEPS
    first = [_queue_rule_list(config, trace, single, steps, horizon_s) for horizon_s in (120.0, 240.0, 420.0, 700.0)]
    if changes.fleet.size:
        first.append(_as_list(np.diff(np.vstack([config.initial, changes.fleet]), axis=0), single, steps))
    shortest_s, longest_s = config.boot_extremes_s
    seeds = PLAN_SEEDS if shortest_s != longest_s else PLAN_SEEDS[:1]
    settings = SearchSettings(time_limit_s=time_limit_s * (1.0 - SOLVER_SHARE), seed=seed)
    best, cost = better(config, trace, first, seeds, settings)
    return Plan(_as_actions(best), cost, world.bound)


def _queue_rule_list(config: SimulationConfig, trace: Trace, single: bool, steps: int, horizon_s: float) -> Ints:
    """Return what the queue rule orders on this trace, as a list to start from."""
    rule: SimulatedPolicy = QueueRulePolicy(horizon_s, single=single, idle_s=0.0)
    simulation = begin(rule, config, trace, PLAN_SEEDS[0])
    changes = np.zeros((steps, len(config.types)), dtype=np.int64)
    for row in changes:
        if simulation.finished or simulation.truncated:
            break
        orders = rule.choose(simulation)
        for order in orders:
            row[order.kind] += order.change
        simulation.step_orders(orders)
    return _as_list(changes, single, steps)


def _as_list(changes: Ints, single: bool, steps: int) -> Ints:
    """Return changes per step and type as indices, act-7 or into MULTI_CHANGES; what one action cannot do is spread."""
    rows = np.zeros((steps, changes.shape[1]), dtype=np.int64)
    rows[: len(changes)] = changes[:steps]
    if single:
        kind = np.abs(rows).argmax(axis=1)
        change = rows[np.arange(steps), kind]
        return np.where(change == 0, 0, 2 * kind + np.where(change > 0, 1, 2)).astype(np.int64)
    indices = np.full(rows.shape, _IDLE, dtype=np.int64)
    for kind in range(rows.shape[1]):
        for step in np.flatnonzero(rows[:, kind]):
            for part in _parts(int(rows[step, kind])):
                # Additions that do not fit go before, removals after.
                way = range(step, -1, -1) if part > 0 else range(step, steps)
                free = next((at for at in way if indices[at, kind] == _IDLE), None)
                if free is not None:
                    indices[free, kind] = MULTI_CHANGES.index(part)
    return indices


def _parts(change: int) -> list[int]:
    """Return a change as a sum of MULTI_CHANGES, largest first."""
    sign, left, parts = (1 if change > 0 else -1), abs(change), []
    for size in sorted((n for n in MULTI_CHANGES if n > 0), reverse=True):
        count, left = divmod(left, size)
        parts += [sign * size] * count
    return parts


def _as_actions(row: Ints) -> tuple[Action, ...]:
    if row.ndim == 1:
        return tuple(int(index) for index in row)
    return tuple(tuple(MULTI_CHANGES[index] for index in step) for step in row)


# Plans kept with the program


def key_of(config: SimulationConfig, trace: Trace, single: bool) -> dict[str, Any]:
    """Return what a plan was made for, as JSON data; two worlds with the same key cost the same under a plan."""
    return {
        "trace": trace.digest,
        "action_set": ACTION_SETS[0] if single else ACTION_SETS[1],
        "cores": list(config.cores),
        "prices_per_hour": [kind.price_per_hour for kind in config.types],
        "limits": list(config.limits),
        "minimum": list(config.minimum),
        "initial": list(config.initial),
        "boot_s": list(config.boot_extremes_s),
        "step_s": config.step_s,
        "waiting_price_per_hour": config.waiting_price_per_hour,
        "cooldown_s": config.cooldown_s,
    }


def file_name(trace: Trace, config: SimulationConfig, single: bool) -> str:
    """Return the name under which a plan is kept."""
    shortest_s, longest_s = config.boot_extremes_s
    boot = f"{shortest_s:g}" if shortest_s == longest_s else "drawn"
    return f"{trace.name}-{ACTION_SETS[0] if single else ACTION_SETS[1]}-boot-{boot}.json"


def kept_plan(config: SimulationConfig, trace: Trace, single: bool) -> Plan | None:
    """Return the plan kept with the program for this world and trace, None when there is none."""
    found = files("trainer.autoscaling.baselines").joinpath("plans_kept", file_name(trace, config, single))
    if not found.is_file():
        return None
    data = json.loads(found.read_text("utf-8"))
    if data["made_for"] != key_of(config, trace, single):
        return None
    actions: Sequence[Any] = data["actions"]
    return Plan(tuple(a if isinstance(a, int) else tuple(a) for a in actions), data["cost"], data["bound"])


@dataclass(slots=True)
class PlanPolicy(SimulatedPolicy):
    """Plays the plan made for this trace (autoscaler specification §9.5).

    time_limit_s: seconds for making one where none is kept with the program. single: one VM a minute (act-7).
    """

    kind: ClassVar[str] = "plan"

    time_limit_s: float = 60.0
    single: bool = False
    _script: ScriptPolicy = field(init=False, repr=False, compare=False, default_factory=lambda: ScriptPolicy("", ()))

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Take or make the plan; `Unavailable` where the clairvoyant model does not cover the world or the trace."""
        plan = plan_of(config, trace, self.single, self.time_limit_s)
        self._script = ScriptPolicy(self.name, plan.actions)
        self._script.start(config, trace)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order the plan's next action."""
        return self._script.choose(simulation)
