"""Who counts as warm, booting, overdue, silent, idle or removable."""

from dataclasses import replace

import pytest

from agent.autoscaling.snapshot.aggregate import Aggregator
from agent.rails.state import Cooldown, RefusalMark
from domain.decisions import Direction, Reason, VmRefusal
from domain.errors import BadInput
from domain.observed import DrainHook, Instance, Lifecycle
from tests.agent.autoscaling.snapshot.scene import T0, Scene, group, running

QUEUE = {"waiting": 0, "running": 0, "submitted_total": 0}
HOOK = DrainHook("drain", 60.0, 600.0)


def test_a_vm_is_warm_once_it_is_in_service_and_has_reported() -> None:
    scene = Scene()
    scene.place("s", running("i-1", launched_at=T0))
    before = group(scene.minute(queue=QUEUE), "s")
    assert (before.in_service, before.warm, before.booting) == (1, 0, 1)
    after = group(scene.minute({"i-1": 5.0}, QUEUE), "s")
    assert (after.in_service, after.warm, after.booting) == (1, 1, 0)


def test_a_vm_that_first_reports_late_in_the_minute_is_warm_but_neither_silent_nor_missed() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2", launched_at=T0))
    scene.now = T0 + 60
    scene.report("s", "i-2", [T0 + 50, T0 + 60], cpu_percent=100.0)
    scene.now = T0
    snapshot = scene.minute({"i-1": 20.0}, QUEUE)
    assert (group(snapshot, "s").warm, group(snapshot, "s").silent) == (2, 0)
    assert (snapshot.coverage, snapshot.cpu_mean) == (1.0, 0.2)


def test_a_first_report_after_the_minute_does_not_warm_the_vm_in_it() -> None:
    scene = Scene()
    scene.place("s", running("i-1", launched_at=T0))
    scene.now = T0 + 63
    scene.report("s", "i-1", [T0 + 62], cpu_percent=100.0)
    scene.now = T0 + 65
    assert (group(scene.fold(), "s").warm, group(scene.fold(), "s").booting) == (0, 1)


def test_a_vm_beyond_the_boot_deadline_is_overdue_counted_from_its_launch() -> None:
    scene = Scene()
    scene.place("s", Instance("i-1", "a", Lifecycle.PENDING, launched_at=T0 - 235.0))
    assert (group(scene.minute(), "s").booting, group(scene.minute(), "s").overdue) == (1, 1)


def test_without_a_launch_time_the_deadline_counts_from_when_the_vm_was_first_seen() -> None:
    scene = Scene()
    scene.place("s", Instance("i-1", "a", Lifecycle.PENDING))
    overdue = [group(scene.minute(), "s").overdue for _ in range(7)]
    assert overdue == [0, 0, 0, 0, 0, 0, 1]


def test_desired_vms_that_do_not_exist_yet_are_booting_then_overdue() -> None:
    scene = Scene()
    scene.place("s", desired=2)
    counts = [(g.booting, g.overdue) for g in (group(scene.minute(), "s") for _ in range(7))]
    assert counts == [(2, 0)] * 6 + [(0, 2)]
    scene.place("s", Instance("i-1", "a", Lifecycle.PENDING, launched_at=scene.now), desired=3)
    now = group(scene.minute(), "s")
    assert (now.requested, now.booting, now.overdue) == (3, 2, 1)


def test_draining_and_terminating_vms_are_no_capacity() -> None:
    scene = Scene()
    leaving = [Instance(f"i-{state}", "a", state) for state in (Lifecycle.DRAINING, Lifecycle.TERMINATING)]
    scene.place("s", running("i-1"), *leaving, Instance("i-s", "a", Lifecycle.STANDBY))
    snapshot = scene.minute({"i-1": 30.0, "i-draining": 90.0}, QUEUE)
    found = group(snapshot, "s")
    assert (found.in_service, found.warm, found.draining, found.booting, found.requested) == (1, 1, 2, 0, 1)
    assert snapshot.cpu_mean == 0.3


