"""Policies of the simulator: rules, whose maths is that of `domain.rules`, and policies that do not look at the load.

Where the agent has the same policy, its parameters have the same names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np

from domain.errors import BadInput
from domain.rules.autoscaling import (
    queue_rule_multi,
    queue_rule_single,
    target_tracking_step,
    threshold_step,
)
from domain.rules.queue_rule import HORIZON_S, IDLE_S
from domain.workload import Trace
from simulator.autoscaling.actions import MULTI_CHANGES, Order, orders_of_index, orders_of_vector
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import FleetView, Measures, StepResult
from trainer.kit.fields import value_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from simulator.autoscaling.batch import FastSimulation
    from simulator.autoscaling.twin import Simulation


AnySimulation: TypeAlias = "Simulation | FastSimulation"
"""One episode, in the plain twin or in the kernel; both answer alike."""


class SimulatedPolicy:
    """Chooses the orders of each minute; keeps its memory of an episode until the next `start`.

    Most take the world as it is, remember nothing of an episode, and are named by their fields.
    """

    __slots__ = ()
    kind: ClassVar[str]
    """The name without parameters."""

    @property
    def name(self) -> str:
        """Name and parameters, a text that `policy_of` reads back (a model file: its SHA-256)."""
        policy = cast("DataclassInstance", self)
        shown = ((f.name, getattr(policy, f.name)) for f in fields(policy) if f.init)
        text = ",".join(f"{key}={_written(value)}" for key, value in shown)
        return f"{self.kind}:{text}" if text else self.kind

    def world(self, config: SimulationConfig) -> SimulationConfig:
        """Return the configuration to run under: `config`, save that a constant fleet is there from the start."""
        return config

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Begin an episode; BadInput when the policy does not fit this fleet."""

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Return the orders of the coming step."""
        raise NotImplementedError


OnStep = Callable[[AnySimulation, StepResult], None]
"""Called after each step of an episode."""


def begin(policy: SimulatedPolicy, config: SimulationConfig, trace: Trace, seed: int = 0) -> FastSimulation:
    """Start the policy and return an episode at its start, in the world that the policy needs (see `world`)."""
    world = policy.world(config)
    policy.start(world, trace)
    # `simulate` runs without numba too.
    from simulator.autoscaling.batch import FastSimulation

    return FastSimulation(world, trace, seed)


def run_policy(
    policy: SimulatedPolicy, config: SimulationConfig, trace: Trace, seed: int = 0, on_step: OnStep | None = None
) -> Measures:
    """Run one episode to its end and return its figures (autoscaler specification §11)."""
    simulation = begin(policy, config, trace, seed)
    while not (simulation.finished or simulation.truncated):
        result = simulation.step_orders(policy.choose(simulation))
        if on_step is not None:
            on_step(simulation, result)
    return simulation.measures()


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def parameters_of(name: str, text: str) -> dict[str, str]:
    """Return the pairs of `parameter=value,...`; BadInput for anything else."""
    pairs: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        parameter, equals, value = pair.partition("=")
        if not equals or not value:
            raise BadInput(f"policy {name}", pair, "give parameter=value")
        pairs[parameter.strip()] = value.strip()
    return pairs


def read_parameters(name: str, defaults: DataclassInstance, pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return the values for a policy dataclass, each read as its default's kind; BadInput names the parameters."""
    known = {f.name: getattr(defaults, f.name) for f in fields(defaults) if f.init}
    values: dict[str, Any] = {}
    for parameter, text in pairs.items():
        if parameter not in known:
            raise BadInput(f"policy {name}: parameter", parameter, f"choose from: {', '.join(known) or 'none'}")
        where = f"policy {name}: {parameter}"
        value = values[parameter] = value_of(where, type(known[parameter]), text)
        if not isinstance(value, str) and not 0 <= value < 1e12:
            raise BadInput(where, text, "give a number of 0 or more")
    return values


# Rules (autoscaler specification §9).


SHORTEST_HORIZON_S = 1e-3


@dataclass(slots=True)
class ThresholdPolicy(SimulatedPolicy):
    """One VM more or fewer in every group on the mean CPU of all VMs (autoscaler specification §9.2).

    high, low: thresholds, 0..1; equal = the published form, low < high = hysteresis. periods: minutes in a row beyond a
    threshold. exclude_warming: leave VMs ready for less than warmup_s out of the mean. cooldown_s: a group changes no
    sooner than this after its last accepted change; a longer cool-down of the world binds too.
    """

    kind: ClassVar[str] = "threshold"

    high: float = 0.75
    low: float = 0.75
    periods: int = 1
    exclude_warming: bool = True
    warmup_s: float = 300.0
    cooldown_s: float = 300.0
    _streaks: tuple[int, int] = field(init=False, repr=False, compare=False, default=(0, 0))
    _changed_s: list[float] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise BadInput("policy threshold: low", self.low, f"give at most high, which is {self.high:g}")

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Forget streaks and cool-downs."""
        self._streaks = (0, 0)
        self._changed_s = [-np.inf] * len(config.types)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order the same step in every group that may change now."""
        if simulation.steps == 0:
            # No minute has passed, so nothing was measured.
            return ()
        view = simulation.fleet_view()
        cpu = view.cpu_mean(warmup_s=self.warmup_s if self.exclude_warming else 0.0)
        delta, *streaks = threshold_step(cpu, self.high, self.low, self.periods, *self._streaks)
        self._streaks = (streaks[0], streaks[1])
        if delta == 0:
            return ()
        mask = simulation.mask()
        changes = [0] * view.cores.size
        for kind, changed_s in enumerate(self._changed_s):
            if mask[2 * kind + (1 if delta > 0 else 2)] and view.now_s - changed_s >= self.cooldown_s:
                changes[kind] = delta
                self._changed_s[kind] = view.now_s
        return orders_of_vector(changes, simulation.config.cores)


