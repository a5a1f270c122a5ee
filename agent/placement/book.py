"""A pool in memory: the cluster of its hosts, and which container of which reservation runs where.

Built from what the ledger has, and changed along with it. Several agents that build it from the same ledger have the
same hosts in the same order, so that they choose alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import copy as shallow_copy
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from agent.placement.records import Cause, Ended, HostRecord, HostState, Origin, Reservation, Stage
from agent.placement.state import PoolState
from domain.errors import BadInput, UnknownName
from domain.rules.placement.bounds import least_hosts, needs_of
from domain.rules.placement.cluster import Cluster, Host
from domain.rules.placement.instance import Application, HostType, Instance, Vector, excluded_pairs, parse_instance
from domain.rules.placement.lifetimes import ln_of

STRANDED: Final[Vector] = (8, 16, 1)
"""Free cores on a host that cannot take a container of this size are stranded."""
_NO_INSTANCE: Final = Instance("none", (), (), ())


@dataclass(frozen=True, slots=True)
class HostView:
    """A host now: its capacity in effect, what of it is taken, and how many containers run on it.

    rated: what it was brought in with. violations: why containers run on it that no longer may.
    """

    name: str
    origin: Origin
    state: HostState
    capacity: Vector
    rated: Vector
    used: Vector
    containers: int
    rack: str
    label: str
    violations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figures:
    """A pool in numbers. hosts: by state. lower_bound: least hosts for what runs, and gap: open hosts over it, less 1.

    allocation: share of the open hosts' capacity that is taken, by dimension. free_cores: of all hosts that are up;
    free_share: of their cores. headroom: open hosts by free cores at least. stranded: share of the open hosts' free
    cores on hosts that cannot take 8 cores and 16 GiB. in_violation: hosts with containers that may not run there now.
    """

    hosts: Mapping[str, int]
    open_hosts: int
    lower_bound: int
    gap: float
    containers: int
    cores: int
    allocation: Mapping[str, float]
    free_cores: int
    free_share: float
    headroom: Mapping[str, int]
    stranded: float
    in_violation: int


class Book:
    """One pool. Not safe between threads; BadInput when the inventory in the ledger is not one."""

    def __init__(self, state: PoolState) -> None:
        self.touched = False
        """Whether it was changed since what it holds was last written."""
        self.records: dict[str, HostRecord] = dict(state.hosts)
        self.reservations: dict[str, Reservation] = {}
        self.unconfirmed: dict[str, Reservation] = {}
        """Those of the reservations that lapse unless they are confirmed."""
        self.instance = _NO_INSTANCE if state.inventory is None else _instance(state.inventory)
        self.document, self.over_http = state.inventory, state.over_http
        self._kinds = {kind.name: kind for kind in self.instance.hosts}
        # A type without bound always has one more host than are in use.
        self._endless = {kind.name: 0 for kind in self.instance.hosts if kind.count is None}
        self._listed = self._inventory_hosts(state.reservations)
        names = {host.name for host in self._listed}
        others = [_host(self.records[name]) for name in sorted(self.records) if name not in names]
        self.cluster = Cluster([*self._listed, *others], self.instance.applications)
        if state.head.sums:
            self.cluster.lives.sums = np.array(state.head.sums)
        for index, host in enumerate(self.cluster.hosts):
            record = self.records.get(host.name)
            if record is not None:
                self.apply(record, index)
        self._snapshot: dict[str, Mapping[str, int]] = {}
        self._hold_snapshot()
        # Those of a release without openings come first: their hosts were opened before any that has a number.
        for one in sorted(state.reservations.values(), key=lambda one: bool(one.openings)):
            app = self.cluster.application(one.application)
            began, hint = one.at if one.began is None else one.began, ln_of(one.lifetime_s)
            for container, name in one.hosts.items():
                where = self.cluster.host(name)
                self.cluster.restore(where, app, 1)
                self.cluster.lives.restore((one.request_id, int(container)), where, hint, began)
            for name, number in one.openings.items():
                self.cluster.opened_as(self.cluster.host(name), number)
            self.take(one)
        self.touched = False
        self.cluster.opened = 0
        self.cluster.largest = state.head.largest_count

    def _inventory_hosts(self, reservations: Mapping[str, Reservation]) -> list[Host]:
        """Return the hosts of the inventory's types in their order; of a type of one host it has the type's name."""
        used = {name for one in reservations.values() for name in one.hosts.values()} | set(self.records)
        held = Counter(kind for kind, _ in self.instance.snapshot)
        most = {kind.name: held[kind.name] if kind.count is None else kind.count for kind in self.instance.hosts}
        for name in used:
            of = self.listed(name)
            if of is not None and of.count is None:
                most[of.name] = max(most[of.name], _number(name))
        found = []
        for kind in self.instance.hosts:
            if kind.count == 1 and _numbered_in(self._kinds, kind.name) is not None:
                remedy = "another type of hosts gives a host this name: rename one of the types"
                raise BadInput("inventory.host_types", kind.name, remedy)
            if kind.count is None:
                most[kind.name] += 1
                self._endless[kind.name] = most[kind.name]
            for number in range(1, most[kind.name] + 1):
                name = kind.name if kind.count == 1 else f"{kind.name}-{number}"
                found.append(self._listed_host(name, kind))
        return found

    def _listed_host(self, name: str, kind: HostType) -> Host:
        """Return a host of the inventory; what is recorded of it goes before what its type says."""
        record = self.records.get(name)
        if record is None:
            return Host(name, kind.capacity, kind.name, kind.label)
        return Host(name, record.capacity, kind.name, record.label, record.rack)

    def listed(self, name: str) -> HostType | None:
        """Return the type by which the inventory lists a host, None for a host that it does not list."""
        return listed_in(self._kinds, name)

    def _hold_snapshot(self) -> None:
        """Put what the inventory says runs already on the first hosts of each type."""
        by_kind: dict[str, Iterator[int]] = {}
        for kind, held in self.instance.snapshot:
            if kind not in by_kind:
                by_kind[kind] = iter([k for k, host in enumerate(self._listed) if host.kind == kind])
            index = next(by_kind[kind], None)
            if index is None:
                raise BadInput("inventory.snapshot", kind, "it holds more hosts of this type than there are")
            self._snapshot[self._listed[index].name] = held
            if not self.cluster.failed[index]:
                self._hold(index)

    def _hold(self, index: int) -> None:
        """Put what the inventory says runs on a host there."""
        for name, count in self._snapshot.get(self.cluster.hosts[index].name, {}).items():
            self.cluster.restore(index, self.cluster.application(name), count)
            # Of unknown age and without an expectation, so that one entry has the end of all.
            self.cluster.lives.restore((index, name, "inventory"), index, math.nan, math.inf)

    def apply(self, record: HostRecord, index: int) -> None:
        """Bring a host of the cluster to what its record says."""
        cluster = self.cluster
        known = cluster.hosts[index]
        if (known.capacity, known.label, known.rack) != (record.capacity, record.label, record.rack):
            cluster.change(index, replace(known, capacity=record.capacity, label=record.label, rack=record.rack))
        if record.state is HostState.FAILED:
            cluster.lives.fail(index, cluster.now)
            cluster.fail(index)
        elif record.state is HostState.DRAINING:
            cluster.drain(index)
        else:
            cluster.resume(index)

    def put(self, record: HostRecord) -> None:
        """Take in a host, new or known; one that failed before comes back with its record's capacity and state."""
        self.touched = True
        known = self.find(record.name)
        if known is None or self.cluster.failed[known]:
            known = self.cluster.join(_host(record))
            self._hold(known)
        self.records[record.name] = record
        self.apply(record, known)

    def remove(self, name: str) -> None:
        """Forget a host without containers that is in no inventory."""
        self.touched = True
        self.records.pop(name, None)
        index = self.find(name)
        if index is not None:
            self.cluster.fail(index)

    def forget(self) -> dict[str, HostRecord | None]:
        """Forget the hosts that left the inventory and hold nothing any more, and return them by name."""
        gone: dict[str, HostRecord | None] = {}
        for name, record in self.records.items():
            index = self.find(name)
            of_inventory = record.origin is Origin.INVENTORY and self.listed(name) is None
            if of_inventory and (index is None or not self.cluster.containers[index]):
                gone[name] = None
        for name in gone:
            self.remove(name)
        return gone

    def copy(self) -> Book:
        """Return a copy on which containers may be placed; what it holds beside the cluster is not to be changed."""
        made = shallow_copy(self)
        made.cluster, made._endless = self.cluster.copy(), dict(self._endless)
        return made

    def take(self, one: Reservation) -> Reservation:
        """Hold a reservation whose containers are placed already; return it with the openings of its hosts."""
        self.touched = True
        number = self.cluster.opening
        one = replace(one, openings={name: int(number[self.cluster.host(name)]) for name in one.hosts.values()})
        self.reservations[one.request_id] = one
        if one.stage is Stage.RESERVED:
            self.unconfirmed[one.request_id] = one
        else:
            self.unconfirmed.pop(one.request_id, None)
        return one

    def drop(self, request_id: str) -> None:
        """Forget a reservation that holds nothing any more."""
        self.touched = True
        self.reservations.pop(request_id, None)
        self.unconfirmed.pop(request_id, None)

    def start(self, one: Reservation, now: float) -> Reservation:
        """Hold a reservation that is confirmed, whose containers begin now; return it as `take`."""
        for index in one.hosts:
            self.cluster.lives.restart((one.request_id, int(index)), now)
        return self.take(replace(one, stage=Stage.CONFIRMED, began=now))

    def free(self, one: Reservation, hosts: Mapping[str, str], now: float, cause: Cause) -> Ended:
        """Take these containers of a reservation, hosts by index, off their hosts; of all of them it is forgotten.

        The calibration learns from released ones alone: the others did not run to their end.
        """
        self.touched = True
        app, lives = self.cluster.application(one.application), self.cluster.lives
        for index, name in sorted(hosts.items()):
            self.cluster.release(self.cluster.host(name), app)
            (lives.end if cause is Cause.RELEASED else lives.forget)((one.request_id, int(index)), now)
        if len(hosts) == len(one.hosts):
            self.drop(one.request_id)
        return self.ended(one, hosts, now, cause)

    def ended(self, one: Reservation, containers: Iterable[str], now: float, cause: Cause) -> Ended:
        """Return the record of containers of a reservation, by index, that end now."""
        numbers = tuple(sorted(map(int, containers)))
        cores = self.application(one.application).demand[0]
        return Ended(one.request_id, one.application, numbers, cores, one.lifetime_s, one.began, now, cause)

    def find(self, name: str) -> int | None:
        """Return the index of a host, None when there is none."""
        try:
            return self.cluster.host(name)
        except UnknownName:
            return None

    def host(self, name: str) -> int:
        """Return the index of a host; UnknownName."""
        found = self.find(name)
        if found is None or (self.cluster.failed[found] and name not in self.records):
            raise UnknownName("host", name, "the pool has no host of this name: see GET .../hosts")
        return found

    def app(self, name: str) -> int:
        """Return the index of an application; UnknownName names some of those there are."""
        try:
            return self.cluster.application(name)
        except UnknownName:
            names = sorted(one.name for one in self.cluster.applications)
            there = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "") if names else "none"
            if self.document is None:
                there = "none, since no inventory is in force yet: see trimtab status"
            remedy = f"add it to the pool's inventory (PUT .../applications/NAME or INVENTORY_FILE), which has: {there}"
            raise UnknownName("application", name, remedy) from None

    def application(self, name: str) -> Application:
        """Return an application; UnknownName as `app`."""
        return self.cluster.applications[self.app(name)]

    def containers(self, application: str) -> int:
        """Return the containers of an application that run or are reserved."""
        return sum(len(one.hosts) for one in self.reservations.values() if one.application == application)

    def record_of(self, name: str) -> HostRecord:
        """Return a host's record, made where it is as the inventory has it; UnknownName."""
        index = self.host(name)
        host = self.cluster.hosts[index]
        made = HostRecord(name, host.capacity, Origin.INVENTORY, HostState.UP, host.rack, host.label, host.capacity)
        return self.records.get(name, made)

    def spare(self) -> None:
        """Give each type without bound a closed host, where all of it are open."""
        for name, number in self._endless.items():
            last = self.cluster.host(f"{name}-{number}")
            while self.cluster.containers[last] or self.cluster.failed[last] or self.cluster.drained[last]:
                last = self._next(self._kinds[name])

    def _next(self, kind: HostType) -> int:
        """Return the next host of a type without bound; one that joined under its name is it."""
        self._endless[kind.name] += 1
        name = f"{kind.name}-{self._endless[kind.name]}"
        known = self.find(name)
        return self.cluster.join(self._listed_host(name, kind)) if known is None else known

    @property
    def endless(self) -> bool:
        """Whether a type of hosts is without bound."""
        return bool(self._endless)

    def containers_of(self, host: str) -> list[tuple[Reservation, int]]:
        """Return the containers of reservations on a host: reservation and index, the oldest reservation first."""
        found = [
            (one, int(index)) for one in self.reservations.values() for index, name in one.hosts.items() if name == host
        ]
        return sorted(found, key=lambda item: (item[0].at, item[0].decision_id, item[1]))

    def hosts(self) -> list[HostView]:
        """Return every host, in the cluster's order."""
        cluster, wrong = self.cluster, self._violations()
        views = []
        for k, host in enumerate(cluster.hosts):
            if cluster.failed[k] and host.name not in self.records:
                continue
            record = self.record_of(host.name)
            used = tuple(int(value) for value in cluster.used[:, k])
            views.append(
                HostView(
                    host.name,
                    record.origin,
                    record.state,
                    record.capacity,
                    record.rated or record.capacity,
                    (used[0], used[1], used[2]),
                    int(cluster.containers[k]),
                    host.rack,
                    host.label,
                    tuple(sorted(wrong.get(k, ()))),
                )
            )
        return views

    def _violations(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for host, app, obstacle in self.cluster.violations():
            found.setdefault(host, set()).add(f"{self.cluster.applications[app].name}: {obstacle}")
        return found

    def figures(self) -> Figures:
        """Return the pool in numbers."""
        cluster, n = self.cluster, len(self.cluster.hosts)
        capacity, used = cluster.capacity[:, :n], cluster.used[:, :n]
        is_open, drained, failed = cluster.open, cluster.drained[:n], cluster.failed[:n]
        free = np.maximum(capacity - used, 0)
        up = ~drained & ~failed
        opened = capacity[:, is_open].sum(axis=1)
        cores = int(capacity[0, up].sum())
        free_cores = int(free[0, up].sum())
        fits = np.all(free >= np.array(STRANDED)[:, None], axis=0)
        open_free = int(free[0, is_open].sum())
        count, bound = int(np.count_nonzero(is_open)), lower_bound(cluster)
        names = ("cores", "memory", "disk")
        shares = {name: float(used[k, is_open].sum() / opened[k]) if count else 0.0 for k, name in enumerate(names)}
        return Figures(
            hosts={
                "up": int(np.count_nonzero(up)),
                "draining": int(np.count_nonzero(drained & ~failed)),
                "failed": sum(record.state is HostState.FAILED for record in self.records.values()),
            },
            open_hosts=count,
            lower_bound=bound,
            gap=count / bound - 1.0 if bound else 0.0,
            containers=int(cluster.containers[:n].sum()),
            cores=int(used[0].sum()),
            allocation=shares,
            free_cores=free_cores,
            free_share=free_cores / cores if cores else 0.0,
            headroom={str(q): int(number) for q, number in sorted(cluster.headroom.items())},
            stranded=float(free[0, is_open & ~fits].sum() / open_free) if open_free else 0.0,
            in_violation=len(self._violations()),
        )

    def document_conflicts(self, instance: Instance) -> list[str]:
        """Return why an inventory cannot follow this one: what runs must keep its application and its size."""
        there = {app.name: app for app in instance.applications}
        found = []
        for one in {held.application for held in self.reservations.values() if held.hosts}:
            before, now = self.application(one), there.get(one)
            if now is None:
                found.append(f"{one} is not in it and still runs: keep it until its containers ended")
            elif now.demand != before.demand:
                found.append(f"{one} runs with {before.demand} and has {now.demand} in it: give that size another id")
        return sorted(found)


def lower_bound(cluster: Cluster) -> int:
    """Return the least number of hosts for what runs: by each dimension, by limits, and by pairs that exclude."""
    n, apps = len(cluster.hosts), cluster.applications
    place = {app.name: k for k, app in enumerate(apps)}
    needs = needs_of(apps, [(place[a], place[b]) for a, b in excluded_pairs(apps)])
    running = cluster.instances[: len(apps), :n].sum(axis=1, dtype=np.int64)
    return least_hosts(running, needs, cluster.capacity[:, :n][:, ~cluster.failed[:n]]).hosts


def _instance(document: Mapping[str, Any]) -> Instance:
    """Return an inventory of the ledger. It was checked when it came; hosts that it needs may have left since."""
    return parse_instance(document, "inventory", hosts_elsewhere=True)[0]


def _host(record: HostRecord) -> Host:
    return Host(record.name, record.capacity, record.vm_type, record.label, record.rack)


def listed_in(kinds: Mapping[str, HostType], name: str) -> HostType | None:
    """Return the type, of those by name, that has a host of this name; None where none has."""
    alone = kinds.get(name)
    return alone if alone is not None and alone.count == 1 else _numbered_in(kinds, name)


def _numbered_in(kinds: Mapping[str, HostType], name: str) -> HostType | None:
    """Return the type of several hosts that numbers one by this name, None where none does."""
    kind, number = kinds.get(name.rpartition("-")[0]), _number(name)
    if kind is None or kind.count == 1 or name != f"{kind.name}-{number}":
        return None
    return kind if number >= 1 and (kind.count is None or number <= kind.count) else None


def _number(name: str) -> int:
    """Return the number that a host's name ends with, 0 where there is none."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 9 else 0