def test_idle_for_long_needs_the_whole_idle_time_without_a_busy_core() -> None:
    scene = Scene()
    scene.settings = replace(scene.settings, idle_s=180.0)
    scene.place("s", running("i-1"))
    counts = [group(scene.minute({"i-1": 5.0}, QUEUE, busy_cores=busy), "s").idle_long for busy in (0, 0, 0, 0, 1, 0)]
    assert counts == [0, 0, 1, 1, 0, 0]


def test_a_silent_minute_ends_idleness_because_nothing_is_known() -> None:
    scene = Scene()
    scene.settings = replace(scene.settings, idle_s=60.0)
    scene.place("s", running("i-1"))
    assert group(scene.minute({"i-1": 5.0}, QUEUE, busy_cores=0), "s").idle_long == 1
    silent = group(scene.minute(queue=QUEUE), "s")
    assert (silent.idle_long, silent.removable, silent.silent) == (0, (), 1)


def test_without_a_drain_hook_only_idle_vms_are_removable() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    start = scene.now
    scene.now += 60
    times = [start + 10.0 * k for k in range(1, 7)]
    scene.report("s", "i-1", times, cpu_percent=0.0, busy_cores=0.0)
    scene.report("s", "i-2", times, cpu_percent=100.0, busy_cores=2.0)
    scene.now += 5
    assert group(scene.fold(), "s").removable == ("i-1",)


def test_with_a_drain_hook_busy_vms_follow_by_least_executed_work_ties_to_the_newest() -> None:
    scene = Scene()
    ages = {"i-old": 4000.0, "i-new": 3000.0, "i-idle": 5000.0, "i-light": 9000.0, "i-unknown": 1000.0}
    vms = [running(vm, launched_at=T0 - age) for vm, age in ages.items()]
    scene.place("s", *vms, drain_hook=HOOK)
    scene.now += 60
    times = [T0 + 10.0 * k for k in range(1, 7)]
    work = {"i-old": 700.0, "i-new": 700.0, "i-light": 20.0, "i-idle": 5000.0}
    for vm in ages:
        scene.report("s", vm, times, cpu_percent=50.0, busy_cores=0.0 if vm == "i-idle" else 1.0)
    for vm, done in work.items():
        scene.report("s", vm, times, work_core_seconds=done)
    scene.now += 5
    assert group(scene.fold(), "s").removable == ("i-idle", "i-light", "i-new", "i-old", "i-unknown")


def test_where_the_cloud_takes_the_newest_the_newest_is_listed_first_whatever_it_does() -> None:
    scene = Scene()
    scene.settings = replace(scene.settings, removes_newest=True)
    ages = {"i-old": 4000.0, "i-new": 3000.0, "i-idle": 5000.0}
    scene.place("s", *(running(vm, launched_at=T0 - age) for vm, age in ages.items()), drain_hook=HOOK)
    scene.now += 60
    times = [T0 + 10.0 * k for k in range(1, 7)]
    for vm, busy, work in (("i-old", 1.0, 20.0), ("i-new", 2.0, 700.0), ("i-idle", 0.0, 0.0)):
        scene.report("s", vm, times, cpu_percent=50.0, ram_percent=1.0, busy_cores=busy, work_core_seconds=work)
    scene.report_queue(scene.now, waiting=0, running=3, submitted_total=3)
    scene.now += 5
    snapshot = scene.fold()
    assert group(snapshot, "s").removable == ("i-new", "i-old", "i-idle")
    assert snapshot.obs_v2[-1] == pytest.approx(2.0 / 3.0)


def test_young_and_unhealthy_vms_are_not_removable() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2", healthy=False), running("i-3", launched_at=T0))
    found = group(scene.minute({"i-1": 0.0, "i-2": 0.0, "i-3": 0.0}, QUEUE, busy_cores=0.0), "s")
    assert found.removable == ("i-1",)
    assert (found.mature, found.unhealthy, found.warm) == (2, 1, 3)


