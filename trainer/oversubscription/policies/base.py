"""What a policy of the oversubscription simulator is: rates for a task, hour by hour, and what guards them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.oversubscription.layout import Guard
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.single import OversubscriptionSimulation

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """What a policy is asked to play."""

    scenario: Scenario
    week: Week
    start: str = "cold"
    alpha: float = 0.95
    """Required chance of a week that keeps the promise."""
    told: Callable[[str], None] = lambda _: None
    """Is told of the progress of long preparations."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """How a policy plays a task."""

    schedule: Floats | None = None
    """Rates by hour and subscriber, (hours, N), where they do not depend on what happens."""
    choose: Callable[[OversubscriptionSimulation], Floats] | None = None
    """Otherwise: rates (N,) for the hour that comes next, from what is seen of the cluster."""
    guard: Guard | None = None
    observation: str = "obs-o"


class OversubscriptionPolicy(Protocol):
    """A policy by name."""

    @property
    def name(self) -> str:
        """The text that names it."""

    def plan(self, task: Task) -> Plan:
        """Return how it plays a task; raises BadInput where it cannot."""
