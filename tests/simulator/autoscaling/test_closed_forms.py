"""Closed-form results of the autoscaler specification, §16: exact mode, boot constant 71 s, prices-train."""

import pytest

from domain.workload import Trace
from simulator.autoscaling.configuration import SimulationConfig
from simulator.autoscaling.world_file import preset
from simulator.workloads.synthetic import train_fit, train_text
from tests.simulator.autoscaling.baseline_runs import (
    nothing,
    queue_policy,
    run_policy,
    target_policy,
    threshold_policy,
)


def fixed_boot(**changes: object) -> SimulationConfig:
    return preset("train-text", boot_low_s=71.0, boot_high_s=71.0, **changes)


@pytest.mark.parametrize(
    ("trace", "fleet", "steps", "rent", "penalty"),
    [
        (train_text(), (1, 1, 1), 666, 15.54, 231.9684),
        (train_text(), (10, 10, 10), 196, 196 * 14.0 / 60, 0.0),
        (train_fit(), (1, 1, 1), 231, 5.39, 1.998),
    ],
)
def test_a_constant_fleet_costs_its_rent_and_the_waiting(
    trace: Trace, fleet: tuple[int, ...], steps: int, rent: float, penalty: float
) -> None:
    run = run_policy(fixed_boot(initial=fleet), trace, nothing)
    assert (run.steps, run.interruptions) == (steps, 0)
    assert (run.rent, run.penalty, run.cost) == pytest.approx((rent, penalty, rent + penalty), abs=1e-9)


def test_the_work_of_both_traces_is_as_published() -> None:
    assert (train_text().jobs, train_fit().jobs) == (1551, 1551)
    assert train_text().work_core_s / 3600 == pytest.approx(155.1, abs=1e-9)
    assert train_fit().work_core_s / 3600 == pytest.approx(19.4, abs=0.05)
    assert float(train_text().arrival_s[-1]) == 11_400.0
    assert float(train_fit().arrival_s[-1]) == 13_800.0


@pytest.mark.parametrize(
    ("trace", "multi", "horizon_s", "idle_minutes", "published", "measured"),
    [
        (train_text(), True, 700.0, 2, 20.68, 19.922),
        (train_text(), False, 420.0, 0, 23.06, 20.118),
        (train_fit(), True, 240.0, 0, 6.26, 5.723),
        (train_fit(), False, 210.0, 0, 6.73, 6.165),
    ],
)
def test_the_tuned_queue_rule_is_below_the_published_tuned_one(
    trace: Trace, multi: bool, horizon_s: float, idle_minutes: float, published: float, measured: float
) -> None:
    run = run_policy(fixed_boot(), trace, queue_policy(horizon_s, idle_minutes, multi=multi))
    assert run.cost == pytest.approx(measured, abs=5e-4)
    assert run.cost < published


def test_the_specifications_text_of_the_queue_rule_gives_its_published_figure() -> None:
    run = run_policy(fixed_boot(), train_fit(), queue_policy(540.0, 0, multi=False, busy_counts=False))
    assert run.cost == pytest.approx(6.73, abs=0.006)


def test_the_queue_rule_beats_threshold_and_target_tracking_on_train_fit() -> None:
    queue = run_policy(fixed_boot(), train_fit(), queue_policy(240.0, 0, multi=True)).cost
    threshold = run_policy(fixed_boot(), train_fit(), threshold_policy(0.75, 0.75, 1, warmup_s=0.0)).cost
    target = run_policy(fixed_boot(), train_fit(), target_policy(0.5, warmup_s=0.0)).cost
    assert queue < threshold
    assert queue < target
