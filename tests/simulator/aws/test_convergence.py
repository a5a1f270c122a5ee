"""Whatever happened to a group, left alone it comes to what it desires, and its diary is closed and true."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.clock import VirtualClock
from simulator.aws.client import CloudControl
from simulator.aws.lifecycle import Delays
from simulator.aws.process import start_in_thread
from tests.simulator.aws.world import START, World

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("desire"), st.integers(-1, 7)),
        st.tuples(st.just("terminate"), st.integers(0, 9)),
        st.tuples(st.just("kill"), st.integers(0, 9)),
        st.tuples(st.just("complete"), st.integers(0, 9)),
        st.tuples(st.just("suspend"), st.sampled_from(["Launch", "Terminate", "ReplaceUnhealthy"])),
        st.tuples(st.just("short"), st.sampled_from(["us-east-1a", "us-east-1b"])),
        st.tuples(st.just("wait"), st.integers(1, 200)),
    ),
    max_size=10,
)


@pytest.mark.exhaustive
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, hooked=st.booleans())
def test_a_group_left_alone_comes_to_what_it_desires(steps: list[tuple[str, object]], hooked: bool) -> None:
    running = start_in_thread(VirtualClock(START), seed=5, delays=Delays(terminate_s=(15.0, 15.0)))
    world = World(running, CloudControl(running.endpoint))
    try:
        world.group(size=(1, 2, 5), AvailabilityZones=["us-east-1a", "us-east-1b"])
        if hooked:
            world.groups.put_lifecycle_hook(
                AutoScalingGroupName="web",
                LifecycleHookName="drain",
                LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
                HeartbeatTimeout=300,
            )
        for kind, value in steps:
            assert act(world, kind, value) in ("ok", "ValidationError", "ScalingActivityInProgress")
            shown = world.show()
            assert 1 <= shown["DesiredCapacity"] <= 5
        world.control.clear_faults()
        world.groups.resume_processes(AutoScalingGroupName="web")
        world.control.advance(3600.0)
        shown = world.show()
        assert world.states() == ["InService"] * shown["DesiredCapacity"]
        assert {world.machine_state(one["InstanceId"]) for one in shown["Instances"]} == {"running"}
        diary = world.activities()
        assert {one["StatusCode"] for one in diary} <= {"Successful", "Failed", "Cancelled"}
        joined = sum(one["Description"].startswith("Launching a new EC2 instance: ") for one in diary)
        left = sum(one["Description"].startswith("Terminating EC2 instance: ") for one in diary)
        assert joined - left == shown["DesiredCapacity"]
    finally:
        world.close()


def act(world: World, kind: str, value: object) -> str:
    """Do one thing to the group; return "ok" or the code of AWS's refusal."""
    ids = world.ids()
    try:
        if kind == "desire":
            world.desire(int(str(value)))
        elif kind == "suspend":
            world.groups.suspend_processes(AutoScalingGroupName="web", ScalingProcesses=[value])
        elif kind == "short":
            world.control.add_fault("capacity", zone=value)
        elif kind == "wait":
            world.control.advance(float(str(value)))
        elif ids:
            instance_id = ids[int(str(value)) % len(ids)]
            if kind == "kill":
                world.client("ec2").terminate_instances(InstanceIds=[instance_id])
            elif kind == "complete":
                world.groups.complete_lifecycle_action(
                    AutoScalingGroupName="web",
                    LifecycleHookName="drain",
                    InstanceId=instance_id,
                    LifecycleActionResult="CONTINUE",
                )
            else:
                world.groups.terminate_instance_in_auto_scaling_group(
                    InstanceId=instance_id, ShouldDecrementDesiredCapacity=int(str(value)) % 2 == 0
                )
    except ClientError as refusal:
        return str(refusal.response["Error"]["Code"])
    return "ok"
