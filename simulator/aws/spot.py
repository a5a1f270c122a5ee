"""Spot interruptions: the two-minute notice on a queue and in the metadata, then the machine is taken."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

from simulator.aws.activities import stamp
from simulator.aws.cloud import Cloud
from simulator.aws.group import COUNTED
from simulator.aws.machines import ACCOUNT_ID, GONE
from simulator.aws.region import Region

NOTICE_S = 120.0
DETAIL_TYPES = {
    "interruption": "EC2 Spot Instance Interruption Warning",
    "rebalance": "EC2 Instance Rebalance Recommendation",
}


def notify(
    cloud: Cloud,
    *,
    instance_ids: Sequence[str] | None = None,
    count: int | None = None,
    queue: str | None = None,
    region: str = "us-east-1",
    kind: str = "interruption",
    duplicates: int = 0,
    shuffled: bool = False,
) -> dict[str, Any]:
    """Give notice to the named machines, or to `count` chosen by the seeded dice among the groups' machines.

    Each gets an EventBridge-shaped message on `queue` (a name or URL; default: the last one given), `duplicates` more
    copies of it, in random order with `shuffled`. An interruption also shows in the instance metadata and takes the
    machine `NOTICE_S` later, whether it drains by then or not; the group finds out by its health check, and one in
    Terminating:Wait stays listed until its hook ends, as it does at AWS. A rebalance recommendation is a message only.
    Any machine may be named, bought on the spot market or not.

    Raises: ValueError for an unknown kind, queue or machine.
    """
    if kind not in DETAIL_TYPES:
        raise ValueError(f"kind is {kind!r}: give interruption or rebalance")
    if queue is not None:
        cloud.spot_queue = queue.rsplit("/", 1)[-1]
    if cloud.spot_queue is None:
        raise ValueError("no queue to put the notice on: give queue, the name or URL of an SQS queue")
    now = cloud.settle()
    with cloud.lock:
        place = cloud.region(region)
        chosen = _chosen(cloud, place, instance_ids, count)
        events = [_event(cloud, place, instance_id, kind, now) for instance_id in chosen]
        messages = [event for event in events for _ in range(1 + duplicates)]
        if shuffled:
            messages = [messages[index] for index in cloud.dice.permutation(len(messages))]
        for message in messages:
            if not cloud.queues.send(region, cloud.spot_queue, json.dumps(message)):
                raise ValueError(f"no SQS queue named {cloud.spot_queue} in {region}: create it first")
        if kind == "interruption":
            for instance_id in chosen:
                _take_later(cloud, place, instance_id, now + NOTICE_S)
    return {"instance_ids": chosen, "messages": len(messages)}


def _chosen(cloud: Cloud, region: Region, instance_ids: Sequence[str] | None, count: int | None) -> list[str]:
    if instance_ids is not None:
        for instance_id in instance_ids:
            if region.machines.state(instance_id) in GONE:
                raise ValueError(f"no running machine {instance_id} in {region.name}")
        return list(instance_ids)
    if count is None:
        raise ValueError("give instance_ids or count")
    free = [
        member.instance_id
        for group in region.groups.values()
        for member in group.members.values()
        if member.state in COUNTED and member.instance_id not in cloud.spot_actions
    ]
    picked = cloud.dice.permutation(len(free))[:count]
    return [free[index] for index in picked]


def _event(cloud: Cloud, region: Region, instance_id: str, kind: str, now: float) -> dict[str, Any]:
    detail = {"instance-id": instance_id}
    if kind == "interruption":
        detail["instance-action"] = "terminate"
    return {
        "version": "0",
        "id": str(uuid.UUID(bytes=cloud.dice.bytes(16), version=4)),
        "detail-type": DETAIL_TYPES[kind],
        "source": "aws.ec2",
        "account": ACCOUNT_ID,
        "time": stamp(now),
        "region": region.name,
        "resources": [f"arn:aws:ec2:{region.name}:{ACCOUNT_ID}:instance/{instance_id}"],
        "detail": detail,
    }


def _take_later(cloud: Cloud, region: Region, instance_id: str, at: float) -> None:
    if instance_id in cloud.spot_actions:
        return
    cloud.spot_actions[instance_id] = at

    def take(due: float) -> None:
        region.machines.reclaim(instance_id)
        region.notice_machines(due)

    cloud.agenda.schedule(at, take)
