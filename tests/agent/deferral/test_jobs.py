"""Jobs are submitted, refused with the field and a remedy, looked up and cancelled (deferral specification §12)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from agent.deferral.pool import JobExpired
from agent.deferral.records import Stage
from agent.ledger import Ledger
from domain.clock import VirtualClock
from domain.errors import BadInput, StateConflict, UnknownName
from domain.units import HOUR_S
from tests.agent.deferral.pools import START, STEP, decided, made, order, stages, turning


def test_a_job_is_recorded_with_its_window_in_steps(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    clock.advance(600.0)
    answer = pool.submit(order("a", 4, 2, latest_at=START + 5.5 * HOUR_S, earliest_at=START + 1.2 * HOUR_S))
    assert not answer.already
    job = made(ledger, clock).job("a")
    assert job == answer.job
    # It starts when a step begins: none begins before the second, the last one at the fifth hour.
    assert (job.cores, job.duration, job.earliest, job.latest, job.submitted) == (4, 2, STEP + 2, STEP + 5, STEP)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("cores", {"cores": 0}),
        ("cores", {"cores": -1}),
        ("cores", {"cores": 2.5}),
        ("cores", {"cores": True}),
        ("cores", {"cores": math.nan}),
        ("cores", {"cores": 10**9}),
        ("duration", {"duration": 0}),
        ("duration", {"duration": 1.5}),
        ("latest_at", {"latest_at": math.nan}),
        ("latest_at", {"latest_at": math.inf}),
        ("latest_at", {"latest_at": -1.0}),
        ("latest_at", {"latest_at": START + HOUR_S, "earliest_at": START + 2 * HOUR_S}),
        ("latest_at", {"latest_at": START + 1.9 * HOUR_S, "earliest_at": START + 1.1 * HOUR_S}),
        ("latest_at", {"latest_at": START - 1.0}),
        ("earliest_at", {"earliest_at": START - 2 * HOUR_S}),
        ("earliest_at", {"earliest_at": math.nan}),
        ("job_id", {"job_id": "a b"}),
        ("job_id", {"job_id": ""}),
        ("payload", {"payload": "x" * 5000}),
    ],
)
def test_what_is_no_job_is_refused_with_field_value_and_remedy(
    ledger: Ledger, clock: VirtualClock, field: str, given: dict[str, Any]
) -> None:
    pool = made(ledger, clock)
    with pytest.raises((BadInput, ValidationError)) as caught:
        pool.submit(order(**{"job_id": "a", **given}))
    error = caught.value
    found = error.field if isinstance(error, BadInput) else error.errors()[0]["loc"][0]
    assert found == ("duration_steps" if field == "duration" else field)
    assert pool.jobs() == []


def test_a_window_that_is_over_on_arrival_is_refused_as_expired(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    with pytest.raises(JobExpired, match="expired"):
        pool.submit(order("past", latest_at=START - 1.0))
    decided(turning(pool), START, cores=10)
    with pytest.raises(JobExpired, match="is decided"):
        pool.submit(order("this-step", window=0))
    assert pool.submit(order("next-step", window=1)).job.latest == STEP + 1


def test_a_late_job_is_taken_where_that_is_allowed_and_its_delay_counts_from_what_it_asked(
    ledger: Ledger, clock: VirtualClock
) -> None:
    pool = made(ledger, clock)
    late = order("late", cores=8, earliest_at=START - 3 * HOUR_S, clamp_late=True)
    job = pool.submit(late).job
    assert job.late
    assert (job.earliest, job.submitted) == (STEP - 3, STEP)
    assert decided(turning(pool), START, cores=10).starts[0].delay == 3
    with pytest.raises(BadInput, match="clamp_late"):
        pool.submit(order("not", earliest_at=START - HOUR_S))
    clamps = made(ledger, clock, clamp_late=True)
    assert clamps.submit(order("set", earliest_at=START - HOUR_S)).job.late


def test_a_job_larger_than_any_capacity_seen_is_taken_flagged_and_counted(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    assert not pool.submit(order("before-any-is-seen", cores=99)).job.unlikely
    decided(turning(pool), START, cores=10)
    assert pool.submit(order("large", cores=11)).job.unlikely
    assert not pool.submit(order("fits", cores=10)).job.unlikely
    assert pool.current().head.totals.unlikely == 1


def test_a_waiting_job_is_cancelled_and_never_starts(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    pool.submit(order("a"))
    assert pool.cancel("a", "ada").core_steps == 0
    assert pool.cancel("a").already
    assert decided(turning(pool), START, cores=10).starts == ()
    assert stages(pool) == {"a": "cancelled"}


def test_a_cancelled_running_job_frees_its_cores_with_the_next_step(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    turns = turning(pool)
    pool.submit(order("long", cores=8, duration=6))
    decided(turns, START, cores=10)
    clock.advance(HOUR_S)
    pool.submit(order("next", cores=8, window=6))
    assert decided(turns, clock.now(), cores=10).starts == ()
    gone = pool.cancel("long")
    # Two of its six steps were used.
    assert gone.core_steps == 16
    assert pool.job("long").free_from == STEP + 2
    clock.advance(HOUR_S)
    assert [one.job_id for one in decided(turns, clock.now(), cores=10).starts] == ["next"]
    assert pool.current().head.totals.cancelled_core_steps == 16


def test_what_is_over_or_unknown_is_not_cancelled(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock)
    turns = turning(pool)
    pool.submit(order("a"))
    decided(turns, START, cores=10)
    clock.advance(HOUR_S)
    decided(turns, clock.now(), cores=10)
    assert pool.job("a").stage is Stage.ENDED
    with pytest.raises(StateConflict, match="it is over: ended"):
        pool.cancel("a")
    with pytest.raises(UnknownName, match="knows no job"):
        pool.cancel("b")
    with pytest.raises(UnknownName):
        pool.job("b")


def test_a_job_that_ended_is_forgotten_after_its_days(ledger: Ledger, clock: VirtualClock) -> None:
    pool = made(ledger, clock, keep_days=1.0)
    turns = turning(pool)
    pool.submit(order("a"))
    decided(turns, START, cores=10)
    clock.advance(HOUR_S)
    decided(turns, clock.now(), cores=10)
    clock.advance(24 * HOUR_S)
    decided(turns, clock.now(), cores=10)
    assert stages(pool) == {"a": "ended"}
    clock.advance(HOUR_S)
    decided(turns, clock.now(), cores=10)
    assert stages(made(ledger, clock)) == {}
