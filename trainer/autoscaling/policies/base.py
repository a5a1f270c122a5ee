"""What a policy is in the simulator, what it may ask of it, and how its parameters are written as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from domain.errors import BadInput
from domain.workload import Trace
from simulator.autoscaling.actions import Order
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.view import Measures, StepResult
from trainer.kit.fields import value_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from simulator.autoscaling.batch import FastSimulation
    from simulator.autoscaling.twin import Simulation


AnySimulation: TypeAlias = "Simulation | FastSimulation"
"""One episode, in the plain twin or in the kernel; both answer alike."""


class SimulatedPolicy:
    """Chooses the orders of each minute; keeps what it remembers of an episode until the next `start`.

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
    """Return the pairs of `parameter=value,...`; BadInput for what is no pair."""
    pairs: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        parameter, equals, value = pair.partition("=")
        if not equals or not value:
            raise BadInput(f"policy {name}", pair, "give parameter=value")
        pairs[parameter.strip()] = value.strip()
    return pairs


def read_parameters(name: str, defaults: DataclassInstance, pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return the values for a policy dataclass, each read as its default's kind; BadInput names what there is."""
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
