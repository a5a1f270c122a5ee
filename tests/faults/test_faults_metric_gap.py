"""Measurements stop, for seconds or hours, of all or of some: hold, then the safe floor; never scale in on nothing."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from agent.autoscaling.state import FleetStore
from domain.decisions import Direction, Reason
from domain.fleet import Group
from tests.faults.evidence import SET, TERMINATE, intents, told
from tests.faults.world import MEDIUM, QUICK, SMALL, M, MakeWorld, Plan, World
from tests.stages import exhaustive

HELD = {Reason.STALE_INPUT, Reason.LOW_COVERAGE}
FLOORED = replace(QUICK, safe_floor=(3, 1, 0), hold_bins=3)
BUSY_RULE = "threshold:high=0.75,low=0.5,periods=1,exclude_warming=false"


def gap(seconds: int) -> frozenset[int]:
    """The moments of a minute, of those at which VMs report, that a gap from its second 5 on swallows."""
    return frozenset(second for second in range(10, 61, 10) if second <= 5 + seconds)


@pytest.mark.parametrize("seconds", [30, *exhaustive(10)])
def test_a_gap_of_seconds_changes_no_decision(make_world: MakeWorld, seconds: int) -> None:
    decided = []
    for silent in (frozenset[int](), gap(seconds)):
        world = make_world(sizes=(4, 1, 0))
        world.silent_seconds = silent
        world.tick(4)
        decided.append([(d.desired, d.reason, d.intents) for report in world.reports for d in report.decisions])
        world.close()
    assert decided[0] == decided[1]
    assert sum(decided[0][-1][0]) < 5


@pytest.mark.parametrize("seconds", [40, 60])
def test_a_minute_with_too_few_samples_is_held_and_the_next_goes_on(make_world: MakeWorld, seconds: int) -> None:
    world = make_world(sizes=(4, 1, 0))
    world.tick()
    world.silent_seconds = gap(seconds)
    world.submit(3)
    world.tick()
    assert world.last.reason in HELD
    assert world.mutations == []
    world.silent_seconds = frozenset()
    world.waiting = 40
    world.tick()
    assert world.last.reason is Reason.QUEUE_GREW
    assert len(told(world, Reason.METRICS_LOST)) == len(told(world, Reason.METRICS_RETURNED)) == 1


def without_reports(make_world: MakeWorld, **plan: object) -> World:
    """Two groups with a queue and nothing else: no VM ever reports."""
    world = make_world(
        **{"groups": (SMALL, MEDIUM), "sizes": (1, 1), "limits": replace(QUICK, boot_deadline_s=300.0)} | plan
    )
    world.cpu = None
    return world


def test_a_queue_alone_sizes_the_fleet_by_the_second_minute(make_world: MakeWorld) -> None:
    world = without_reports(make_world)
    world.submit(30)  # 30 cores within the horizon, of which the two VMs are 6
    world.tick(2)
    assert world.desired() == {"small": 1, "medium": 7}
    assert {d.reason for report in world.reports for d in report.decisions} <= {Reason.QUEUE_GREW, Reason.QUEUE_COVERED}
    assert told(world, Reason.METRICS_LOST) == []


def test_vms_that_never_report_are_no_reason_to_add_others(make_world: MakeWorld) -> None:
    world = without_reports(make_world)
    world.submit(30)
    world.tick(20)
    assert world.desired() == {"small": 1, "medium": 7}
    assert [seen.overdue + seen.silent for seen in world.snapshot.groups] == [0, 0]
    assert [(seen.warm, seen.removable) for seen in world.snapshot.groups] == [(1, ()), (7, ())]


@pytest.mark.parametrize("hook", [True, False])
def test_without_vm_reports_no_vm_is_taken_for_idle(make_world: MakeWorld, hook: bool) -> None:
    world = without_reports(make_world, hook=hook)
    world.submit(30)
    world.tick(5)
    world.waiting = 0
    world.tick(30)
    assert world.desired() == {"small": 1, "medium": 7}
    assert (world.count(TERMINATE), intents(world, Direction.IN)) == (0, [])
    assert "no VM reports: scale-in waits" in world.last.sentence


def test_a_smaller_size_that_a_policy_proposes_waits_for_reports(make_world: MakeWorld) -> None:
    world = without_reports(make_world, sizes=(4, 1), policy="constant:1,1", needed=())
    world.tick(3)
    assert (world.last.reason, world.last.desired) == (Reason.NO_VM_REPORTS, (4, 1))
    world.cpu = 0.1
    world.tick(6)
    assert world.desired() == {"small": 1, "medium": 1}


def test_a_fleet_whose_vms_reported_is_held_when_they_stop_also_after_a_restart(
    make_world: MakeWorld,
) -> None:
    world = make_world(sizes=(2, 1, 0))
    world.tick(8)  # beyond the boot deadline
    before = world.desired()
    world.cpu = None
    world.restart()
    world.submit(60)
    world.tick(10)
    assert {report.decisions[0].reason for report in world.reports[8:]} <= HELD
    assert world.desired() == before
    world.clock.advance(86_400.0)
    world.tick()
    assert world.last.reason is Reason.QUEUE_GREW


@pytest.mark.parametrize("minutes", [2, *exhaustive(15, 125)])
def test_a_fleet_about_to_shrink_is_held_then_floored_and_shrinks_only_on_fresh_data(
    make_world: MakeWorld, minutes: int
) -> None:
    world = make_world(sizes=(2, 2, 0), limits=FLOORED)
    world.tick()  # idle for a minute of the two that count as long
    world.metric_gap(minutes)
    assert world.count(TERMINATE) == 0
    assert intents(world, Direction.IN) == []
    reasons = [report.decisions[0].reason for report in world.reports[1:]]
    assert set(reasons[:3]) <= HELD
    # One more of the small ones than there were: what is there beyond the floor stays.
    floored = {"small": 3, "medium": 2, "large": 0}
    assert world.desired() == (floored if minutes > 3 else {"small": 2, "medium": 2, "large": 0})
    assert world.count(SET) == (1 if minutes > 3 else 0)
    assert [event.about for event in world.events if event.reason is Reason.METRICS_LOST] == ["cpu, ram, queue"]
    world.tick()
    assert world.count(TERMINATE) == 0  # idleness counts from the return, not from before the gap
    world.tick(9)
    assert world.desired() == {"small": 1, "medium": 0, "large": 0}
    assert told(world, Reason.METRICS_RETURNED) == [f"input back after {minutes} min"]


@pytest.mark.parametrize("policy", ["queue-rule", *exhaustive(BUSY_RULE, "target-tracking:in_periods=1")])
def test_when_the_queue_alone_falls_silent_nothing_shrinks(make_world: MakeWorld, policy: str) -> None:
    world = make_world(sizes=(3, 1, 0), policy=policy, limits=FLOORED)
    world.cpu = 0.05
    world.queue_reports = False
    world.tick(6)
    assert intents(world, Direction.IN) == []
    assert world.count(TERMINATE) == 0
    assert world.desired() == {"small": 3, "medium": 1, "large": 0}


@pytest.mark.parametrize("policy", [BUSY_RULE, *exhaustive("target-tracking:in_periods=1", "constant:1,0,0")])
def test_when_more_than_half_of_the_hosts_fall_silent_nothing_shrinks(make_world: MakeWorld, policy: str) -> None:
    world = make_world(sizes=(3, 2, 0), policy=policy)
    world.cpu = 0.05
    world.pass_minute()
    world.silent = set(world.in_service("small"))
    world.tick(6)
    assert {report.decisions[0].reason for report in world.reports} == {Reason.LOW_COVERAGE}
    assert world.mutations == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", [BUSY_RULE, *exhaustive("target-tracking:in_periods=1", "constant:1,0,0")])
def test_a_silent_vm_is_never_chosen_to_go(make_world: MakeWorld, policy: str) -> None:
    world = make_world(sizes=(4, 2, 0), policy=policy)
    world.cpu = 0.05
    world.busy = {vm: 1.0 for _, vm, _ in world.vms()}
    silent = set(world.in_service("medium"))
    world.pass_minute()  # all are heard once
    world.silent = silent
    world.tick(8)
    assert silent == set(world.in_service("medium"))
    assert world.count(TERMINATE) > 0


@pytest.mark.parametrize("floor", [0, 2])
def test_a_fleet_at_zero_goes_to_its_floor_when_the_queue_is_not_heard(make_world: MakeWorld, floor: int) -> None:
    group = Group("medium", "workers-m", M, 0, 10)
    limits = replace(QUICK, safe_floor=(floor,), hold_bins=3)
    world = make_world(groups=(group,), sizes=(0,), limits=limits)
    world.metric_gap(3)
    assert world.desired() == {"medium": 0}
    assert world.last.reason is Reason.STALE_INPUT
    world.metric_gap(3)
    assert world.desired() == {"medium": floor}
    world.submit(30)
    world.tick(2)
    assert world.last.reason in (Reason.QUEUE_GREW, Reason.QUEUE_COVERED)
    assert world.desired()["medium"] > floor


def test_a_fleet_at_zero_whose_queue_is_heard_needs_no_vm_to_report(make_world: MakeWorld) -> None:
    world = make_world(groups=(MEDIUM,), sizes=(0,))
    world.tick(3)
    assert world.last.reason is Reason.QUEUE_COVERED
    world.submit(8)
    world.tick()
    assert world.desired()["medium"] > 0


def test_a_restart_in_the_midst_of_a_gap_forgets_nothing(make_world: MakeWorld) -> None:
    world = make_world(sizes=(2, 2, 0), limits=FLOORED)
    world.tick()
    world.metric_gap(2)
    world.restart()
    world.metric_gap(1)
    assert world.count(SET) == 0
    world.metric_gap(1)
    assert world.count(SET) == 1  # when it was due, counting the minutes before the restart
    assert world.desired() == {"small": 3, "medium": 2, "large": 0}
    world.metric_gap(6)
    assert world.count(SET) == 1
    assert world.count(TERMINATE) == 0


def test_a_restart_does_not_make_a_half_silent_fleet_look_whole(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 2, 0), policy="constant:3,2,0")
    world.tick(6)
    world.silent = set(world.in_service("small"))
    world.plan.policy = "constant:1,0,0"
    world.restart()
    world.tick(4)
    assert world.last.reason is Reason.LOW_COVERAGE
    assert intents(world, Direction.IN) == []


class Gaps(RuleBasedStateMachine):
    """Work comes and goes and the measurements of all, of some or of the queue come and go with it."""

    @initialize(
        small=st.integers(0, 4),
        medium=st.integers(0, 3),
        floor=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        policy=st.sampled_from(["queue-rule", BUSY_RULE, "constant:0,0"]),
    )
    def begin(self, small: int, medium: int, floor: tuple[int, int], policy: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        groups = (replace(SMALL, minimum=0), MEDIUM)
        self.floor, self.limits = floor, replace(QUICK, safe_floor=floor, hold_bins=2)
        plan = Plan(groups=groups, sizes=(small, medium), limits=self.limits, policy=policy, interruptions=False)
        self.world = World(Path(self._directory.name), plan)
        self.world.cpu = 0.1
        self.world.tick(2)
        self.lost_for = 0
        self.heard = set[str]()

    @rule(jobs=st.integers(0, 30))
    def the_queue_changes(self, jobs: int) -> None:
        self.world.waiting = jobs

    @rule(minutes=st.integers(1, 4))
    def all_report(self, minutes: int) -> None:
        for _ in range(minutes):
            self._minute(lost=False)

    @rule(minutes=st.integers(1, 5), seconds=st.integers(40, 60))
    def nobody_reports(self, minutes: int, seconds: int) -> None:
        self.world.silent_seconds = gap(seconds)
        for _ in range(minutes):
            self._minute(lost=seconds > 55, thin=True)
        self.world.silent_seconds = frozenset()

    @rule(minutes=st.integers(1, 4))
    def the_queue_is_silent(self, minutes: int) -> None:
        self.world.queue_reports = False
        for _ in range(minutes):
            self._minute(lost=True)
        self.world.queue_reports = True

    @rule(minutes=st.integers(1, 4), share=st.sampled_from([0.3, 0.6, 0.9]))
    def some_are_silent(self, minutes: int, share: float) -> None:
        vms = sorted(self._in_service())
        self.world.silent = set(vms[: round(share * len(vms))])
        self.world.tick(minutes)
        assert self.world.silent <= self._in_service()
        self.world.silent = set()
        self.lost_for = 0
        self._minute(lost=False)

    @rule()
    def the_agent_is_restarted(self) -> None:
        self.world.restart()
        self.heard = set()

    def _in_service(self) -> set[str]:
        return {vm for _, vm, state in self.world.vms() if state == "InService"}

    def _minute(self, lost: bool, thin: bool = False) -> None:
        """Let a minute pass; `lost`: without any reading of the queue, `thin`: with too few of the VMs.

        A VM that reports for the first time cannot have sent more, so few readings of it are enough.
        """
        world, there = self.world, self._in_service()
        before, gone = world.desired(), world.count(TERMINATE)
        world.tick()
        self.lost_for = self.lost_for + 1 if lost else 0
        if not lost and not (thin and there <= self.heard):
            self.heard |= set() if thin else there
            return
        after = world.desired()
        assert all(after[key] >= size for key, size in before.items())
        assert world.count(TERMINATE) == gone
        assert {intent.direction for intent in world.last.intents} <= {Direction.OUT}
        if self.lost_for > self.limits.hold_bins:
            assert after["small"] >= self.floor[0]
            assert after["medium"] >= self.floor[1]

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.waiting, self.world.silent_seconds, self.world.queue_reports = 0, frozenset(), True
                for _ in range(3):
                    self._minute(lost=False)
                assert self.world.last.reason not in {*HELD, Reason.SAFE_FLOOR}
            finally:
                self.world.close()
                self._directory.cleanup()


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(6))
def test_whatever_is_silent_when_nothing_shrinks_on_absent_data(part: int) -> None:
    seeded = seed(part)(type("Seeded", (Gaps,), {}))
    run_state_machine_as_test(seeded, settings=settings(max_examples=9, stateful_step_count=8, deadline=None))


def test_the_ledger_shows_the_gap_to_whoever_asks(make_world: MakeWorld) -> None:
    world = make_world(sizes=(2, 0, 0), limits=FLOORED)
    world.tick()
    world.metric_gap(5)
    rows = [row.decision for row in FleetStore(world.ledger).decisions("web", newest_first=False)]
    assert [decision.reason for decision in rows[1:4]] == [Reason.STALE_INPUT] * 3
    assert rows[4].reason is Reason.SAFE_FLOOR
    assert rows[4].desired == (3, 1, 0)
    assert "for 4 minutes" in rows[4].sentence
    assert rows[5].intents == ()
