"""The rules of `domain.rules.admission.rule` as the simulator takes them: their horizons, and kappa at each."""

from __future__ import annotations

import numpy as np

from domain.rules.admission.belief import Floats
from domain.rules.admission.policies import BANDS_H, log_grid, paper_grid
from domain.rules.admission.rule import Rule, rule_of

__all__ = ["Rule", "horizons_of", "kappas_of", "rule_of"]


def horizons_of(grid: str) -> Floats:
    """Return the horizons in hours, rising (admission specification §5)."""
    return log_grid() if grid == "log" else paper_grid()


def kappas_of(rule: Rule, horizons: Floats) -> Floats:
    """Return kappa by horizon."""
    band = np.searchsorted(np.asarray(BANDS_H) * (1.0 + 1e-9), horizons)
    return rule.kappa * np.asarray(rule.bands)[np.minimum(band, len(BANDS_H) - 1)]
