"""The state of a placement cluster in arrays, and the choice of a host (placement specification §1.2 to §1.4, §12).

The agent's book and the plain twin of the compiled simulator. A host is open while containers run on it; an empty one
is closed again. Closed hosts of one size, label and rack are interchangeable: the first of them alone is a candidate.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from copy import copy as shallow_copy
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, StateConflict, UnknownName
from domain.rules.placement.instance import DIMENSIONS, MOST, UNLIMITED, Application, HostType, Instance, Vector
from domain.rules.placement.lifetimes import Lives, ln_of
from domain.rules.placement.policies import LARGE_REQUEST, TIERS, Bools, Ints, Policy, View, score_terms, scores

DIGEST_EVERY = 1000
"""Decisions between two state digests in the log (§10.2)."""


class Obstacle(StrEnum):
    """Why a host does not take a container; of several the first in this order is counted."""

    FAILED = "failed"
    DRAINED = "drained"
    LABEL = "label"
    CPU = "cpu"
    MEMORY = "memory"
    DISK = "disk"
    LIMIT = "limit"
    EXCLUSION = "exclusion"
    RACK = "rack"


@dataclass(frozen=True, slots=True)
class Host:
    """A host by name. kind: of its type. rack: its fault domain, a domain of its own where empty."""

    name: str
    capacity: Vector
    kind: str = ""
    label: str = ""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A decision: indices of the host and of the second best (-1: there is none) with their scores.

    feasible: hosts among which to choose, closed ones of a kind as one. is_new: whether the host was closed.
    """

    host: int
    score: float
    runner_up: int
    runner_up_score: float
    feasible: int
    is_new: bool


def layout(types: Sequence[HostType], most: int) -> list[int]:
    """Return the type of each host of a pool, by index: types take turns while they have hosts left, `most` in all.

    most: hosts that can be needed, where a type is without bound.
    """
    left = [most if kind.count is None else kind.count for kind in types]
    found: list[int] = []
    for k in cycle(range(len(types))):
        if len(found) >= most or not any(left):
            return found
        if left[k]:
            left[k] -= 1
            found.append(k)
    return found


def hosts_of(instance: Instance, most: int | None = None) -> list[Host]:
    """Return the hosts of an instance by index: those of its snapshot, then the others of `layout`.

    most: of these others; by default as many as there are containers, where a type is without bound.
    """
    kinds = {kind.name: k for k, kind in enumerate(instance.hosts)}
    held = [kinds[kind] for kind, _ in instance.snapshot]
    rest = [
        kind if kind.count is None else replace(kind, count=max(0, kind.count - held.count(k)))
        for k, kind in enumerate(instance.hosts)
    ]
    endless = any(kind.count is None for kind in rest)
    bound = instance.containers * len(rest) if endless else sum(kind.count or 0 for kind in rest)
    order = held + layout(rest, bound if most is None else most)
    return [
        Host(
            f"{instance.hosts[k].name}-{n}", instance.hosts[k].capacity, instance.hosts[k].name, instance.hosts[k].label
        )
        for n, k in enumerate(order)
    ]


def cluster_of(instance: Instance, most: int | None = None) -> Cluster:
    """Return the cluster of an instance at its begin; most: hosts beyond those of the snapshot."""
    cluster = Cluster(hosts_of(instance, most), instance.applications)
    for host, (_, held) in enumerate(instance.snapshot):
        for name, count in held.items():
            cluster.restore(host, cluster.application(name), count)
    cluster.opened = 0
    return cluster


