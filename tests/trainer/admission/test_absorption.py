"""Death at zero cores: the exact reference, the closure held to it, and the third moment (specification §4.3, §4.4)."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from trainer.admission.volterra import closed_path, exact_ein, exact_path, laguerre, path_moments

FOR_EVER = 1e300


def master_equation(
    size: int, rho: float, sig: float, x: float, largest: int = 160
) -> tuple[float, NDArray[np.float64]]:
    """Return S and the raw moments of the alive, by integrating the chances of every size up to `largest`."""
    k = np.arange(largest + 1)
    jump = np.exp(
        -sig + np.maximum(k - 1, 0) * math.log(sig) - np.array([math.lgamma(max(i, 1)) for i in range(largest + 1)])
    )
    jump[0] = 0.0
    generator = np.zeros((largest + 1, largest + 1))
    for n in range(1, largest + 1):
        generator[n, n - 1] += n
        generator[n, n:] += rho * jump[: largest + 1 - n]
        generator[n, n] -= n + rho
    steps = 4000
    chance = np.zeros(largest + 1)
    chance[size] = 1.0
    h = x / steps
    for _ in range(steps):
        one = chance @ generator
        two = (chance + 0.5 * h * one) @ generator
        three = (chance + 0.5 * h * two) @ generator
        four = (chance + h * three) @ generator
        chance = chance + h / 6 * (one + 2 * two + 2 * three + four)
    return 1.0 - chance[0], np.array([chance @ k, chance @ k**2, chance @ k**3])


@pytest.mark.parametrize(
    ("size", "rho", "sig", "x", "alive", "mean"),
    [
        (1, 1.0, 3.0, 1.0, 0.551984, 2.083354),
        (1, 1.0, 3.0, 4.0, 0.314443, 1.486652),
        (5, 0.5, 1.0, 1.0, 0.923909, 2.455954),
        (5, 0.5, 1.0, 4.0, 0.254816, 0.505679),
        (20, 2.0, 8.0, 1.0, 0.999983, 18.735735),
        (20, 2.0, 8.0, 4.0, 0.984000, 17.863658),
    ],
)
def test_the_volterra_reference_gives_the_exact_values(
    size: int, rho: float, sig: float, x: float, alive: float, mean: float
) -> None:
    at = np.array([x])
    path = exact_path(float(size), rho, sig, at)
    assert path[0, 0] == pytest.approx(alive, abs=2e-6)
    assert path_moments(size, rho, sig, at, path, FOR_EVER)[0][0] == pytest.approx(mean, rel=5e-5)


@pytest.mark.parametrize(
    ("size", "rho", "sig", "sd"), [(1, 1.0, 3.0, 2.924311), (5, 0.5, 1.0, 1.574797), (20, 2.0, 8.0, 9.230539)]
)
def test_the_spread_is_exact_too(size: int, rho: float, sig: float, sd: float) -> None:
    at = np.array([1.0])
    mean, second, _ = path_moments(size, rho, sig, at, exact_path(float(size), rho, sig, at), FOR_EVER)
    assert math.sqrt(second[0] - mean[0] ** 2) == pytest.approx(sd, rel=2e-5)


@pytest.mark.parametrize(("size", "rho", "sig", "x"), [(1, 0.5, 1.5, 0.7), (3, 1.0, 2.0, 2.0), (6, 0.2, 0.5, 1.0)])
def test_three_moments_are_those_of_the_master_equation(size: int, rho: float, sig: float, x: float) -> None:
    alive, raw = master_equation(size, rho, sig, x)
    at = np.array([x])
    path = exact_path(float(size), rho, sig, at)
    found = np.array(path_moments(size, rho, sig, at, path, FOR_EVER))[:, 0]
    assert path[0, 0] == pytest.approx(alive, abs=2e-6)
    assert found == pytest.approx(raw, rel=1e-4)


@pytest.mark.parametrize(
    ("size", "rho", "sig", "closure", "exact"),
    [
        (1, 0.2, 0.5, 0.0425, 0.0369),
        (1, 1.0, 3.0, 0.341, 0.314),
        (5, 0.5, 1.0, 0.2565, 0.2548),
        (20, 2.0, 8.0, 0.98398, 0.98400),
    ],
)
def test_the_closure_errs_as_the_specification_measured(
    size: int, rho: float, sig: float, closure: float, exact: float
) -> None:
    at = np.array([4.0])
    assert closed_path(float(size), rho, sig, at)[0, 0] == pytest.approx(closure, rel=0.03)
    assert exact_path(float(size), rho, sig, at)[0, 0] == pytest.approx(exact, abs=6e-4)


def test_beyond_24_lifetimes_the_chance_to_live_falls_at_an_even_rate() -> None:
    alive = exact_path(3.0, 1.5, 4.0, np.array([20.0, 23.0, 26.0, 29.0]))[0]
    assert alive[2] / alive[1] == pytest.approx(alive[1] / alive[0], rel=2e-3)
    assert alive[3] / alive[2] == pytest.approx(alive[2] / alive[1], rel=2e-3)


def test_the_exponential_integral_is_exact() -> None:
    from scipy.special import exp1

    z = np.geomspace(1e-8, 600.0, 300)
    assert exact_ein(z) == pytest.approx(exp1(z) + np.log(z) + np.euler_gamma, rel=1e-8, abs=1e-13)


def test_laguerre_points_are_those_of_scipy() -> None:
    from scipy.special import roots_genlaguerre

    node, weight = laguerre(0.3, 6)
    expected, mass = roots_genlaguerre(6, -0.7)
    assert node == pytest.approx(expected, rel=1e-10)
    assert weight == pytest.approx(mass / mass.sum(), rel=1e-9)
