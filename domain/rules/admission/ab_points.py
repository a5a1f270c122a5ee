"""Many deployments' sizes over time by the hazard closure, in numpy: raw moments, and requests (specification §4.3).

The path of S is that of `ab.hazard` and `ab.advanced`, written for arrays that are worked on in place: what depends on
mu alone, or on mu and sig, is computed once for all points of lam and sig. Points take part only while some of them
may die out: before, as in `ab.add_point`, S is 1 (QUIET), and after all have died out nothing is left (GONE).

Moments of a size are weights (`moment_weights`) of factors that change with time (`lefts`, S_k): the formulas of
`ab.conditional_ab` with what does not depend on time taken out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.rules.admission.ab import GONE, QUIET, TINY, ein, grown
from domain.rules.admission.belief import Floats


@dataclass(frozen=True, slots=True)
class Points:
    """Points of mu (M,), and of lam and sig at each: the raw moments of rho and sig broadcast to `share`, (P, Q, M).

    owner (M,): the number of the deployment, whose size is `size` (M,). start_h (M,), ascending: until then S is 1.
    """

    owner: NDArray[np.int64]
    size: Floats
    mu: Floats
    start_h: Floats
    share: Floats
    rho: tuple[Floats, Floats, Floats]
    sig: tuple[Floats, Floats, Floats]


def starts_h(size: Floats, mu: Floats) -> Floats:
    """Return the hours until which a deployment is empty with a chance below exp(-QUIET); see `ab.quiet_until`."""
    return np.asarray(-np.log(-np.expm1(-QUIET / size)) / mu)


class Path:
    """S, S_1, S_2, S_3 of all points as time goes on, from a time at which S is 1."""

    def __init__(self, points: Points, hours: float) -> None:
        self._points, self._hours = points, hours
        shape = points.share.shape
        self.s, self._stay, self._work, self._rate, self._new_rate = (np.empty(shape) for _ in range(5))
        self.s[:] = 1.0
        parts = grown(-np.expm1(-points.mu * hours))
        self.orders = tuple(np.broadcast_to(part, shape).copy() for part in parts)
        # A single core is the only one that can die out at once.
        self._rate[:] = np.maximum(2.0 - points.size, 0.0)
        self._rho = np.ascontiguousarray(np.broadcast_to(points.rho[0], shape))
        self._sig = np.maximum(points.sig[0], 1e-9)
        self._log_sig, self._decayed_sig = np.log(self._sig), np.exp(-self._sig)
        self._ein_sig = ein(self._sig, self._decayed_sig, self._log_sig)

    def advance(self, hours: float) -> None:
        """Go on to a later time, as `ab.advanced` does."""
        step = self._points.mu * (hours - self._hours)
        self._hours = hours
        new, old, stay, work, s = self._new_rate, self._rate, self._stay, self._work, self.s
        self._fill_hazard(hours, new)
        old += new
        old *= -0.5
        old += 1.0
        # At a hazard of 1 what follows is 0 / 0; so near to it nothing changes.
        slack = np.maximum(old, 1e-5, out=old)
        np.subtract(slack, 1.0, out=stay)
        stay *= step
        np.exp(stay, out=stay)
        s *= stay
        fade, lost = np.exp(-step), np.expm1(-step)
        faded = fade
        # Little is left of stay - faded over a short step, and what is added here meets powers of rho.
        np.multiply(slack, -step, out=work)
        np.expm1(work, out=work)
        for own in self.orders:
            np.multiply(work, s, out=stay)
            stay /= slack
            own *= faded
            own -= stay
            # exp(-(slack + 1) step) - 1 from exp(-slack step) - 1, without cancellation.
            work *= fade
            work += lost
            faded = faded * fade
            slack += 1.0
        self._new_rate, self._rate = old, new

    def _fill_hazard(self, hours: float, single: Floats) -> None:
        size, sig = self._points.size, self._sig
        x = self._points.mu * hours
        gone = -np.expm1(-x)
        left = 1.0 - gone
        z = sig * left
        decayed = np.exp(-z)
        integral = self._ein_sig - ein(z, decayed, self._log_sig - x)
        integral -= (self._decayed_sig - decayed) / sig
        np.maximum(integral, 0.0, out=integral)
        alive, empty = self._work, self._stay
        np.multiply(self._rho, integral, out=alive)
        np.subtract(size * np.log(gone), alive, out=alive)
        np.expm1(alive, out=alive)
        np.add(alive, 1.0, out=empty)
        np.multiply(self._rho, gone * decayed, out=single)
        single += size * left / gone
        single *= empty
        single += TINY
        np.subtract(TINY, alive, out=alive)
        single /= alive
        np.minimum(single, 1.0, out=single)


def raw_curves(
    points: Points, deployments: int, lifetimes: float, horizons_h: Floats, times_h: Floats, at: NDArray[np.int64]
) -> Floats:
    """Return raw moments and scale-outs per hour (4, N, H). times_h, at: the horizons and those between them."""
    weights = moment_weights(points.size, *points.rho, *points.sig)
    share = points.share
    initial = (weights.initial1, weights.initial2, weights.initial3)
    of_initial = [[(share * part).sum(axis=(0, 1)) for part in parts] for parts in initial]
    one, two, three = weights.alive1, weights.alive2, weights.alive3
    each = ((points.rho[0] * points.mu,), (one[0], two[0], three[0]), (two[1], three[1]), (three[2],))
    of_s, *of_orders = (np.stack([share * part for part in parts]) for parts in each)
    quiet_s, *quiet_orders = (part.sum(axis=(1, 2)) for part in (of_s, *of_orders))
    raw = np.zeros((4, deployments, horizons_h.size))
    path: Path | None = None
    first_h, before = float(points.start_h[0]), 0.0
    k = 0
    for i, hours in enumerate(times_h):
        if path is None and hours > first_h:
            path = Path(points, before)
        if path is not None:
            path.advance(float(hours))
        before = float(hours)
        if i != at[k]:
            continue
        x = points.mu * hours
        gone = -np.expm1(-x)
        found = np.zeros((4, x.size))
        for order, parts in enumerate(lefts(np.exp(-x), gone)):
            for weight, part in zip(of_initial[order], parts, strict=True):
                found[order] += weight * part
        if path is None:
            found[3] = quiet_s[0]
            changes = [weight * part for weight, part in zip(quiet_orders, grown(gone), strict=True)]
        else:
            found[3] = _summed(of_s, path.s)[0]
            changes = [_summed(weight, order) for weight, order in zip(of_orders, path.orders, strict=True)]
        for order, change in enumerate(changes):
            found[order:3] += change
        found *= np.exp(-x / lifetimes)
        for curve, row in zip(raw, found, strict=True):
            curve[:, k] = np.bincount(points.owner, weights=row, minlength=deployments)
        k += 1
        if k == at.size or x.min() > GONE * lifetimes or (path is not None and path.s.max() < math.exp(-GONE)):
            break
    return raw


def _summed(weight: Floats, path: Floats) -> Floats:
    return np.asarray(np.einsum("kpqm,pqm->km", weight, path))


class MomentWeights(NamedTuple):
    """Of the initial cores and of S_1, S_2, S_3, by order of the moment.

    initial1 belongs to what `lefts` returns first, initial2 and initial3 to the next two and four.
    """

    initial1: tuple[Floats]
    alive1: tuple[Floats]
    initial2: tuple[Floats, Floats]
    alive2: tuple[Floats, Floats]
    initial3: tuple[Floats, Floats, Floats, Floats]
    alive3: tuple[Floats, Floats, Floats]


def moment_weights(
    size: Floats, rho1: Floats, rho2: Floats, rho3: Floats, sig1: Floats, sig2: Floats, sig3: Floats
) -> MomentWeights:
    """Return the weights for arrays that broadcast, given mu; arguments as those of `ab.conditional_ab`."""
    m = 1.0 + sig1
    m_square = 1.0 + 2.0 * sig1 + sig2
    m_cube = 1.0 + 3.0 * sig1 + 3.0 * sig2 + sig3
    q2 = 1.0 + 3.0 * sig1 + sig2
    q3 = 1.0 + 7.0 * sig1 + 6.0 * sig2 + sig3
    m_q2 = 1.0 + 4.0 * sig1 + 4.0 * sig2 + sig3
    grown, twice = rho1 * m, rho2 * m_square
    square = size * size
    of_d12 = size * (1.0 + 2.0 * grown)
    of_s12 = grown + 2.0 * twice
    # Of d123, d13, d23 and of s123, s13, s23, as `conditional_ab` has them.
    d123 = size * (3.0 + 9.0 * grown + 6.0 * twice)
    d13 = size * (3.0 * rho1 * q2 - 1.0)
    d23 = 3.0 * square * (1.0 + grown)
    s123 = 3.0 * grown + 9.0 * twice + 6.0 * rho3 * m_cube
    s13 = 3.0 * rho2 * m_q2 - grown
    s23 = 3.0 * (rho1 * q2 + rho2 * m_q2)
    return MomentWeights(
        initial1=(size,),
        alive1=(grown,),
        initial2=(square, of_d12),
        alive2=(of_s12, rho1 * q2 - of_s12),
        initial3=(square * size, d23, d13, d123),
        alive3=(0.5 * (s123 + s13), s23 - s123, rho1 * q3 - s23 + 0.5 * (s123 - s13)),
    )


def lefts(left: Floats, gone: Floats) -> tuple[tuple[Floats], tuple[Floats, Floats], tuple[Floats, ...]]:
    """Return what the weights of the initial cores belong to, gone = 1 - left being known to more digits."""
    square = left * left
    d23 = square * gone
    d13 = 0.5 * left * gone * (1.0 + left)
    return (left,), (square, left * gone), (square * left, d23, d13, d13 - d23)
