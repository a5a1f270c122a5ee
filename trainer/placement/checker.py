"""The independent checker: what a packing violates. It shares no code with any policy or simulator (§5, §13)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from domain.rules.placement.instance import DIMENSIONS, Application, Instance

REJECTED = -1
"""In place of a host: the container is on none."""


@dataclass(frozen=True, slots=True)
class Packing:
    """On which host each container of an instance was placed.

    kinds: type of each host, those of the snapshot first. hosts: host of each container, as a position in `kinds`:
    requests in the order of the instance, their containers by index; REJECTED for none. racks: rack of each host, a
    rack of its own where ""; empty where no host has one.
    """

    kinds: tuple[str, ...]
    hosts: tuple[int, ...]
    racks: tuple[str, ...] = ()

    @property
    def opened(self) -> int:
        """Hosts that the instance began with, or that ever had a container."""
        return len(self.kinds)

    @property
    def rejected(self) -> int:
        """Containers on no host."""
        return self.hosts.count(REJECTED)


@dataclass(slots=True)
class _Host:
    capacity: tuple[int, ...]
    label: str
    rack: str
    used: list[int] = field(default_factory=lambda: [0] * len(DIMENSIONS))
    running: Counter[str] = field(default_factory=Counter)


def violations(instance: Instance, packing: Packing, *, may_reject: bool = False) -> list[str]:
    """Return every broken rule as a sentence, none for a packing that keeps them all.

    Rules: each container is on one host that exists (or is rejected, where that may be); capacity in every dimension;
    instances of an application on one host and in one rack; exclusions; labels; hosts there are of each type. A
    container runs from its request on until its release; each rule is held to at the moment of every placement.
    """
    kinds = {kind.name: kind for kind in instance.hosts}
    found = list(_wrong_hosts(instance, packing))
    if len(packing.hosts) != instance.containers:
        found.append(f"{len(packing.hosts)} containers are placed, the requests have {instance.containers}")
    if found:
        return found
    racks = packing.racks or ("",) * len(packing.kinds)
    pool = [
        _Host(kinds[kind].capacity, kinds[kind].label, rack or f"host {at}")
        for at, (kind, rack) in enumerate(zip(packing.kinds, racks, strict=True))
    ]
    apps = {app.name: app for app in instance.applications}
    excluded = {app.name: set(app.excludes) for app in instance.applications}
    for app in instance.applications:
        # One side is enough to name an exclusion: the checker does not trust that somebody made it symmetric.
        for other in app.excludes:
            excluded.setdefault(other, set()).add(app.name)
    in_rack: Counter[tuple[str, str]] = Counter()
    for at, (_, held) in enumerate(instance.snapshot):
        for name, number in held.items():
            _take(pool[at], apps[name], number, in_rack)
    owners = {one.name: one.application for one in instance.requests}
    ends = sorted(instance.releases, key=lambda release: release.at_s)
    placed: dict[tuple[str, int], int] = {}
    ended, at = 0, 0
    for request in instance.requests:
        while ended < len(ends) and ends[ended].at_s <= request.at_s:
            end = ends[ended]
            host = placed.get((end.request, end.index), REJECTED)
            if host != REJECTED:
                _take(pool[host], apps[owners[end.request]], -1, in_rack)
            ended += 1
        for index in range(request.count):
            host = packing.hosts[at]
            at += 1
            container = f"{request.name}[{index}] of {request.application}"
            if host == REJECTED:
                found += [] if may_reject else [f"{container} is on no host"]
                continue
            placed[request.name, index] = host
            app = apps[request.application]
            _take(pool[host], app, 1, in_rack)
            found += (
                f"{container} on host {host}: {text}" for text in _broken(pool[host], app, excluded[app.name], in_rack)
            )
    return found


def _wrong_hosts(instance: Instance, packing: Packing) -> Iterator[str]:
    known = {kind.name: kind.count for kind in instance.hosts}
    for kind, number in sorted(Counter(packing.kinds).items()):
        if kind not in known:
            yield f"{number} hosts are of type {kind}, which the instance does not have"
        elif known[kind] is not None and number > (known[kind] or 0):
            yield f"{number} hosts are of type {kind}, of which there are {known[kind]}"
    if packing.racks and len(packing.racks) != len(packing.kinds):
        yield f"{len(packing.racks)} racks are given for {len(packing.kinds)} hosts"
    begun = tuple(kind for kind, _ in instance.snapshot)
    if packing.kinds[: len(begun)] != begun:
        yield "the first hosts are not those of the snapshot"
    outside = sorted({host for host in packing.hosts if host != REJECTED and not 0 <= host < len(packing.kinds)})
    for host in outside:
        yield f"host {host} does not exist: there are {len(packing.kinds)}"


def _take(host: _Host, app: Application, number: int, in_rack: Counter[tuple[str, str]]) -> None:
    host.used = [used + number * need for used, need in zip(host.used, app.demand, strict=True)]
    host.running[app.name] += number
    in_rack[host.rack, app.name] += number


def _broken(host: _Host, app: Application, excluded: set[str], in_rack: Counter[tuple[str, str]]) -> Iterator[str]:
    for name, used, most in zip(DIMENSIONS, host.used, host.capacity, strict=True):
        if used > most:
            yield f"{name} {used} of {most}"
    if host.running[app.name] > app.limit:
        yield f"{host.running[app.name]} instances, the limit is {app.limit}"
    for other in sorted(excluded):
        if host.running[other] > 0:
            yield f"{other} runs there, which it excludes"
    if app.rack_limit is not None and in_rack[host.rack, app.name] > app.rack_limit:
        yield f"{in_rack[host.rack, app.name]} instances in rack {host.rack}, the limit is {app.rack_limit}"
    if app.label and host.label != app.label:
        yield f"the host's label is {host.label or 'none'}, it needs {app.label}"
