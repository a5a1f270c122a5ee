"""Hosts, applications and requests of placement, and the file that holds them (placement specification §1.1, §10.2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from domain.errors import ConfigurationError, Mistake
from domain.units import DAY_S

VERSION = 1
"""Of the instance file."""
UNLIMITED = 1000
"""A limit of so many instances on a host or more is none, up to what 16 bits hold."""
LONGEST_LIFETIME_S = 10 * 365 * DAY_S
"""A declared lifetime is no longer: more is a mistake of its unit."""
MOST = 32_767
"""Instances of one application on one host, and exclusions of one application."""

Vector = tuple[int, int, int]
"""Cores, memory in GiB and disk in GB."""
DIMENSIONS = ("cores", "memory_gib", "disk_gb")


@dataclass(frozen=True, slots=True)
class HostType:
    """Hosts of one size. count: how many there are, None without bound. label: an application may require it."""

    name: str
    capacity: Vector
    count: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Application:
    """What its containers need, and where they may be.

    demand: of one container. limit: most instances on one host. excludes: applications that must not share a host with
    it, symmetric. rack_limit: most instances in one rack, None without bound. label: that a host must have, "" for any.
    lifetime_s: of a container whose request declares none; None for no declaration.
    """

    name: str
    demand: Vector
    limit: int = UNLIMITED
    excludes: frozenset[str] = frozenset()
    rack_limit: int | None = None
    label: str = ""
    lifetime_s: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """So many containers of one application, at `at_s` seconds from the begin of the instance.

    lifetime_s: of each of them, as declared; None without a declaration.
    """

    name: str
    application: str
    count: int
    at_s: float = 0.0
    lifetime_s: float | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """The container of this index (from 0) of a request ends at `at_s`."""

    request: str
    index: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Instance:
    """A problem of placement: types of hosts, applications, requests in the order in which they come, and releases.

    snapshot: what runs at the begin, one entry a host: its type, and instances by application. Hosts of a type beyond
    those of the snapshot are closed.
    """

    name: str
    hosts: tuple[HostType, ...]
    applications: tuple[Application, ...]
    requests: tuple[Request, ...]
    releases: tuple[Release, ...] = ()
    snapshot: tuple[tuple[str, Mapping[str, int]], ...] = field(default=())

    @property
    def containers(self) -> int:
        """Containers of all requests."""
        return sum(request.count for request in self.requests)


def excluded_pairs(applications: Sequence[Application]) -> Iterator[tuple[str, str]]:
    """Yield every pair of applications that exclude each other, once, in order of names."""
    for application in applications:
        for other in sorted(application.excludes):
            if application.name < other:
                yield application.name, other


def as_document(instance: Instance) -> dict[str, Any]:
    """Return an instance as plain data, the content of its file."""
    return {
        "version": VERSION,
        "name": instance.name,
        "host_types": [
            {
                "name": host.name,
                **dict(zip(DIMENSIONS, host.capacity, strict=True)),
                **({} if host.count is None else {"count": host.count}),
                **({"label": host.label} if host.label else {}),
            }
            for host in instance.hosts
        ],
        "applications": [application_document(app) for app in instance.applications],
        "requests": [
            {
                "id": one.name,
                "application": one.application,
                "count": one.count,
                "at_s": one.at_s,
                **({} if one.lifetime_s is None else {"lifetime_s": one.lifetime_s}),
            }
            for one in instance.requests
        ],
        "releases": [{"request": one.request, "index": one.index, "at_s": one.at_s} for one in instance.releases],
        "snapshot": [{"host_type": kind, "instances": dict(sorted(held.items()))} for kind, held in instance.snapshot],
    }


def application_document(app: Application) -> dict[str, Any]:
    """Return an application as plain data, an entry of an instance's file."""
    return {
        "id": app.name,
        **dict(zip(DIMENSIONS, app.demand, strict=True)),
        "limit": app.limit,
        **({"excludes": sorted(app.excludes)} if app.excludes else {}),
        **({} if app.rack_limit is None else {"rack_limit": app.rack_limit}),
        **({"label": app.label} if app.label else {}),
        **({} if app.lifetime_s is None else {"lifetime_s": app.lifetime_s}),
    }


