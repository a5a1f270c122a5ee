"""exp, expm1 and log of the simulator's forecasts are the library's, to the last digits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np
import pytest

from simulator.admission.elementary import HIGHEST, LOWEST, exp, expm1, log

TINY = 10.0 ** np.linspace(-300.0, 0.0, 4001)
EXPONENTS = np.concatenate([np.linspace(LOWEST, HIGHEST, 20_001), -TINY, TINY, np.arange(-60, 60) * math.log(2.0) / 2])


@numba.vectorize
def exps(x: float) -> float:
    """Return exp of each."""
    return exp(x)


@numba.vectorize
def expm1s(x: float) -> float:
    """Return expm1 of each."""
    return expm1(x)


@numba.vectorize
def logs(x: float) -> float:
    """Return log of each."""
    return log(x)


@pytest.mark.parametrize(
    ("ours", "library", "given"),
    [
        (exps, np.exp, EXPONENTS),
        (expm1s, np.expm1, EXPONENTS),
        (logs, np.log, np.concatenate([TINY, 1.0 / TINY, 1.0 - TINY[:-1], 1.0 + TINY])),
    ],
)
def test_each_is_within_two_units_of_the_last_place(
    ours: Callable[[np.ndarray], np.ndarray], library: Callable[[np.ndarray], np.ndarray], given: np.ndarray
) -> None:
    expected = library(given)
    assert np.all(np.abs(ours(given) - expected) <= 2.0 * np.spacing(np.abs(expected)))


def test_beyond_its_range_exp_is_all_but_0_and_stays_finite() -> None:
    assert 0.0 <= exps(-1e9) < 1e-300
    assert np.isfinite(exps(1e9))
    assert expm1s(-1e9) == -1.0
