"""The actions of a policy (an index, a vector, an ordered list) and their acceptance (§4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from simulator.autoscaling.reference.configuration import CooldownScope, SimulationConfig
from simulator.autoscaling.reference.world import World

MULTI_CHANGES: tuple[int, ...] = (-5, -2, -1, 0, 1, 2, 5)
"""Changes of one type in act-multi, in the order of its mask."""

OUT, IN = 0, 1


class Order(NamedTuple):
    """A change of one VM type: `change` VMs more, or fewer when negative."""

    kind: int
    change: int


class Outcome(NamedTuple):
    """The outcome of a step's orders: VMs added, removed and refused per type."""

    added: tuple[int, ...]
    removed: tuple[int, ...]
    refused: tuple[int, ...]


def orders_of_index(action: int, kinds: int) -> list[Order]:
    """Return the orders of an act-7 index: 0 nothing, 2k + 1 add one VM of type k, 2k + 2 remove one."""
    if not 0 <= action <= 2 * kinds:
        raise BadInput("action", action, f"give an index in 0..{2 * kinds}")
    return [] if action == 0 else [Order((action - 1) // 2, 1 if action % 2 == 1 else -1)]


def orders_of_vector(changes: Sequence[int] | NDArray[np.int64], cores: Sequence[int]) -> list[Order]:
    """Return the orders of a change per type: removals first, then additions, types with more cores first in both."""
    if len(changes) != len(cores):
        raise BadInput("action", list(changes), f"give {len(cores)} changes, one per VM type")
    by_size = sorted(range(len(cores)), key=lambda k: -cores[k])
    removals = [Order(k, int(changes[k])) for k in by_size if changes[k] < 0]
    return removals + [Order(k, int(changes[k])) for k in by_size if changes[k] > 0]


@dataclass(slots=True)
class Cooldowns:
    """When each type was last changed, per direction (seconds; -inf: never)."""

    changed: list[list[float]]

    @classmethod
    def none(cls, kinds: int) -> Cooldowns:
        """Return a state in which nothing cools down."""
        return cls([[-math.inf, -math.inf] for _ in range(kinds)])

    def remaining_s(self, config: SimulationConfig, kind: int, direction: int, now: float) -> float:
        """Return the seconds until a change of this type and direction is accepted again."""
        if config.cooldown_scope is CooldownScope.PER_DIRECTION:
            last = self.changed[kind][direction]
        elif config.cooldown_scope is CooldownScope.PER_TYPE:
            last = max(self.changed[kind])
        else:
            last = max(max(both) for both in self.changed)
        return max(last + config.cooldown_s - now, 0.0)


def may_add(world: World, kind: int) -> bool:
    """Whether the limit leaves room for one more VM of a type (booting and draining ones count)."""
    return world.present[kind] < world.config.limits[kind]


def may_remove(world: World, kind: int) -> bool:
    """Whether a VM of a type may go: the minimum must stay ready (with cancel_booting: ready or booting)."""
    minimum = world.config.minimum[kind]
    booting = world.booting_count(kind) if world.config.cancel_booting else 0
    return world.ready_count[kind] + booting > minimum


def apply_orders(world: World, cooldowns: Cooldowns, orders: Sequence[Order]) -> Outcome:
    """Carry out the orders in turn, VM by VM; each VM is accepted or refused on its own.

    A cool-down that began before this step refuses; one that begins in it does not, the step being one decision.
    """
    kinds = len(world.config.types)
    added, removed, refused = [0] * kinds, [0] * kinds, [0] * kinds
    cooling = [[cooldowns.remaining_s(world.config, k, d, world.now) > 0 for d in (OUT, IN)] for k in range(kinds)]
    for kind, change in orders:
        for _ in range(abs(change)):
            if change > 0 and not cooling[kind][OUT] and may_add(world, kind):
                world.request(kind)
                added[kind] += 1
                cooldowns.changed[kind][OUT] = world.now
            elif change < 0 and not cooling[kind][IN] and may_remove(world, kind):
                _remove_one(world, kind)
                removed[kind] += 1
                cooldowns.changed[kind][IN] = world.now
            else:
                refused[kind] += 1
    return Outcome(tuple(added), tuple(removed), tuple(refused))


def _remove_one(world: World, kind: int) -> None:
    if world.config.cancel_booting and world.booting_count(kind) > 0:
        world.cancel_boot(kind)
        return
    victim = world.victim(kind, draw=True)
    if victim is not None:
        world.remove(victim)


def mask_index(world: World, cooldowns: Cooldowns) -> NDArray[np.bool_]:
    """Return, per act-7 index, whether it would have an effect now; index 0 is always allowed."""
    mask = np.zeros(1 + 2 * len(world.config.types), dtype=bool)
    mask[0] = True
    for kind in range(len(world.config.types)):
        cooling_out = cooldowns.remaining_s(world.config, kind, OUT, world.now) > 0
        cooling_in = cooldowns.remaining_s(world.config, kind, IN, world.now) > 0
        mask[2 * kind + 1] = not cooling_out and may_add(world, kind)
        mask[2 * kind + 2] = not cooling_in and may_remove(world, kind)
    return mask


def mask_multi(world: World, cooldowns: Cooldowns) -> NDArray[np.bool_]:
    """Return, per type and change of MULTI_CHANGES, whether at least one VM of it would be accepted; shape (N, 7)."""
    flat = mask_index(world, cooldowns)
    rows = [
        [change == 0 or bool(flat[2 * kind + (1 if change > 0 else 2)]) for change in MULTI_CHANGES]
        for kind in range(len(world.config.types))
    ]
    return np.array(rows, dtype=bool)
