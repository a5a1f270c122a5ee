"""Moments of a size as weights of what changes with time: the chance of a core to be left, its powers, and the S_k.

The same formulas as `ab.conditional_ab`, sorted by what does not depend on time, for those who want many times of many
deployments at once.
"""

from __future__ import annotations

from typing import NamedTuple

from domain.rules.admission.belief import Floats


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