def parse_instance(
    document: object, name: str = "instance", *, hosts_elsewhere: bool = False
) -> tuple[Instance, tuple[str, ...]]:
    """Return the instance in the content of a file, and warnings; ConfigurationError with every wrong field.

    An exclusion that only one side names holds for both, with a warning. hosts_elsewhere: hosts come from elsewhere
    too, so that there may be no types of them, and what applications need of hosts is not checked against those.
    """
    read = _Reader(name)
    if not isinstance(document, dict):
        raise ConfigurationError([Mistake(name, _shown(document), "write an object with host_types and applications")])
    if document.get("version") != VERSION:
        raise ConfigurationError(
            [Mistake(f"{name}.version", _shown(document.get("version")), f"this release reads version {VERSION}")]
        )
    read.known(
        "", document, ("version", "name", "host_types", "applications", "requests", "releases", "snapshot", "comment")
    )
    hosts = [
        read.host(f"host_types[{k}]", entry)
        for k, entry in read.entries(document, "host_types", needed=not hosts_elsewhere)
    ]
    apps = [read.application(f"applications[{k}]", entry) for k, entry in read.entries(document, "applications")]
    read.unique("host_types", "name", [host.name for host in hosts])
    read.unique("applications", "id", [app.name for app in apps])
    by_name = {app.name: app for app in apps}
    labels, largest = {host.label for host in hosts}, [host.capacity for host in hosts]
    for k, app in enumerate(apps):
        where = f"applications[{k}]"
        for other in sorted(app.excludes):
            if other == app.name:
                read.wrong(f"{where}.excludes", other, "an application cannot exclude itself: set its limit to 1")
            elif other not in by_name:
                read.wrong(f"{where}.excludes", other, "no application has this id")
        if hosts_elsewhere:
            continue
        if app.label and app.label not in labels:
            read.wrong(f"{where}.label", app.label, "no type of host has this label")
        if largest and not any(all(map(int.__le__, app.demand, size)) for size in largest):
            read.wrong(where, app.demand, "a container is larger than every host: make it smaller, or add a host type")
    requests = [read.request(f"requests[{k}]", entry, by_name) for k, entry in read.entries(document, "requests")]
    read.unique("requests", "id", [request.name for request in requests])
    counts = {request.name: request.count for request in requests}
    releases = [read.release(f"releases[{k}]", entry, counts) for k, entry in read.entries(document, "releases")]
    seen: set[tuple[str, int]] = set()
    for k, release in enumerate(releases):
        if (release.request, release.index) in seen:
            read.wrong(f"releases[{k}]", f"{release.request} {release.index}", "this container is released before")
        seen.add((release.request, release.index))
    kinds = {host.name for host in hosts}
    snapshot = [read.held(f"snapshot[{k}]", entry, kinds, by_name) for k, entry in read.entries(document, "snapshot")]
    if read.mistakes:
        raise ConfigurationError(read.mistakes)
    both, warnings = symmetric(apps)
    label = document.get("name", name)
    return Instance(str(label), tuple(hosts), both, tuple(requests), tuple(releases), tuple(snapshot)), warnings


