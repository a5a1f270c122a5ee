"""Preflight of clusters: capacity and requests, by reading alone."""

from __future__ import annotations

from typing import Any

import pytest

from agent.admission.gate.requests import check_clusters
from agent.kernel.checks import CheckResult, State
from agent.service.assembly import AwsKeys, aws_session
from domain.clock import WallClock
from domain.decisions import Mode
from tests.agent.preflight.looking import look, settings_of
from tests.faults.world import AGENT_KEY, MakeWorld, World
from tests.golden import check_wording

STAGING = {
    "CLUSTERS__staging__CAPACITY_CORES": "256",
    "CLUSTERS__staging__TAGGED_GROUPS": "true",
    "CLUSTERS__staging__QUOTA_CODE": "L-1216C47A",
    "CLUSTERS__staging__SET_ASIDE_CORES": "32",
}


def of_clusters(world: World, **more: str) -> dict[str, CheckResult]:
    found = look(world, Mode.OBSERVE, 0.0, **{**STAGING, **more})
    about = ("capacity", "groups of", "clusters", "group batch")
    return {one.subject: one for one in found if one.subject.startswith(about)}


def group(world: World, name: str, **tags: str) -> None:
    world.owner.create_auto_scaling_group(
        AutoScalingGroupName=name,
        LaunchTemplate={"LaunchTemplateName": world.plan.groups[0].name, "Version": "$Latest"},
        MinSize=0,
        MaxSize=10,
        DesiredCapacity=0,
        AvailabilityZones=["us-east-1a"],
        Tags=[{"Key": f"trimtab:{key}", "Value": value} for key, value in tags.items()],
    )


@pytest.mark.exhaustive
def test_a_cluster_that_is_ready_shows_its_size_and_its_requests(make_world: MakeWorld) -> None:
    world = make_world()
    world.control.set_quota("L-1216C47A", 256.0)
    group(world, "batch-a", cluster="staging", admission="pending", requested="3")
    found = of_clusters(world)
    assert {subject: one.state for subject, one in found.items()} == {
        "capacity of staging": State.OK,
        "groups of staging": State.OK,
    }
    assert found["capacity of staging"].detail.startswith("224 cores: ")
    assert found["groups of staging"].detail.startswith("1 groups with 0 cores")
    assert [call for call in world.calls if call["mutating"]] == []


def test_obstacles_to_admission_are_reported_with_a_remedy(make_world: MakeWorld) -> None:
    world = make_world()
    group(world, "batch-a", cluster="staging", admission="pending", requested="many")
    group(world, "batch-b", cluster="stagging")
    found = of_clusters(world)
    assert {subject: one.state for subject, one in found.items()} == {
        "capacity of staging": State.MISSING,
        "groups of staging": State.OK,
        "group batch-a": State.ADVICE,
        "clusters": State.ADVICE,
    }
    assert "NoSuchResourceException" in found["capacity of staging"].detail
    assert "'stagging'" in found["clusters"].detail
    lines = [f"{one.state.value} {name}: {one.detail} -> {one.remedy}" for name, one in found.items()]
    check_wording("preflight_clusters", {"obstacles": "\n".join(lines)})
    world.control.set_quota("L-1216C47A", 32.0)
    assert of_clusters(world)["capacity of staging"].state is State.MISSING


def test_a_cluster_whose_members_ask_over_http_is_not_looked_for(make_world: MakeWorld) -> None:
    off = {"CLUSTERS__staging__TAGGED_GROUPS": "false", "CLUSTERS__staging__QUOTA_CODE": ""}
    assert of_clusters(make_world(), **off) == {}


def test_a_group_that_aws_describes_without_a_field_is_reported_and_the_others_are_checked(
    make_world: MakeWorld,
) -> None:
    world = make_world()
    world.control.set_quota("L-1216C47A", 256.0)
    for name in ("batch-a", "batch-b"):
        group(world, name, cluster="staging", admission="pending", requested="3")

    def strip(parsed: dict[str, Any], **_: Any) -> None:
        for one in parsed["AutoScalingGroups"]:
            if one["AutoScalingGroupName"] == "batch-a":
                del one["MaxSize"]

    settings = settings_of(world, Mode.OBSERVE, **STAGING)
    session = aws_session(settings, WallClock(), AwsKeys(AGENT_KEY, "simulated"), lambda: None)
    session._boto.events.register("after-call.autoscaling.DescribeAutoScalingGroups", strip)
    found = {one.subject: one for one in check_clusters(settings, session)}
    session.close()
    assert found["group batch-a"].state is State.ADVICE
    assert "KeyError: 'MaxSize'" in found["group batch-a"].detail
    assert found["groups of staging"].detail.startswith("1 groups with 0 cores")
