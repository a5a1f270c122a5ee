"""The mixture of loads: every family, no load twice, scaled to the fleet, chosen where it is worst."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.workloads.synthetic import train_fit
from trainer.autoscaling.tasks import BAGS, FAMILIES, LARGEST_BAG, MOST_JOBS, Task, load_of, mixture


def test_every_family_has_as_many_traces_and_no_load_comes_twice() -> None:
    traces = mixture(1_000_000, 2, 140)
    assert len({trace.digest for trace in traces}) == 2 * len(FAMILIES)
    assert traces[3].digest == load_of(FAMILIES[1], 1_000_003, 140).digest


@pytest.mark.parametrize("family", [*FAMILIES, BAGS])
def test_a_seed_gives_the_same_load_every_time(family: str) -> None:
    assert load_of(family, 7, 140).digest == load_of(family, 7, 140).digest != load_of(family, 8, 140).digest


def test_a_small_fleet_gets_a_small_load() -> None:
    whole, part = (load_of("random", 5, cores).work_core_s for cores in (140, 42))
    assert part / whole == pytest.approx(42 / 140, rel=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_a_load_like_a_log_has_at_most_the_work_it_is_meant_to_have(seed: int) -> None:
    trace = load_of("log", seed, 140)
    longest_job_core_s = 64 * 4 * 3600.0
    assert trace.work_core_s <= 0.6 * 140 * 4 * 3600.0 + longest_job_core_s
    assert trace.arrival_s[0] == 0.0
    assert trace.arrival_s.max() <= 4 * 3600.0


@pytest.mark.parametrize("seed", range(8))
def test_bags_of_tasks_come_in_order_and_none_is_most_of_the_work(seed: int) -> None:
    trace = load_of(BAGS, seed, 140)
    assert trace.arrival_s[0] == 0.0
    assert (np.diff(trace.arrival_s) >= 0.0).all()
    assert trace.jobs <= 1.25 * MOST_JOBS
    most_core_s = 0.6 * 140 * 5 * 3600.0
    # The last bag may go beyond, and lengths within a bag vary.
    assert trace.work_core_s <= 1.5 * (1.0 + LARGEST_BAG) * most_core_s
    at_once = [trace.service_s[trace.arrival_s == at].sum() for at in np.unique(trace.arrival_s)]
    assert max(at_once) <= 1.5 * max(LARGEST_BAG * most_core_s, trace.service_s.max())


def test_bags_of_tasks_come_in_bursts_beside_a_load_like_a_log() -> None:
    def spread(family: str) -> float:
        gaps = [np.diff(load_of(family, seed, 140).arrival_s) for seed in range(12)]
        return float(np.median([one.std() / one.mean() for one in gaps]))

    assert spread(BAGS) > 2.0 * spread("log")


def test_an_idle_load_goes_on_for_hours_with_four_short_jobs() -> None:
    trace = load_of("idle", 3, 140)
    assert (trace.arrival_s >= 3600.0).sum() == 4
    assert trace.arrival_s.max() >= 3 * 3600.0


def test_checkpoints_are_judged_by_the_mean_ratio_and_the_worst_family() -> None:
    costs = np.array([1.0, 2.0, 6.0, 8.8])
    # Family a: 1.0 and 1.0; family b: 1.5 and 1.1, on the mean 1.3: 1.15 over both, and half of 0.3.
    task = Task("four", (), (train_fit(),) * 4, par=(1.0, 2.0, 4.0, 8.0), families=("a", "a", "b", "b"))
    assert task.score(costs) == pytest.approx(1.15 + 0.15)
    assert replace(task, par=()).score(costs) == pytest.approx(4.45)
