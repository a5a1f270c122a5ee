"""Both fits: the likelihood is the belief's, gradients are slopes, and a population is found again."""

from __future__ import annotations

import math
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import TraceError
from domain.rules.admission.belief import exact_belief, mu_nodes
from domain.rules.admission.population import POPULATIONS, Population
from trainer.admission.fitting.fits import (
    Evidence,
    cramer_von_mises,
    fit_marginal,
    fit_two_step,
    gamma_of,
    population_at,
    power_of,
    rates_likelihood,
    rates_of,
    seen_of,
    sizes_likelihood,
    window_hours,
)
from trainer.admission.fitting.histories import Histories, VmTable, histories_of, read_vm_table
from trainer.admission.fitting.lives import write_table
from trainer.admission.fitting.report import START, compare

AT = np.array([0.5, 0.7, 1.1, 0.9, 0.8, 20.0])


def made(folder: Path, preset: str, deployments: int, seed: int, grid_s: int) -> Histories:
    path = folder / f"{preset}{deployments}.csv"
    write_table(path, POPULATIONS[preset], deployments, seed=seed, grid_s=grid_s)
    histories = histories_of(read_vm_table(path))
    path.unlink()
    return histories


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    return made(tmp_path_factory.mktemp("few"), "T", 1500, 4, 300)


def one(**changes: float) -> Evidence:
    given = {"deaths": 5.0, "core_hours": 60.0, "scale_outs": 3.0, "hours": 20.0, "exposure_h": 20.0, "last": 0.0}
    given |= {"extra": 7.0, "size_draws": 4.0} | changes
    return Evidence(**{name: np.array([float(value)]) for name, value in given.items()})


def by_belief(parameters: np.ndarray, seen: Evidence) -> float:
    """The log of the chance of what was seen by the belief that decides admissions, sizes apart."""
    a, b, c, d, r, s = parameters.tolist()
    k, hours = float(seen.scale_outs[0]), float(seen.hours[0])
    belief = exact_belief(
        *(a, b, c, d, 1.0, 1.0, r, s, float(seen.deaths[0]), float(seen.core_hours[0]), k, hours, 0.0, 0.0, 0.0)
    )
    mu, weight = np.empty(2000), np.empty(2000)
    log_z = mu_nodes(*belief[:5], r, 40.0, -600.0, mu, weight)
    terms = math.lgamma(c + k) - math.lgamma(c) + c * math.log(d) + a * math.log(b) - math.lgamma(a)
    return float(log_z) + terms


@given(st.integers(0, 5000), st.floats(0.1, 1e4), st.integers(0, 500), st.floats(0.1, 720.0), st.floats(0.2, 1.4))
@settings(deadline=None, max_examples=60)
def test_the_likelihood_of_one_that_lives_is_that_of_the_belief(
    deaths: int, core_hours: float, scale_outs: int, hours: float, power: float
) -> None:
    seen = one(deaths=deaths, core_hours=core_hours, scale_outs=scale_outs, hours=hours, exposure_h=hours)
    at = np.array([0.5, 0.7, 1.1, 0.9, power, 20.0])
    assert rates_likelihood(at, seen, 1 / 12)[0] == pytest.approx(by_belief(at, seen), rel=1e-6, abs=2e-3)


def test_an_end_counts_as_a_death_or_a_shutdown_by_how_many_machines_it_took() -> None:
    living = rates_likelihood(AT, one(deaths=6.0), 1 / 12)[0]
    shut_down = rates_likelihood(AT, one(deaths=6.0, last=1000.0), 1 / 12)[0]
    assert shut_down - living == pytest.approx(-math.log(20.0), rel=1e-6)
    # One machine alone: its death or a shutdown, at the rates mu and mu / s.
    single = rates_likelihood(AT, one(deaths=6.0, last=1.0), 1e-9)[0]
    assert single - living == pytest.approx(math.log(1.0 + 1.0 / 20.0), rel=1e-4)
    chances = [rates_likelihood(AT, one(deaths=6.0, last=n), 1 / 12)[0] for n in (1.0, 2.0, 3.0, 6.0)]
    assert all(np.diff(chances) < 0.0)


