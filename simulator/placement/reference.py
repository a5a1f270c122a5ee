"""Feasibility of placement, decided anew from a plain list of containers: the reference of tests (§1.3).

It shares no state and no formula with `domain.rules.placement.cluster` and with the compiled engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from domain.rules.placement.cluster import Host
from domain.rules.placement.instance import MOST, UNLIMITED, Application


@dataclass
class Reference:
    """Hosts by name and the containers that run, as pairs of host and application, one entry each."""

    hosts: dict[str, Host]
    applications: Mapping[str, Application]
    running: list[tuple[str, str]] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def names_on(self, host: str) -> list[str]:
        """Return the application of every container on a host."""
        return [app for where, app in self.running if where == host]

    def takes(self, host: str, app: str) -> bool:
        """Return whether a container of an application may be put on a host."""
        one, there, held = self.applications[app], self.hosts[host], self.names_on(host)
        if host in self.drained or host in self.failed or (one.label and one.label != there.label):
            return False
        for k in range(3):
            if sum(self.applications[name].demand[k] for name in held) + one.demand[k] > there.capacity[k]:
                return False
        if held.count(app) + 1 > (MOST if one.limit >= UNLIMITED else one.limit):
            return False
        if any(name in one.excludes or app in self.applications[name].excludes for name in held):
            return False
        if one.rack_limit is None:
            return True
        rack = [name for name in self.hosts if name == host or (there.rack and self.hosts[name].rack == there.rack)]
        return sum(1 for where, name in self.running if name == app and where in rack) < one.rack_limit

    def feasible(self, app: str, order: Iterable[str]) -> list[str]:
        """Return the hosts that take a container, in the order given; of closed ones alike the first alone."""
        found, seen = [], set()
        for name in order:
            host = self.hosts[name]
            if name not in self.failed and name not in self.drained and not self.names_on(name):
                kind = (host.capacity, host.label, host.rack)
                if kind in seen:
                    continue
                seen.add(kind)
            if self.takes(name, app):
                found.append(name)
        return found

    def counts(self, free_cores: int) -> int:
        """Return N_q: open hosts that take containers and have so many free cores."""
        return sum(
            1
            for name, host in self.hosts.items()
            if (held := self.names_on(name))
            and name not in self.drained
            and name not in self.failed
            and host.capacity[0] - sum(self.applications[app].demand[0] for app in held) >= free_cores
        )
