"""The simulated deployments follow the laws that the moments are computed from (admission specification §13.2)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from domain.rules.admission.population import Population
from simulator.admission import Cluster, Run, draw_run, play, rule_of
from simulator.admission.engine import ADMITTED, ARRIVAL, CORE_ENDED, SCALE_REFUSED, SCALED, SHUT_DOWN
from trainer.admission.volterra import exact_path, path_moments

LIFETIMES = 5.0
LAW = Population(4.0, 40.0, 4.0, 4.0, 2.0, 1.0, 0.8, LIFETIMES)
COPIES = 4000
TRIPLES = [
    (size, rho, sig)
    for size, rho, sig in [
        *((1, 0.2, 0.5), (1, 1.0, 3.0), (1, 3.0, 0.3), (2, 0.5, 1.0), (3, 0.1, 8.0), (4, 2.0, 0.1)),
        *((5, 0.5, 1.0), (5, 0.05, 20.0), (8, 1.5, 2.0), (12, 0.3, 0.5), (20, 2.0, 8.0), (40, 0.5, 5.0)),
    ]
]


def sizes_after(hours: float, size: int, rho: float, sig: float, absorb: bool) -> np.ndarray:
    """Return the cores that each of many deployments of the same rates, mu being 1, holds at the end."""
    arrivals = np.zeros(COPIES, dtype=ARRIVAL)
    arrivals["time"] = np.arange(COPIES) * 1e-12
    arrivals["mu"], arrivals["theta"], arrivals["sig"], arrivals["size"] = 1.0, rho, sig, size
    arrivals["stream"] = np.arange(COPIES)
    run = Run(Cluster("many", LAW, 10**7, 1.0, 0.01, absorb=absorb), 17, hours, 0, arrivals)
    log = play(run, rule_of("zeroth:1e9"), log=4_000_000).log
    held = np.zeros(COPIES)
    sign = {ADMITTED: 1, SCALED: 1, CORE_ENDED: -1, SHUT_DOWN: -1}
    for kind, change in sign.items():
        rows = log[log["kind"] == kind]
        np.add.at(held, rows["deployment"], change * rows["cores"])
    return held


def close(held: np.ndarray, mean: float, second: float) -> bool:
    """Whether mean and mean square are within 4 standard errors of what they are to be."""
    off_mean = abs(held.mean() - mean) / (held.std() / math.sqrt(COPIES))
    off_second = abs((held**2).mean() - second) / ((held**2).std() / math.sqrt(COPIES))
    return bool(off_mean < 4.0 and off_second < 4.0)


@pytest.mark.parametrize(("size", "rho", "sig"), TRIPLES)
def test_where_empty_deployments_come_back_sizes_have_the_closed_forms_moments(
    size: int, rho: float, sig: float
) -> None:
    x, m, pairs = 1.5, 1.0 + sig, 2.0 * sig + sig * sig
    left, gone, alive = math.exp(-x), -math.expm1(-x), math.exp(-x / LIFETIMES)
    mean = size * left + rho * m * gone
    variance = size * left * gone + rho * (m * gone - pairs * math.expm1(-2.0 * x) / 2.0)
    assert close(sizes_after(x, size, rho, sig, False), alive * mean, alive * (variance + mean * mean))


@pytest.mark.parametrize(("size", "rho", "sig"), TRIPLES)
def test_where_they_do_not_sizes_have_the_moments_of_the_volterra_reference(size: int, rho: float, sig: float) -> None:
    at = np.array([1.5])
    path = exact_path(float(size), rho, sig, at)
    mean, second, _ = path_moments(float(size), rho, sig, at, path, LIFETIMES)
    assert close(sizes_after(1.5, size, rho, sig, True), float(mean[0]), float(second[0]))


def test_deaths_requests_and_shutdowns_are_as_many_as_their_rates_ask_for() -> None:
    run = draw_run(Cluster("open", LAW, 10**6, 30.0, 0.01), 23, hours=200.0)
    outcome = play(run, rule_of("zeroth:1e9"), log=2_000_000)
    size, since = np.zeros(len(run.arrivals)), np.zeros(len(run.arrivals))
    core_hours, hours = np.zeros(len(run.arrivals)), np.zeros(len(run.arrivals))
    change = {ADMITTED: 1, SCALED: 1, CORE_ENDED: -1, SHUT_DOWN: -1, SCALE_REFUSED: 0}
    for event in outcome.log:
        i, now = event["deployment"], event["time"]
        core_hours[i] += size[i] * (now - since[i])
        hours[i] += (size[i] > 0) * (now - since[i])
        size[i], since[i] = size[i] + change[int(event["kind"])] * event["cores"], now
        # All cores that are taken belong to a deployment.
        assert event["kind"] != SHUT_DOWN or size[i] == 0
    core_hours += size * (200.0 - since)
    hours += (size > 0) * (200.0 - since)
    assert outcome.log["total"][-1] == size.sum()
    mu, theta = run.arrivals["mu"], run.arrivals["theta"]
    expected = np.array([(mu * core_hours).sum(), (theta * hours).sum(), (mu / LIFETIMES * hours).sum()])
    counted = np.array([outcome.deaths, outcome.requests.sum(), outcome.shutdowns])
    assert expected.min() > 500.0
    # Chi-square with three degrees of freedom: 16.27 is passed with a chance of 1e-3.
    assert ((counted - expected) ** 2 / expected).sum() < 16.27


@pytest.mark.parametrize(("theta", "sig", "mu"), [(0.0, 3.0, 1.0), (1.0, 0.0, 1.0), (2.0, 1.0, 0.0), (0.0, 0.0, 0.0)])
def test_rates_of_zero_are_rates_like_others(theta: float, sig: float, mu: float) -> None:
    arrivals = np.zeros(1, dtype=ARRIVAL)
    arrivals["mu"], arrivals["theta"], arrivals["sig"], arrivals["size"] = mu, theta, sig, 5
    cluster = replace(Cluster("one", LAW, 1000, 1.0, 0.01), capacity=1000)
    outcome = play(Run(cluster, 1, 40.0, 0, arrivals), rule_of("second:2"), log=10_000)
    grown = outcome.log[outcome.log["kind"] == SCALED]["cores"]
    assert len(grown) == outcome.requests.sum()
    assert (len(grown) == 0) == (theta == 0.0)
    assert sig > 0.0 or set(grown.tolist()) <= {1}
    assert (outcome.deaths + outcome.shutdowns == 0) == (mu == 0.0)
    assert outcome.live == (1 if mu == 0.0 else 0)