def test_of_protected_idle_vms_only_those_are_removable_that_the_agent_protects() -> None:
    scene = Scene()
    scene.state = replace(scene.state, protected=("i-1",))
    scene.place("s", running("i-1", protected=True), running("i-2", protected=True), running("i-3"))
    found = group(scene.minute({"i-1": 0.0, "i-2": 0.0, "i-3": 0.0}, QUEUE, busy_cores=0.0), "s")
    assert set(found.removable) == {"i-1", "i-3"}
    assert (found.idle, found.mature) == (3, 3)


def test_a_vm_that_aws_refused_is_left_out_until_its_time_is_over_and_named_meanwhile() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    idle = {"i-1": 0.0, "i-2": 0.0}
    for _ in range(6):
        found = group(scene.minute(idle, QUEUE, busy_cores=0.0), "s")
    assert (found.idle_long, found.refused) == (2, ())
    until = scene.now + 100.0
    scene.state = replace(scene.state, refusals=(RefusalMark("i-1", Reason.REMOVAL_REFUSED, 1, until, 120.0),))
    found = group(scene.minute(idle, QUEUE, busy_cores=0.0), "s")
    assert (found.removable, found.idle_long, found.refused) == (
        ("i-2",),
        1,
        (VmRefusal("i-1", Reason.REMOVAL_REFUSED),),
    )
    found = group(scene.minute(idle, QUEUE, busy_cores=0.0), "s")
    assert (set(found.removable), found.idle_long, found.refused) == ({"i-1", "i-2"}, 2, ())


def test_a_vm_that_took_a_job_after_the_minute_is_not_removed_as_idle() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    scene.now += 62
    scene.report("s", "i-1", [T0 + 10.0 * k for k in range(1, 7)], cpu_percent=0.0, busy_cores=0.0)
    scene.report("s", "i-1", [T0 + 61], busy_cores=1.0)
    scene.now = T0 + 65
    assert group(scene.fold(), "s").removable == ()