def symmetric(applications: Sequence[Application]) -> tuple[tuple[Application, ...], tuple[str, ...]]:
    """Return the applications with every exclusion on both sides, and a warning for each that was on one."""
    names = {app.name for app in applications}
    excludes = {app.name: set(app.excludes) & names for app in applications}
    warnings = []
    for app in applications:
        for other in sorted(excludes[app.name]):
            if app.name not in excludes[other]:
                excludes[other].add(app.name)
                warnings.append(f"{app.name} excludes {other}; {other} now excludes {app.name} too")
    found = tuple(replace(app, excludes=frozenset(excludes[app.name])) for app in applications)
    return found, tuple(warnings)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self.mistakes: list[Mistake] = []

    def wrong(self, where: str, value: object, remedy: str) -> None:
        self.mistakes.append(Mistake(f"{self._name}.{where}", _shown(value), remedy))

    def known(self, where: str, entry: Mapping[str, Any], fields: Sequence[str]) -> None:
        for key in sorted(set(entry) - set(fields)):
            self.wrong(f"{where}.{key}".lstrip("."), entry[key], f"unknown field: use one of {', '.join(fields)}")

    def entries(
        self, document: Mapping[str, Any], key: str, *, needed: bool = False
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        found = document.get(key, [])
        if not isinstance(found, list) or (needed and not found):
            self.wrong(key, found, "write a list with at least one entry" if needed else "write a list")
            return
        for k, entry in enumerate(found):
            if isinstance(entry, dict):
                yield k, entry
            else:
                self.wrong(f"{key}[{k}]", entry, "write an object")

    def unique(self, where: str, key: str, names: Sequence[str]) -> None:
        seen: set[str] = set()
        for k, name in enumerate(names):
            if name and name in seen:
                self.wrong(f"{where}[{k}].{key}", name, "another entry has it: names are unique")
            seen.add(name)

    def text(self, where: str, entry: Mapping[str, Any], key: str, *, needed: bool = True) -> str:
        value = entry.get(key, "" if not needed else None)
        if isinstance(value, str) and (value or not needed):
            return value
        self.wrong(f"{where}.{key}", value, "write a name" if needed else "write text")
        return ""

    def whole(self, where: str, entry: Mapping[str, Any], key: str, least: int, most: int, usual: int = -1) -> int:
        value = entry.get(key, usual if usual >= 0 else None)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self.wrong(f"{where}.{key}", value, f"write a whole number from {least} to {most}")
        return least

    def vector(self, where: str, entry: Mapping[str, Any]) -> Vector:
        cores, memory, disk = (self.whole(where, entry, key, 1, 2**31 - 1) for key in DIMENSIONS)
        return cores, memory, disk

    def moment(self, where: str, entry: Mapping[str, Any]) -> float:
        value = entry.get("at_s", 0.0)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
            return float(value)
        self.wrong(f"{where}.at_s", value, "write seconds from the begin, 0 or more")
        return 0.0

    def lifetime(self, where: str, entry: Mapping[str, Any]) -> float | None:
        value = entry.get("lifetime_s")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or (number and 0.0 < value <= LONGEST_LIFETIME_S):
            return None if value is None else float(value)
        self.wrong(f"{where}.lifetime_s", value, f"write seconds above 0, {LONGEST_LIFETIME_S:.0f} at most")
        return None

    def host(self, where: str, entry: dict[str, Any]) -> HostType:
        self.known(where, entry, ("name", *DIMENSIONS, "count", "label"))
        count = self.whole(where, entry, "count", 0, 10**6) if "count" in entry else None
        label = self.text(where, entry, "label", needed=False)
        return HostType(self.text(where, entry, "name"), self.vector(where, entry), count, label)

    def application(self, where: str, entry: dict[str, Any]) -> Application:
        self.known(where, entry, ("id", *DIMENSIONS, "limit", "excludes", "rack_limit", "label", "lifetime_s"))
        excludes = entry.get("excludes", [])
        if not isinstance(excludes, list) or not all(isinstance(other, str) for other in excludes):
            self.wrong(f"{where}.excludes", excludes, "write a list of application ids")
            excludes = []
        return Application(
            self.text(where, entry, "id"),
            self.vector(where, entry),
            self.whole(where, entry, "limit", 1, MOST, UNLIMITED),
            frozenset(excludes),
            self.whole(where, entry, "rack_limit", 1, MOST) if "rack_limit" in entry else None,
            self.text(where, entry, "label", needed=False),
            self.lifetime(where, entry),
        )

    def request(self, where: str, entry: dict[str, Any], applications: Mapping[str, Application]) -> Request:
        self.known(where, entry, ("id", "application", "count", "at_s", "lifetime_s"))
        application = self.text(where, entry, "application")
        if application and application not in applications:
            self.wrong(f"{where}.application", application, "no application has this id")
        count = self.whole(where, entry, "count", 1, 10**6, 1)
        life, known = self.lifetime(where, entry), applications.get(application)
        if life is None and known is not None:
            life = known.lifetime_s
        return Request(self.text(where, entry, "id"), application, count, self.moment(where, entry), life)

    def release(self, where: str, entry: dict[str, Any], counts: Mapping[str, int]) -> Release:
        self.known(where, entry, ("request", "index", "at_s"))
        request = self.text(where, entry, "request")
        if request and request not in counts:
            self.wrong(f"{where}.request", request, "no request has this id")
        index = self.whole(where, entry, "index", 0, max(counts.get(request, 1) - 1, 0))
        return Release(request, index, self.moment(where, entry))

    def held(
        self, where: str, entry: dict[str, Any], kinds: set[str], applications: Mapping[str, Application]
    ) -> tuple[str, Mapping[str, int]]:
        self.known(where, entry, ("host_type", "instances"))
        kind, instances = self.text(where, entry, "host_type"), entry.get("instances", {})
        if kind and kind not in kinds:
            self.wrong(f"{where}.host_type", kind, "no type of host has this name")
        if not isinstance(instances, dict):
            self.wrong(f"{where}.instances", instances, "write numbers of containers by application id")
            return kind, {}
        for name in sorted(set(instances) - set(applications)):
            self.wrong(f"{where}.instances.{name}", instances[name], "no application has this id")
        return kind, {name: self.whole(f"{where}.instances", instances, name, 1, MOST) for name in instances}
