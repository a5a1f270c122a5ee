"""Clairvoyant plans: lists of actions made for one trace, good in the simulator and a teacher for learners (§9.5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.reference import MULTI_CHANGES, SimulationConfig
from trainer.autoscaling.baselines.availability import first_end_s
from trainer.autoscaling.baselines.clairvoyant import EXTRA_STEPS, solve
from trainer.autoscaling.baselines.search import SearchSettings, better
from trainer.autoscaling.episodes import begin
from trainer.autoscaling.policies.base import SimulatedPolicy
from trainer.autoscaling.policies.fixed import Action
from trainer.autoscaling.policies.rules import QueueRulePolicy

Ints = NDArray[np.int64]

ACTION_SETS = ("act-7", "act-multi")
PLAN_SEEDS = tuple(range(500_000, 500_006))
"""Boot times that a plan is made for where they vary; reports use others."""
SOLVER_SHARE = 0.4
_IDLE = MULTI_CHANGES.index(0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions per step: act-7 indices, or a change (of MULTI_CHANGES) per type; cost: dollars in the simulator.

    bound: dollars that no policy with these actions beats.
    """

    actions: tuple[Action, ...]
    cost: float
    bound: float


def plan_actions(config: SimulationConfig, trace: Trace, action_set: str, time_limit_s: float = 60.0) -> list[Action]:
    """Return the plan's actions per step, for `act-7` indices, for `act-multi` a change of VMs per type.

    A plan kept with the program is taken where there is one for this world and trace; see `make_plan` otherwise.
    """
    if action_set not in ACTION_SETS:
        raise BadInput("action_set", action_set, f"choose one of {', '.join(ACTION_SETS)}")
    return list(plan_of(config, trace, action_set == "act-7", time_limit_s).actions)


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
    known: Sequence[Plan] = (),
    on_round: Callable[[int, float], None] | None = None,
) -> Plan:
    """Solve the clairvoyant model, then better its fleet and the queue rule's in the simulator.

    known: plans to start from as well, so that a second go betters the first. Where boot times vary the plan is made
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
    first += [_as_indices(plan.actions, steps) for plan in known]
    seeds = PLAN_SEEDS if config.boot_low_s != config.boot_high_s else PLAN_SEEDS[:1]
    settings = SearchSettings(time_limit_s=time_limit_s * (1.0 - SOLVER_SHARE), seed=seed)
    best, cost = better(config, trace, first, seeds, settings, on_round)
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


def _as_indices(actions: Sequence[Action], steps: int) -> Ints:
    """Return actions as the lists that a search changes, filled up with nothing."""
    if all(isinstance(action, int) for action in actions):
        return np.array([*actions, *[0] * steps][:steps], dtype=np.int64)
    rows = [[MULTI_CHANGES.index(n) for n in action] for action in actions if isinstance(action, tuple)]
    return np.array([*rows, *[[_IDLE] * len(rows[0])] * steps][:steps], dtype=np.int64)


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
        "boot_s": [config.boot_low_s, config.boot_high_s],
        "step_s": config.step_s,
        "waiting_price_per_hour": config.waiting_price_per_hour,
        "cooldown_s": config.cooldown_s,
    }


def file_name(trace: Trace, config: SimulationConfig, single: bool) -> str:
    """Return the name under which a plan is kept."""
    boot = f"{config.boot_low_s:g}" if config.boot_low_s == config.boot_high_s else "drawn"
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


def as_data(plan: Plan, config: SimulationConfig, trace: Trace, single: bool) -> dict[str, Any]:
    """Return a plan as the JSON data of a file that `kept_plan` and `script:` policies read."""
    made_for = key_of(config, trace, single)
    return {"made_for": made_for, "cost": plan.cost, "bound": plan.bound, "actions": [*plan.actions]}