def test_the_gradients_are_the_slopes(few: Histories) -> None:
    seen = seen_of(few)
    value, gradient = rates_likelihood(AT, seen, few.grid_h, nodes=200)
    for i, at in enumerate(AT):
        step = 1e-5 * at * np.eye(6)[i]
        above, below = (rates_likelihood(AT + sign * step, seen, few.grid_h, nodes=200)[0] for sign in (1, -1))
        # The mass to the left of all points is taken at the first, which makes a small difference for mu_shape.
        assert gradient[i] == pytest.approx((above - below) / (2e-5 * at), rel=2e-3, abs=2e-6 * abs(value))
    at = np.array([0.9, 0.2])
    _, gradient = sizes_likelihood(at, seen)
    for i in range(2):
        step = 1e-6 * np.eye(2)[i]
        slope = (sizes_likelihood(at + step, seen)[0] - sizes_likelihood(at - step, seen)[0]) / 2e-6
        assert gradient[i] == pytest.approx(slope, rel=1e-5)


def test_the_sizes_have_the_chance_of_a_gamma_mixture_of_poisson_laws() -> None:
    # One draw: negative binomial with shape a and success b / (b + 1).
    a, b = 0.88, 0.165
    seen = Evidence(*[np.zeros(3)] * 6, extra=np.array([0.0, 1.0, 2.0]), size_draws=np.ones(3))
    chance = [
        math.exp(math.lgamma(a + k) - math.lgamma(a) - math.lgamma(k + 1)) * (b / (b + 1)) ** a / (b + 1) ** k
        for k in range(3)
    ]
    # Without the 1 / k! that no parameter changes.
    expected = sum(math.log(chance[k] * math.factorial(k)) for k in range(3))
    assert sizes_likelihood(np.array([a, b]), seen)[0] == pytest.approx(expected, rel=1e-12)


def test_empirical_bayes_finds_a_population_again_from_few_deployments(few: Histories) -> None:
    fit = fit_marginal(few, START)
    assert fit.converged
    for name in ("mu_shape", "lam_shape", "sig_shape", "lifetimes"):
        truth = getattr(POPULATIONS["T"], name)
        error = fit.relative_errors[name]
        assert 0.01 < error < 0.15
        # Three standard errors, and what the clock's steps of 300 s cost.
        assert getattr(fit.population, name) == pytest.approx(truth, rel=3.0 * error + 0.03)
    assert fit.population.power == pytest.approx(0.9, abs=3.0 * fit.relative_errors["power"] + 0.01)


def test_empirical_bayes_comes_to_the_same_top_from_another_start(few: Histories) -> None:
    first = astuple(fit_marginal(few, START).population)
    other = astuple(fit_marginal(few, Population(2.0, 5.0, 3.0, 0.3, 0.2, 2.0, 0.2, 5.0)).population)
    assert other == pytest.approx(first, rel=3e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("preset", "grid_s"), [("T", 1), ("T", 300), ("H", 300), ("K", 300)])
def test_twenty_thousand_deployments_give_shapes_and_power_to_ten_percent(
    preset: str, grid_s: int, tmp_path: Path
) -> None:
    histories = made(tmp_path, preset, 20_000, 1, grid_s)
    fit = fit_marginal(histories, START)
    truth = POPULATIONS[preset]
    assert fit.converged
    for name in ("mu_shape", "lam_shape", "sig_shape", "power", "lifetimes"):
        assert getattr(fit.population, name) == pytest.approx(getattr(truth, name), rel=0.10), name
    # On other random numbers than the table's, the sizes come out as seen.
    assert compare(histories, fit.population).distance < 1e-3


@pytest.mark.exhaustive
def test_the_published_fit_makes_sizes_come_out_as_seen(few: Histories) -> None:
    start = population_at(few, 0.1, 0.1)
    distances: list[float] = []
    fit = fit_two_step(few, simulated=5000, on_progress=lambda call, distance: distances.append(distance))
    assert fit.distance == min(distances)
    assert fit.distance < 0.5 * distances[0]
    assert len(distances) == fit.evaluations <= 60
    assert 1e-3 < fit.eps1 < 0.9
    assert 1e-3 < fit.eps2 < 0.9
    assert fit.population.power == pytest.approx(start.power, abs=0.5)
    again = fit_two_step(few, simulated=5000)
    assert again == fit


