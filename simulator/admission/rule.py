"""The rules of `domain.rules.admission.rule` as the simulator takes them: their horizons, and kappa at each."""

from __future__ import annotations

import numpy as np

from domain.rules.admission import rule as texts
from domain.rules.admission.belief import Floats
from domain.rules.admission.policies import BANDS_H, log_grid, paper_grid
from domain.rules.admission.rule import Rule

__all__ = ["Rule", "horizons_of", "kappas_of", "rule_of"]

TOLERANCE, DEAD_BAND_CORES = 0.3, 6.0
"""Looser than an agent's: curves that an answer hangs on are computed anew in any case."""


def rule_of(text: str) -> Rule:
    """Return the rule of a text such as zeroth:14000 or second:2.5 ; raises BadInput."""
    return texts.rule_of(text, tolerance=TOLERANCE, dead_band_cores=DEAD_BAND_CORES)


def horizons_of(grid: str) -> Floats:
    """Return the horizons in hours, rising (admission specification §5)."""
    return log_grid() if grid == "log" else paper_grid()


def kappas_of(rule: Rule, horizons: Floats) -> Floats:
    """Return kappa by horizon."""
    band = np.searchsorted(np.asarray(BANDS_H) * (1.0 + 1e-9), horizons)
    return rule.kappa * np.asarray(rule.bands)[np.minimum(band, len(BANDS_H) - 1)]
