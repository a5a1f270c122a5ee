"""Who asks a cluster in the dry run: deployments that arrive, grow, shrink and go, drawn from a seed.

They follow the model that the cluster believes in (admission specification §2), in whole VMs; an hour is one step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from domain.rules.admission.population import Population


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A deployment that asks to come in: its name, the VMs it begins with, and how it lives (rates per hour)."""

    name: str
    vms: int
    core_death_rate: float
    scale_out_rate: float
    extra_cores: float
    shutdown_rate: float


class Demand:
    """Draws who arrives in an hour and what those inside do in it."""

    def __init__(self, population: Population, vm_cores: int, arrivals_per_hour: float, seed: int) -> None:
        self._population, self._vm_cores, self._arrivals = population, vm_cores, arrivals_per_hour
        self._dice = np.random.default_rng([seed, 7])
        self._count = 0

    def arrivals(self) -> list[Newcomer]:
        """Return who arrives in the next hour."""
        return [self._newcomer() for _ in range(int(self._dice.poisson(self._arrivals)))]

    def desired(self, one: Newcomer, vms: int) -> int:
        """Return how many VMs a deployment with `vms` wants an hour later, 0 when it has ended."""
        if self._dice.random() < -math.expm1(-one.shutdown_rate):
            return 0
        survives = math.exp(-one.core_death_rate)
        left = int(self._dice.binomial(vms, survives))
        if left == 0:
            return 0
        grown = sum(self._request(one.extra_cores) for _ in range(int(self._dice.poisson(one.scale_out_rate))))
        return left + grown

    def _newcomer(self) -> Newcomer:
        law, dice = self._population, self._dice
        mu = float(dice.gamma(law.mu_shape, 1.0 / law.mu_rate))
        lam = float(dice.gamma(law.lam_shape, 1.0 / law.lam_rate))
        extra = float(dice.gamma(law.sig_shape, 1.0 / law.sig_rate))
        self._count += 1
        name = f"batch-{self._count:02d}"
        return Newcomer(name, self._request(extra), mu, lam * mu**law.power, extra, mu / law.lifetimes)

    def _request(self, extra_cores: float) -> int:
        """Return a request of 1 + Poisson(extra) cores as VMs, rounded up."""
        return math.ceil((1 + int(self._dice.poisson(extra_cores))) / self._vm_cores)
