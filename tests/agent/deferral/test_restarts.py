"""An agent starts again in the middle of a step, or in another mode: alarms last, and advice counts for no start."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.deferral.decision import DeferralPart
from agent.deferral.turn import PoolTurns
from agent.kernel.decision import Host
from agent.ledger import Ledger
from agent.settings import Settings
from domain.clock import VirtualClock
from domain.decisions import Mode, Reason
from domain.units import HOUR_S
from tests.agent.deferral.pools import START, begun, decided, made, order, stages, turning


def reasons(turns: PoolTurns, now: float) -> list[Reason]:
    return [event.reason for event in turns.turn(now, 1)]


class TestAStartInTheMiddleOfAStep:
    """The step is decided: until the next one this process only looks."""

    def test_finds_no_job_at_risk_for_which_there_is_room(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        decided(turning(pool), START, cores=10)
        pool.submit(order("a", cores=10, window=3))
        assert reasons(turning(made(ledger, clock)), START + 60.0) == []
        pool.submit(order("b", cores=11, window=3))
        assert reasons(turning(made(ledger, clock)), START + 120.0) == [Reason.JOBS_AT_RISK]

    def test_still_says_that_the_capacity_is_missing(self, ledger: Ledger, clock: VirtualClock) -> None:
        assert reasons(turning(made(ledger, clock)), START) == [Reason.CAPACITY_MISSING]
        again = turning(made(ledger, clock))
        assert reasons(again, START + 60.0) == [Reason.CAPACITY_MISSING]
        assert "no number of cores was posted yet" in again.watch.missing

    def test_still_says_that_the_violation_budget_is_used(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, violation_budget=4)
        turns = turning(pool)
        pool.submit(order("a", cores=10, duration=4))
        decided(turns, START, cores=10)
        for _ in range(2):
            clock.advance(HOUR_S)
            decided(turns, clock.now(), cores=0)
        again = turning(made(ledger, clock, violation_budget=4))
        assert reasons(again, clock.now() + 60.0) == [Reason.VIOLATION_BUDGET_USED]
        assert again.watch == turns.watch
        assert again.watch.margin == 10

    def test_after_another_led_it_says_what_that_one_found(self, ledger: Ledger, clock: VirtualClock) -> None:
        one, two = turning(made(ledger, clock)), turning(made(ledger, clock))
        assert reasons(one, START) == [Reason.CAPACITY_MISSING]
        clock.advance(HOUR_S)
        decided(two, clock.now(), cores=10)
        assert reasons(one, clock.now() + 60.0) == []


def test_an_agent_that_does_not_lead_shows_what_the_one_that_does_has_found(
    ledger: Ledger, clock: VirtualClock, tmp_path: Path
) -> None:
    about = {"night": {"policy": "knapsack", "shadow": None}}
    settings = Settings.model_validate({"mode": "act", "deferrals": about, "state_directory": tmp_path})
    beside = DeferralPart(Host(ledger, settings, clock)).pools["night"]
    pool = made(ledger, clock)
    turns = turning(pool)
    assert reasons(turns, START) == [Reason.CAPACITY_MISSING]
    assert "no number of cores was posted yet" in beside.view().problem
    clock.advance(HOUR_S)
    decided(turns, clock.now(), cores=10)
    pool.submit(order("a", cores=11, window=3))
    view = beside.view()
    assert (view.problem, view.at_risk) == ("", ("a",))


class TestJobsAtRisk:
    """By what decisions go by: a margin and a drain leave less than the forecast."""

    @pytest.mark.parametrize(("cores", "found"), [(8, []), (9, [Reason.JOBS_AT_RISK])])
    def test_count_the_margin(self, ledger: Ledger, clock: VirtualClock, cores: int, found: list[Reason]) -> None:
        pool = made(ledger, clock, margin="2")
        turns = turning(pool)
        decided(turns, START, cores=10)
        pool.submit(order("a", cores=cores, window=3))
        assert reasons(turns, START + 60.0) == found

    @pytest.mark.parametrize(("hours", "found"), [(3, []), (2, [Reason.JOBS_AT_RISK])])
    def test_count_a_drain(self, ledger: Ledger, clock: VirtualClock, hours: int, found: list[Reason]) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        decided(turns, START, cores=10)
        pool.submit(order("a", duration=2, window=3))
        pool.drain(START + hours * HOUR_S, "ada", "maintenance")
        assert reasons(turns, START + 60.0) == found


class TestAPoolThatStartsJobsAfterItOnlyObserved:
    """What advice alone has started has not run."""

    def test_starts_those_whose_window_is_open(self, ledger: Ledger, clock: VirtualClock) -> None:
        observing = made(ledger, clock, mode=Mode.OBSERVE)
        turns = turning(observing)
        for name, duration, window in (("runs", 9, 9), ("ended", 1, 9), ("late", 9, 0), ("gone", 1, 0)):
            observing.submit(order(name, 10, duration, window))
        assert begun(decided(turns, START, cores=40)) == ["ended", "gone", "late", "runs"]
        clock.advance(HOUR_S)
        decided(turns, clock.now(), cores=40)
        assert stages(observing) == {"runs": "running", "ended": "ended", "late": "running", "gone": "ended"}
        clock.advance(HOUR_S)
        pool = made(ledger, clock)
        step = decided(turning(pool), clock.now(), cores=40)
        assert (begun(step), step.running, step.expired) == (["ended", "runs"], 0, ("late",))
        assert stages(pool) == {"runs": "running", "ended": "running", "late": "expired", "gone": "ended"}
        assert not any(job.advice for job in pool.jobs() if job.job_id in ("runs", "ended"))

    def test_leaves_those_that_it_has_started_itself(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        pool.submit(order("a", 2, 9, window=9))
        decided(turning(pool), START, cores=10)
        for mode in (Mode.OBSERVE, Mode.ACT):
            clock.advance(HOUR_S)
            assert decided(turning(made(ledger, clock, mode=mode)), clock.now(), cores=10).running == 2
        assert stages(pool) == {"a": "running"}
