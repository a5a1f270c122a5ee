"""Lifetimes of containers: calibration of declared ones, the remaining life, and the key of `lifetime`.

Placement with lifetimes, §3 and §4. A hint L of a container with life y is calibrated by the record of its pool: with
x = ln L,

    ln y = a + b x + normal(0, s),    b = cov(x, ln y) / var x in 0..1.2,    R2 = 1 - s^2 / var ln y

over the containers that ended, older ones forgotten. The remaining life at age A is the median of the lognormal life,
given that it is above A, less A; that of a host is the longest of its containers with hints: a median for the
others makes the choice worse (docs/evidence/placement.md#other-pools). The functions hold for arrays and for one
number alike: the simulator compiles them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from enum import StrEnum
from statistics import NormalDist
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import StateConflict
from domain.units import HOUR_S, MINUTE_S

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EDGES_S: Final = np.array([36.0, *(HOUR_S * 2**k for k in range(7))])
"""Edges of the classes of an extension: 36 s, 1, 2, 4, 8, 16, 32 and 64 h."""
FORGETTING: Final = 0.9995
"""Weight of the record after each container that ended."""
PRIOR_COUNT, PRIOR_MEAN, PRIOR_VARIANCE = 20.0, 7.5, 2.0
"""Pseudo-observations at the begin: of ln L and ln y, without covariance, so that R2 is 0 before the record grows."""
MOST_SLOPE: Final = 1.2
LEAST_VARIANCE: Final = 1e-4
GOOD_R2, FAIR_R2 = 0.8, 0.2
"""From GOOD_R2 on a host that ends soon after the container is wanted, from FAIR_R2 on one that it does not extend."""
LEAST_GAP: Final = 0.05
"""Resolution of the gap in logarithms, at least; else two residual deviations."""
LEAST_LEFT_S: Final = 1.0
LEAST_HINT_S: Final = 1e-5
FIRST_Z, STEP_Z, LAST_Z = -4.0, 0.05, 8.0
"""Of the table of conditional medians."""
GRID_Z: Final = np.linspace(FIRST_Z, LAST_Z, round((LAST_Z - FIRST_Z) / STEP_Z) + 1)
MEDIANS: Final = np.array([-NormalDist().inv_cdf(0.25 * math.erfc(z / math.sqrt(2.0))) for z in GRID_Z.tolist()])
"""Median of a standard normal number that is above z, by z."""
STEP, UNIT = 2.0**31, 512.0
"""Of a term of `lifetime`: whole steps, above any number of an opening, and how many of them are 1."""
PHI_1, PHI_3, LAST_D = 1.5976, 0.070566, 6.0
"""Phi(d) is 1 / (1 + exp(-PHI_1 d - PHI_3 d^3)), off by 2e-4 at most; LAST_D bounds d."""
WEIGHTS: Final = (0.417, -0.094, 0.177, 0.417, 0.407)
"""Searched where containers end (docs/evidence/placement.md#weights-in-place-of-classes)."""
EXACT: Final = 0.2
"""Residual deviation below which hosts are compared by classes in place of weights."""


class LifetimeRule(StrEnum):
    """How `lifetime` compares hosts: by a weighted sum, by class of the extension, gap and opening, or by the opening.

    It is by R2 and residual of the calibration, and `oldest` for a container without a hint.
    """

    WEIGHTS = "weighted sum, oldest"
    GAP = "extension, gap, oldest"
    EXTENSION = "extension, oldest"
    OLDEST = "oldest"


def rule_of(fit: Fit, *, hinted: bool) -> LifetimeRule:
    """Return the rule for a container with or without a hint."""
    if not hinted or fit.r2 < FAIR_R2:
        return LifetimeRule.OLDEST
    if fit.residual >= EXACT:
        return LifetimeRule.WEIGHTS
    return LifetimeRule.EXTENSION if fit.r2 < GOOD_R2 else LifetimeRule.GAP


class Fit(NamedTuple):
    """A calibration. residual: s."""

    a: float
    b: float
    residual: float
    r2: float


def ln_of(lifetime_s: float | None) -> float:
    """Return a declared lifetime as `Lives` has it, nan for None; one near 0 must not outweigh a whole record."""
    return math.nan if lifetime_s is None else math.log(max(lifetime_s, LEAST_HINT_S))


def first_sums() -> Floats:
    """Return the sums before the first container ended: S0, Sx, Sy, Sxx, Syy, Sxy, float64 [6]."""
    square = PRIOR_VARIANCE + PRIOR_MEAN**2
    return PRIOR_COUNT * np.array([1.0, PRIOR_MEAN, PRIOR_MEAN, square, square, PRIOR_MEAN**2])


def learn(sums: Any, x: Any, y: Any) -> None:
    """Add a container that ended, ln L and ln of its life, to the sums, in place."""
    for k, value in enumerate((1.0, x, y, x * x, y * y, x * y)):
        sums[k] = FORGETTING * sums[k] + value


def fit(sums: Any) -> Any:
    """Return the calibration by the sums, in the order of `Fit`."""
    mean_x, mean_y = sums[1] / sums[0], sums[2] / sums[0]
    var_x = sums[3] / sums[0] - mean_x * mean_x
    var_y = max(sums[4] / sums[0] - mean_y * mean_y, LEAST_VARIANCE)
    cov = sums[5] / sums[0] - mean_x * mean_y
    b = min(max(cov / max(var_x, LEAST_VARIANCE), 0.0), MOST_SLOPE)
    residual = max(var_y - 2.0 * b * cov + b * b * var_x, LEAST_VARIANCE)
    return mean_y - b * mean_x, b, math.sqrt(residual), 1.0 - residual / var_y


def life_left(m: Any, s: Any, age_s: Any) -> Any:
    """Return the seconds that are left of lives lognormal(m, s) at an age: the conditional median less the age.

    With z = (ln A - m) / s it is exp(m + s q) - A, and q the median of a standard normal number above z.
    """
    z = (np.log(np.maximum(age_s, LEAST_LEFT_S)) - m) / s
    within = np.minimum(np.maximum(z, FIRST_Z), LAST_Z)
    k = np.minimum(np.searchsorted(GRID_Z, within, side="right"), len(GRID_Z) - 1) - 1
    q = MEDIANS[k] + (within - GRID_Z[k]) / STEP_Z * (MEDIANS[k + 1] - MEDIANS[k])
    beyond = 1.0 * (z > LAST_Z)
    q = (1.0 - beyond) * q + beyond * (z + math.log(2.0) / np.maximum(z, LAST_Z))
    return np.maximum(np.exp(m + s * q) - age_s, LEAST_LEFT_S)


def lifetime_terms(
    theta: Any, left_s: Any, life_s: Any, residual: Any, r2: Any, rest: Any, opening: Any, openings: Any
) -> Any:
    """Return the terms of `lifetime` for each host: extension, gap, residual, cores, age and opening.

    theta: five numbers in -1..1, see below. left_s: R. life_s: median life r of the container, 0 without a hint.
    residual: s. rest: residual fractions after placement. opening, openings: numbers of the present opening of the
    host, and of the last one.

    From s = EXACT on the life L is lognormal, E L = r exp(s^2 / 2), and q = R / E L. The share of its life that the
    container is expected to hold the host alone is

        x = E max(0, L - R) / E L = Phi(d) - q Phi(d - s),    d = s / 2 - ln(q) / s

    and the score, with f = 10^(theta_0 - 2) and each term in whole steps of 1 / UNIT,

        -ln(1 + x / f) - 0.75 (1 + theta_1) ln(max(1, q)) - 0.5 theta_2 sum(rest) - 0.5 theta_3 rest_cores
        + 0.25 theta_4 ln(1 + openings - opening)

    Below EXACT the extension is the class k, the number of edges below it, and the gap g is how long after the
    container its host ends, in steps of two residual deviations of the logarithm: -k - g / UNIT, g for a good R2 alone.
    Equal hosts have equal scores, and the host opened first is chosen, as among all where hints are of no use.
    """
    useful = STEP * ((life_s > 0.0) & (r2 >= FAIR_R2))
    life = np.maximum(life_s, LEAST_LEFT_S)
    if residual < EXACT:
        k = np.searchsorted(EDGES_S, np.maximum(life - left_s, 0.0), side="left")
        g = np.floor(np.log(np.maximum(left_s / life, 1.0)) / np.maximum(LEAST_GAP, 2.0 * residual))
        gap, none = -useful * (r2 >= GOOD_R2) * np.minimum(g, UNIT - 1.0), 0.0 * left_s
        return (-useful * UNIT * k, gap, none, none, none, -1.0 * opening)
    q = left_s / (life * np.exp(0.5 * residual * residual))
    d = 0.5 * residual - np.log(q) / residual
    high, low = np.minimum(np.maximum(d, -LAST_D), LAST_D), np.minimum(np.maximum(d - residual, -LAST_D), LAST_D)
    alone = 1.0 / (1.0 + np.exp(-high * (PHI_1 + PHI_3 * high * high)))
    alone = alone - q / (1.0 + np.exp(-low * (PHI_1 + PHI_3 * low * low)))
    floor = 10.0 ** (theta[0] - 2.0)
    # A difference of whole steps: 0 without an extension, and the ties of the logarithm remain.
    extension = np.floor(0.5 + UNIT * np.log(floor + np.maximum(alone, 0.0))) - np.floor(0.5 + UNIT * np.log(floor))
    return (
        -useful * extension,
        -useful * np.floor(0.5 + UNIT * 0.75 * (1.0 + theta[1]) * np.log(np.maximum(q, 1.0))),
        -useful * np.floor(0.5 + UNIT * 0.5 * theta[2] * (rest[0] + rest[1] + rest[2])),
        -useful * np.floor(0.5 + UNIT * 0.5 * theta[3] * rest[0]),
        useful * np.floor(0.5 + UNIT * 0.25 * theta[4] * np.log(1.0 + openings - opening)),
        -1.0 * opening,
    )


class Lives:
    """The containers of a pool by key, the remaining life of each host, and the calibration of hints.

    Times are epoch seconds; hints are ln L, nan without one; hosts are numbered.
    """

    def __init__(self, sums: Floats | None = None) -> None:
        self.sums = first_sums() if sums is None else sums
        self._slot: dict[Hashable, int] = {}
        self._unused: list[int] = []
        self._on_host: dict[int, set[int]] = {}
        self._host = np.zeros(0, dtype=np.int64)
        self._began_s, self._hint, self._ends_s = np.zeros(0), np.zeros(0), np.zeros(0)
        self._unhinted = np.zeros(0, dtype=np.int64)
        self._predicted_s = -math.inf

    @property
    def fit(self) -> Fit:
        """The calibration now."""
        return Fit(*map(float, fit(self.sums)))

    def life_s(self, hint: float, age_s: float = 0.0) -> float:
        """Return the predicted seconds that are left of a container of this age, 0 without a hint."""
        if math.isnan(hint):
            return 0.0
        known = self.fit
        m = known.a + known.b * hint
        return float(life_left(m, known.residual, age_s)) if age_s > 0.0 else max(math.exp(m), LEAST_LEFT_S)

    def left_s(self, hosts: Ints, now: float) -> Floats:
        """Return R: the seconds until the last container with a hint of each host ends, as predicted."""
        self._see(int(hosts.max(initial=-1)))
        left: Floats = np.maximum(self._ends_s[hosts] - now, LEAST_LEFT_S)
        return left

    def are_hinted(self, hosts: Ints) -> NDArray[np.bool_]:
        """Return whether every container of each host has a hint."""
        self._see(int(hosts.max(initial=-1)))
        found: NDArray[np.bool_] = self._unhinted[hosts] == 0
        return found

    def is_known(self, host: int) -> bool:
        """Return whether a container of a host has a hint, so that its end is predicted."""
        self._see(host)
        return len(self._on_host.get(host, ())) > int(self._unhinted[host])

    def copy(self) -> Lives:
        """Return a copy that changes apart from this one."""
        made = Lives(self.sums.copy())
        made._slot, made._unused, made._predicted_s = self._slot.copy(), self._unused.copy(), self._predicted_s
        made._on_host = {host: slots.copy() for host, slots in self._on_host.items()}
        for name in ("_host", "_began_s", "_hint", "_ends_s", "_unhinted"):
            setattr(made, name, getattr(self, name).copy())
        return made

    def begin(self, key: Hashable, host: int, now: float, hint: float, began_s: float | None = None) -> None:
        """Take in a container that begins on a host, or began elsewhere before; StateConflict for a key in use."""
        self._enter(key, host, hint, now if began_s is None else began_s)
        self._predict_host(host, now)

    def restore(self, key: Hashable, host: int, hint: float, began_s: float) -> None:
        """Take in a container that runs on a host, for the next `predict`; infinite: its begin is not known."""
        self._enter(key, host, hint, began_s)

    def restart(self, key: Hashable, now: float) -> None:
        """Let a container begin now in place of before."""
        slot = self._slot[key]
        self._began_s[slot] = now
        self._predict_host(int(self._host[slot]), now)

    def _enter(self, key: Hashable, host: int, hint: float, began_s: float) -> None:
        if key in self._slot:
            raise StateConflict("container", key, "a container of this key runs: let it end first")
        if not self._unused:
            more = max(16, self._host.size)
            self._unused = list(range(self._host.size + more - 1, self._host.size - 1, -1))
            self._host = np.append(self._host, np.full(more, -1))
            self._began_s, self._hint = (np.append(one, np.zeros(more)) for one in (self._began_s, self._hint))
        slot = self._slot[key] = self._unused.pop()
        self._began_s[slot], self._hint[slot] = began_s, hint
        self._put(slot, host)

    def move(self, key: Hashable, host: int, now: float) -> None:
        """Record that a container runs on another host; it keeps its begin."""
        slot = self._slot[key]
        self._take(slot, now)
        self._put(slot, host)
        self._predict_host(host, now)

    def fail(self, host: int, now: float) -> None:
        """Forget the containers of a host that failed."""
        for key in [key for key, slot in self._slot.items() if self._host[slot] == host]:
            self.forget(key, now)

    def forget(self, key: Hashable, now: float) -> None:
        """Forget a container whose end teaches nothing, such as one of a host that failed."""
        slot = self._slot.pop(key)
        self._take(slot, now)
        self._unused.append(slot)

    def end(self, key: Hashable, now: float) -> None:
        """Let a container end, and learn from its hint; a life that a set clock makes negative teaches nothing."""
        slot = self._slot[key]
        hint, life_s = float(self._hint[slot]), now - float(self._began_s[slot])
        if not math.isnan(hint) and life_s >= 0.0:
            learn(self.sums, hint, math.log(max(life_s, LEAST_LEFT_S)))
        self.forget(key, now)

    def predict(self, now: float) -> None:
        """Predict every host again, once a minute."""
        if abs(now - self._predicted_s) >= MINUTE_S:
            self._predicted_s = now
            self._ends_s[:] = now
            self._predict(np.flatnonzero(self._host >= 0), now)

    def _see(self, host: int) -> None:
        if host >= self._ends_s.size:
            more = max(16, host + 1 - self._ends_s.size, self._ends_s.size)
            self._ends_s = np.append(self._ends_s, np.zeros(more))
            self._unhinted = np.append(self._unhinted, np.zeros(more, dtype=np.int64))

    def _put(self, slot: int, host: int) -> None:
        self._see(host)
        self._host[slot] = host
        self._unhinted[host] += math.isnan(self._hint[slot])
        self._on_host.setdefault(host, set()).add(slot)

    def _take(self, slot: int, now: float) -> None:
        host, self._host[slot] = int(self._host[slot]), -1
        self._unhinted[host] -= math.isnan(self._hint[slot])
        self._on_host[host].discard(slot)
        self._predict_host(host, now)

    def _predict_host(self, host: int, now: float) -> None:
        self._ends_s[host] = now
        self._predict(np.array(sorted(self._on_host[host]), dtype=np.int64), now)

    def _predict(self, slots: Ints, now: float) -> None:
        known, slots = self.fit, slots[~np.isnan(self._hint[slots])]
        age_s = np.maximum(now - self._began_s[slots], 0.0)
        left = life_left(known.a + known.b * self._hint[slots], known.residual, age_s)
        np.maximum.at(self._ends_s, self._host[slots], now + left)