def test_at_most_fifty_candidates_are_listed_newest_first() -> None:
    scene = Scene()
    vms = [f"i-{n:03d}" for n in range(120)]
    scene.place("s", *(running(vm, launched_at=T0 - 9000.0 + n // 3) for n, vm in enumerate(vms)))
    removable = group(scene.minute(dict.fromkeys(vms, 0.0), QUEUE, busy_cores=0.0), "s").removable
    expected = sorted(range(120), key=lambda n: (n // 3, vms[n]), reverse=True)[:50]
    assert removable == tuple(vms[n] for n in expected)


def test_a_vm_that_does_not_say_how_busy_it_is_leaves_the_groups_busy_cores_absent() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    scene.now += 60
    times = [T0 + 10.0 * k for k in range(1, 7)]
    scene.report("s", "i-1", times, cpu_percent=50.0, busy_cores=1.0)
    scene.report("s", "i-2", times, cpu_percent=50.0)
    scene.now += 5
    found = group(scene.fold(), "s")
    assert (found.busy_cores, found.cpu_mean, found.removable) == (None, 0.5, ())


def test_busy_cores_leave_silent_vms_out_and_are_absent_when_all_are_silent() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    scene.minute({"i-1": 50.0, "i-2": 50.0}, QUEUE, busy_cores=2.0)
    scene.report("s", "i-2", [scene.now + 50.0], cpu_percent=50.0, busy_cores=2.0)
    half = group(scene.minute({"i-1": 50.0}, QUEUE, busy_cores=1.0), "s")
    assert (half.warm, half.silent, half.busy_cores) == (2, 1, 1.0)
    assert group(scene.minute(queue=QUEUE), "s").busy_cores is None


def test_the_clouds_bounds_suspensions_and_cooldowns_are_passed_on() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), minimum=2, maximum=7, suspended=("Terminate",), zones=("a", "b"), refreshing=True)
    scene.state = replace(
        scene.state,
        cooldowns=(Cooldown("s", Direction.OUT, T0 + 165, 300.0), Cooldown("s", Direction.IN, T0 + 9999, 300.0)),
    )
    found = group(scene.minute({"i-1": 50.0}, QUEUE), "s")
    assert (found.minimum, found.maximum, found.suspended, found.zones) == (2, 7, ("Terminate",), ("a", "b"))
    assert found.refreshing
    assert (found.cooldown_out_s, found.cooldown_in_s) == (100.0, 300.0)


def test_busy_cores_per_vm_are_the_last_report_or_absent_when_old_or_never_given() -> None:
    scene = Scene()
    scene.place("s", running("i-1"), running("i-2"))
    scene.place("l", running("i-3"))
    scene.minute({"i-1": 50.0, "i-3": 50.0}, QUEUE, busy_cores=2.0)
    scene.now += 7
    scene.report("l", "i-3", [scene.now], busy_cores=5.0)
    assert scene.aggregator.busy_cores(scene.fleet, scene.now) == {"i-1": 2.0, "i-2": None, "i-3": 5.0}
    assert scene.aggregator.busy_cores(scene.fleet, scene.now + 58)["i-1"] is None


def test_vms_that_are_gone_are_removed_and_a_returning_name_starts_again() -> None:
    scene = Scene()
    scene.place("s", running("i-1"))
    scene.minute({"i-1": 50.0}, QUEUE)
    scene.place("s")
    assert group(scene.minute(queue=QUEUE), "s").warm == 0
    assert scene.aggregator.busy_cores(scene.fleet, scene.now) == {}


def test_a_restarted_agent_finds_its_vms_warm_again_from_their_reports() -> None:
    first = Scene()
    first.place("s", running("i-1"))
    first.minute({"i-1": 50.0}, QUEUE)
    second = Scene(now=first.now, state=first.state)
    second.place("s", running("i-1"))
    snapshot = second.minute({"i-1": 50.0}, QUEUE)
    assert (group(snapshot, "s").warm, snapshot.coverage, snapshot.stale_bins) == (1, 1.0, 0)


@pytest.mark.parametrize("churn", [300])
def test_the_roster_does_not_grow_with_vms_that_come_and_go(churn: int) -> None:
    scene = Scene()
    for n in range(churn):
        scene.place("s", running(f"i-{n}"))
        scene.minute()
    roster = scene.aggregator._rosters["web", "s"]
    assert tuple(roster._seats) == (f"i-{churn - 1}",)
    assert scene.aggregator._seats.size == 16


def test_a_vm_that_another_decision_needs_is_not_removable_and_counts_as_before() -> None:
    kept: set[str] = set()
    scene = Scene()
    scene.aggregator = Aggregator(scene.store, lambda fleet: kept if fleet == "web" else set())
    scene.place("s", running("i-1"), running("i-2"))
    scene.minute(cpu={"i-1": 0.0, "i-2": 0.0}, busy_cores=0.0)
    free = group(scene.minute(cpu={"i-1": 0.0, "i-2": 0.0}, busy_cores=0.0), "s")
    kept.add("i-2")
    retained = group(scene.minute(cpu={"i-1": 0.0, "i-2": 0.0}, busy_cores=0.0), "s")
    assert (free.removable, retained.removable) == (("i-2", "i-1"), ("i-1",))
    assert (retained.idle, retained.mature, retained.refused) == (free.idle, free.mature, ())


def test_where_another_decision_cannot_be_asked_no_vm_is_removable_and_the_minute_counts() -> None:
    def damaged(fleet: str) -> set[str]:
        raise BadInput("inventory.host_types", fleet, "the pool cannot be read")

    scene = Scene()
    scene.aggregator = Aggregator(scene.store, damaged)
    scene.place("s", running("i-1"), running("i-2"))
    scene.minute(cpu={"i-1": 0.0, "i-2": 0.0}, busy_cores=0.0)
    found = group(scene.minute(cpu={"i-1": 0.0, "i-2": 0.0}, busy_cores=0.0), "s")
    assert (found.removable, found.idle, found.in_service) == ((), 2, 2)
    assert scene.aggregator.is_retained("web", "i-1")
    scene.aggregator = Aggregator(scene.store, lambda fleet: {"i-1"} if fleet == "web" else set())
    assert [scene.aggregator.is_retained(*one) for one in (("web", "i-1"), ("web", "i-2"), ("batch", "i-1"))] == [
        True, False, False,
    ]  # fmt: skip
