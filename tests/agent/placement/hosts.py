"""Inventories, pools and requests that the tests of placement share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent.kernel.decision import Capacity
from agent.ledger import Ledger
from agent.placement.choosing import Chooser, Pick
from agent.placement.records import HostRecord, HostState, Origin, PlaceRequest, Reservation
from agent.placement.reserve import PlacementPool
from agent.placement.settings import PlacementSettings
from domain.clock import Clock
from domain.decisions import Mode
from domain.rules.placement.cluster import best_of
from domain.rules.placement.instance import Instance, Request, parse_instance
from trainer.placement.exact import Packing, violations
from trainer.promotion.directory import ModelsWriter

START = 1_790_000_000.0
"""2026-09-21 14:13:20 UTC."""


def app(name: str, cores: int = 4, limit: int = 1000, excludes: Iterable[str] = (), **more: Any) -> dict[str, Any]:
    """An application with 2 GiB and 10 GB a core."""
    sizes = {"cores": cores, "memory_gib": 2 * cores, "disk_gb": 10 * cores}
    return {"id": name, **sizes, "limit": limit, "excludes": sorted(excludes), **more}


def kind(name: str = "large", cores: int = 16, count: int | None = 4, **more: Any) -> dict[str, Any]:
    """A type of hosts with 4 GiB and 100 GB a core."""
    sizes = {"cores": cores, "memory_gib": 4 * cores, "disk_gb": 100 * cores}
    return {"name": name, **sizes, **({} if count is None else {"count": count}), **more}


def inventory(*apps: dict[str, Any], hosts: Iterable[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    """An inventory of four hosts of 16 cores, with `shop` and `mail` of 4 cores unless others are given."""
    return {
        "version": 1,
        "name": "test",
        "host_types": list(hosts) or [kind()],
        "applications": list(apps) or [app("shop"), app("mail")],
        **more,
    }


def made(
    ledger: Ledger,
    clock: Clock,
    document: dict[str, Any] | None = None,
    *,
    pick: Pick = best_of,
    mode: Mode = Mode.ACT,
    name: str = "main",
    behind: Capacity | None = None,
    **settings: Any,
) -> PlacementPool:
    """The pool `main` on a ledger, with its inventory adopted."""
    # A busy machine may make a policy late, which best fit would then stand in for.
    given = PlacementSettings(**{"decide_within_ms": 10_000.0, **settings})
    chooser = Chooser(name, given, ModelsWriter(Path("/nonexistent"), None), pick)
    pool = PlacementPool(name, given, ledger, clock, chooser, mode, lambda: behind)
    if document is not None:
        pool.adopt(document, json.dumps(document, sort_keys=True)[:1000], epoch=1)
    return pool


def ask(request_id: str, application: str = "shop", count: int = 1, **more: Any) -> PlaceRequest:
    """A request to the pool `main`."""
    return PlaceRequest("main", request_id, application, count, **more)


def host(name: str, cores: int = 16, **more: Any) -> HostRecord:
    """A host that joins over HTTP."""
    capacity = (cores, 4 * cores, 100 * cores)
    return HostRecord(name, capacity, Origin.API, HostState.UP, rated=capacity, **more)


def held(pool: PlacementPool) -> dict[str, list[str]]:
    """The hosts of every reservation, by request id, in the order of its containers."""
    return {
        one.request_id: [host for _, host in sorted(one.hosts.items(), key=lambda item: int(item[0]))]
        for one in pool.reservations()
    }


def broken(document: dict[str, Any], reservations: Iterable[Reservation], hosts: dict[str, str]) -> list[str]:
    """What the independent checker finds wrong with what is held; hosts: the type of each host by its name.

    The containers that run now are placed on empty hosts, so a rule that they break together is found.
    """
    instance, _ = parse_instance(document)
    names = list(hosts)
    requests, placed = [], []
    for one in reservations:
        requests.append(Request(one.request_id, one.application, len(one.hosts)))
        placed += [names.index(where) for where in one.hosts.values()]
    whole = Instance("held", instance.hosts, instance.applications, tuple(requests))
    return violations(whole, Packing(tuple(hosts.values()), tuple(placed)))
