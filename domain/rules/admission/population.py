"""The prior of all deployments, and the statistics of one (admission specification §2, §3, §11)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from domain.errors import BadInput

Belief = tuple[float, float, float, float, float, float, float]
"""(shape, rate, lam_shape, lam_rate, exposure_h, size_shape, size_rate): see `belief.exact_belief`."""


@dataclass(frozen=True, slots=True)
class Population:
    """The law that deployments are drawn from; Gamma(shape, rate) throughout, rates per hour."""

    mu_shape: float
    mu_rate: float
    """mu, the death rate of one core, per hour."""
    lam_shape: float
    lam_rate: float
    """lam, the scale-out rate theta = lam mu^power, normalised."""
    sig_shape: float
    sig_rate: float
    """sig, the mean extra cores of a scale-out, whose size is 1 + Poisson(sig)."""
    power: float
    """r: how the scale-out rate goes with mu, 0..1.5."""
    lifetimes: float
    """s: a deployment is shut down at rate mu / lifetimes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "power":
                if not 0.0 <= value <= 1.5:
                    raise BadInput("power", value, "give a number from 0 to 1.5")
            elif not (math.isfinite(value) and value > 0.0):
                raise BadInput(field.name, value, "give a finite number above 0")


POPULATIONS = {
    "T": Population(0.36, 0.5, 1.3, 0.82, 0.88, 0.165, 0.9, 25.6),
    "H": Population(0.36, 0.5, 0.3, 0.19, 0.4, 0.075, 0.7, 25.6),
    "K": Population(0.36, 0.5, 1.0, 1.2, 0.88, 0.165, 0.6, 25.6),
}
"""Trace-matched, heavy-tailed and growing (admission specification §11)."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """The sufficient statistics of one deployment (specification §3)."""

    size: int
    """n, cores now."""
    deaths: float = 0.0
    """D, cores that ended one by one."""
    core_hours: float = 0.0
    """A, the integral of the size over time."""
    scale_outs: float = 0.0
    """K, requests for more cores, refused ones too."""
    hours: float = 0.0
    """T, hours without a shutdown."""
    gap_hours: float = 0.0
    """Tg, hours of prior observation of gaps between scale-outs."""
    extra_cores: float = 0.0
    """X, the sum of (size - 1) over all sizes drawn, the first among them."""
    size_draws: float = 1.0
    """m_X, the sizes drawn, the first among them."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.size) or int(self.size) != self.size or self.size < 1:
            raise BadInput("size", self.size, "give a whole number of cores, 1 or more")
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0.0):
                raise BadInput(field.name, value, "give a finite number, 0 or more")


def fresh(size: int) -> Statistics:
    """Return the statistics of a deployment of `size` cores that has just arrived."""
    return Statistics(size, extra_cores=float(size - 1))
