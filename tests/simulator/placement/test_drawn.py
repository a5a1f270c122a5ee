"""Requests drawn from what was fitted to a public trace."""

from __future__ import annotations

import numpy as np
import pytest

from domain.errors import BadInput
from domain.rules.placement.policies import LIFETIME
from simulator.placement.drawn import drawn, fitted, parameters
from simulator.placement.engine import play
from simulator.placement.instances import instance_of
from simulator.placement.traces import TRACES, table_of

OPENB = "alibaba-openb"


def test_the_file_has_what_is_fitted_to_the_trace() -> None:
    made, kept = fitted(table_of(OPENB)), parameters()[OPENB]
    assert list(made) == list(kept)
    for name, values in kept.items():
        np.testing.assert_allclose(np.array(made[name]), np.array(values), atol=2e-4, err_msg=name)


@pytest.mark.parametrize("trace", TRACES)
def test_draws_have_the_sizes_and_the_lives_of_the_trace(trace: str) -> None:
    real, made = table_of(trace), drawn(parameters()[trace], 20_000, 2)
    for k in (2, 3):
        assert made[k].mean() == pytest.approx(real[k].mean(), rel=0.03)
    theirs, mine = (np.quantile(np.log(table[1]), (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)) for table in (real, made))
    np.testing.assert_allclose(mine, theirs, atol=0.2)
    assert made[1].max() <= real[1].max()
    # Long lives go with sizes: the mean of ln life by cores is that of the trace where there are many rows.
    for cores in np.unique(real[2]):
        mine, theirs = made[1][made[2] == cores], real[1][real[2] == cores]
        if min(mine.size, theirs.size) > 300:
            assert np.log(mine).mean() == pytest.approx(np.log(theirs).mean(), abs=0.2)
    assert made[0][-1] == pytest.approx(real[0][-1] * 20_000 / real[0].size, rel=0.1)


@pytest.mark.parametrize("trace", TRACES)
def test_draws_have_the_batches_and_the_slow_changes_of_the_trace(trace: str) -> None:
    tables = table_of(trace), drawn(parameters()[trace], 20_000, 2)
    theirs, mine = (float((np.diff(table[0]) == 0.0).mean()) for table in tables)
    assert mine == pytest.approx(theirs, rel=0.08)
    theirs, mine = (int(np.unique(table[0], return_counts=True)[1].max()) for table in tables)
    assert mine == pytest.approx(theirs, rel=0.1)
    six_hours = [np.bincount((table[0] // 21_600).astype(int))[:-1] for table in tables]
    theirs, mine = (float(np.corrcoef(n[1:], n[:-1])[0, 1]) for n in six_hours)
    assert mine == pytest.approx(theirs, abs=0.15)
    # Rows of one moment that have lives within 5 % of each other.
    theirs, mine = (
        float((np.abs(np.diff(np.log(table[1]))) < 0.05)[np.diff(table[0]) == 0.0].mean()) for table in tables
    )
    assert mine == pytest.approx(theirs, abs=0.09)


KNOWN = {
    "sizes": [[1, 2], [4, 8]], "shares": [0.5, 0.5], "means": [9.0] * 6, "spreads": [0.3] * 6,
    "weights": [[1 / 6] * 6] * 2, "per_hour": [10.0] * 12 + [40.0] * 12, "dispersion": 0.2, "repeat": 0.5,
    "alike": 0.0, "tail_s": [5e6, 1e7], "tick_s": 1.0, "batches": [[1, 1.0]], "slow": [0.0, 1.0],
    "in_large_batch": [1 / 6] * 6, "life_by_rate": 0.0, "repeat_in_batch": 0.5, "equal_in_batch": 0.0,
}  # fmt: skip
"""A rate of 40 by day and 10 by night, one life of two hours, and every second request of the size before."""


def test_a_fit_to_what_was_drawn_has_its_rhythm_and_its_repetitions() -> None:
    made = fitted(drawn(KNOWN, 30_000, 4))
    # The first hour of the fit is that of the first request.
    assert np.mean(made["per_hour"][:12]) == pytest.approx(10.0, rel=0.1)
    assert np.mean(made["per_hour"][12:]) == pytest.approx(40.0, rel=0.1)
    assert made["repeat"] == pytest.approx(0.5, abs=0.02)
    assert made["dispersion"] == pytest.approx(0.2, abs=0.04)
    assert made["means"][2:4] == pytest.approx([9.0, 9.0], abs=0.1)
    assert made["batches"][0][1] == pytest.approx(1.0, abs=0.01)
    assert made["slow"][0] < 0.1


def test_a_fit_to_what_was_drawn_has_its_batches_and_its_slow_changes() -> None:
    """Batches of one or five in ticks of a minute, and a rate that changes over a day, with which lives change."""
    batches = {"tick_s": 60.0, "batches": [[1, 0.9], [5, 0.1]], "repeat_in_batch": 0.9, "equal_in_batch": 0.6}
    made = fitted(drawn({**KNOWN, **batches, "slow": [0.4, 20.0], "life_by_rate": 0.4}, 60_000, 3))
    assert made["repeat"] == pytest.approx(0.5, abs=0.02)
    assert made["repeat_in_batch"] == pytest.approx(0.9, abs=0.02)
    assert made["equal_in_batch"] == pytest.approx(0.6, abs=0.02)
    assert made["tick_s"] == 60.0
    assert dict(made["batches"])[5] == pytest.approx(0.1, abs=0.015)
    assert made["slow"][0] == pytest.approx(0.4, abs=0.05)
    assert 10.0 < made["slow"][1] < 40.0
    assert made["life_by_rate"] == pytest.approx(0.4, abs=0.1)


def test_a_coarse_tick_alone_makes_no_batches() -> None:
    """Single requests that come in the same tick of a trace by chance have nothing to do with each other."""
    ticks = np.random.default_rng(2).poisson(0.9, 100_000)
    arrival_s = np.repeat(np.arange(ticks.size) * 300.0, ticks)
    cores = np.random.default_rng(3).integers(1, 3, arrival_s.size)
    made = fitted((arrival_s, 1000.0 * np.ones(arrival_s.size), cores, cores))
    assert made["tick_s"] == 300.0
    assert made["batches"][0][1] == pytest.approx(1.0, abs=0.01)


def test_a_seed_names_a_draw_that_is_cut_as_a_trace_is() -> None:
    one, again, other = (instance_of(f"{OPENB}~{seed}:100+200@3", "0.5") for seed in (5, 5, 6))
    assert one == again
    assert one.requests != other.requests
    assert (one.name, len(one.requests)) == (f"{OPENB}~5:100+200@3", 200)
    whole = instance_of(f"{OPENB}~5:0+300@3")
    assert [r.application for r in whole.requests[100:]] == [r.application for r in one.requests]
    assert play(one, LIFETIME).rejected == 0
    for wrong in ("~x", "~5:0+0"):
        with pytest.raises(BadInput):
            instance_of(f"{OPENB}{wrong}")
