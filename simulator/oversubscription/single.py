"""One oversubscribed cluster with the interface of the specification: reset, step, info (§2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.oversubscription.batch import OversubscriptionBatch, Vector
from simulator.oversubscription.layout import Flags, Floats, Guard
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import UsageModel
from simulator.oversubscription.weekly import Placement

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
        return self._told(self.batch.step(np.asarray(actions)[None]))

    def step_rates(self, rates: Floats) -> tuple[Vector, float, float, bool, bool, Info]:
        """Play an hour at any rates in (0, 1], (N,), as `step` does."""
        return self._told(self.batch.step_rates(np.asarray(rates, dtype=np.float64)[None]))

    def _told(self, answer: tuple[Vector, Floats, Floats, Flags]) -> tuple[Vector, float, float, bool, bool, Info]:
        seen, reward, cost, over = answer
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
        """Return what is known of the cluster now."""
        books = self.batch.books(0)
        told: Info = {
            "hour": books["hour"],
            "mask": self.mask(),
            "machines_used": books["used"],
            "rejects": books["rejects"],
            "raised": books["raised"],
            "unsafe": books["unsafe"],
        }
        if self.batch.cost != "analytic":
            told |= {"hot": self.batch.hot[0].copy(), "usage_cores": self.batch.usage[0].copy()}
        if self.batch.cost != "sampled":
            told |= {"chance": float(self.batch.chance[0]), "chances": self.batch.chances[0].copy()}
        return told

    def placement(self) -> Placement:
        """Return where the VMs have been put so far."""
        return self.batch.placement(0)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        return self.batch.state(0)

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Put the cluster back into a state; raises BadInput."""
        self.batch.restore(0, state)
