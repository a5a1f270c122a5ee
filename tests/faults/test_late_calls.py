"""Right before each changing call operators, rails and measurements are asked again; what is late is decided anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Never

import pytest

from agent.autoscaling.state import FleetStore
from agent.rails.state import Breaker
from domain.controls import Pause, PauseScope, Pin
from domain.decisions import Direction, Reason, Status
from tests.faults.evidence import SET, TERMINATE, carried_out, intents
from tests.faults.hands import between_look_and_leap, set_by_hand
from tests.faults.world import QUICK, SMALL, MakeWorld, World, final_reasons
from tests.stages import exhaustive

COOLING = replace(QUICK, cooldown_out_s=300.0, cooldown_in_s=300.0)


def pause(world: World, scope: PauseScope = PauseScope.ALL) -> None:
    world.ledger.pause("autoscaling", "web", Pause(scope, "ada", "release", world.clock.now(), None))


def resume(world: World) -> None:
    world.ledger.resume("autoscaling", "web", PauseScope.ALL, at=world.clock.now(), owner="ada")


def pin(world: World, **desired: int) -> None:
    now = world.clock.now()
    world.ledger.pin("autoscaling", "web", Pin(desired, "ada", "load test", now, now + 3600.0))


def one_group(make_world: MakeWorld, size: int = 1, **plan: object) -> World:
    return make_world(groups=(SMALL,), sizes=(size,), idle_s=60.0, **plan)


# A pause between decision and call


@pytest.mark.parametrize("scope", [PauseScope.ALL, PauseScope.OUT])
def test_a_pause_made_after_the_decision_stops_its_call(make_world: MakeWorld, scope: PauseScope) -> None:
    world = one_group(make_world, limits=COOLING)
    world.tick()
    world.submit(8)
    between_look_and_leap(world, lambda: pause(world, scope))
    report = world.tick()
    assert [(o.status, o.reason) for o in report.outcomes] == [(Status.SKIPPED, Reason.PAUSED)]
    assert world.mutations == []
    assert FleetStore(world.ledger).loop_state("web").cooldowns == ()
    resume(world)
    world.tick()
    assert world.desired() == {"small": 4}


def test_a_pause_made_between_two_terminations_stops_the_second(make_world: MakeWorld) -> None:
    world = one_group(make_world, 3)
    client = world.loop.actuator._session.client("autoscaling")  # type: ignore[attr-defined]
    client.meta.events.register(f"after-call.auto-scaling.{TERMINATE}", lambda **_: pause(world, PauseScope.IN))
    report = world.tick()
    assert [(o.status, o.reason, o.achieved) for o in report.outcomes] == [(Status.PARTIAL, Reason.PAUSED, 1)]
    assert world.count(TERMINATE) == 1
    world.tick(3)
    assert world.count(TERMINATE) == 1


@pytest.mark.parametrize(("size", "jobs", "operation"), [(1, 8, SET), (3, 0, TERMINATE)])
def test_an_intent_that_aws_throttled_is_not_sent_under_a_pause(
    make_world: MakeWorld, size: int, jobs: int, operation: str
) -> None:
    world = one_group(make_world, size)
    world.submit(jobs)
    world.fault("throttle", operations=[operation], duration_s=90.0)
    world.tick()
    assert world.outcomes[-1].reason is Reason.THROTTLED
    tried = world.count(operation)
    pause(world)
    world.tick(3)
    assert world.count(operation) == tried
    assert final_reasons(world) == [Reason.PAUSED]
    resume(world)
    world.tick()
    assert world.count(operation) > tried


def test_capacity_that_does_not_come_is_not_given_back_under_a_pause_of_everything(
    make_world: MakeWorld,
) -> None:
    world = one_group(make_world)
    world.fault("capacity", instance_type="m5a.large")
    world.submit(8)
    world.tick()
    pause(world)
    world.tick(7)
    assert world.count(SET) == 1
    resume(world)
    world.tick()
    assert [call["DesiredCapacity"] for call in carried_out(world, SET)] == ["4", "1"]


# A pin between decision and call


def test_a_pin_made_after_the_decision_stops_a_call_against_it(make_world: MakeWorld) -> None:
    world = one_group(make_world)
    world.tick()
    world.submit(8)
    between_look_and_leap(world, lambda: pin(world, small=1))
    report = world.tick()
    assert [(o.status, o.reason) for o in report.outcomes] == [(Status.SKIPPED, Reason.PINNED)]
    world.tick(3)
    assert world.mutations == []


def test_an_intent_that_aws_throttled_is_not_sent_against_a_pin(make_world: MakeWorld) -> None:
    world = one_group(make_world)
    world.submit(8)
    world.fault("throttle", operations=[SET], duration_s=90.0)
    world.tick()
    pin(world, small=2)
    world.tick(3)
    assert [call["DesiredCapacity"] for call in carried_out(world, SET)] == ["2"]
    assert final_reasons(world)[0] is Reason.PINNED


# Budget and circuit breaker


def test_an_intent_that_the_budget_no_longer_bears_is_not_sent(make_world: MakeWorld) -> None:
    # Four small ones an hour; with a large one there is room for one.
    world = make_world(limits=replace(QUICK, budget_per_hour=0.44), sizes=(1, 0, 0))
    world.tick()
    pin(world, small=4, medium=0, large=0)
    world.fault("throttle", operations=[SET], duration_s=90.0)
    world.tick()
    assert world.outcomes[-1].reason is Reason.THROTTLED
    set_by_hand(world, "large", 1)
    world.clock.advance(30.0)
    world.tick()
    assert final_reasons(world) == [Reason.OVER_BUDGET]
    assert world.count(SET) == 1


# Spot replacements


def interrupted(world: World) -> str:
    world.tick()
    (vm,) = world.control.spot_notice(world.in_service("small")[:1], queue=world.notices)["instance_ids"]
    return str(vm)


@pytest.mark.parametrize("scope", [PauseScope.ALL, *exhaustive(PauseScope.IN, PauseScope.OUT)])
def test_a_pause_holds_replacements_and_one_waits_for_its_end(make_world: MakeWorld, scope: PauseScope) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    vm = interrupted(world)
    pause(world, scope)
    world.tick()
    assert world.mutations == []
    assert "replacement waits" in world.last.sentence
    assert dict(FleetStore(world.ledger).loop_state("web").interrupted).keys() == {vm}
    resume(world)
    world.clock.advance(40.0)
    world.running.cloud.spot_actions[vm] += 60.0
    world.tick()
    assert [call["InstanceId"] for call in carried_out(world, TERMINATE)] == [vm]


def test_a_pause_made_after_the_decision_stops_a_replacement_and_does_not_lose_it(
    make_world: MakeWorld,
) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    vm = interrupted(world)
    between_look_and_leap(world, lambda: pause(world))
    report = world.tick()
    assert [(o.status, o.reason) for o in report.outcomes] == [(Status.SKIPPED, Reason.PAUSED)]
    assert world.mutations == []
    resume(world)
    world.running.cloud.spot_actions[vm] += 60.0
    world.tick()
    assert [call["InstanceId"] for call in carried_out(world, TERMINATE)] == [vm]
    assert world.count(TERMINATE) == 1


def test_an_open_circuit_breaker_holds_replacements(make_world: MakeWorld) -> None:
    world = make_world(sizes=(3, 0, 0), policy="hold")
    interrupted(world)
    state = FleetStore(world.ledger).loop_state("web")
    broken = replace(state, breakers=(Breaker("small", 3, world.clock.now() + 300.0, 300.0),))
    FleetStore(world.ledger).record((), states={"web": broken})
    world.tick()
    assert world.mutations == []
    assert "3 failures in a row" in world.last.sentence


# Care for VMs


def test_a_pause_stops_taking_protection_off_and_not_setting_it(make_world: MakeWorld) -> None:
    world = one_group(make_world, 3, policy="hold", protect_busy=True)
    first, second, _ = world.in_service("small")
    world.busy = {first: 2.0}
    world.tick()
    pause(world)
    world.busy = {second: 2.0}
    world.tick(2)
    sent = world.control.mutations(operation="SetInstanceProtection")
    assert [call["params"]["ProtectedFromScaleIn"] for call in sent] == ["true", "true"]
    resume(world)
    world.tick()
    assert world.count("SetInstanceProtection") == 3


def test_a_pause_does_not_stop_the_heartbeats_of_a_vm_that_works(make_world: MakeWorld) -> None:
    world = one_group(make_world, 2)
    world.tick()
    ((_, vm, _),) = [one for one in world.vms() if one[2] == "Terminating:Wait"]
    world.busy = {vm: 2.0}
    pause(world)
    world.tick(4)
    assert world.count("RecordLifecycleActionHeartbeat") > 2
    assert ("small", vm, "Terminating:Wait") in world.vms()


# Late


@pytest.mark.exhaustive
@pytest.mark.parametrize("stopped_s", [125.0, 183.0, 305.0])
def test_a_process_stopped_between_decision_and_call_does_not_make_the_call(
    make_world: MakeWorld, stopped_s: float
) -> None:
    world = one_group(make_world)
    world.tick()
    world.submit(8)
    between_look_and_leap(world, lambda: world.clock.advance(stopped_s))
    report = world.tick()
    assert world.mutations == []
    assert report.outcomes[-1].reason in (Reason.STALE_INPUT, Reason.OVERDUE)
    world.waiting = 0
    world.tick(3)
    assert world.mutations == []
    assert world.ledger.open_intents() == ()


def test_a_host_that_slept_does_not_make_the_call_although_its_monotonic_clock_stood_still(
    make_world: MakeWorld,
) -> None:
    world = one_group(make_world)
    world.tick()
    world.submit(8)
    between_look_and_leap(world, lambda: world.agent_clock.step(183.0))
    world.tick()
    assert world.mutations == []


def test_an_intent_past_its_deadline_by_the_monotonic_clock_alone_is_not_sent(
    make_world: MakeWorld,
) -> None:
    world = one_group(make_world, limits=replace(QUICK, boot_deadline_s=100.0))
    world.tick()
    world.submit(8)

    def stop_unseen() -> None:
        world.clock.advance(110.0)
        world.agent_clock.step(-110.0)

    between_look_and_leap(world, stop_unseen)
    report = world.tick()
    assert [(o.status, o.reason) for o in report.outcomes] == [(Status.SKIPPED, Reason.OVERDUE)]
    assert world.mutations == []


def test_a_scale_out_whose_load_is_gone_ends_unsent(make_world: MakeWorld) -> None:
    world = one_group(make_world, limits=COOLING)
    world.submit(8)
    world.fault("throttle", operations=[SET], duration_s=90.0)
    world.tick()
    world.waiting = 0
    world.tick(3)
    assert world.count(SET) == 1
    assert final_reasons(world) == [Reason.SUPERSEDED]
    assert FleetStore(world.ledger).loop_state("web").cooldowns == ()
    assert world.desired() == {"small": 1}


def test_a_scale_out_that_would_now_be_smaller_is_decided_anew_in_the_same_minute(
    make_world: MakeWorld,
) -> None:
    world = one_group(make_world)
    world.submit(8)
    world.fault("throttle", operations=[SET], duration_s=90.0)
    world.tick()
    assert world.mutations == [(SET, "workers-s")]
    world.waiting = 4
    world.tick()
    assert [intent["target"] for intent in intents(world)] == [4, 2]
    assert [call["DesiredCapacity"] for call in carried_out(world, SET)] == ["2"]


def test_a_late_intent_waits_for_measurements_and_is_then_sent(make_world: MakeWorld) -> None:
    world = one_group(make_world)
    world.submit(8)
    world.fault("throttle", operations=[SET], duration_s=90.0)
    world.tick()
    world.metric_gap(2)
    assert world.count(SET) == 1
    assert world.outcomes[-1].reason is Reason.STALE_INPUT
    world.tick()
    assert [call["DesiredCapacity"] for call in carried_out(world, SET)] == ["4"]
    assert len(intents(world)) == 1


def test_a_late_intent_without_measurements_ends_unsent_and_counts_against_no_group(
    make_world: MakeWorld,
) -> None:
    world = one_group(make_world)
    world.submit(8)
    world.fault("throttle", operations=[SET], duration_s=90.0)
    world.tick()
    world.metric_gap(6)
    assert world.count(SET) == 1
    assert final_reasons(world) == [Reason.SUPERSEDED]
    assert FleetStore(world.ledger).loop_state("web").breakers == ()


# Victims


def test_a_victim_that_works_again_is_left_and_another_one_chosen(make_world: MakeWorld) -> None:
    world = one_group(make_world, 3)
    world.fault("throttle", operations=[TERMINATE], duration_s=130.0)
    world.running_jobs = 2
    world.busy = {world.in_service("small")[0]: 2.0}
    world.tick()
    chosen = set(world.last.intents[0].victims)
    world.busy = dict.fromkeys(sorted(chosen)[:1], 2.0)
    world.tick(3)
    gone = {call["InstanceId"] for call in carried_out(world, TERMINATE)}
    assert gone
    assert not gone & world.busy.keys()


def test_a_victim_given_work_between_decision_and_call_is_not_terminated(make_world: MakeWorld) -> None:
    world = one_group(make_world, 3)

    def work_comes() -> None:
        (victim, *_) = world.ledger.open_intents()[0].victims
        world.busy = {victim: 2.0}
        world._report([("small", victim)], world.clock.now())

    between_look_and_leap(world, work_comes)
    report = world.tick()
    assert [(o.status, o.reason, o.achieved) for o in report.outcomes] == [(Status.PARTIAL, Reason.BUSY, 1)]
    assert not {call["InstanceId"] for call in carried_out(world, TERMINATE)} & world.busy.keys()
    assert [intent["direction"] for intent in intents(world)] == [Direction.IN]


@pytest.fixture
def throttled(make_world: MakeWorld) -> World:
    """A world whose agent could not send its scale-out in the last minute."""
    world = make_world(groups=(SMALL,), sizes=(2,))
    world.tick(2)
    world.submit(12)
    world.fault("throttle", operations=["SetDesiredCapacity"], duration_s=70.0)
    world.tick()
    assert world.last.intents
    return world


def test_a_minute_that_is_decided_twice_is_measured_once(throttled: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    record = throttled.loop.store.record

    def recorded(made: Any, *about: Any, measured: Any, **more: Any) -> Any:
        rows.extend(measured["web"].finished for _ in made)
        return record(made, *about, measured=measured, **more)

    monkeypatch.setattr(throttled.loop.store, "record", recorded)
    throttled.waiting -= 5
    throttled.tick()
    assert rows == [5]


def test_an_intent_whose_minute_cannot_be_decided_again_ends_by_its_deadline(
    throttled: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*about: Any) -> Never:
        raise RuntimeError("no second decision")

    (intent,) = throttled.last.intents
    monkeypatch.setattr(throttled.loop, "_late_grounds", broken)
    throttled.tick(8)
    assert intent.intent_id not in [one.intent_id for one in throttled.ledger.open_intents()]
