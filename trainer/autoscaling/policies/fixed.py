"""Policies that do not look at the load: nothing, a constant fleet, a ramp to one, random actions, a script."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES, Order, orders_of_index, orders_of_vector
from simulator.autoscaling.configuration import SimulationConfig
from trainer.autoscaling.policies.base import AnySimulation, SimulatedPolicy

Action = int | tuple[int, ...]
"""One step of a script: an act-7 index, or a change per VM type."""


@dataclass(slots=True)
class NothingPolicy(SimulatedPolicy):
    """Changes nothing: the initial fleet until the end."""

    kind: ClassVar[str] = "nothing"

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order nothing."""
        return ()


@dataclass(slots=True)
class ConstantPolicy(SimulatedPolicy):
    """A fleet of constant size, there from the start (autoscaler specification §9.1)."""

    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name and sizes."""
        return f"constant:{','.join(map(str, self.sizes))}"

    def world(self, config: SimulationConfig) -> SimulationConfig:
        """Return the configuration with this fleet ready at the start; BadInput when it has not as many types."""
        checked_sizes(self.name, self.sizes, config)
        return replace(config, initial=self.sizes)

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Check the sizes; BadInput when they do not fit the fleet."""
        checked_sizes(self.name, self.sizes, config)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order what is missing or too many, which is nothing in a world made by `world`."""
        return towards(self.sizes, simulation)


@dataclass(slots=True)
class FixedRampPolicy(SimulatedPolicy):
    """Goes from the initial fleet to a fixed one as fast as it may, and stays there (autoscaler specification §18).

    sizes: VMs per type; or cores: so many in all, largest VMs first. single: one VM a minute (act-7).
    """

    sizes: tuple[int, ...] = ()
    cores: int = 0
    single: bool = False
    _target: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    @property
    def name(self) -> str:
        """Name and parameters."""
        size = ",".join(map(str, self.sizes)) if self.sizes else f"cores={self.cores}"
        return f"fixed-ramp:{size}{',single=true' if self.single else ''}"

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Settle the fleet to go to; BadInput when it does not fit."""
        self._target = self.sizes or sizes_of_cores(config, self.cores)
        checked_sizes(self.name, self._target, config)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order what is missing; with `single` the largest VM that is missing and would be accepted now."""
        orders = towards(self._target, simulation)
        if not self.single:
            return orders
        mask = simulation.mask()
        effective = [o for o in orders if mask[2 * o.kind + (1 if o.change > 0 else 2)]]
        return [Order(o.kind, 1 if o.change > 0 else -1) for o in sorted(effective, key=lambda o: o.change < 0)[:1]]


@dataclass(slots=True)
class RandomPolicy(SimulatedPolicy):
    """Draws every action with the same chance: of all act-7 indices, or (masked) of those with an effect.

    multi: a change of MULTI_CHANGES per type instead of one index.
    """

    kind: ClassVar[str] = "random"

    seed: int = 0
    masked: bool = False
    multi: bool = False
    _rng: np.random.Generator = field(init=False, repr=False, compare=False, default_factory=np.random.default_rng)

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Begin the same sequence again."""
        self._rng = np.random.default_rng(self.seed)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Draw."""
        config = simulation.config
        if self.multi:
            rows = simulation.mask_multi() if self.masked else np.ones((len(config.types), len(MULTI_CHANGES)), bool)
            drawn = [MULTI_CHANGES[int(self._rng.choice(np.flatnonzero(row)))] for row in rows]
            return orders_of_vector(drawn, config.cores)
        mask = simulation.mask() if self.masked else np.ones(1 + 2 * len(config.types), bool)
        return orders_of_index(int(self._rng.choice(np.flatnonzero(mask))), len(config.types))


@dataclass(slots=True)
class ScriptPolicy(SimulatedPolicy):
    """Plays a list of actions, then does nothing. places: where each was written, for messages."""

    label: str
    actions: tuple[Action, ...]
    places: tuple[str, ...] = ()
    _next: int = field(init=False, repr=False, compare=False, default=0)

    @property
    def name(self) -> str:
        """The script it was read from."""
        return f"script:{self.label}"

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Begin at the first action; BadInput for an action that the fleet does not have, with its place."""
        self._next = 0
        places = self.places or [f"action {number}" for number in range(1, len(self.actions) + 1)]
        for place, action in zip(places, self.actions, strict=True):
            try:
                _orders(action, config)
            except BadInput as fault:
                raise BadInput(f"{self.name}, {place}", action, fault.remedy) from None

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order what the next action says."""
        if self._next >= len(self.actions):
            return ()
        self._next += 1
        return _orders(self.actions[self._next - 1], simulation.config)


def _orders(action: Action, config: SimulationConfig) -> list[Order]:
    if isinstance(action, int):
        return orders_of_index(action, len(config.types))
    return orders_of_vector(action, config.cores)


def read_script(path: Path) -> ScriptPolicy:
    """Read a JSON list of actions, or one action a line: an act-7 index, or changes per type such as `1,0,-2`.

    Blank lines and those that begin with # are passed over. Raises BadInput naming file and line.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadInput("script", str(path), f"{fault}: name a readable text file") from None
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except json.JSONDecodeError as fault:
            raise BadInput(f"{path.name} line {fault.lineno}", fault.msg, "give a JSON list of actions") from None
        return ScriptPolicy(str(path), tuple(_action(f"{path.name} action {n}", row) for n, row in enumerate(rows, 1)))
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    kept = [(number, line) for number, line in lines if line and not line.startswith("#")]
    actions = tuple(_action_of_line(f"{path.name} line {n}", line) for n, line in kept)
    return ScriptPolicy(str(path), actions, tuple(f"line {n}" for n, _ in kept))