class Cluster:
    """Hosts, applications, and how many containers of each application run on each host.

    hosts, applications: by index. used, capacity: int64 [3, H]. instances: of each application on each host, int16
    [A, H]. blocking: instances on a host that exclude the application, int32 [A, H]. headroom: N_q by q, open hosts
    that take containers and have at least q free cores. opening: number of the present opening of each host, int64 [H]:
    they were opened in this order, 0 for a closed one. largest: largest count of a request so far. large: requests of
    LARGE_REQUEST containers or more so far. lives: of containers that are known by a key. hint: ln of the lifetime that
    the last request declared, nan without one; now: its epoch seconds; began: when its containers began.
    """

    def __init__(self, hosts: Iterable[Host], applications: Iterable[Application]) -> None:
        self.hosts: list[Host] = []
        self.applications: list[Application] = []
        self.headroom = dict.fromkeys(TIERS, 0)
        self.largest = 1.0
        self.large = 0
        self.opened = 0
        """How often a host was opened, without those of a snapshot."""
        self.lives = Lives()
        self.hint, self.now, self.began = math.nan, 0.0, 0.0
        self._host_index: dict[str, int] = {}
        self._app_index: dict[str, int] = {}
        self.capacity: Ints = np.zeros((3, 0), dtype=np.int64)
        self.used: Ints = np.zeros((3, 0), dtype=np.int64)
        self.instances: NDArray[np.int16] = np.zeros((0, 0), dtype=np.int16)
        self.blocking: NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)
        self.containers: Ints = np.zeros(0, dtype=np.int64)
        self.distinct: Ints = np.zeros(0, dtype=np.int64)
        self.opening: Ints = np.zeros(0, dtype=np.int64)
        self.drained: Bools = np.zeros(0, dtype=np.bool_)
        self.failed: Bools = np.zeros(0, dtype=np.bool_)
        self._candidate: Bools = np.zeros(0, dtype=np.bool_)
        self._group: Ints = np.zeros(0, dtype=np.int64)
        self._groups: dict[tuple[Vector, str, str], int] = {}
        self._label: Ints = np.zeros(0, dtype=np.int64)
        self._rack: Ints = np.zeros(0, dtype=np.int64)
        self._labels: dict[str, int] = {"": 0}
        self._racks: dict[str, int] = {}
        self._excludes: list[Ints] = []
        self._top = self._openings = 0
        self._free_open = self._size_open = 0
        given = list(hosts)
        self._resize(len(given), 0)
        for host in given:
            self._add(host)
        self._all_candidates()
        new = list(applications)
        self._resize(self.used.shape[1], len(new))
        for app in new:
            self._register(app)
        for app in new:
            self._exclude(self._app_index[app.name])

    # What it holds.

    def host(self, name: str) -> int:
        """Return the index of a host; UnknownName."""
        if name not in self._host_index:
            raise UnknownName("host", name, "no host of the cluster has this name")
        return self._host_index[name]

    def application(self, name: str) -> int:
        """Return the index of an application; UnknownName."""
        if name not in self._app_index:
            raise UnknownName("application", name, "register it first")
        return self._app_index[name]

    @property
    def open_hosts(self) -> int:
        """Hosts on which containers run."""
        return int(np.count_nonzero(self.containers))

    @property
    def open(self) -> Bools:
        """Whether containers run on each host, bool [H]."""
        return self.containers[: len(self.hosts)] > 0

    @property
    def mean_residual(self) -> float:
        """Free share of the cores of the open hosts that take containers; 0 without one."""
        return self._free_open / self._size_open if self._size_open else 0.0

    def free(self, host: int) -> Vector:
        """Return what is free on a host; below 0 where it is over-committed."""
        cores, memory, disk = (int(self.capacity[k, host] - self.used[k, host]) for k in range(3))
        return cores, memory, disk

    def containers_on(self, host: int) -> dict[int, int]:
        """Return the instances on a host by index of the application."""
        held = self.instances[: len(self.applications), host]
        return {int(app): int(held[app]) for app in np.flatnonzero(held)}

    def violations(self) -> Iterator[tuple[int, int, Obstacle]]:
        """Yield host, application and obstacle where instances run that a changed rule, rack, label or size forbids.

        They keep running; no new ones come. An over-committed host is reported once for each application on it, and an
        application with too many instances in a rack once for each host there that has one.
        """
        hosts = len(self.hosts)
        held = self.instances[: len(self.applications), :hosts] > 0
        racks = self._rack[:hosts]
        in_rack = {
            app: np.bincount(racks, weights=self.instances[app, :hosts])[racks]
            for app, one in enumerate(self.applications)
            if one.rack_limit is not None
        }
        over = self.used > self.capacity
        for app, host in np.argwhere(held).tolist():
            for k, obstacle in enumerate((Obstacle.CPU, Obstacle.MEMORY, Obstacle.DISK)):
                if over[k, host]:
                    yield host, app, obstacle
            one = self.applications[app]
            if one.label and self.hosts[host].label != one.label:
                yield host, app, Obstacle.LABEL
            if self.instances[app, host] > _limit(one):
                yield host, app, Obstacle.LIMIT
            if self.blocking[app, host]:
                yield host, app, Obstacle.EXCLUSION
            if one.rack_limit is not None and in_rack[app][host] > one.rack_limit:
                yield host, app, Obstacle.RACK

    def digest(self) -> str:
        """Return sixteen hexadecimal digits of who runs where and which hosts take containers."""
        found = hashlib.sha256()
        for host, name in sorted((host, one.name) for host, one in enumerate(self.hosts)):
            held = sorted((self.applications[app].name, count) for app, count in self.containers_on(host).items())
            if held or self.drained[host] or self.failed[host]:
                found.update(repr((name, held, bool(self.drained[host]), bool(self.failed[host]))).encode())
        return found.hexdigest()[:16]

    # Which hosts would do.

    def _obstacles(self, app: int, upto: int) -> Iterator[tuple[Obstacle, Bools]]:
        """Yield each obstacle and the hosts below `upto` that have it."""
        one = self.applications[app]
        yield Obstacle.FAILED, self.failed[:upto]
        yield Obstacle.DRAINED, self.drained[:upto]
        if one.label:
            yield Obstacle.LABEL, self._label[:upto] != self._labels.get(one.label, -1)
        for k, obstacle in enumerate((Obstacle.CPU, Obstacle.MEMORY, Obstacle.DISK)):
            yield obstacle, self.used[k, :upto] + one.demand[k] > self.capacity[k, :upto]
        yield Obstacle.LIMIT, self.instances[app, :upto] >= _limit(one)
        yield Obstacle.EXCLUSION, self.blocking[app, :upto] > 0
        if one.rack_limit is not None:
            racks = self._rack[: len(self.hosts)]
            held = np.bincount(racks, weights=self.instances[app, : len(self.hosts)], minlength=len(self._racks) + 1)
            yield Obstacle.RACK, held[self._rack[:upto]] >= one.rack_limit

    def feasible(self, app: int) -> Ints:
        """Return the hosts that can take a container of an application, ascending: open ones and first closed ones."""
        good = self._candidate[: self._top].copy()
        for _, bad in self._obstacles(app, self._top):
            good &= ~bad
        return np.flatnonzero(good)

    def allows(self, host: int, app: int) -> Obstacle | None:
        """Return what forbids one more container of an application on a host, or None."""
        one = self.applications[app]
        if self.failed[host]:
            return Obstacle.FAILED
        if self.drained[host]:
            return Obstacle.DRAINED
        return self._state_obstacle(host, app, one)

    def _state_obstacle(self, host: int, app: int, one: Application) -> Obstacle | None:
        if one.label and self.hosts[host].label != one.label:
            return Obstacle.LABEL
        for k, obstacle in enumerate((Obstacle.CPU, Obstacle.MEMORY, Obstacle.DISK)):
            if self.used[k, host] + one.demand[k] > self.capacity[k, host]:
                return obstacle
        if self.instances[app, host] >= _limit(one):
            return Obstacle.LIMIT
        if self.blocking[app, host]:
            return Obstacle.EXCLUSION
        if one.rack_limit is not None:
            same = self._rack[: len(self.hosts)] == self._rack[host]
            if int(self.instances[app, : len(self.hosts)][same].sum()) >= one.rack_limit:
                return Obstacle.RACK
        return None

    def reasons(self, app: int) -> dict[Obstacle, int]:
        """Return how many hosts do not take a container of an application, by the first obstacle of each."""
        hosts = len(self.hosts)
        counted, found = np.zeros(hosts, dtype=np.bool_), {}
        for obstacle, bad in self._obstacles(app, hosts):
            fresh = int(np.count_nonzero(bad & ~counted))
            counted |= bad
            if fresh:
                found[obstacle] = fresh
        return found

    def capacity_for(self, app: int) -> int:
        """Return how many more containers of an application fit now, closed hosts with them."""
        one, hosts = self.applications[app], len(self.hosts)
        room = self._places(app, np.arange(hosts), self.capacity[:, :hosts] - self.used[:, :hosts])
        for obstacle, bad in self._obstacles(app, hosts):
            if obstacle is not Obstacle.RACK:
                room[bad] = 0
        if one.rack_limit is None:
            return int(room.sum())
        racks = self._rack[:hosts]
        held = np.bincount(racks, weights=self.instances[app, :hosts])
        most = np.bincount(racks, weights=room)
        return int(np.minimum(most, np.maximum(one.rack_limit - held, 0)).sum())

    def _places(self, app: int, hosts: Ints, free: Ints) -> Ints:
        """Return how many more containers of an application each host can take if so much is free, int64 [K].

        By limits, exclusions, label and sizes; a rack limit holds for each host alone. free: int64 [3, K].
        """
        one = self.applications[app]
        found = most_on_host(one) - self.instances[app, hosts].astype(np.int64)
        for k in range(3):
            found = np.minimum(found, free[k] // one.demand[k])
        barred = self.blocking[app, hosts] > 0
        if one.label:
            barred |= self._label[hosts] != self._labels.get(one.label, -1)
        return np.where(barred, 0, np.maximum(found, 0))

    def places_lost(self, app: int, hosts: Ints) -> NDArray[np.float64]:
        """Return the places that others lose to one container of an application on each host, float64 [K].

        The sum, over the other applications of which no container runs, of the places that they lose on the host by
        its cores, memory, disk and exclusions, divided by their places on all open hosts that take containers. 0 on a
        closed host.
        """
        known = len(self.applications)
        live = np.flatnonzero((self.containers > 0) & ~self.drained & ~self.failed)
        free = self.capacity - self.used
        live_free, here = free.take(live, axis=1), free.take(hosts, axis=1)
        after = here - np.array(self.applications[app].demand, dtype=np.int64)[:, None]
        lost = np.zeros(hosts.size)
        for other in np.flatnonzero(~self.instances[:known].any(axis=1)).tolist():
            total = 0 if other == app else int(self._places(other, live, live_free).sum())
            if not total:
                continue
            left = 0 if other in self._excludes[app] else self._places(other, hosts, after)
            lost = lost + (self._places(other, hosts, here) - left) / total
        return np.where(self.containers[hosts] > 0, lost, 0.0)

    def view(self, app: int, count: int, hosts: Ints, reserve_cores: int) -> View:
        """Return what a score may look at: the given hosts, for one container of a request of `count` containers."""
        one = self.applications[app]
        headroom = self.headroom
        if reserve_cores not in headroom:
            headroom = {**headroom, reserve_cores: self.open_with(reserve_cores)}
        # Indexing with a slice and an array takes eight times longer.
        capacity = self.capacity.take(hosts, axis=1)
        return View(
            hosts=hosts,
            capacity=capacity,
            free=capacity - self.used.take(hosts, axis=1),
            new=self.containers[hosts] == 0,
            same=self.instances[app].take(hosts).astype(np.int64),
            distinct=self.distinct[hosts],
            opening=self.opening[hosts],
            openings=self._openings,
            demand=one.demand,
            limit=one.limit,
            count=count,
            headroom=headroom,
            mean=self.mean_residual,
            largest=max(self.largest, count),
            large=self.large,
            left_s=self.lives.left_s(hosts, self.now),
            life_s=self.lives.life_s(self.hint, self.now - self.began),
            fit=self.lives.fit,
            lost=lambda: self.places_lost(app, hosts),
        )

    def open_with(self, free_cores: int) -> int:
        """Return the open hosts that take containers and have so many free cores."""
        live = (self.containers > 0) & ~self.drained & ~self.failed
        return int(np.count_nonzero(live & (self.capacity[0] - self.used[0] >= free_cores)))

    # What changes it.

    def place(self, host: int, app: int, key: Hashable = None) -> None:
        """Put a container on a host; StateConflict, and no change, where an obstacle forbids it.

        key: under which `lives` has it, None for a container whose life is not followed.
        """
        obstacle = self.allows(host, app)
        if obstacle is not None:
            remedy = f"host {self.hosts[host].name} does not take it ({obstacle}): choose another"
            raise StateConflict("container", self.applications[app].name, remedy)
        self.restore(host, app, 1)
        if key is not None:
            self.lives.begin(key, host, self.now, self.hint, self.began)

    def restore(self, host: int, app: int, count: int) -> None:
        """Record containers that run on a host already, whatever the rules say now; BadInput beyond 16 bits."""
        if count < 1 or int(self.instances[app, host]) + count > MOST:
            raise BadInput("count", count, f"give 1 or more; a host holds up to {MOST} instances of an application")
        self._move(host, app, count)

    def opened_as(self, host: int, number: int) -> None:
        """Record the number of the present opening of an open host; later openings have higher ones."""
        self.opening[host] = number
        self._openings = max(self._openings, number)

    def release(self, host: int, app: int) -> None:
        """Take a container from a host; StateConflict where none runs there."""
        if self.instances[app, host] < 1:
            remedy = f"no container of it runs on {self.hosts[host].name}"
            raise StateConflict("container", self.applications[app].name, remedy)
        self._move(host, app, -1)

    def _move(self, host: int, app: int, count: int) -> None:
        before = int(self.containers[host])
        self._count(host, -1)
        self.used[:, host] += np.array(self.applications[app].demand, dtype=np.int64) * count
        held = int(self.instances[app, host])
        self.instances[app, host] = held + count
        self.distinct[host] += int(held + count > 0) - int(held > 0)
        self.containers[host] = before + count
        self.blocking[self._excludes[app], host] += count
        self._count(host, 1)
        if (before == 0) != (before + count == 0):
            self.opened += int(before == 0)
            self._openings += int(before == 0)
            self.opening[host] = self._openings if before == 0 else 0
            self._candidates(int(self._group[host]))

    def declare(self, lifetime_s: float | None, now: float, began: float | None = None) -> None:
        """Take note of the lifetime that the next containers declare, None without one, and of the time.

        began: when they began, None for now.
        """
        self.hint, self.now, self.began = ln_of(lifetime_s), now, now if began is None else began
        self.lives.predict(now)

    def saw(self, count: int) -> None:
        """Take note of the count of a request that has come."""
        self.largest = max(self.largest, float(count))
        self.large += int(count >= LARGE_REQUEST)

    def drain(self, host: int) -> None:
        """Let no new container on a host; those on it stay."""
        self._set(self.drained, host, True)

    def resume(self, host: int) -> None:
        """Let containers on a drained host again."""
        self._set(self.drained, host, False)

    def fail(self, host: int) -> dict[int, int]:
        """Take a host out with what ran on it; return the containers lost by application, which become requests."""
        lost = self.containers_on(host)
        for app, count in lost.items():
            self._move(host, app, -count)
        self._set(self.failed, host, True)
        return lost

    def join(self, host: Host) -> int:
        """Add a host, or bring back one that failed, under the given size; return its index; StateConflict."""
        known = self._host_index.get(host.name)
        if known is None:
            self._resize(len(self.hosts) + 1, len(self.applications))
            index = self._add(host)
        elif not self.failed[known]:
            raise StateConflict("host", host.name, "a host of this name is in the cluster")
        else:
            _check(host)
            index = known
            self.failed[index] = self.drained[index] = False
            self._write(index, host)
        self._all_candidates()
        return index

    def resize(self, host: int, capacity: Vector) -> None:
        """Change what a host has. One that uses more than that is over-committed and takes nothing."""
        self.change(host, replace(self.hosts[host], capacity=capacity))

    def change(self, host: int, to: Host) -> None:
        """Give a host another size, label or rack; what runs on it stays."""
        _check(to)
        self._count(host, -1)
        self._write(host, to)
        self._count(host, 1)
        self._all_candidates()

    def register(self, app: Application) -> int:
        """Add an application, or change the rules of a known one; return its index.

        A new one also excludes those that exclude it; a known one excludes exactly those given, and they exclude it.
        What runs against changed rules keeps running. StateConflict where the demand of running containers changes.
        """
        known = self._app_index.get(app.name)
        if known is None:
            app = replace(
                app, excludes=app.excludes | {one.name for one in self.applications if app.name in one.excludes}
            )
            self._resize(len(self.hosts), len(self.applications) + 1)
            index = self._register(app)
        else:
            index = known
            if app.demand != self.applications[index].demand and self.instances[index].any():
                raise StateConflict("demand", app.demand, "containers of it run: give the new size another name")
            self.applications[index] = app
        for other, one in enumerate(self.applications):
            both, before = one.name in app.excludes, app.name in one.excludes
            if other != index and (both or before):
                names = one.excludes | {app.name} if both else one.excludes - {app.name}
                self.applications[other] = replace(one, excludes=names)
                self._exclude(other)
        self._exclude(index)
        return index

    def copy(self) -> Cluster:
        """Return a copy that changes apart from this one."""
        made = shallow_copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | list | dict):
                setattr(made, name, value.copy())
        made.lives = self.lives.copy()
        return made

    # Upkeep.

    def _resize(self, hosts: int, apps: int) -> None:
        """Make room; arrays grow by half, so that joins one by one cost little."""
        old_hosts, old_apps = self.used.shape[1], self.instances.shape[0]
        if hosts <= old_hosts and apps <= old_apps:
            return
        to_hosts = max(old_hosts, hosts if hosts <= old_hosts or not old_hosts else max(hosts, old_hosts * 3 // 2))
        to_apps = max(old_apps, apps if apps <= old_apps or not old_apps else max(apps, old_apps * 3 // 2))
        for name in ("used", "capacity", "containers", "distinct", "opening", "drained", "failed", "_candidate",
                     "_group", "_label", "_rack", "instances", "blocking"):  # fmt: skip
            old = getattr(self, name)
            rows = to_apps if name in ("instances", "blocking") else 3
            made = np.zeros((to_hosts,) if old.ndim == 1 else (rows, to_hosts), dtype=old.dtype)
            made[tuple(slice(0, length) for length in old.shape)] = old
            setattr(self, name, made)

    def _add(self, host: Host) -> int:
        if host.name in self._host_index:
            raise StateConflict("host", host.name, "a host of this name is in the cluster")
        _check(host)
        index = self._host_index[host.name] = len(self.hosts)
        self.hosts.append(host)
        self._write(index, host)
        return index

    def _write(self, index: int, host: Host) -> None:
        self.hosts[index] = host
        self.capacity[:, index] = host.capacity
        self._group[index] = self._groups.setdefault((host.capacity, host.label, host.rack), len(self._groups))
        self._label[index] = self._labels.setdefault(host.label, len(self._labels))
        rack = host.rack or f"\0{host.name}"
        self._rack[index] = self._racks.setdefault(rack, len(self._racks))

    def _register(self, app: Application) -> int:
        if min(app.demand) < 1 or app.limit < 1 or app.name in app.excludes:
            remedy = "give demands and a limit of 1 or more, and no exclusion of itself"
            raise BadInput("application", app.name, remedy)
        if app.name in self._app_index:
            raise StateConflict("application", app.name, "an application of this name is registered")
        index = self._app_index[app.name] = len(self.applications)
        self.applications.append(app)
        self._excludes.append(np.zeros(0, dtype=np.int64))
        return index

    def _exclude(self, app: int) -> None:
        names = sorted(self.applications[app].excludes)
        self._excludes[app] = np.array([self._app_index[n] for n in names if n in self._app_index], dtype=np.int64)
        self.blocking[app] = self.instances[self._excludes[app]].sum(axis=0, dtype=np.int32)

    def _set(self, flags: Bools, host: int, value: bool) -> None:
        self._count(host, -1)
        flags[host] = value
        self._count(host, 1)
        self._candidates(int(self._group[host]))

    def _count(self, host: int, sign: int) -> None:
        """Add an open host that takes containers to the counters of the cluster, or take it out."""
        if not self.containers[host] or self.drained[host] or self.failed[host]:
            return
        free = int(self.capacity[0, host] - self.used[0, host])
        for q in TIERS:
            if free >= q:
                self.headroom[q] += sign
        self._free_open += sign * free
        self._size_open += sign * int(self.capacity[0, host])

    def _candidates(self, group: int) -> None:
        """Find the candidates among the hosts of one group again: open ones, and the first that is closed."""
        hosts = len(self.hosts)
        mine = self._group[:hosts] == group
        usable = mine & ~self.drained[:hosts] & ~self.failed[:hosts]
        is_open = self.containers[:hosts] > 0
        self._candidate[:hosts][mine] = (usable & is_open)[mine]
        closed = usable & ~is_open
        first = int(np.argmax(closed)) if hosts else 0
        if hosts and closed[first]:
            self._candidate[first] = True
        found = np.flatnonzero(self._candidate[:hosts])
        self._top = int(found[-1]) + 1 if found.size else 0

    def _all_candidates(self) -> None:
        for group in np.unique(self._group[: len(self.hosts)]).tolist():
            self._candidates(group)


def _check(host: Host) -> None:
    if min(host.capacity) < 1:
        raise BadInput("capacity", host.capacity, f"give {', '.join(DIMENSIONS)}, each 1 or more")


def _limit(app: Application) -> int:
    return MOST if app.limit >= UNLIMITED else app.limit


def most_on_host(app: Application) -> int:
    """Return the most containers of an application that a host takes, one that is a rack by itself."""
    return _limit(app) if app.rack_limit is None else min(_limit(app), app.rack_limit)


@dataclass(frozen=True, slots=True)
class Scored:
    """The feasible hosts for one container of a request of `count` containers, by index, and their scores.

    hosts: ascending, int64 [K]. value: float64 [K], -inf for a closed host where open hosts come first.
    """

    cluster: Cluster
    policy: Policy
    app: int
    count: int
    hosts: Ints
    value: NDArray[np.float64]


def scored(cluster: Cluster, policy: Policy, app: int, count: int) -> Scored:
    """Return the feasible hosts with their scores."""
    hosts = cluster.feasible(app)
    value = scores(policy, cluster.view(app, count, hosts, policy.reserve_cores)) if hosts.size else np.zeros(0)
    return Scored(cluster, policy, app, count, hosts, value)


def choose(cluster: Cluster, policy: Policy, app: int, count: int) -> Choice | None:
    """Return the host for one container of a request of `count` containers, or None: no host can take it."""
    return best_of(scored(cluster, policy, app, count))


def best_of(found: Scored) -> Choice | None:
    """Return the host of the highest score, of equal ones that of the lowest index, or None without a host."""
    hosts, value = found.hosts, found.value
    if not hosts.size:
        return None
    best = int(np.argmax(value))
    second, second_score = -1, -np.inf
    if hosts.size > 1:
        rest = value.copy()
        rest[best] = -np.inf
        other = int(np.argmax(rest))
        if np.isfinite(rest[other]):
            second, second_score = int(hosts[other]), float(rest[other])
    host = int(hosts[best])
    is_new = bool(found.cluster.containers[host] == 0)
    return Choice(host, float(value[best]), second, second_score, int(hosts.size), is_new)


def explain(found: Scored, most: int = 5) -> list[tuple[int, float, Terms]]:
    """Return the best hosts for a container: index, score, and the terms that it sums."""
    cluster, policy, hosts, value = found.cluster, found.policy, found.hosts, found.value
    if not hosts.size:
        return []
    # Sorting, partitioning or the terms of every host would take longer than the choice.
    rest, order = np.where(np.isfinite(value), value, -np.inf), []
    for _ in range(min(most, hosts.size)):
        k = int(np.argmax(rest))
        if rest[k] == -np.inf:
            break
        order.append(k)
        rest[k] = -np.inf
    terms = score_terms(policy, cluster.view(found.app, found.count, hosts[order], policy.reserve_cores))
    return [
        (int(hosts[k]), float(value[k]), {name: float(np.asarray(term)[n]) for name, term in terms.items()})
        for n, k in enumerate(order)
    ]


Terms = dict[str, float]
"""Terms of a score by name."""
