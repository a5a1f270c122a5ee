"""The times ahead at which a cluster's rule is asked: horizons, their bands, and kappa by horizon (§5)."""

from __future__ import annotations

import numpy as np

from agent.admission.rules import ClusterRules
from domain.rules.admission.belief import Floats
from domain.rules.admission.policies import BANDS_H, banded_kappa, checked_grid, log_grid

BANDS = ("day", "week", "month", "year", "three_years")
"""Names of the bands of horizons, whose ends are `policies.BANDS_H`."""


def horizons_of(rules: ClusterRules) -> Floats:
    """Return the horizons in hours, (H,)."""
    return checked_grid(log_grid(rules.horizons))


def kappas_of(rules: ClusterRules, horizons_h: Floats) -> Floats:
    """Return kappa per horizon, (H,); zeros for a rule without."""
    return banded_kappa(horizons_h, rules.standard_deviations or 0.0, rules.band_factor)


def bands_of(horizons_h: Floats) -> tuple[str, ...]:
    """Return the name of each horizon's band."""
    place = np.searchsorted(np.asarray(BANDS_H) * (1.0 + 1e-9), horizons_h)
    return tuple(BANDS[min(int(k), len(BANDS) - 1)] for k in place)
