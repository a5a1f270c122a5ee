"""The clairvoyant plan as a policy: it knows the whole trace, so it shows what is possible, not what can be run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from domain.workload import Trace
from simulator.autoscaling.reference import Order, SimulationConfig
from trainer.autoscaling.baselines.plans import plan_of
from trainer.autoscaling.policies.base import AnySimulation, PlainPolicy
from trainer.autoscaling.policies.fixed import ScriptPolicy
from trainer.autoscaling.policies.text import spelled


@dataclass(slots=True)
class PlanPolicy(PlainPolicy):
    """Plays the plan made for this trace (autoscaler specification §9.5).

    time_limit_s: seconds for making one where none is kept with the program. single: one VM a minute (act-7).
    """

    time_limit_s: float = 60.0
    single: bool = False
    _script: ScriptPolicy = field(init=False, repr=False, compare=False, default_factory=lambda: ScriptPolicy("", ()))

    @property
    def name(self) -> str:
        """Name and parameters."""
        return spelled("plan", self)

    def start(self, config: SimulationConfig, trace: Trace) -> None:
        """Take or make the plan; `Unavailable` where the clairvoyant model does not cover the world or the trace."""
        plan = plan_of(config, trace, self.single, self.time_limit_s)
        self._script = ScriptPolicy(self.name, plan.actions)
        self._script.start(config, trace)

    def choose(self, simulation: AnySimulation) -> Sequence[Order]:
        """Order the plan's next action."""
        return self._script.choose(simulation)
