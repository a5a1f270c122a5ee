"""Risk assessed for whole VM-days: hot hours that come in bunches, and few VMs with heavy tails (B7)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from domain.rules.oversubscription.risk import count_at_least
from domain.rules.oversubscription.usage import Moments
from simulator.oversubscription.usage import usage_of
from simulator.oversubscription.vm_days import day_shape
from simulator.oversubscription.weekly import Assessor, EpisodeResults, Risk, sample
from tests.simulator.oversubscription.cases import small

Days = NDArray[np.float64]
EPISODES = 4_000
VMS = 10
"""One core each, for five days, all on one machine of 10 cores that is hot from 6 in use."""
ROWS = [f"{k},0,1,1,0.1,0,120,0" for k in range(VMS)] + ["99,1,1,1,0.1,0,1,0"]


def levels(draws: np.random.Generator, alike: float) -> Days:
    """Days whose hours correlate so much, around 0.42."""
    own, hours = draws.normal(size=(4_000, 1)), draws.normal(size=(4_000, 24))
    usage: Days = np.clip(0.42 + 0.2 * (np.sqrt(alike) * own + np.sqrt(1.0 - alike) * hours), 0.0, 1.0)
    return usage


def played(folder: Path, days: Days) -> tuple[Risk, Risk, EpisodeResults]:
    """The week as assessed for whole days, as assessed for independent hours, and as sampled."""
    scenario, week = small(folder, ROWS, horizon_h=120, delta_count=3, pms=3)
    names = ",".join(["owner", *(f"s{i:03}" for i in range(288))])
    lines = [",".join(["a", *(f"{100 * u:.2f}" for u in np.repeat(day, 12))]) for day in days]
    idle = [",".join(["b", *["0"] * 288])] * 2
    (folder / "days.csv").write_text("\n".join([names, *lines, *idle]))
    model = usage_of(f"bootstrap:{folder / 'days.csv'}", scenario, week)
    # The busier owner stands for subscriber 1 of the profile, so the two change places.
    week.subscriber[:] = 1 - week.subscriber
    whole = Assessor(scenario, week, "cold", model.moments, shape=model.shape).assess(np.ones(2))
    plain = Assessor(scenario, week, moments=model.moments).assess(np.ones(2))
    return whole, plain, sample(whole.placement, model, np.arange(EPISODES))


@pytest.mark.exhaustive
@pytest.mark.parametrize("alike", [0.0, 0.5, 0.9])
def test_the_assessed_share_of_bad_weeks_is_the_realised_one_however_hours_hang_together(
    tmp_path: Path, alike: float
) -> None:
    whole, _, drawn = played(tmp_path, levels(np.random.default_rng(3), alike))
    independent = count_at_least(whole.by_hour, 3)
    assert whole.expected_hot_hours == pytest.approx(float(drawn.hot_hours.mean()), rel=0.08)
    assert whole.c_hot_r == pytest.approx(drawn.c_hot_r, abs=0.03)
    if alike == 0.0:
        assert whole.c_hot_r == pytest.approx(independent, abs=0.01)
    else:
        assert abs(independent - drawn.c_hot_r) > 3 * abs(whole.c_hot_r - drawn.c_hot_r)


@pytest.mark.exhaustive
def test_a_heavy_tail_of_few_vms_counts(tmp_path: Path) -> None:
    draws = np.random.default_rng(8)
    whole, plain, drawn = played(tmp_path, np.clip(0.1 + draws.exponential(0.25, (4_000, 24)), 0.0, 1.0))
    realised = float(drawn.hot_hours.mean())
    assert abs(whole.expected_hot_hours - realised) < abs(plain.expected_hot_hours - realised)


def test_likeness_is_the_mean_correlation_between_hours_of_a_day() -> None:
    days = levels(np.random.default_rng(1), 0.6)
    days[:, 5] = 0.1
    apart = days - days.mean(axis=0)
    moments = Moments(days.mean(axis=0)[None], (apart**2).mean(axis=0)[None], (apart**3).mean(axis=0)[None])
    shape = day_shape(*moments, [days])
    others = np.delete(np.arange(24), 5)
    table = np.corrcoef(days[:, others].T)
    assert shape.alike[0] == pytest.approx((table.sum() - 23) / (23 * 22), abs=1e-12)
    assert shape.fourth[0, 5] == pytest.approx(0.0, abs=1e-12)
