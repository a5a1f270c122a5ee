"""Announcements made from a trace hold all of its work, and damage does what it says."""

import numpy as np
import pytest

from domain.workload import Trace, make_trace
from simulator.workloads.synthetic import train_rand
from trainer.autoscaling.lessons import LONGEST_BURST_S, announced, announced_in_part, bursts


def steady() -> Trace:
    return make_trace("steady", np.arange(0.0, 7_200.0, 20.0), np.full(360, 30.0))


@pytest.mark.parametrize("trace", [train_rand(700_100), steady()])
def test_true_announcements_hold_every_job_and_all_of_the_work(trace: Trace) -> None:
    rows = bursts(trace)
    assert rows[:, 1].sum() == trace.jobs
    assert (rows[:, 1] * rows[:, 2]).sum() == pytest.approx(trace.service_s.sum())
    assert (np.diff(rows[:, 0]) > 0.0).all()
    assert (rows[:, 3] <= LONGEST_BURST_S).all()
    assert rows[0, 0] == trace.arrival_s[0]


def test_a_batch_is_one_announcement() -> None:
    trace = train_rand(700_100)
    assert len(bursts(trace)) == np.unique(trace.arrival_s).size
    assert (bursts(trace)[:, 3] == 0.0).all()


def test_damage_makes_them_late_wrong_or_missing_and_adds_what_never_comes() -> None:
    trace, rng = steady(), np.random.default_rng(3)
    true = bursts(trace)
    assert np.array_equal(announced(trace, rng), true)
    assert len(announced(trace, rng, missing=1.0)) == 0
    early = true[:, 0] - announced(trace, rng, late=1.0)[:, 0]
    assert (early >= 300.0).all()
    assert (early <= 1_200.0).all()
    wrong = announced(trace, rng, wrong=1.0)
    assert (wrong[:, 1] != true[:, 1]).any()
    assert (wrong[:, 1] <= 3.0 * true[:, 1]).all()
    assert (np.delete(wrong, 1, axis=1) == np.delete(true, 1, axis=1)).all()
    assert len(announced(trace, rng, cancelled=1.0)) == 2 * len(true)


def test_a_share_of_lessons_has_announcements_alike_from_one_seed() -> None:
    trace = train_rand(700_100)
    drawn = [announced_in_part(trace, seed, 0.35) for seed in range(400)]
    assert 0.3 < sum(rows is not None for rows in drawn) / 400 < 0.4
    true = sum(rows is not None and np.array_equal(rows, bursts(trace)) for rows in drawn)
    assert 0.12 < true / 400 < 0.23
    again = announced_in_part(trace, 7, 1.0)
    assert again is not None
    assert np.array_equal(again, announced_in_part(trace, 7, 1.0))
