"""The soak's audit calls out what it is there to find: its zero means something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.autoscaling.report import MinuteReport
from agent.autoscaling.state import FleetStore
from benchmarks.soak import Disk, Soak
from benchmarks.tagged_lines import EVERY
from benchmarks.troubled_cloud import SizeChange
from domain.controls import Pause, PauseScope
from domain.decisions import Decision, Direction, Intent, Reason

GROUP = "fleet-00-workers-0"


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    with closing(Disk(tmp_path)) as disk, closing(Soak(1, 20, seed=1, keep_s=3600.0, disk=disk)) as made:
        made.minute()
        assert made.audit.total() == 0
        yield made


def last(soak: Soak) -> Decision:
    """The decision of the minute that the ledger holds."""
    (row,) = FleetStore(soak.ledger).decisions(limit=1)
    return row.decision


def flagged(soak: Soak, decision: Decision, *changes: SizeChange) -> set[str]:
    """What the audit finds wrong with a tick of this decision."""
    soak.audit.unexplained.clear()
    soak.audit.look(soak.cloud.clock.now(), MinuteReport(decision.at, decisions=(decision,)), changes, ())
    return set(soak.audit.unexplained) - {"decided_without_a_reading", "decision_not_written"}


def test_a_size_that_changes_without_an_intent(soak: Soak) -> None:
    change = SizeChange(GROUP, 10, 12, None)
    assert flagged(soak, last(soak), change) == {"cloud_changed_without_an_intent"}


def test_a_decision_without_a_sentence(soak: Soak) -> None:
    assert flagged(soak, replace(last(soak), sentence="")) == {"decision_without_a_sentence"}


def test_a_fleet_that_is_held_by_the_pause_of_another_subject(soak: Soak) -> None:
    assert "paused_by_another_subject" in flagged(soak, replace(last(soak), reason=Reason.PAUSED))


def test_a_fleet_that_is_resized_in_a_pause(soak: Soak) -> None:
    decision = last(soak)
    intent = Intent(
        "fleet-00-9.workers-0",
        decision.decision_id,
        "fleet-00",
        "workers-0",
        Direction.OUT,
        10,
        12,
        (),
        1,
        decision.at,
        0.0,
    )
    resized = replace(decision, intents=(intent,))
    assert "resized_in_a_pause" not in flagged(soak, resized)
    soak.audit.pauses["fleet-00"] = Pause(PauseScope.ALL, "operator", "a look", decision.at, decision.at + 60.0)
    assert "resized_in_a_pause" in flagged(soak, resized)


def test_vms_that_report_by_lines_with_tags_are_read_like_the_others(soak: Soak) -> None:
    soak.minute()
    soak.minute()
    (fleet,) = soak.fleets
    busy = soak.loop.aggregator.busy_cores(fleet, soak.cloud.host_clock.now())
    serving = [vm for group in fleet.groups for vm in soak.cloud.in_service(group.name)]
    tagged = [vm for vm in serving if int(vm[2:], 16) % EVERY == 0]
    assert tagged
    assert [vm for vm in serving if busy[vm] is None] == []
    assert soak.feed.refused == 0


def test_a_size_that_no_rail_changed(soak: Soak) -> None:
    decision = last(soak)
    other = replace(decision, desired=tuple(size + 1 for size in decision.desired))
    soak.audit._decision(other, decision.desired)
    assert {"changed_by_no_rail", "size_without_an_intent"} <= set(soak.audit.unexplained)


def test_a_rail_that_gives_no_reason(soak: Soak) -> None:
    decision = last(soak)
    moved = tuple(size + 1 for size in decision.desired)
    silent = replace(decision.effects[-1], after=moved, reason=None)
    soak.audit._decision(replace(decision, desired=moved, effects=(*decision.effects[:-1], silent)), decision.desired)
    assert "rail_without_a_reason" in soak.audit.unexplained


def test_a_decision_that_the_ledger_does_not_hold(soak: Soak) -> None:
    soak.audit.look(
        soak.cloud.clock.now(), MinuteReport(0.0, decisions=(replace(last(soak), decision_id="x-1"),)), (), ()
    )
    assert soak.audit.unexplained["decision_not_written"] == 1


def test_a_tick_that_failed_or_left_a_fleet_out(soak: Soak) -> None:
    soak.audit.look(soak.cloud.clock.now(), MinuteReport(0.0, failure="the disk is full"), (), ())
    assert set(soak.audit.unexplained) == {"failed_tick", "missing_decision"}


def test_a_call_into_another_account(soak: Soak) -> None:
    soak.cloud.begin("other_account", soak.fleets[0], soak.cloud.clock.now())
    soak.cloud.mutate("autoscaling", "SetDesiredCapacity", AutoScalingGroupName=GROUP, DesiredCapacity=1)
    assert soak.cloud.forbidden == {"set_desired_capacity in another account": 1}


@pytest.mark.parametrize(("cut_off_s", "cause"), [(0.0, "agent"), (3600.0, "agent cut off")])
def test_jobs_of_a_busy_vm_whose_hook_runs_out(soak: Soak, cut_off_s: float, cause: str) -> None:
    cloud = soak.cloud
    (workers,) = cloud.job_workers
    vm = max(cloud.in_service(GROUP), key=workers.busy_cores)
    workers.hung.add(vm)
    cloud.mutate(
        "autoscaling", "TerminateInstanceInAutoScalingGroup", InstanceId=vm, ShouldDecrementDesiredCapacity=True
    )
    if cut_off_s:
        cloud.cut_off(cut_off_s)
    for _ in range(6):
        cloud.pass_minute(soak.feed)
    assert set(cloud.lost) == {cause}
