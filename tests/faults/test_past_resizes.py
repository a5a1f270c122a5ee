"""A cool-down counts what AWS did before the process began: an earlier process, another ledger or a person asked."""

from __future__ import annotations

from dataclasses import replace

from actuators.activities import read_resizes
from agent.autoscaling.state import FleetStore
from collectors.aws import AwsSession
from domain.decisions import Direction, Reason
from tests.faults.evidence import told
from tests.faults.world import QUICK, MakeWorld, World

SLOW = replace(QUICK, cooldown_out_s=600.0, cooldown_in_s=900.0)


def reading(world: World) -> AwsSession:
    """Let the agent read the past as the daemon does, and count how often it asks."""
    session: AwsSession = world.session
    world.loop.resized = lambda names, since: read_resizes(session, names, since)
    return session


def grown_by_a_person(make_world: MakeWorld) -> World:
    """A world in which a person set three VMs, the agent off; they came up two minutes before it starts."""
    world = make_world(limits=SLOW)
    world.clock.advance(1800.0)
    world.owner.set_desired_capacity(AutoScalingGroupName="workers-s", DesiredCapacity=3)
    world.clock.advance(120.0)
    return world


def test_what_a_person_did_before_the_start_counts(make_world: MakeWorld) -> None:
    world = grown_by_a_person(make_world)
    reading(world)
    world.submit(40)
    world.tick()
    held = [effect for effect in world.last.effects if effect.reason is Reason.COOLING_DOWN]
    assert held
    assert "small" in held[0].detail
    assert world.desired()["small"] == 3
    (cooldown,) = [c for c in FleetStore(world.ledger).loop_state("web").cooldowns if c.group == "small"]
    assert cooldown.direction is Direction.OUT
    assert 400.0 < cooldown.until - world.agent_clock.now() < 480.0
    (sentence,) = told(world, Reason.COOLING_DOWN)
    assert "before this process" in sentence


def test_without_it_the_agent_would_have_grown_at_once(make_world: MakeWorld) -> None:
    world = grown_by_a_person(make_world)
    world.submit(40)
    world.tick()
    assert world.desired()["small"] > 3


def test_the_vms_that_a_group_was_created_with_hold_no_scale_out(make_world: MakeWorld) -> None:
    world = make_world(limits=SLOW)
    session = reading(world)
    assert world.in_service("small"), "it was created with a VM"
    assert read_resizes(session, {"workers-s"}, world.clock.now() - 600.0) == ()
    world.submit(40)
    world.tick()
    assert world.desired()["small"] > 1


def test_a_lost_ledger_forgets_no_cool_down(make_world: MakeWorld) -> None:
    world = make_world(limits=SLOW)
    world.clock.advance(1800.0)
    world.submit(6)
    world.tick(2)
    grown = world.desired()
    assert sum(grown.values()) > 1
    for file in world.directory.glob("ledger.db*"):
        file.unlink()
    world.restart()
    reading(world)
    world.submit(60)
    world.tick()
    first = {"small": 1, "medium": 0, "large": 0}
    assert {key: world.desired()[key] for key in grown if grown[key] > first[key]} == {
        key: size for key, size in grown.items() if size > first[key]
    }


def test_it_is_read_once_and_again_until_aws_answers(make_world: MakeWorld) -> None:
    world = grown_by_a_person(make_world)
    reading(world)

    def asked() -> int:
        calls = [call for call in world.calls if call["operation"] == "DescribeScalingActivities"]
        return sum("AutoScalingGroupName" not in call["params"] for call in calls)

    world.fault("throttle", operations=["DescribeScalingActivities"], duration_s=90.0)
    world.tick()
    assert (asked(), told(world, Reason.COOLING_DOWN)) == (1, [])
    world.tick(3)
    assert asked() == 2
    assert len(told(world, Reason.COOLING_DOWN)) == 1


def test_old_changes_replacements_and_failures_do_not_count(make_world: MakeWorld) -> None:
    world = grown_by_a_person(make_world)
    session, now = reading(world), world.clock.now()
    names = {"workers-s", "workers-m"}
    (grown,) = read_resizes(session, names, now - 600.0)
    assert (grown.group_name, grown.direction) == ("workers-s", Direction.OUT)
    assert read_resizes(session, {"workers-m"}, now - 600.0) == ()
    assert read_resizes(session, names, now - 60.0) == ()
    vm = world.in_service("small")[0]
    terminate = world.owner.terminate_instance_in_auto_scaling_group
    terminate(InstanceId=vm, ShouldDecrementDesiredCapacity=False)
    world.clock.advance(300.0)
    assert {one.at for one in read_resizes(session, names, now - 600.0)} == {grown.at}
    terminate(InstanceId=world.in_service("small")[0], ShouldDecrementDesiredCapacity=True)
    assert {one.direction for one in read_resizes(session, names, now - 600.0)} == set(Direction) - {Direction.REPLACE}
