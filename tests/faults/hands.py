"""What other people do to the groups of a world, at any moment of a turn."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.world import World


def set_by_hand(world: World, key: str, size: int) -> None:
    """Set a group's desired capacity."""
    name = next(group.name for group in world.fleet.groups if group.key == key)
    world.owner.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=size)


def suspend(world: World, process: str) -> None:
    """Suspend a process of every group of the fleet `web`."""
    for group in world.fleet.groups:
        world.owner.suspend_processes(AutoScalingGroupName=group.name, ScalingProcesses=[process])


def resume(world: World, process: str) -> None:
    """Resume it."""
    for group in world.fleet.groups:
        world.owner.resume_processes(AutoScalingGroupName=group.name, ScalingProcesses=[process])


def between_look_and_leap(world: World, action: Callable[[], None]) -> None:
    """Do something after the next turn decided, before it reads the group again to act."""
    seen: list[int] = []

    def strike(**_: object) -> None:
        seen.append(1)
        if len(seen) == 2:
            action()

    client = world.loop.actuator._session.client("autoscaling")  # type: ignore[attr-defined]
    client.meta.events.register("before-send.auto-scaling.DescribeAutoScalingGroups", strike)


def before_call(world: World, operation: str, action: Callable[[], None]) -> None:
    """Do something right before the agent's next call of this operation leaves."""
    done: list[bool] = []

    def strike(**_: object) -> None:
        if not done:
            done.append(True)
            action()

    client = world.loop.actuator._session.client("autoscaling")  # type: ignore[attr-defined]
    client.meta.events.register(f"before-send.auto-scaling.{operation}", strike)
