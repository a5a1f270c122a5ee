"""The times ahead at which a cluster's rule is asked: horizons, their bands, and kappa by horizon (§5)."""

from __future__ import annotations

import numpy as np

from agent.admission.rules import ClusterRules
from domain.rules.admission.belief import Floats
from domain.rules.admission.policies import BANDS_H, checked_grid, log_grid, paper_grid
from domain.rules.admission.rule import BANDS


def horizons_of(rules: ClusterRules) -> Floats:
    """Return the horizons in hours, (H,)."""
    return checked_grid(paper_grid() if rules.paper_grid else log_grid(rules.horizons))


def kappas_of(rules: ClusterRules, horizons_h: Floats) -> Floats:
    """Return kappa per horizon, (H,); zeros for a rule without."""
    return (rules.standard_deviations or 0.0) * np.asarray(rules.kappa_factors)[_places(horizons_h)]


def bands_of(horizons_h: Floats) -> tuple[str, ...]:
    """Return the name of each horizon's band."""
    return tuple(BANDS[int(place)] for place in _places(horizons_h))


def _places(horizons_h: Floats) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the number of each horizon's band."""
    found = np.searchsorted(np.asarray(BANDS_H) * (1.0 + 1e-9), horizons_h)
    return np.minimum(found, len(BANDS) - 1)
