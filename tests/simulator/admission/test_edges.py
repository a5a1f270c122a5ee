"""Sizes that add up at every event, events at one instant, and beliefs at the ends of what there is.

Admission specification §10, §13.2, §13.3.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.rules.admission.population import POPULATIONS, Population
from simulator.admission import PRESETS, Cluster, Run, draw_run, play, rule_of
from simulator.admission.engine import ADMITTED, ARRIVAL, CORE_ENDED, REFUSED, SCALE_REFUSED, SCALED, SHUT_DOWN
from simulator.admission.moments import (
    AB,
    AB_FAST,
    METHODS,
    NA,
    PAPER,
    DeploymentStatistics,
    Prior,
    Sums,
    forecast,
    prior_of,
    room_for,
)
from simulator.admission.play import MODEL_VERSION, config_hash

CHANGES = {ADMITTED: 1, SCALED: 1, CORE_ENDED: -1, SHUT_DOWN: -1, REFUSED: 0, SCALE_REFUSED: 0}
TIMES = np.geomspace(0.04, 26_280.0, 32)


def moments(method: int, prior: Prior, seen: DeploymentStatistics) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = np.zeros(len(TIMES)), np.zeros(len(TIMES))
    nothing = np.zeros(0), np.zeros(0)
    forecast(method, method == PAPER, prior, seen, TIMES, room_for(len(TIMES), 0, 0), Sums(mean, variance, *nothing))
    return mean, variance


@pytest.mark.parametrize("policy", ["zeroth:401", "zeroth:300", "second:1"])
def test_the_total_is_the_sum_of_the_sizes_at_every_event(policy: str) -> None:
    run = draw_run(replace(PRESETS["K"], capacity=400), 7, hours=400.0)
    log = play(run, rule_of(policy), log=200_000).log
    assert len(log) > 1000
    sizes: dict[int, int] = {}
    total, seen = 0, set[int]()
    for event in log:
        number, kind, change = int(event["deployment"]), int(event["kind"]), CHANGES[int(event["kind"])]
        seen.add(kind)
        if change:
            sizes[number] = sizes.get(number, 0) + change * int(event["cores"])
            total += change * int(event["cores"])
            assert sizes[number] >= 0
            assert kind != SHUT_DOWN or sizes[number] == 0
        assert int(event["total"]) == total == sum(sizes.values())
        if sizes.get(number) == 0:
            del sizes[number]
    assert seen >= {ADMITTED, REFUSED, SCALED, CORE_ENDED, SHUT_DOWN}


def test_two_events_at_one_instant_both_happen() -> None:
    arrivals = np.zeros(2, dtype=ARRIVAL)
    arrivals["time"], arrivals["size"], arrivals["stream"] = 1.0, 6, 3
    arrivals["mu"], arrivals["theta"], arrivals["sig"] = 0.1, 0.2, 1.0
    law = Population(4.0, 40.0, 4.0, 4.0, 2.0, 1.0, 0.8, 10.0)
    log = play(
        Run(Cluster("twins", law, 1000, 1.0, 0.01), 5, 500.0, 0, arrivals), rule_of("zeroth:900"), log=10_000
    ).log
    first, second = (log[log["deployment"] == number] for number in (0, 1))
    # Rates and stream are the same, so that every clock of the one runs down with that of the other.
    assert len(first) > 10
    assert np.array_equal(first[["time", "kind", "cores"]], second[["time", "kind", "cores"]])
    assert np.all(np.diff(log["time"]) >= 0.0)
    sizes = np.cumsum([CHANGES[int(event["kind"])] * int(event["cores"]) for event in log])
    assert log["total"].tolist() == sizes.tolist()
    assert sizes[-1] == 0


def test_rates_that_are_all_but_known_give_the_moments_of_known_rates() -> None:
    mu, lam, sig, power, lifetimes, size = 0.1, 1.0, 1.0, 0.8, 5.0, 7
    law = Population(1e6, 1e6 / mu, 1e6, 1e6 / lam, 1e6, 1e6 / sig, power, lifetimes)
    mean, variance = moments(NA, prior_of(law), DeploymentStatistics(size, 0, 0.0, 0, 0.0, 0.0, 0, 0))
    x, rho, m = mu * TIMES, lam * mu ** (power - 1.0), 1.0 + sig
    held = size * np.exp(-x) - rho * m * np.expm1(-x)
    spread = -size * np.exp(-x) * np.expm1(-x) - rho * (m * np.expm1(-x) + (2 * sig + sig**2) * np.expm1(-2 * x) / 2)
    alive = np.exp(-x / lifetimes)
    square = alive * (spread + held**2)
    known = alive * held > 0.01
    assert known.sum() > 15
    assert mean[known] == pytest.approx((alive * held)[known], rel=1e-3)
    assert variance[known] == pytest.approx((square - (alive * held) ** 2)[known], rel=2e-3)


@pytest.mark.parametrize("method", [AB_FAST, AB, NA, PAPER])
def test_a_run_where_all_rates_are_all_but_known_is_played_to_its_end(method: int) -> None:
    law = Population(1e6, 1e7, 1e6, 1e6, 1e6, 1e6, 0.8, 5.0)
    run = draw_run(Cluster("known", law, 60, 1.0, 0.01), 1, hours=300.0)
    outcome = play(run, rule_of(f"second:1,moments={METHODS[method]}"))
    assert 0.2 < outcome.utilisation < 1.0
    assert outcome.binding.sum() > 0


@pytest.mark.parametrize("method", [NA, PAPER])
@pytest.mark.parametrize("shape", [0.8, 0.4, 0.36])
def test_where_a_power_of_the_lifetime_has_no_mean_the_moments_stay_finite_and_steady(
    method: int, shape: float
) -> None:
    # With r = 0.6: 2 r - 2 + a is 0 for 0.8, and r - 1 + a is 0 for 0.4; 0.36 is the preset.
    law = POPULATIONS["K"]
    assert 2.0 * law.power - 2.0 + shape <= 1e-12
    seen = DeploymentStatistics(3, 0, 0.0, 0, 0.0, 0.0, 2, 1)
    at, beside = (moments(method, prior_of(replace(law, mu_shape=a)), seen) for a in (shape, shape + 1e-5))
    for one, other in zip(at, beside, strict=True):
        assert np.all(np.isfinite(one))
        assert np.all(one > 0.0)
        assert one == pytest.approx(other, rel=5e-3)


def test_outcomes_of_another_version_of_the_model_have_another_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    run, rule = draw_run(PRESETS["K"], 1, hours=10.0), rule_of("second:2")
    before, again = config_hash(run, rule), config_hash(run, rule)
    # The package has a function of the module's name.
    module = importlib.import_module("simulator.admission.play")
    monkeypatch.setattr(module, "MODEL_VERSION", MODEL_VERSION + 1)
    assert before == again != config_hash(run, rule)


@settings(max_examples=60, deadline=None)
@given(
    preset=st.sampled_from(["T", "H", "K"]),
    method=st.sampled_from([AB_FAST, AB, NA, PAPER]),
    size=st.integers(1, 3000),
    deaths=st.integers(0, 500),
    requests=st.integers(0, 200),
    hours=st.floats(-2.0, 4.4).map(lambda power: math.pow(10.0, power)),
    extra=st.integers(0, 20),
)
def test_another_deployment_never_makes_the_expected_cores_or_their_variance_smaller(
    preset: str, method: int, size: int, deaths: int, requests: int, hours: float, extra: int
) -> None:
    seen = DeploymentStatistics(
        size, deaths, size * hours, requests, hours, 0.0, extra * requests + size - 1, requests + 1
    )
    mean, variance = moments(method, prior_of(POPULATIONS[preset]), seen)
    assert np.all(mean >= 0.0)
    assert np.all(variance >= 0.0)
    assert mean[0] > 0.0
