"""Rates, baselines, shield, beliefs and drift: what each decides, at its limits and on both sides of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.oversubscription import ridge
from domain.rules.oversubscription.rates import (
    ACTIONS,
    check_actions,
    check_rate,
    clip_rate,
    with_little_history,
)
from domain.rules.oversubscription.ridge import moving_average_rate
from domain.rules.oversubscription.shield import Demand, Machines, best_fit, expected_hot_hours, write_room
from domain.rules.oversubscription.usage import (
    SLACK,
    THRESHOLD,
    PageHinkley,
    offset_belief,
    peak_variance_ratio,
)
from simulator.oversubscription.batch import believed_profile
from tests.oracles.persistence import estimate_persistence
from tests.oracles.shield import Shielded, shield

NAN = math.nan


def fit(free: list[float], need: float, *, memory: float = 1.0, network: float = 1.0) -> int:
    whole, room = np.full(len(free), 10.0), np.empty(len(free))
    write_room(np.array(free), whole, whole, need, memory, network, room)
    return best_fit(room)


def test_best_fit_leaves_the_least_room_and_ties_go_to_the_lowest_index() -> None:
    assert fit([9.0, 4.0, 6.0], 4.0) == 1
    assert fit([9.0, 4.0, 4.0], 4.0) == 1
    assert fit([9.0, 4.0, 6.0], 5.0) == 2


def test_rounding_decides_neither_room_nor_ties() -> None:
    assert fit([4.0 - 1e-12], 4.0) == 0
    assert fit([4.0 - 1e-6], 4.0) == -1
    assert fit([6.0 + 1e-13, 6.0], 4.0) == 0


def test_memory_and_network_bind_too() -> None:
    assert fit([9.0], 1.0, memory=10.0) == 0
    assert fit([9.0], 1.0, memory=10.5) == -1
    assert fit([9.0], 1.0, network=10.5) == -1


@pytest.mark.parametrize(
    "levels", [[], [0.0, 1.0], [0.2, 1.1], [0.4, 0.2, 1.0], [0.2, 0.2, 1.0], [0.2, 0.6], [NAN, 1.0]]
)
def test_levels_rise_to_one(levels: list[float]) -> None:
    with pytest.raises(BadInput, match="actions"):
        check_actions(levels)
    assert check_actions([0.5, 1]) == (0.5, 1.0)


def test_rates_stay_in_bounds() -> None:
    assert [clip_rate(rate) for rate in (0.01, 0.3, 1.7, NAN)] == [0.05, 0.3, 1.0, 1.0]
    for rate in (0.0, 1.01, NAN):
        with pytest.raises(BadInput):
            check_rate("rate", rate)


def test_little_history_is_not_oversold() -> None:
    assert with_little_history(0.4, 23.9, 100.0) == 1.0
    assert with_little_history(0.4, 100.0, 4.9) == 1.0
    assert with_little_history(0.4, 84.0, 5.0) == pytest.approx(0.7)
    assert with_little_history(0.4, 168.0, 5.0) == 0.4


def test_the_moving_average_looks_back_one_day_and_skips_hours_without_vms() -> None:
    peaks = np.array([0.9] + [0.5] * 12 + [NAN] * 12 + [0.1])
    assert moving_average_rate(peaks, 24) == pytest.approx((0.9 + 12 * 0.5) / 13)
    assert moving_average_rate(peaks, 25) == pytest.approx(0.5)
    assert moving_average_rate(peaks, 26) == pytest.approx((11 * 0.5 + 0.1) / 12)
    assert moving_average_rate(peaks, 1) == 0.9
    assert moving_average_rate(peaks, 0) == 1.0
    assert moving_average_rate(np.full(30, NAN), 24) == 1.0
    assert moving_average_rate(np.full(30, 0.01), 24) == 0.05


def test_ridge_learns_levels_and_daily_waves() -> None:
    hours = np.arange(24 + 96)
    wave = np.array([0.4 + 0.1 * np.sin(2 * np.pi * hours / 24), 0.2 + 0.05 * np.cos(2 * np.pi * hours / 24)])
    fitted = ridge.fit([wave, wave, wave], 24, penalty=1e-3)
    for n in (0, 1):
        for hour in (24, 37, 60):
            assert fitted.rate(wave[n], hour, n, hour % 24) == pytest.approx(wave[n, hour], abs=0.003)
    assert fitted.rate(np.full(40, NAN), 30, 0, 6) == 1.0


def test_ridge_refuses_logs_without_a_day_to_learn_from() -> None:
    with pytest.raises(BadInput, match="logs"):
        ridge.fit([np.full((2, 48), NAN)], 24)


def machines(mean: float) -> Machines:
    hours = np.full((2, 24), mean)
    free = np.array([3.0, 20.0])
    return Machines(free, np.full(2, 99.0), np.full(2, 99.0), hours * [[1.0], [0.1]], hours * 0.1, hours * 0.0, 30.0)


DEMAND = Demand(8.0, 1.0, 1.0, np.full(24, 1.6), np.full(24, 0.5), np.zeros(24))


def test_the_shield_lets_a_cool_machine_be() -> None:
    assert shield(machines(5.0), DEMAND, 0.2, ACTIONS, 0.01).rate == 0.2
    assert shield(machines(5.0), DEMAND, 0.2, ACTIONS, 0.01).machine == 0


def test_the_shield_raises_the_rate_until_another_machine_takes_the_vm() -> None:
    answer = shield(machines(29.0), DEMAND, 0.2, ACTIONS, 0.01)
    assert (answer.rate, answer.machine, answer.safe) == (0.4, 1, True)
    assert answer.hot_hours == expected_hot_hours(machines(29.0), 1, DEMAND)


def test_the_shield_takes_a_machine_that_uses_its_budget_up_and_none_beyond() -> None:
    at_first = expected_hot_hours(machines(29.0), 0, DEMAND)
    answer = shield(machines(29.0), DEMAND, 0.2, ACTIONS, at_first)
    assert (answer.rate, answer.machine, answer.hot_hours) == (0.2, 0, at_first)
    answer = shield(machines(29.0), DEMAND, 0.2, ACTIONS, np.nextafter(at_first, 0.0))
    assert (answer.rate, answer.machine) == (0.4, 1)


def test_without_any_safe_level_the_request_keeps_all_its_cores_and_is_flagged() -> None:
    answer = shield(machines(400.0), DEMAND, 0.2, ACTIONS, 0.01)
    assert (answer.rate, answer.machine, answer.safe) == (1.0, 1, False)
    assert answer.hot_hours == pytest.approx(expected_hot_hours(machines(400.0), 1, DEMAND))
    assert answer.hot_hours > 20.0


def test_without_room_there_is_no_machine() -> None:
    crowd = machines(5.0)
    full = Machines(np.zeros(2), crowd.free_memory, crowd.free_network, crowd.mean, crowd.variance, crowd.third, 30.0)
    assert shield(full, DEMAND, 0.2, ACTIONS, 0.01) == Shielded(1.0, -1, 0.0, False)


def test_a_belief_is_the_conjugate_update() -> None:
    assert offset_belief(0.0, 0, 0.85, 0.0) == pytest.approx((0.0, 0.85))
    mean, variance = offset_belief(2.4, 2, 0.85, 0.05)
    assert mean == pytest.approx(0.85 * 2.4 / (0.85 * 2 + 0.1))
    assert variance == pytest.approx(0.85 * 0.1 / (0.85 * 2 + 0.1))
    assert 1.0 / variance == pytest.approx(1.0 / 0.85 + 2 / 0.1)


def test_before_the_first_hour_a_vm_is_like_its_owners_others() -> None:
    assert believed_profile(0.3, 0.2, *offset_belief(0.0, 0, 0.85, 0.0), 0.85) == pytest.approx((0.3, 0.2))
    mu, sd = believed_profile(0.3, 0.2, *offset_belief(50.0, 50, 0.85, 0.0), 0.85)
    assert mu == pytest.approx(0.5, abs=0.001)
    assert sd == pytest.approx(0.2 * math.sqrt(0.15), abs=0.001)


def test_persistence_is_estimated() -> None:
    draws = np.random.default_rng(3)
    own, hourly = draws.standard_normal((400, 1)), draws.standard_normal((400, 24))
    assert estimate_persistence(math.sqrt(0.8) * own + math.sqrt(0.2) * hourly) == pytest.approx(0.8, abs=0.03)
    assert estimate_persistence(hourly) == pytest.approx(0.0, abs=0.02)
    assert estimate_persistence(hourly[:1]) == 0.0


def test_drift_is_distinguished_from_noise() -> None:
    memory, hours = PageHinkley(), 0
    while not memory.alarm():
        memory, hours = memory.seen(-1.5), hours + 1
    assert hours == 7
    assert PageHinkley().seen(NAN) == PageHinkley()
    quiet = PageHinkley()
    for residual in np.random.default_rng(1).standard_normal(500).tolist():
        quiet = quiet.seen(residual)
        assert not quiet.alarm()


def test_false_alarms_come_less_often_than_every_90_days() -> None:
    draws, series = np.random.default_rng(0), 300
    risen, fallen, alarms = np.zeros(series), np.zeros(series), 0
    for _ in range(5_000):
        residual = draws.standard_normal(series)
        risen, fallen = np.maximum(0.0, risen + residual - SLACK), np.maximum(0.0, fallen - residual - SLACK)
        over = np.maximum(risen, fallen) > THRESHOLD
        alarms += int(over.sum())
        risen[over], fallen[over] = 0.0, 0.0
    assert 90 * 24 < series * 5_000 / alarms < 130 * 24


def test_wider_peaks_are_distinguished_from_chance() -> None:
    assert not peak_variance_ratio(1.5, 1.0, 24)
    assert peak_variance_ratio(2.5, 1.0, 24)
    assert not peak_variance_ratio(9.0, 1.0, 1)
