"""Survival curves of containers by application, for people: no rule decides by them (placement with lifetimes, §5)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

AGES_S: Final = 60.0 * 1.3 ** np.arange(46)
"""Ages at which a curve is known: 60 s x 1.3^k, to 93 days."""
PSEUDO: Final = 10.0
"""Pseudo-observations by which a curve is shrunk: that of an application to its size class, of a class to the pool."""


def survival(age_s: Floats, ended: NDArray[np.bool_], group: Ints, parent: Ints) -> Floats:
    """Return the share of the containers of each application that outlive each of AGES_S, float64 [G, K].

    age_s, ended, group: of each container [N], age at its end or now, whether it ended, and its application. parent:
    size class of each application [G]. Kaplan-Meier with discrete hazards: of n containers that were followed through
    the interval (a[k-1], a[k]], or ended in it, d ended, and

        h = (d + PSEUDO h_parent) / (n + PSEUDO),    S[k] = product over i <= k of (1 - h[i])

    h of the pool is d / n, and 0 where n is 0.
    """
    last = np.searchsorted(AGES_S, age_s, side="left")
    through = np.where(ended, np.minimum(last + 1, AGES_S.size), np.searchsorted(AGES_S, age_s, side="right"))
    ends, stops = (np.zeros((parent.size, AGES_S.size + 1)) for _ in range(2))
    np.add.at(ends, (group[ended], last[ended]), 1.0)
    np.add.at(stops, (group, through), 1.0)
    ends, followed = ends[:, :-1], np.cumsum(stops[:, :0:-1], axis=1)[:, ::-1]
    of_class = np.equal.outer(np.arange(int(parent.max(initial=-1)) + 1), parent).astype(np.float64)
    pool = ends.sum(axis=0) / np.maximum(followed.sum(axis=0), 1.0)
    classes = (of_class @ ends + PSEUDO * pool) / (of_class @ followed + PSEUDO)
    hazards = (ends + PSEUDO * classes[parent]) / (followed + PSEUDO)
    shares: Floats = np.cumprod(1.0 - hazards, axis=1)
    return shares
