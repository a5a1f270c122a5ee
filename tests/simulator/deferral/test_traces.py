"""Episodes from records: on-demand load of VM requests and jobs of a log (deferral §8)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput, TraceError
from domain.rules.deferral.jobs import FIELDS, check_job, jobs_of, objective
from simulator.deferral import engine
from simulator.deferral.scenarios import Scenario
from simulator.deferral.traces import TOO_LONG, load_of, log_jobs, trace_episode
from trainer.deferral.exact import violations_of

LOGS = Path(__file__).parents[3] / "benchmarks/logs"
NASA, HPC2N = LOGS / "NASA-iPSC-1993-3.1-cln.swf.gz", LOGS / "HPC2N-2002-first-jobs.swf.gz"


def log_of(path: Path, *jobs: tuple[float, float, int]) -> Path:
    """Write a log of jobs as (submitted, run time, processors), in seconds."""
    lines = [
        f"{k} {submit} 0 {run} {width} -1 -1 {width} -1 -1 1 1 1 1 1 1 -1 -1"
        for k, (submit, run, width) in enumerate(jobs, 1)
    ]
    path.write_text("; a log\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_jobs_of_a_log_are_rounded_up_and_the_others_counted(tmp_path: Path) -> None:
    found = log_jobs(
        log_of(
            tmp_path / "small.swf",
            (0, 10, 1), (3599, 3600, 3), (3600, 3601, 8), (90_000, 6 * 3600, 5), (5, 6 * 3600 + 1, 1), (5, 10, 9),
            (5, 0, 1), (2 * 86_400, 60, 1),
        )
    )  # fmt: skip
    assert found.hour.tolist() == [0, 0, 1, 25]
    assert found.cores.tolist() == [1, 4, 8, 8]
    assert found.duration.tolist() == [1, 1, 2, 6]
    assert found.span_h == 48
    assert found.dropped == {"too_wide": 1, "no_run_time": 1, TOO_LONG: 1}


def test_a_table_of_jobs_begins_with_the_day_of_its_first_one(tmp_path: Path) -> None:
    """The same jobs as in a log, from 2026-03-01 12:00 on, with ISO times."""
    rows = [("2026-03-01T12:30:00Z", 10, 1), ("2026-03-01T13:59:59Z", 3601, 3), ("2026-03-02T01:00:00Z", 60, 8)]
    path = tmp_path / "jobs.csv"
    path.write_text("submit,runtime,cores\n" + "".join(f"{at},{run},{cores}\n" for at, run, cores in rows), "utf-8")
    found = log_jobs(path)
    assert (found.hour.tolist(), found.cores.tolist(), found.duration.tolist()) == ([12, 13], [1, 4], [1, 2])


def test_a_log_without_a_usable_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="at most 6 hours"):
        log_jobs(log_of(tmp_path / "wide.swf", (0, 10, 9)))


def test_the_load_is_the_cores_of_the_vms_that_run() -> None:
    load = load_of("azure_like-s0")
    assert load.shape == (120,)
    assert (load > 1_000).all()


@pytest.mark.parametrize("name", ["azure_like", "azure_like-s99", "nowhere-s0"])
def test_a_load_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(BadInput):
        load_of(name)


@pytest.mark.parametrize("log", [pytest.param(NASA, marks=pytest.mark.exhaustive), HPC2N])
def test_a_window_has_the_arrival_rate_and_the_balance_of_the_scenario(log: Path) -> None:
    made, counts = trace_episode("azure_like-s0", log, window=3, seed=3)
    rows = [dict(zip(FIELDS, row, strict=True)) for row in zip(*(c.tolist() for c in made.jobs), strict=True)]
    np.testing.assert_array_equal(jobs_of([check_job(row)[0] for row in rows]), made.jobs)
    assert (counts.kept, counts.rate) == (1008, 8.4)
    assert counts.kept == made.jobs.size
    # In `valley` the mean capacity is 25.7 for 25.4 core-steps offered, before weekends.
    assert made.capacity.sum() / made.jobs.revenue.sum() == pytest.approx(25.7 / (8.4 * 3.024), abs=0.01)
    start = engine.play(made, engine.rule_of("knapsack"))
    score = objective(made.jobs, start, made.capacity)
    assert violations_of(made.jobs, start, made.capacity, score=score, online=True) == []


def test_a_window_is_made_of_the_days_that_it_names(tmp_path: Path) -> None:
    """A job in hour 30 of a log of 10 days is in hour 6 of window 1; the log has too few to reach the rate."""
    log = log_of(tmp_path / "ten.swf", (30 * 3600, 60, 2), (239 * 3600, 60, 1))
    made, counts = trace_episode("azure_like-s0", log, window=1, scenario=Scenario(lead_max=0))
    assert 6 in made.jobs.earliest.tolist()
    assert counts.log_jobs == 2
    assert counts.kept == counts.found == made.jobs.size
    # Weeks are laid over each other until they repeat: 10 days hold 10 different begins of them.
    assert counts.weeks == 10


def test_the_same_window_and_seed_make_the_same_episode() -> None:
    one, same = (trace_episode("internal_like-s0", HPC2N, window=2, seed=7)[0] for _ in range(2))
    other = trace_episode("internal_like-s0", HPC2N, window=2, seed=8)[0]
    np.testing.assert_array_equal(one.jobs, same.jobs)
    assert one.jobs.latest.tolist() != other.jobs.latest.tolist()


@pytest.mark.parametrize(("window", "seed"), [(-1, 0), (0, -1)])
def test_a_window_or_seed_below_0_is_refused(window: int, seed: int) -> None:
    with pytest.raises(BadInput, match="0 or more"):
        trace_episode("internal_like-s0", HPC2N, window=window, seed=seed)
