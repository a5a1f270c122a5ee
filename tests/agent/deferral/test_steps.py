"""A pool decides once a step: capacity that is held or missing, clocks that jump, margins, drains, pauses."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.deferral.capacity import coverage, margin_in_force
from agent.deferral.deciding import replay_step
from agent.deferral.pool import DeferralPool
from agent.deferral.records import Comparison, History, JobRecord, Stage, StepDecision, StepRow
from agent.deferral.settings import DeferralSettings
from agent.deferral.state import Change
from agent.deferral.views import document_of, moment_of, seen_by, seen_in
from agent.kernel.decision import Capacity
from agent.ledger import Ledger, state
from domain.clock import VirtualClock
from domain.controls import Pause, PauseScope
from domain.decisions import Mode, Reason
from domain.errors import BadInput, Fenced, StateConflict
from domain.units import DAY_S, HOUR_S
from tests.agent.deferral.pools import POOL, START, STEP, begun, decided, made, order, stages, turning


def reasons(pool: DeferralPool) -> list[str]:
    return [event.reason.value for event in pool.taken_alarms()]


BESIDE_ROLLING = (("itself", "knapsack"), ("another", "fifo"))
"""Names of pools, and the shadow of a rolling plan that cannot run, in whose place the knapsack decides."""


class TestStarts:
    def test_are_counted_by_classes_of_cores(self, ledger: Ledger, clock: VirtualClock) -> None:
        """However many sizes jobs have, the counts, which each write repeats, stay few."""
        pool = made(ledger, clock)
        for cores in range(1, 101):
            pool.submit(order(f"j{cores}", cores))
        decided(turning(pool), START, cores=10_000)
        counts = pool.current().head.totals.delays
        assert counts == {"1/0": 1, "2/0": 1, "4/0": 2, "8/0": 4, "16/0": 8, "32/0": 16, "64/0": 32, "128/0": 36}

    def test_fill_the_free_cores_with_what_is_worth_most(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        for name, cores, duration in (("small", 2, 1), ("long", 3, 4), ("wide", 4, 2)):
            pool.submit(order(name, cores, duration))
        step = decided(turning(pool), START, cores=7)
        assert begun(step) == ["long", "wide"]
        assert (step.step, step.capacity, step.free, step.running, step.policy) == (STEP, 7, 7, 0, "knapsack")
        assert [one.job_id for one in step.best] == ["long", "wide", "small"]
        assert stages(pool) == {"small": "waiting", "long": "running", "wide": "running"}

    def test_are_decided_once_a_step(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        decided(turns, START, cores=7)
        pool.submit(order("a"))
        assert decided(turns, START + 600.0).decision_id == "night-d1"
        clock.advance(HOUR_S)
        assert begun(decided(turns, clock.now(), cores=7)) == ["a"]

    def test_count_jobs_that_run_until_they_end(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        pool.submit(order("first", cores=6, duration=2))
        pool.submit(order("second", cores=6, duration=2))
        taken = []
        for _ in range(4):
            step = decided(turns, clock.now(), cores=10)
            taken.append((begun(step), step.running))
            clock.advance(HOUR_S)
        assert taken == [(["first"], 0), ([], 6), (["second"], 0), ([], 6)]

    def test_of_a_job_that_was_not_started_in_time_never_come(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        pool.submit(order("large", cores=20, duration=2, window=1))
        for _ in range(3):
            step = decided(turns, clock.now(), cores=10)
            clock.advance(HOUR_S)
        assert step.expired == ("large",)
        assert pool.job("large").stage is Stage.EXPIRED
        assert (pool.current().head.totals.expired, pool.current().head.totals.expired_core_steps) == (1, 40)

    def test_come_to_nothing_without_jobs_or_room(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        assert decided(turns, START, cores=0).reason is Reason.NO_JOB_STARTED
        pool.submit(order("a"))
        clock.advance(HOUR_S)
        assert decided(turns, clock.now(), cores=0).starts == ()

    def test_of_thousands_of_jobs_are_decided_in_one_step(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        first = pool.submit(order("j0", cores=1)).job
        state_now = pool.current()
        many = {f"j{n}": replace(first, job_id=f"j{n}", number=n + 1, cores=1 + n % 4) for n in range(5000)}
        seen = seen_by(many.values(), (), STEP, 500, 3600)
        chosen = turning(pool)._ladder.decide(seen.view, np.full(9, 500.0))
        assert chosen.policy == "knapsack"
        assert seen.view.cur.cores[chosen.positions].sum() == 500
        assert state_now.head.jobs == 1


class TestCapacity:
    def test_that_is_missing_is_held_for_two_steps_less_a_spread_each(
        self, ledger: Ledger, clock: VirtualClock
    ) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        found: list[tuple[int | None, bool, bool]] = []
        for cores in (20, 24, 20, 24, None, None, None, 20):
            pool.submit(order(f"j{len(found)}", cores=1, window=len(found)))
            step = decided(turns, clock.now(), cores)
            found.append((step.capacity, step.measured, len(step.starts) > 0))
            clock.advance(HOUR_S)
        # The changes from one step to the next, 4, -4 and 4, have a spread of 3.8.
        assert [one[0] for one in found] == [20, 24, 20, 24, 20, 16, None, 20]
        assert [one[1] for one in found] == [True] * 4 + [False] * 3 + [True]
        assert [one[2] for one in found] == [True] * 6 + [False, True]
        assert "capacity_missing" in reasons(pool)

    def test_that_was_never_known_starts_nothing_and_is_an_alarm_while_it_lasts(
        self, ledger: Ledger, clock: VirtualClock
    ) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        pool.submit(order("a", cores=8))
        for _ in range(2):
            alarms = turns.turn(clock.now(), 1)
            assert [event.reason for event in alarms] == [Reason.CAPACITY_MISSING]
            clock.advance(HOUR_S)
        pool.report(10)
        assert turns.turn(clock.now(), 1) == ()
        assert stages(pool) == {"a": "running"}
        assert reasons(pool).count("capacity_missing") == 3

    @pytest.mark.parametrize("cores", [math.nan, math.inf, -1.0, -math.inf])
    def test_that_is_no_number_is_missing(self, ledger: Ledger, clock: VirtualClock, cores: float) -> None:
        pool = made(ledger, clock, capacity="fleet:web")
        pool.submit(order("a"))
        turns = turning(pool, capacity_of=lambda decision, subject: Capacity(spare=cores, total=10.0))
        assert decided(turns, START).reason is Reason.CAPACITY_MISSING
        # Nor does another fleet make up for it.
        both = made(ledger, clock, name="both", capacity="fleet:web,batch")
        both.submit(order("a"))
        spare = {"web": cores, "batch": 20.0}
        turns = turning(both, capacity_of=lambda decision, subject: Capacity(spare=spare[subject]))
        assert decided(turns, START).reason is Reason.CAPACITY_MISSING
        posted = made(ledger, clock, name="posted")
        with pytest.raises(BadInput, match="give a number of cores"):
            posted.report(cores)

    def test_of_fleets_counts_the_cores_of_own_jobs_again(self, ledger: Ledger, clock: VirtualClock) -> None:
        spare = {"web": 6.0, "batch": 4.0}
        asked = []

        def capacity_of(decision: str, subject: str) -> Capacity | None:
            asked.append(decision)
            return Capacity(spare=spare[subject])

        pool = made(ledger, clock, capacity="fleet:web,batch")
        turns = turning(pool, capacity_of=capacity_of)
        pool.submit(order("a", cores=8, duration=3))
        assert decided(turns, clock.now()).capacity == 10
        # The job runs on the fleets' VMs now, and is measured as busy there.
        spare["web"], spare["batch"] = 2.0, 0.0
        clock.advance(HOUR_S)
        step = decided(turns, clock.now())
        assert (step.capacity, step.running, step.free) == (10, 8, 2)
        assert set(asked) == {"autoscaling"}

    def test_of_fleets_is_never_more_than_their_warm_vms_have(self, ledger: Ledger, clock: VirtualClock) -> None:
        """A job whose worker has not begun it is measured as free, and holds its cores all the same."""
        there = [10.0]
        pool = made(ledger, clock, capacity="fleet:web")
        turns = turning(pool, capacity_of=lambda decision, subject: Capacity(spare=there[0], total=there[0]))
        for name in ("a", "b"):
            pool.submit(order(name, cores=8, duration=5))
        assert begun(decided(turns, START)) == ["a"]
        found = []
        for there[0] in (10.0, 6.0):
            clock.advance(HOUR_S)
            step = decided(turns, clock.now())
            found.append((begun(step), step.capacity, step.running, step.violation))
        assert found == [([], 10, 8, 0), ([], 6, 8, 2)]

    def test_of_fleets_leaves_out_jobs_that_only_advice_started(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, capacity="fleet:web", mode=Mode.OBSERVE)
        turns = turning(pool, capacity_of=lambda decision, subject: Capacity(spare=10.0))
        pool.submit(order("a", cores=8, duration=3))
        assert begun(decided(turns, clock.now())) == ["a"]
        clock.advance(HOUR_S)
        step = decided(turns, clock.now())
        assert (step.capacity, step.running, step.free) == (10, 8, 2)

    def test_of_an_oversold_pool_is_what_its_part_has_to_spare(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, capacity="pool:research")
        turns = turning(
            pool, capacity_of=lambda decision, subject: Capacity(spare=9.5 if decision == "oversubscription" else None)
        )
        assert decided(turns, START).capacity == 9

    def test_that_another_part_fails_to_say_is_missing(self, ledger: Ledger, clock: VirtualClock) -> None:
        def failing(decision: str, subject: str) -> Capacity | None:
            if clock.now() > START:
                raise KeyError("a group that was taken out")
            return Capacity(spare=8.0)

        pool = made(ledger, clock, capacity="fleet:web")
        turns = turning(pool, capacity_of=failing)
        pool.submit(order("a", cores=2, duration=1, window=0))
        pool.submit(order("b", cores=2, duration=4, window=9, earliest_at=START + 4 * HOUR_S))
        assert begun(decided(turns, START)) == ["a"]
        for _ in range(4):
            clock.advance(HOUR_S)
            last = decided(turns, clock.now())
        assert (last.step, last.reason, last.starts) == (STEP + 4, Reason.CAPACITY_MISSING, ())
        assert "fleet web are not known: KeyError" in last.detail
        assert stages(pool) == {"a": "ended", "b": "waiting"}

    def test_that_was_posted_longer_than_a_step_ago_is_missing(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        pool.report(10, START - HOUR_S - 1.0)
        assert not decided(turning(pool), START).measured
        with pytest.raises(BadInput, match="has passed"):
            pool.report(10, START + 120.0)
        with pytest.raises(StateConflict, match="a later time"):
            pool.report(10, START - 2 * HOUR_S)

    def test_is_not_posted_where_it_is_read_elsewhere(self, ledger: Ledger, clock: VirtualClock) -> None:
        with pytest.raises(StateConflict, match="reads its capacity from fleet:web"):
            made(ledger, clock, capacity="fleet:web").report(10)


class TestClock:
    def test_that_goes_back_or_repeats_a_step_is_ignored(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        pool.submit(order("a", window=9))
        decided(turns, START + 2 * HOUR_S)
        for back in (START, START + HOUR_S, START + 2 * HOUR_S + 59.0):
            assert decided(turns, back, cores=10).decision_id == "night-d1"
        assert stages(pool) == {"a": "waiting"}

    def test_that_leaps_ends_and_expires_and_decides_once(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        pool.submit(order("runs", cores=8, duration=3, window=9))
        pool.submit(order("expires", cores=8, duration=3, window=3))
        pool.submit(order("starts", cores=8, duration=3, window=9))
        assert begun(decided(turns, START, cores=8)) == ["runs"]
        clock.advance(6 * HOUR_S)
        step = decided(turns, clock.now(), cores=8)
        assert (step.skipped, step.expired, begun(step)) == (5, ("expires",), ["starts"])
        assert stages(pool) == {"runs": "ended", "expires": "expired", "starts": "running"}
        assert "steps_skipped" in reasons(pool)
        assert pool.current().head.totals.skipped_steps == 5

    def test_that_leaps_by_years_remembers_no_more_than_28_days(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, step_s=60)
        turns = turning(pool)
        decided(turns, START, cores=7)
        clock.advance(75 * 365 * DAY_S)
        decided(turns, clock.now(), cores=7)
        assert turns.outlook.path(3).tolist() == [7.0, 7.0, 7.0]
        assert turns.outlook._known.size <= 28 * DAY_S / 60 + 1

    def test_tells_hour_and_weekday(self) -> None:
        assert moment_of(STEP, 3600) == (15, 0)
        assert moment_of(STEP + 24 * 6 + 10, 3600) == (1, 0)


class TestGuards:
    def test_a_margin_is_kept_free(self, ledger: Ledger, clock: VirtualClock) -> None:
        for name, margin, kept in (("cores", "4", 4), ("share", "15%", 2)):
            pool = made(ledger, clock, name=name, margin=margin)
            pool.submit(order("a", cores=9))
            step = decided(turning(pool), START, cores=10)
            assert (step.margin, step.free, step.starts) == (kept, 10 - kept, ())

    def test_the_margin_widens_as_the_violation_budget_is_used(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, violation_budget=8)
        turns = turning(pool)
        pool.submit(order("a", cores=10, duration=3))
        decided(turns, clock.now(), cores=10)
        margins, alarms = [], []
        for cores in (6, 6, 10):
            clock.advance(HOUR_S)
            pool.report(cores)
            alarms.append({event.reason for event in turns.turn(clock.now(), 1)})
            (step,) = pool.store.newest(POOL, 1, "step")
            assert isinstance(step, StepDecision)
            margins.append((step.violation, step.margin))
        # Half of the budget, then all of it; the largest violation is 4 cores.
        assert margins == [(4, 0), (4, 2), (0, 4)]
        assert Reason.VIOLATION_BUDGET_USED in alarms[2]
        assert Reason.VIOLATION_BUDGET_USED not in alarms[1]
        assert pool.current().head.totals.violation_core_steps == 8

    def test_the_budget_is_that_of_24_hours_whatever_day_it_is(self) -> None:
        given = DeferralSettings(violation_budget=8.0)
        rows = [StepRow(STEP + 8, 10, violation=4), StepRow(STEP + 9, 10, violation=4)]
        assert (STEP + 9) % 24 == 0, "midnight"
        used = [margin_in_force(given, rows, STEP + k, 10)[1] for k in (9, 10, 32, 33, 34)]
        assert used == [0.5, 1.0, 1.0, 0.5, 0.0]

    def test_a_budget_of_nothing_is_used_up_by_the_first_core_step(self) -> None:
        rows = [StepRow(STEP - 1, 5, violation=1)]
        assert margin_in_force(DeferralSettings(violation_budget=0), rows, STEP, 5) == (1, 1.0)
        assert margin_in_force(DeferralSettings(violation_budget=0), rows, STEP + 24, 5) == (0, 0.0)

    def test_a_drain_starts_nothing_that_would_run_beyond_it(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        pool.drain(START + 3 * HOUR_S, "ada", "maintenance")
        for name, duration in (("short", 3), ("long", 4)):
            pool.submit(order(name, duration=duration))
        step = decided(turns, START, cores=10)
        assert (begun(step), step.drain_by) == (["short"], STEP + 3)
        pool.drain(None, "ada", "it is over")
        clock.advance(HOUR_S)
        assert begun(decided(turns, clock.now(), cores=10)) == ["long"]

    def test_a_pause_lets_time_pass_and_nothing_start(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        turns = turning(pool)
        ledger.pause("deferral", POOL, Pause(PauseScope.ALL, "ada", "holiday", START, START + 90 * 60))
        pool.submit(order("a", cores=8))
        step = decided(turns, START, cores=10)
        assert (step.reason, step.starts) == (Reason.PAUSED, ())
        assert "holiday" in step.detail
        clock.advance(2 * HOUR_S)
        assert begun(decided(turns, clock.now(), cores=10)) == ["a"]

    @pytest.mark.parametrize(("mode", "own"), [(Mode.OBSERVE, "enforce"), (Mode.ACT, "observe")])
    def test_observing_records_what_it_would_start(
        self, ledger: Ledger, clock: VirtualClock, mode: Mode, own: str
    ) -> None:
        pool = DeferralPool(POOL, DeferralSettings(mode=own, policy="knapsack", shadow=None), ledger, clock, mode)
        pool.submit(order("a"))
        step = decided(turning(pool), START, cores=10)
        assert step.advice
        assert step.detail.startswith("advice: 1 of 1 jobs start")
        assert pool.job("a").advice

    def test_an_agent_that_no_longer_leads_decides_nothing(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock)
        pool.submit(order("a"))
        pool.report(10)
        with ledger.database.write() as connection:
            state.add_epoch(connection, "another", clock.now(), at_least=7)
        with pytest.raises(Fenced):
            turning(pool).turn(START, 6)
        assert stages(made(ledger, clock)) == {"a": "waiting"}
        assert begun(decided(turning(pool), START, epoch=7)) == ["a"]


class TestRecord:
    def test_a_step_comes_out_the_same_again(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, policy="rolling")
        turns = turning(pool)
        draws = np.random.default_rng(3)
        for hour in range(8):
            for n in range(4):
                cores, duration = int(draws.integers(1, 9)), int(draws.integers(1, 4))
                pool.submit(order(f"{hour}-{n}", cores, duration, window=hour + 1 + int(draws.integers(5))))
            decided(turns, clock.now(), cores=int(draws.integers(8, 20)))
            clock.advance(HOUR_S)
        again = [replay_step(record, None) for record in pool.store.steps(POOL, None, None)]
        assert len(again) == 8
        assert [one.difference for one in again] == [""] * 8
        record = pool.store.steps(POOL, None, None)[-1]
        assert not replay_step(
            replace(record, inputs=record.inputs.replace(b'"capacity":', b'"capacity": ')), None
        ).same

    @settings(max_examples=25)
    @given(st.integers(0, 2**32 - 1))
    def test_what_a_policy_saw_is_seen_again_from_plain_data(self, seed: int) -> None:
        draws = np.random.default_rng(seed)
        jobs = [random_job(draws, n) for n in range(int(draws.integers(0, 12)))]
        rows = [
            StepRow(
                STEP - 9 + k, None if draws.random() < 0.3 else int(draws.integers(30)), held=int(draws.integers(9))
            )
            for k in range(0, 8, int(draws.integers(1, 3)))
        ]
        seen = seen_by(jobs, rows, STEP, int(draws.integers(40)), 3600)
        again = seen_in(document_of(seen))
        assert document_of(again) == document_of(seen)
        assert again.view.free == seen.view.free
        assert seen.view.history.capacity.size == (rows[-1].step - rows[0].step + 1 if rows else 0)

    def test_a_decision_records_a_day_of_steps_however_long_the_history(
        self, ledger: Ledger, clock: VirtualClock
    ) -> None:
        """In steps of a minute 28 days are 40,320 of them, and a megabyte in each decision."""
        pool = made(ledger, clock, step_s=60)
        first = round(START / 60) - 5000
        rows = tuple(StepRow(first + k, 10 + k % 3) for k in range(5000))
        pool.transact(lambda state, now: (None, Change(state.head, history=History(rows))))
        pool.submit(order("a"))
        assert begun(decided(turning(pool, shadow="fifo"), START, cores=10)) == ["a"]
        (record,) = pool.store.steps(POOL, None, None)
        assert len(record.inputs) < 5000
        assert len(pool.current().history.rows) == 5001

    def test_a_shadow_is_compared_once_a_day(self, ledger: Ledger, clock: VirtualClock) -> None:
        pool = made(ledger, clock, policy="fifo")
        turns = turning(pool, shadow="knapsack")
        for hour in range(25):
            # First come takes the small one; the knapsack waits for no one and takes the wide one.
            pool.submit(order(f"small-{hour}", 1, 1, window=hour))
            pool.submit(order(f"wide-{hour}", 4, 1, window=hour))
            decided(turns, clock.now(), cores=4)
            clock.advance(HOUR_S)
        (compared,) = pool.store.newest(POOL, 5, "comparison")
        assert isinstance(compared, Comparison)
        assert (compared.policy, compared.shadow, compared.until_step - compared.since_step) == ("fifo", "knapsack", 24)
        assert (compared.total, compared.shadow_total) == (25.0, 100.0)
        assert "more" in compared.detail

    def test_a_policy_is_not_compared_with_itself_under_the_name_of_one_that_cannot_run(
        self, ledger: Ledger, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("agent.deferral.rolling.find_spec", lambda name: None)
        compared = [self.comparisons_of(ledger, clock, name, "rolling", shadow) for name, shadow in BESIDE_ROLLING]
        assert [len(made) for made in compared] == [0, 1]
        assert "rolling (knapsack in 25 steps) earned" in compared[1][0].detail

    def comparisons_of(
        self, ledger: Ledger, clock: VirtualClock, name: str, policy: str, shadow: str
    ) -> list[Comparison]:
        pool = made(ledger, clock, name=name, policy=policy)
        turns, begins = turning(pool, shadow=shadow), clock.now()
        for hour in range(25):
            pool.submit(order(f"job-{hour}", 4, 1, latest_at=begins + (hour + 1) * HOUR_S))
            decided(turns, clock.now(), cores=4)
            clock.advance(HOUR_S)
        return [one for one in pool.store.newest(name, 5, "comparison") if isinstance(one, Comparison)]


def test_coverage_is_stated_once_two_days_have_a_forecast() -> None:
    rows = [StepRow(STEP + k, 10 if k % 5 else 4, low=6.0, high=12.0) for k in range(60)]
    assert coverage(rows[:47], STEP + 47, 3600) == {}
    found = coverage(rows, STEP + 60, 3600)
    assert found["0.1"] == pytest.approx(0.8)
    assert found["0.9"] == 1.0


def random_job(draws: np.random.Generator, n: int) -> JobRecord:
    earliest = STEP + int(draws.integers(-6, 6))
    job = JobRecord(
        f"j{n}", n + 1, "", int(draws.integers(1, 9)), int(draws.integers(1, 7)), earliest, earliest + 5, STEP - 6, 0.0
    )
    if draws.random() < 0.4:
        start = STEP - int(draws.integers(0, 6))
        return replace(job, stage=Stage.RUNNING, start=start, free_from=start + job.duration)
    return job
