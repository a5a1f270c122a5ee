"""Spot interruptions: a notice on the queue and in the metadata, two minutes, then the machine is gone."""

from __future__ import annotations

import json
from typing import Any

from tests.simulator.aws.world import World


def notices(world: World, url: str) -> list[dict[str, Any]]:
    sqs, bodies = world.client("sqs"), []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        for message in messages:
            bodies.append(json.loads(message["Body"]))
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return bodies


def queue(world: World) -> str:
    return str(world.client("sqs").create_queue(QueueName="interruptions")["QueueUrl"])


def test_a_notice_comes_two_minutes_before_the_machine_is_taken(world: World) -> None:
    first, _ = world.ready_group(size=(0, 2, 5))
    url = queue(world)
    assert world.control.imds(first, "spot/instance-action") is None
    world.control.spot_notice([first], queue=url)
    (event,) = notices(world, url)
    assert event["detail-type"] == "EC2 Spot Instance Interruption Warning"
    assert event["source"] == "aws.ec2"
    assert event["detail"] == {"instance-id": first, "instance-action": "terminate"}
    assert event["time"] == "2026-11-20T21:10:00Z"
    action = json.loads(world.control.imds(first, "spot/instance-action") or "")
    assert action == {"action": "terminate", "time": "2026-11-20T21:12:00Z"}
    world.control.advance(119.9)
    assert world.machine_state(first) == "running"
    world.control.advance(0.1)
    assert world.machine_state(first) == "terminated"
    assert world.states() == ["InService", "InService"], "the group has not noticed yet"
    world.control.advance(60.0)
    assert world.states() == ["InService", "Pending", "Terminating"]


def test_a_storm_is_chosen_by_the_seed_and_may_come_twice_and_out_of_order(world: World) -> None:
    ids = world.ready_group(size=(0, 10, 10))
    url = queue(world)
    notice = world.control.spot_notice(count=3, queue="interruptions", duplicates=1, shuffled=True)
    assert notice["messages"] == 6
    assert len(set(notice["instance_ids"])) == 3
    assert set(notice["instance_ids"]) < set(ids)
    events = notices(world, url)
    assert len({event["id"] for event in events}) == 3
    named = [event["detail"]["instance-id"] for event in events]
    assert sorted(named) == sorted(2 * notice["instance_ids"])
    world.control.advance(120.0)
    assert [world.machine_state(one) for one in notice["instance_ids"]] == ["terminated"] * 3


def test_a_second_notice_neither_prolongs_nor_shortens_the_two_minutes(world: World) -> None:
    (first,) = world.ready_group(size=(0, 1, 5))
    queue(world)
    world.control.spot_notice([first], queue="interruptions")
    world.control.advance(60.0)
    world.control.spot_notice([first])
    assert world.control.imds(first, "spot/termination-time") == "2026-11-20T21:12:00Z"
    world.control.advance(60.0)
    assert world.machine_state(first) == "terminated"


def test_a_rebalance_recommendation_takes_nothing(world: World) -> None:
    (first,) = world.ready_group(size=(0, 1, 5))
    url = queue(world)
    world.control.spot_notice([first], queue=url, kind="rebalance")
    (event,) = notices(world, url)
    assert event["detail-type"] == "EC2 Instance Rebalance Recommendation"
    assert event["detail"] == {"instance-id": first}
    world.control.advance(300.0)
    assert world.machine_state(first) == "running"


def test_a_mixed_group_buys_its_spot_share_on_the_spot_market(world: World) -> None:
    world.template()
    policy = {
        "LaunchTemplate": {"LaunchTemplateSpecification": {"LaunchTemplateName": "workers"}},
        "InstancesDistribution": {"OnDemandBaseCapacity": 1, "OnDemandPercentageAboveBaseCapacity": 0},
    }
    world.ready_group(size=(0, 3, 5), MixedInstancesPolicy=policy)
    shown = world.client("ec2").describe_instances(InstanceIds=world.ids())["Reservations"]
    markets = sorted(one["Instances"][0].get("InstanceLifecycle", "on-demand") for one in shown)
    assert markets == ["on-demand", "spot", "spot"]


def test_a_machine_learns_from_its_metadata_what_it_is_and_when_to_go(world: World) -> None:
    (first,) = world.ready_group(
        size=(0, 1, 5), Tags=[{"Key": "trimtab:fleet", "Value": "web", "PropagateAtLaunch": True}]
    )
    items = ["instance-id", "instance-type", "placement/availability-zone", "tags/instance/trimtab:fleet"]
    assert [world.control.imds(first, item) for item in items] == [first, "m5a.large", "us-east-1a", "web"]
    assert world.control.imds(first, "autoscaling/target-lifecycle-state") == "InService"
    world.groups.put_lifecycle_hook(
        AutoScalingGroupName="web",
        LifecycleHookName="drain",
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
    )
    world.desire(0)
    assert world.control.imds(first, "autoscaling/target-lifecycle-state") == "Terminated"
    assert world.control.imds(first, "no/such/item") is None
    assert world.control.imds("i-0123", "instance-id") is None