def few_rows(*rows: tuple[int, int, int, int]) -> Histories:
    """Deployment, beginning and end in seconds, cores."""
    deployment, created, deleted, cores = (np.array(column) for column in zip(*rows, strict=True))
    count = int(deployment.max()) + 1
    return histories_of(VmTable(deployment.astype(np.int32), created, deleted, cores, count, 1, len(rows), {}))


def test_rates_are_those_of_the_specification() -> None:
    histories = few_rows(
        *((0, 3600, 7200, 1), (0, 5400, 14_400, 3)),
        *((1, 3600, 7200, 1), (1, 3600, 7200, 1), (1, 3600, 7200, 1)),
        (2, 3600, 36_000, 5),
    )
    rates = rates_of(histories, 0.1, 0.2)
    # The third lives on: none of its cores ended.
    assert rates.mu.tolist() == pytest.approx([4 / (1 + 3 * 2.5), 3 / 3])
    assert rates.theta.tolist() == pytest.approx([1 / 3, math.log(10.0) / 1.0])
    assert rates.sig.tolist() == pytest.approx([2 / 2, 2 / 1])
    assert rates.lifetimes == pytest.approx(3 * 4 / 8.5 + 1.0)
    single = few_rows((0, 3600, 7200, 1), (0, 7200, 10_800, 1), *((1, 3600, 7200, 1),) * 3, (2, 3600, 36_000, 5))
    assert rates_of(single, 0.1, 0.2).sig[0] == pytest.approx(-math.log(0.2) / 2)


@given(st.floats(0.05, 50.0), st.floats(0.01, 100.0))
@settings(deadline=None, max_examples=30)
def test_a_gamma_law_is_found_from_its_draws(shape: float, rate: float) -> None:
    draws = np.random.default_rng(1).gamma(shape, 1.0 / rate, 40_000)
    draws = draws[draws > 0.0]
    found = gamma_of(draws)
    assert found[0] == pytest.approx(shape, rel=0.05)
    assert found[0] / found[1] == pytest.approx(draws.mean())


def test_values_that_are_all_alike_are_a_law_without_spread() -> None:
    assert gamma_of(np.full(5, 2.0)) == (1e6, 5e5)


@pytest.mark.parametrize("power", [0.0, 0.37, 0.9, 1.5])
def test_the_power_is_that_at_which_the_scaled_rates_are_alike(power: float) -> None:
    generator = np.random.default_rng(2)
    mu = generator.gamma(0.5, 2.0, 4000) + 1e-6
    assert power_of(mu, 3.0 * mu**power) == pytest.approx(power, abs=1e-3)


def test_the_distance_is_that_of_the_definition() -> None:
    seen, model = np.array([1, 1, 2, 5]), np.array([1, 2, 2, 4, 9])
    by_hand = (0.5 - 0.2) ** 2 * 0.5 + (0.75 - 0.6) ** 2 * 0.25 + (1.0 - 0.8) ** 2 * 0.25
    assert cramer_von_mises(seen, model) == pytest.approx(by_hand)
    assert cramer_von_mises(seen, np.tile(seen, 3)) == 0.0


def test_simulated_deployments_have_the_window_that_the_tables_had(few: Histories) -> None:
    hours = window_hours(few, 2 * len(few), 0)
    assert np.sort(hours)[::2].tolist() == np.sort(few.window_h - few.began_h).tolist()


def test_what_cannot_be_fitted_is_refused_by_what_is_missing() -> None:
    living = few_rows((0, 3600, 7200, 2), (1, 5400, 7200, 3))
    with pytest.raises(TraceError, match="with ended cores"):
        fit_marginal(living, START)
    with pytest.raises(TraceError, match="end inside the window"):
        fit_two_step(living, simulated=1000)
    never = few_rows((0, 3600, 5400, 2), (1, 3600, 7200, 3))
    with pytest.raises(TraceError, match="with scale-outs"):
        fit_marginal(never, START)
    with pytest.raises(TraceError, match="with a shutdown"):
        fit_two_step(never, simulated=1000)