def _action_of_line(where: str, line: str) -> Action:
    parts = line.strip("[]()").split(",")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        raise BadInput(where, line, "give an act-7 index, or one change per VM type such as 1,0,-2") from None
    return numbers[0] if len(numbers) == 1 else tuple(numbers)


def _action(where: str, row: object) -> Action:
    if isinstance(row, int) and not isinstance(row, bool):
        return row
    if isinstance(row, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in row):
        return tuple(row)
    raise BadInput(where, row, "give an act-7 index, or a list with one whole change per VM type")


def checked_sizes(name: str, sizes: Sequence[int], config: SimulationConfig) -> None:
    """Raise BadInput unless there is one size per type, within minimum and limit."""
    if len(sizes) != len(config.types):
        raise BadInput(f"policy {name}", list(sizes), f"give {len(config.types)} sizes, one per VM type")
    if any(not low <= n <= high for n, low, high in zip(sizes, config.minimum, config.limits, strict=True)):
        remedy = f"stay between the minimum {config.minimum} and the limits {config.limits}"
        raise BadInput(f"policy {name}", list(sizes), remedy)


def sizes_of_cores(config: SimulationConfig, cores: int) -> tuple[int, ...]:
    """Return the fleet of exactly `cores` cores at or above the minimum, largest VMs first; BadInput when none is."""
    left = cores - sum(n * c for n, c in zip(config.minimum, config.cores, strict=True))
    order = sorted(range(len(config.types)), key=lambda k: -config.cores[k])
    room = [limit - low for limit, low in zip(config.limits, config.minimum, strict=True)]
    found = _fill(left, order, config.cores, room)
    if found is None:
        raise BadInput("cores", cores, f"no fleet within the limits has that many; C_max is {config.max_cores}")
    return tuple(low + found.get(k, 0) for k, low in enumerate(config.minimum))


def _fill(left: int, order: Sequence[int], cores: Sequence[int], room: Sequence[int]) -> dict[int, int] | None:
    if left == 0:
        return {}
    if left < 0 or not order:
        return None
    kind = order[0]
    for count in range(min(room[kind], left // cores[kind]), -1, -1):
        rest = _fill(left - count * cores[kind], order[1:], cores, room)
        if rest is not None:
            return {kind: count, **rest}
    return None


def towards(sizes: Sequence[int], simulation: AnySimulation) -> list[Order]:
    """Return the orders from what is requested now to `sizes`."""
    return orders_of_vector(
        np.asarray(sizes, dtype=np.int64) - simulation.fleet_view().requested, simulation.config.cores
    )
