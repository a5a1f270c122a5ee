"""The operators' switches, protection of busy VMs, and who leads: what holds from one turn to the next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.autoscaling.loop import Loop
from agent.autoscaling.state import FleetStore
from agent.rails.base import RailLimits
from domain.controls import Pause, PauseScope, Pin
from domain.decisions import Mode, Origin, Reason
from domain.errors import LedgerUnavailable
from tests.faults.hands import between_look_and_leap, set_by_hand
from tests.faults.world import QUICK, MakeWorld, World

SET, TERMINATE = "SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"
COOLING = replace(QUICK, cooldown_out_s=300.0, cooldown_in_s=300.0)


def pause(world: World, scope: PauseScope, until: float | None = None) -> None:
    world.ledger.pause("autoscaling", "web", Pause(scope, "ada", "release", world.clock.now(), until))


def pin(world: World, minutes: float, **desired: int) -> None:
    now = world.clock.now()
    world.ledger.pin("autoscaling", "web", Pin(desired, "ada", "load test", now, now + 60.0 * minutes))


def test_a_pin_applies_at_the_next_turn_and_expires_by_itself(world: World) -> None:
    world.tick()
    pin(world, 4.0, small=3)
    world.tick()
    assert world.desired()["small"] == 3
    assert world.last.proposal.origin is Origin.POLICY
    assert world.last.reason is Reason.PINNED
    world.tick(2)
    assert world.desired()["small"] == 3
    world.tick(5)
    assert world.desired()["small"] == 1


def test_a_pin_holds_against_waiting_work(world: World) -> None:
    world.tick()
    pin(world, 60.0, small=2, medium=0, large=0)
    world.submit(50)
    world.tick(5)
    assert world.desired() == {"small": 2, "medium": 0, "large": 0}
    assert world.count(SET) == 1


def test_a_pause_of_scaling_in_holds_only_that(make_world: MakeWorld) -> None:
    world = make_world(sizes=(4, 0, 0))
    pause(world, PauseScope.IN)
    world.tick(4)
    assert world.last.reason is Reason.PAUSED
    assert world.mutations == []
    world.submit(60)
    world.tick()
    assert world.last.reason is Reason.QUEUE_GREW
    assert world.count(SET) > 0
    assert world.count(TERMINATE) == 0


def test_a_pause_of_everything_holds_until_it_is_over_and_starts_no_cooldown(make_world: MakeWorld) -> None:
    world = make_world(limits=COOLING)
    world.tick()
    pause(world, PauseScope.ALL, world.clock.now() + 200.0)
    world.submit(20)
    world.tick(3)
    assert world.mutations == []
    assert FleetStore(world.ledger).loop_state("web").cooldowns == ()
    world.tick()
    assert world.count(SET) > 0


def test_a_pause_survives_a_restart_and_resume_lifts_it(world: World) -> None:
    world.tick()
    pause(world, PauseScope.ALL)
    world.restart()
    world.submit(20)
    world.tick(3)
    assert world.mutations == []
    assert world.ledger.resume("autoscaling", "web", PauseScope.ALL, at=world.clock.now(), owner="ada")
    world.tick()
    assert world.count(SET) > 0


def test_a_pause_lets_drains_that_have_begun_come_to_their_end(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0))
    world.tick(2)
    assert world.count(TERMINATE) == 2
    pause(world, PauseScope.ALL)
    world.tick(3)
    assert len(world.vms()) == 1
    assert world.count("CompleteLifecycleAction") == 2


# Protection of busy VMs


def protected(world: World) -> set[str]:
    groups = world.owner.describe_auto_scaling_groups()["AutoScalingGroups"]
    return {vm["InstanceId"] for group in groups for vm in group["Instances"] if vm["ProtectedFromScaleIn"]}


def protect(world: World, vm: str) -> None:
    """Protect a VM of the small group as another party."""
    world.owner.set_instance_protection(AutoScalingGroupName="workers-s", InstanceIds=[vm], ProtectedFromScaleIn=True)


def test_busy_vms_are_protected_and_idle_again_they_are_not(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    first, second, _ = world.in_service("small")
    world.busy = {first: 2.0, second: 1.0}
    world.tick()
    assert protected(world) == {first, second}
    world.busy = {second: 1.0}
    world.tick()
    assert protected(world) == {second}
    assert world.count("SetInstanceProtection") == 2


def test_protection_is_taken_off_again_by_a_restarted_agent(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    first, second, _ = world.in_service("small")
    world.busy = {first: 2.0, second: 1.0}
    world.tick()
    world.restart()
    world.busy = {}
    world.tick()
    assert protected(world) == set()
    world.tick()
    assert FleetStore(world.ledger).loop_state("web").protected == ()


def test_protection_outlasts_an_agent_that_only_observes(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    first, second, _ = world.in_service("small")
    world.busy = {first: 2.0, second: 1.0}
    world.tick(2)
    world.restart(Mode.OBSERVE)
    world.tick(2)
    world.restart(Mode.ACT)
    world.busy = {}
    world.tick(2)
    assert protected(world) == set()


def test_protection_that_somebody_sets_after_ours_was_taken_off_is_theirs(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    first, *_ = world.in_service("small")
    world.busy = {first: 2.0}
    world.tick()
    world.busy = {}
    world.tick(2)
    protect(world, first)
    world.restart()
    world.tick(2)
    assert protected(world) == {first}


def record_decisions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse each record of what came after a turn's decisions."""
    write = FleetStore.record

    def decisions_alone(self: FleetStore, made: Any, *about: Any, **more: Any) -> None:
        if not made:
            raise LedgerUnavailable("no room")
        write(self, made, *about, **more)

    monkeypatch.setattr(FleetStore, "record", decisions_alone)


