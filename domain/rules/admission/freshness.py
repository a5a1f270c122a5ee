"""By how much forecasts that were not made anew may be off, in cores, and whether an answer hangs on that.

Nothing of this stands in the admission specification, whose renewal (§5.2) goes by each deployment alone: forecasts
that are out of date within its tolerance add up, and near the limit they decide wrongly.
"""

from __future__ import annotations

import math

from domain.rules.admission.belief import Floats

OVER, UNDER = 2.0, 1.0
"""Shares of the doubt by which sums may be too high, which would refuse wrongly, and too low. Old forecasts are too
high as a rule: sizes shrink core by core, unnoticed, and grow by whole requests, after which they are made anew."""
PART = 0.5
"""Forecasts with more than this share of the largest doubt are made anew together."""
YOUNG_H = 0.1
"""Hours added to a deployment's age where time is measured by it: one just admitted would be out of date at once."""
_TINY, _WIDEST = 1e-9, 10.0
"""A spread in cores, and standard deviations up to the limit, beyond which neither tells more."""


def staleness(cores: Floats, computed_cores: Floats, elapsed_h: Floats, age_h: Floats) -> Floats:
    """Return the share of a deployment's cores that came or went, and of its life that passed, since its forecast.

    Of one deployment, or of (N,).
    """
    return abs(cores - computed_cores) / computed_cores + elapsed_h / (age_h + YOUNG_H)


def cores_per_variance(room: float, variance: float, kappa: float) -> float:
    """Return by how many cores a rule's demand moves with a unit of variance.

    room: cores from the expected to the limit. variance: of all together. kappa: standard deviations that the rule asks
    for, 0 for one that asks for none.
    """
    spread = math.sqrt(max(variance, _TINY))
    return 0.5 * min(max(room / spread, kappa), _WIDEST) / spread
