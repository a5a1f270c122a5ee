"""Episodes from a seed: the draws, every scenario, and files of parameters (deferral §7)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.deferral.jobs import FIELDS, check_job, jobs_of
from simulator.checked_toml import FileRefused
from simulator.deferral.scenarios import SCENARIOS, VALLEY, Scenario, episode, read_scenario


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_job_of_every_scenario_is_one_that_the_agent_accepts(name: str) -> None:
    drawn = episode(name, 11)
    rows = [dict(zip(FIELDS, row, strict=True)) for row in zip(*(c.tolist() for c in drawn.jobs), strict=True)]
    np.testing.assert_array_equal(jobs_of([check_job(row)[0] for row in rows]), drawn.jobs)
    assert (np.diff(drawn.jobs.submitted) >= 0).all()
    assert int(drawn.jobs.latest.max()) < drawn.steps
    assert (drawn.capacity >= 0).all()


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_seed_draws_the_same_episode(name: str) -> None:
    one, same, other = episode(name, 11), episode(name, 11), episode(name, 12)
    np.testing.assert_array_equal(one.jobs, same.jobs)
    np.testing.assert_array_equal(one.capacity, same.capacity)
    assert one.capacity.tolist() != other.capacity.tolist()


@pytest.mark.parametrize(
    ("name", "scale"), [("valley", 1.0), ("core2", 3.75 / 1.89), ("core3", 2.6 / 1.89), ("dur1", 3.5 / 1.6),
                        ("dur2", 2.3 / 1.6), ("core2_fixed", 1.0)],
)  # fmt: skip
def test_capacity_is_scaled_by_the_mean_work_of_a_job(name: str, scale: float) -> None:
    assert SCENARIOS[name].scale == pytest.approx(scale)


def test_jobs_of_the_real_time_scenario_are_known_at_their_only_step() -> None:
    jobs = episode("realtime", 3).jobs
    np.testing.assert_array_equal(jobs.submitted, jobs.earliest)
    np.testing.assert_array_equal(jobs.latest, jobs.earliest)


def test_bursts_and_drops_take_capacity_only() -> None:
    """The drop has a generator of its own: it leaves the jobs as they are."""
    drop, without = episode("sched_drop", 4), episode("dur1", 4)
    np.testing.assert_array_equal(drop.jobs, without.jobs)
    hit = np.flatnonzero(drop.capacity != without.capacity)
    assert set((drop.hours[hit] % 24).tolist()) <= {9, 10, 11}
    np.testing.assert_array_equal(drop.capacity[hit], without.capacity[hit] // 2)
    assert 4 <= len(set((hit // 24).tolist())) <= 8


def test_a_scenario_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadInput, match="did you mean valley"):
        episode("vally", 0)
    with pytest.raises(BadInput, match="seed"):
        episode("valley", -1)


def test_a_file_of_parameters_changes_what_it_names(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.toml", "lam = 3\nsteps = 48\ncores = [1, 16]\ncore_p = [0.75, 0.25]\n")
    made = read_scenario(path)
    assert made == Scenario(lam=3.0, steps=48, cores=(1, 16), core_p=(0.75, 0.25))
    drawn = episode(made, 5)
    assert drawn.steps == 48
    assert set(drawn.jobs.cores.tolist()) == {1, 16}
    assert made.scale == pytest.approx(4.75 * 1.6 / 3.024)
    assert read_scenario(written(tmp_path / "empty.toml", "")) == VALLEY


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("lam = -1", "lam"),
        ("lambda = 3", "did you mean lam"),
        ("steps = 0", "steps"),
        ("steps = 2.5", "steps"),
        ("arr_amp = 1.5", "arr_amp"),
        ("win_q = 1.0", "win_q"),
        ("ar_phi = 1.0", "ar_phi"),
        ("cap_mean = nan", "cap_mean"),
        ("core_case = 4", "core_case"),
        ("cores = [0, 1]\ncore_p = [0.5, 0.5]", "cores"),
        ("cores = [1, 2]", "core_p"),
        ("core_p = [0.5, 0.5]", "cores"),
        ("cores = [1, 2]\ncore_p = [0.5, 0.4]", "sum to 1"),
        ("cores = [1, 2]\ncore_p = [0.5, 0.3, 0.2]", "as many"),
        ("durations = [1]\nduration_p = [1.0]\nduration_case = 1", "not both"),
        ("lam = 90000.0\nsteps = 90000", "at most 10000000"),
        ("realtime = 1", "realtime"),
    ],
)
def test_a_wrong_parameter_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(FileRefused, match=named):
        read_scenario(written(tmp_path / "bad.toml", text))


def test_extreme_parameters_are_played(tmp_path: Path) -> None:
    for made in (
        Scenario(lam=0.0),
        Scenario(cap_mean=0.0, ar_sigma=0.0),
        Scenario(steps=1),
        Scenario(win_p0=1.0, lead_max=0),
        Scenario(win_p0=0.0, win_max=0),
        Scenario(burst_p=1.0, burst_frac=1.0, burst_len=500),
        Scenario(drop_p=1.0, drop_frac=1.0, drop_len=500),
    ):
        drawn = episode(made, 1)
        assert drawn.steps == made.steps
        assert drawn.capacity.shape == (made.steps,)