def test_protection_set_by_somebody_else_is_theirs_also_when_the_vm_works_and_the_agent_is_restarted(
    make_world: MakeWorld,
) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    vm, *_ = world.in_service("small")
    protect(world, vm)
    world.tick()
    world.busy = {vm: 2.0}
    world.tick(2)
    world.restart()
    world.tick(2)
    world.busy = {}
    world.tick(3)
    assert protected(world) == {vm}
    assert world.count("SetInstanceProtection") == 0


def test_protection_given_back_is_not_taken_for_ours_where_only_what_came_after_it_could_not_be_recorded(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    vm, *_ = world.in_service("small")
    world.busy = {vm: 2.0}
    world.tick(2)
    world.busy = {}
    record_decisions_alone(monkeypatch)
    world.tick()
    assert protected(world) == set()
    monkeypatch.undo()
    protect(world, vm)
    world.restart()
    world.tick(3)
    assert protected(world) == {vm}


@pytest.mark.parametrize("held_by", ["a pause", "a failure"])
def test_protection_that_could_not_be_given_back_yet_is_still_ours_after_a_restart(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, held_by: str
) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    vm, *_ = world.in_service("small")
    world.busy = {vm: 2.0}
    world.tick(2)
    world.busy = {}
    if held_by == "a pause":
        pause(world, PauseScope.IN, world.clock.now() + 150.0)
        record_decisions_alone(monkeypatch)
    else:
        world.fault("throttle", operations=["SetInstanceProtection"], duration_s=150.0)
    world.tick(2)
    assert FleetStore(world.ledger).loop_state("web").protected == (vm,)
    monkeypatch.undo()
    world.restart()
    world.tick(3)
    assert protected(world) == set()
    assert FleetStore(world.ledger).loop_state("web").protected == ()


def test_protection_is_not_given_back_in_a_minute_whose_decision_is_not_recorded(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold", protect_busy=True)
    first, second, _ = world.in_service("small")
    world.busy = {first: 2.0}
    world.tick(2)
    world.busy = {second: 2.0}

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(world.loop.proposer, "propose", fails)
    world.tick()
    assert protected(world) == {first, second}
    monkeypatch.undo()
    world.tick()
    assert protected(world) == {second}


def test_protection_set_by_somebody_else_is_left_alone_and_its_vm_too(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), protect_busy=True)
    keep = world.in_service("small")[0]
    protect(world, keep)
    world.tick(10)
    assert protected(world) == {keep}
    assert keep in world.in_service("small")
    assert world.count("SetInstanceProtection") == 0


def test_a_protected_busy_vm_is_not_drained_while_an_idle_one_is_there(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), protect_busy=True)
    busy, *_ = world.in_service("small")
    world.busy = {busy: 2.0}
    world.running_jobs = 2
    world.tick(6)
    assert world.in_service("small") == [busy]


# Two agents on one ledger


def other_agent_takes_over(world: World) -> None:
    world.ledger.take_epoch("other host", world.clock.now())


def turn_of(world: World, loop: Loop) -> str | None:
    world.pass_minute()
    return loop.turn(world.clock.now()).failure


def test_a_deposed_agent_changes_nothing_from_then_on_and_says_who_leads(world: World) -> None:
    world.tick()
    other_agent_takes_over(world)
    world.submit(50)
    for _ in range(5):
        failure = turn_of(world, world.loop)
        assert failure is not None
        assert "leads since epoch 2" in failure
    assert world.mutations == []


def test_an_agent_deposed_between_decision_and_call_does_not_make_the_call(world: World) -> None:
    world.tick()
    between_look_and_leap(world, lambda: other_agent_takes_over(world))
    world.submit(20)
    report = world.tick()
    assert world.mutations == []
    assert "leads since epoch 2" in (report.failure or "")
    decided = world.ledger.open_intents()
    assert decided != (), "recorded before, and left to the new leader"
    world.restart()
    world.tick(3)
    assert world.count(SET) == len(decided)
    assert world.ledger.open_intents() == ()


@pytest.mark.exhaustive
def test_two_agents_side_by_side_make_each_change_once(make_world: MakeWorld) -> None:
    world = make_world(sizes=(1, 0, 0))
    world.tick()
    first, first_ledger = world.loop, world.ledger
    world._start_agent()
    world.submit(20)
    for _ in range(4):
        world.tick()
        assert "must not act" in (first.turn(world.clock.now()).failure or "")
    assert world.count(SET) == len({o.intent_id for o in world.outcomes})
    assert world.ledger.open_intents() == ()
    first_ledger.close()


def test_a_deposed_agent_lets_its_drains_to_the_new_leader(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0))
    world.tick(2)
    asked = len(world.mutations)
    other_agent_takes_over(world)
    for _ in range(2):
        assert turn_of(world, world.loop) is not None
    assert len(world.mutations) == asked
    world.restart()
    world.tick(3)
    assert len(world.vms()) == 1


def test_an_agent_that_only_observes_deposes_nobody_by_looking(make_world: MakeWorld) -> None:
    world = make_world(mode=Mode.OBSERVE, limits=RailLimits())
    set_by_hand(world, "small", 3)
    world.tick(5)
    assert world.mutations == []
