"""What a job that waits is waiting for, and when it is expected to start."""

from __future__ import annotations

import numpy as np
import pytest

from agent.deferral.capacity import Outlook
from agent.deferral.look import JobExplained, explain_job, played
from agent.deferral.pool import DeferralPool
from agent.deferral.records import JobRecord
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.errors import UnknownName
from domain.units import HOUR_S
from tests.agent.deferral.pools import START, STEP, decided, made, order, turning
from tests.golden import figures


@pytest.fixture
def pool(ledger: Ledger, clock: VirtualClock) -> DeferralPool:
    """A pool whose capacity was 10 cores, a little more or less, for six steps."""
    pool = made(ledger, clock)
    turns = turning(pool)
    for k in range(6):
        decided(turns, clock.now(), cores=10 + k % 2)
        clock.advance(HOUR_S)
    return pool


def explained(pool: DeferralPool, job_id: str, paused: str = "") -> JobExplained:
    return explain_job(pool, Outlook(3600), job_id, paused, "")


def test_what_is_played_fits_and_keeps_every_window() -> None:
    draws = np.random.default_rng(5)
    for _ in range(20):
        path = draws.integers(0, 30, 24)
        jobs = [
            JobRecord(f"j{n}", n, "", int(c), int(d), STEP + int(e), STEP + int(e + w), STEP + int(e - g), 0.0)
            for n, (c, d, e, w, g) in enumerate(draws.integers((1, 1, 0, 0, 0), (9, 7, 24, 6, 4), (300, 5)))
        ]
        starts = played(jobs, STEP, path)
        assert starts
        taken = np.zeros(40, dtype=np.int64)
        for job in jobs:
            if (step := starts.get(job.number)) is not None:
                assert max(job.earliest, job.submitted) <= step <= job.latest
                taken[step - STEP : step - STEP + job.duration] += job.cores
                # It fitted when it started; a later fall of the capacity is no start's doing.
        for k in range(24):
            begun = any(step == STEP + k for step in starts.values())
            assert not begun or taken[k] <= path[k]


class TestExplained:
    def test_says_what_a_job_waits_for(self, pool: DeferralPool, clock: VirtualClock) -> None:
        pool.submit(order("new", 1, 1, window=20))
        assert explained(pool, "new").waits_for == f"the next decision, in step {STEP + 6}"
        pool.submit(order("later", 1, 1, window=20, earliest_at=START + 12 * HOUR_S))
        assert explained(pool, "later").waits_for == f"its earliest start, step {STEP + 12}"
        assert explained(pool, "later").expected_at == START + 12 * HOUR_S
        pool.submit(order("wide", 8, 4, window=20))
        pool.submit(order("beside", 8, 3, window=20))
        pool.submit(order("huge", 50, 2, window=20))
        decided(turning(pool), clock.now(), cores=10)
        found = explained(pool, "beside")
        assert found.waits_for.startswith("jobs before it: it was number 3 of 4")
        assert (found.rank, found.of, found.decision_id) == (3, 4, "night-d7")
        assert found.expected_at == START + 10 * HOUR_S
        assert figures(explained(pool, "huge").waits_for) == [28, 50]
        assert explained(pool, "huge").expected_at is None
        assert explained(pool, "wide").waits_for == "nothing: it runs"
        assert explained(pool, "beside", "paused by ada").waits_for == "the end of a pause: paused by ada"
        pool.drain(START + 8 * HOUR_S, "ada", "maintenance")
        assert "the end of a drain" in explained(pool, "beside").waits_for

    def test_of_a_job_that_is_not_known_is_refused(self, pool: DeferralPool) -> None:
        with pytest.raises(UnknownName):
            explained(pool, "nothing")


class TestADrain:
    """What would run beyond it does not start, whatever room there is."""

    @pytest.mark.parametrize(("hours", "starts"), [(9, True), (8, True), (7, False)])
    def test_leaves_a_job_no_chance(self, pool: DeferralPool, hours: int, starts: bool) -> None:
        pool.drain(START + hours * HOUR_S, "ada", "maintenance")
        pool.submit(order("a", 1, 2, window=11))
        expected = explained(pool, "a").expected_at
        assert expected == (START + 6 * HOUR_S if starts else None)

    def test_ends_the_window_of_one_that_has_no_room_before(self, pool: DeferralPool, clock: VirtualClock) -> None:
        turns = turning(pool)
        pool.submit(order("runs", 9, 3, window=30))
        decided(turns, clock.now(), cores=10)
        clock.advance(HOUR_S)
        free_from = START + 9 * HOUR_S
        pool.submit(order("a", 8, 4, window=30))
        assert explained(pool, "a").expected_at == free_from
        pool.drain(free_from + 3 * HOUR_S, "ada", "maintenance")
        assert explained(pool, "a").expected_at is None


def test_a_job_whose_delay_costs_more_than_it_earns_waits_for_nothing(pool: DeferralPool, clock: VirtualClock) -> None:
    pool.submit(order("a", 1, 1, window=11))
    turns = turning(pool)
    clock.advance(HOUR_S)
    assert decided(turns, clock.now(), cores=10).starts == ()
    assert figures(explained(pool, "a").waits_for) == [2]
