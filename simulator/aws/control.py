"""The control endpoint under `/_trimtab/`: clock, readiness, faults, spot notices, metadata, call log, prices.

| method and path | does |
|---|---|
| GET clock; POST clock {"advance": s} | returns the time; advances a virtual clock |
| POST ready {"group": name or null} | puts machines on their way in into service at once |
| GET, POST, DELETE faults (DELETE ?id=) | lists, makes and clears fault rules and shortages |
| POST spot-notice {"instance_ids": [...] or "count": n, ...} | interrupts spot machines; see `notify_spot` |
| POST quotas {"service": "ec2", "code": ..., "value": n} | sets a service quota, of which there are none at first |
| POST account {"account": id} | lets answers name another account, as other credentials would |
| GET calls?since=seq&service=&operation=&plane=&mutating=&access_key= | the call log |
| GET imds/{instance id}/latest/meta-data/... | the instance's own metadata |
| GET prices?instance_type=&region= | the price table |
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from domain.clock import VirtualClock
from simulator.aws.cloud import Cloud
from simulator.aws.group import COUNTED, stamp
from simulator.aws.machines import ACCOUNT_ID, GONE
from simulator.aws.prices import price_per_hour
from simulator.aws.region import Region
from simulator.aws.requests import AwsError, Response
from simulator.aws.scaling import Shortage

PREFIX = "/_trimtab/"


def answer(cloud: Cloud, environ: dict[str, Any]) -> Response:
    """Answer one control request; mistakes come back as 400 with what to do instead."""
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].removeprefix(PREFIX)
    query = {key: values[-1] for key, values in parse_qs(environ.get("QUERY_STRING", "")).items()}
    length = int(environ.get("CONTENT_LENGTH") or 0)
    try:
        body = json.loads(environ["wsgi.input"].read(length)) if length else {}
        if path.startswith("imds/"):
            return _metadata(cloud, path.removeprefix("imds/"))
        return (
            200,
            [("Content-Type", "application/json")],
            json.dumps(_routed(cloud, method, path, query, body)).encode(),
        )
    except LookupError as problem:
        return _refusal(404, problem)
    except (ValueError, TypeError) as problem:
        return _refusal(400, problem)


def _routed(cloud: Cloud, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Any:
    match method, path:
        case "GET", "clock":
            return {"now": cloud.settle()}
        case "POST", "clock":
            return _advance(cloud, float(body["advance"]))
        case "POST", "ready":
            return {"instance_ids": cloud.ready_now(body.get("group"))}
        case "GET", "faults":
            return {"faults": cloud.faults.listed(), "shortages": [asdict(one) for one in cloud.shortages]}
        case "POST", "faults":
            return _add_fault(cloud, body)
        case "DELETE", "faults":
            return _clear_faults(cloud, query.get("id"))
        case "POST", "spot-notice":
            return notify_spot(cloud, **body)
        case "POST", "quotas":
            cloud.limits.quotas[str(body["service"]), str(body["code"])] = float(body["value"])
            return body
        case "POST", "account":
            cloud.account = str(body["account"])
            return body
        case "GET", "calls":
            since = int(query.pop("since", "0"))
            return {"calls": cloud.calls.since(since, **query), "last": cloud.calls.last_seq}
        case "GET", "prices":
            region = query.get("region", "us-east-1")
            return {"price_per_hour": price_per_hour(query["instance_type"], region)}
    raise LookupError(f"no {method} {PREFIX}{path}; the table in simulator/aws/control.py lists them all")


def _advance(cloud: Cloud, seconds: float) -> dict[str, float]:
    if not isinstance(cloud.clock, VirtualClock):
        raise ValueError("this cloud's clock runs by itself; start it with --virtual to let time pass by hand")
    with cloud.lock:
        cloud.clock.advance(seconds)
        return {"now": cloud.settle()}


def _add_fault(cloud: Cloud, body: dict[str, Any]) -> dict[str, Any]:
    now = cloud.settle()
    if body.get("kind") != "capacity":
        return asdict(cloud.faults.add(now, **body))
    unknown = body.keys() - {"kind", "instance_type", "zone", "duration_s"}
    if unknown:
        raise ValueError(
            f"capacity has unknown fields {', '.join(sorted(unknown))}: give instance_type, zone, duration_s"
        )
    duration_s = body.get("duration_s")
    until = None if duration_s is None else now + float(duration_s)
    shortage = Shortage(body.get("instance_type"), body.get("zone"), until)
    with cloud.lock:
        cloud.shortages.append(shortage)
    return {"kind": "capacity", **asdict(shortage)}


def _clear_faults(cloud: Cloud, fault_id: str | None) -> dict[str, str]:
    cloud.faults.clear(None if fault_id is None else int(fault_id))
    if fault_id is None:
        with cloud.lock:
            cloud.shortages.clear()
    return {"cleared": fault_id or "all"}


def _metadata(cloud: Cloud, path: str) -> Response:
    instance_id, _, rest = path.partition("/")
    value = read_metadata(cloud, instance_id, rest.removeprefix("latest/meta-data/").rstrip("/"))
    kind = "application/json" if value.startswith("{") else "text/plain"
    return 200, [("Content-Type", kind)], value.encode()


def _refusal(status: int, problem: Exception) -> Response:
    text = str(problem.args[0]) if problem.args else type(problem).__name__
    return status, [("Content-Type", "application/json")], json.dumps({"error": text}).encode()


def read_metadata(cloud: Cloud, instance_id: str, path: str) -> str:
    """Return the value under `latest/meta-data/`; the cloud settles first, so a machine learns its fate at once.

    Raises: LookupError where the real service answers 404: an unknown item or machine, no spot action, no group.
    """
    now = cloud.settle()
    with cloud.lock:
        for region in cloud.regions.values():
            machine = region.machines.find(instance_id)
            if machine is None or machine.state == "terminated":
                continue
            if path == "instance-id":
                return instance_id
            if path == "instance-type":
                return str(machine.instance_type)
            if path == "placement/availability-zone":
                return str(machine.placement.zone)
            if path == "placement/region":
                return region.name
            if path.startswith("tags/instance/"):
                return str(
                    {tag["key"]: tag["value"] for tag in machine.get_tags()}[path.removeprefix("tags/instance/")]
                )
            if path == "autoscaling/target-lifecycle-state":
                try:
                    return region.member(instance_id)[1].target_state
                except AwsError as problem:
                    raise LookupError(f"instance {instance_id} is in no Auto Scaling group") from problem
            if path in ("spot/instance-action", "spot/termination-time") and now < cloud.spot_actions.get(
                instance_id, now
            ):
                time = stamp(cloud.spot_actions[instance_id])
                return time if path.endswith("time") else json.dumps({"action": "terminate", "time": time})
    raise LookupError(f"instance {instance_id} has no metadata item {path}")


NOTICE_S = 120.0
DETAIL_TYPES = {
    "interruption": "EC2 Spot Instance Interruption Warning",
    "rebalance": "EC2 Instance Rebalance Recommendation",
}


def notify_spot(
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
    """Give notice to the named machines, or to `count` drawn by the seeded generator among the groups' machines.

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
            messages = [messages[index] for index in cloud.random.permutation(len(messages))]
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
    picked = cloud.random.permutation(len(free))[:count]
    return [free[index] for index in picked]


def _event(cloud: Cloud, region: Region, instance_id: str, kind: str, now: float) -> dict[str, Any]:
    detail = {"instance-id": instance_id}
    if kind == "interruption":
        detail["instance-action"] = "terminate"
    return {
        "version": "0",
        "id": str(uuid.UUID(bytes=cloud.random.bytes(16), version=4)),
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
