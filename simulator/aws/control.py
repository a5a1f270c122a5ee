"""The control endpoint under `/_trimtab/`: clock, readiness, faults, spot notices, metadata, call log, prices.

| method and path | does |
|---|---|
| GET clock; POST clock {"advance": s} | tells the time; lets time pass on a virtual clock |
| POST ready {"group": name or null} | puts machines on their way in into service at once |
| GET, POST, DELETE faults (DELETE ?id=) | lists, makes and clears fault rules and shortages |
| POST spot-notice {"instance_ids": [...] or "count": n, ...} | interrupts spot machines; see `spot.notify` |
| POST quotas {"service": "ec2", "code": ..., "value": n} | sets a service quota, of which there are none at first |
| GET calls?since=seq&service=&operation=&plane=&mutating=&access_key= | the call log |
| GET imds/{instance id}/latest/meta-data/... | what the instance's own metadata shows |
| GET prices?instance_type=&region= | the price table |
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from urllib.parse import parse_qs

from domain.clock import VirtualClock
from simulator.aws import metadata, spot
from simulator.aws.capacity import Shortage
from simulator.aws.cloud import Cloud
from simulator.aws.errors import Response
from simulator.aws.prices import price_per_hour

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
            return spot.notify(cloud, **body)
        case "POST", "quotas":
            cloud.limits.quotas[str(body["service"]), str(body["code"])] = float(body["value"])
            return body
        case "GET", "calls":
            since = int(query.pop("since", "0"))
            return {"calls": cloud.calls.since(since, **query), "last": cloud.calls.last_seq}
        case "GET", "prices":
            region = query.get("region", "us-east-1")
            return {"price_per_hour": price_per_hour(query["instance_type"], region)}
    raise LookupError(f"no {method} {PREFIX}{path}; the table in simulator/aws/control.py lists what there is")


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
    value = metadata.read(cloud, instance_id, rest.removeprefix("latest/meta-data/").rstrip("/"))
    kind = "application/json" if value.startswith("{") else "text/plain"
    return 200, [("Content-Type", kind)], value.encode()


def _refusal(status: int, problem: Exception) -> Response:
    text = str(problem.args[0]) if problem.args else type(problem).__name__
    return status, [("Content-Type", "application/json")], json.dumps({"error": text}).encode()