@dataclass(slots=True)
class TargetTrackingPolicy(SimulatedPolicy):
    """One tracker per group on that group's CPU, as a cloud group does it (autoscaler specification §9.3).

    target: mean CPU aimed at, 0..1. scale_in_factor: the low alarm is at this share of it. out_periods, in_periods:
    minutes in a row beyond an alarm. warmup_s: a VM's CPU counts, and its group stops warming, so long after it is
    ready. keep_one: a group keeps at least one VM where its limit allows; without any it shows no CPU and never grows
    again, as live.
    """

    kind: ClassVar[str] = "target-tracking"

    target: float = 0.65
    scale_in_factor: float = 0.9
    out_periods: int = 3
    in_periods: int = 15
    warmup_s: float = 300.0
    keep_one: bool = False
    _streaks: list[tuple[int, int]] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise BadInput("policy target-tracking: target", self.target, "give a share above 0 and up to 1")

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Forget the streaks."""
        self._streaks = [(0, 0)] * len(config.types)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order each group to the size its tracker asks for."""
        if simulation.steps == 0:
            return ()
        view = simulation.fleet_view()
        changes = [self._change(view, kind) for kind in range(view.cores.size)]
        return orders_of_vector(changes, simulation.config.cores)

    def _change(self, view: FleetView, kind: int) -> int:
        mine = view.vm_type == kind
        warm = int((mine & (view.vm_ready_s >= self.warmup_s)).sum())
        warming = bool(view.booting[kind] > 0 or warm < int(mine.sum()))
        desired, above, below = target_tracking_step(
            warm,
            view.cpu_mean(kind, self.warmup_s),
            self.target,
            self.scale_in_factor,
            self.out_periods,
            self.in_periods,
            *self._streaks[kind],
            warming,
        )
        self._streaks[kind] = (above, below)
        size = int(view.requested[kind])
        wanted = max(size, desired) if desired > warm else desired if desired < warm else size
        least = max(int(view.minimum[kind]), min(1, int(view.maximum[kind])) if self.keep_one else 0)
        return int(np.clip(wanted, least, view.maximum[kind])) - size


@dataclass(slots=True)
class QueueRulePolicy(SimulatedPolicy):
    """Enough cores to take up the queue within a horizon, idle VMs given back (autoscaler specification §9.4).

    horizon_s: time in which waiting work should be taken up. job_core_s: core-seconds of a waiting job until one has
    finished, then their mean, as a live controller counts; 0: the work of the queue is known. single: change at most
    one VM a minute (act-7). idle_s: a VM idle for so long is given back. busy_counts: busy cores are cover, since they
    take up the queue; else the specification's text. skip_cooling: choose among the types that may change now.
    """

    kind: ClassVar[str] = "queue-rule"

    horizon_s: float = HORIZON_S
    job_core_s: float = 0.0
    single: bool = False
    idle_s: float = IDLE_S
    busy_counts: bool = True
    skip_cooling: bool = False

    def __post_init__(self) -> None:
        if self.horizon_s <= 0:
            raise BadInput("policy queue-rule: horizon_s", self.horizon_s, "give seconds above 0")

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order the changes of the rule."""
        view = simulation.fleet_view()
        minimum, maximum = view.minimum, view.maximum
        if self.skip_cooling:
            minimum = np.where(view.cooldown_in_s > 0, np.maximum(view.requested, minimum), minimum)
            maximum = np.where(view.cooldown_out_s > 0, np.minimum(view.requested, maximum), maximum)
        arguments = (
            self._queued_core_s(view),
            max(self.horizon_s, SHORTEST_HORIZON_S),
            view.cores,
            view.requested,
            view.booting,
            view.idle_long(self.idle_s),
            minimum,
            maximum,
            float(view.free_cores),
            float(view.busy_cores) if self.busy_counts else 0.0,
        )
        if self.single:
            return orders_of_index(queue_rule_single(*arguments), view.cores.size)
        return orders_of_vector(queue_rule_multi(*arguments) - view.requested, simulation.config.cores)

    def _queued_core_s(self, view: FleetView) -> float:
        if self.job_core_s <= 0.0:
            return view.queue.queued_core_s
        mean = view.queue.mean_job_core_s
        return view.queue.waiting * (self.job_core_s if mean is None else mean)


# Policies that do not look at the load.


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
        """Order the difference to the sizes, which is nothing in a world made by `world`."""
        return towards(self.sizes, simulation)


@dataclass(slots=True)
class FixedRampPolicy(SimulatedPolicy):
    """Goes from the initial fleet to a fixed one as fast as it may, and stays there (autoscaler specification §18).

    sizes: VMs per type; or cores: their number in all, largest VMs first. single: one VM a minute (act-7).
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
        """Order the difference; with `single` the largest VM that is missing and would be accepted now."""
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
        """Order the next action."""
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

    Blank lines and comments (#) are passed over. Raises BadInput naming file and line.
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
    """Return the orders from the requested sizes to `sizes`."""
    return orders_of_vector(
        np.asarray(sizes, dtype=np.int64) - simulation.fleet_view().requested, simulation.config.cores
    )
