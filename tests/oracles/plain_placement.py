"""The plain twin of the engine, and feasibility decided anew from a plain list of containers (placement §1.3).

The twin plays the same events on `domain.rules.placement.cluster`, the book of the agent. `Reference` shares no state
and no formula with either; tests hold both to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from domain.rules.placement.cluster import Cluster, Host, Obstacle, choose, cluster_of
from domain.rules.placement.instance import MOST, UNLIMITED, Application, Instance
from domain.rules.placement.lifetimes import life_left, ln_of
from domain.rules.placement.policies import Floats, Ints, Policy
from simulator.placement.engine import DRAIN, ENDED, FAIL, JOIN, PLACE, REJECTED, RELEASE, WAITING
from tests.oracles.placing import place_request


@dataclass
class Twin:
    """A cluster and what became of each container; `turn` applies one event of the engine.

    app: of each container, [N]. begin: number of the first container of each request, [R + 1].
    """

    cluster: Cluster
    policy: Policy
    app: Ints
    begin: Ints
    where: NDArray[np.int32]
    lifetimes: Sequence[float | None]
    now: float = 0.0
    obstacles: dict[Obstacle, int] = field(default_factory=dict)
    rejected: int = 0
    began: dict[int, float] = field(default_factory=dict)

    def turn(self, kind: int, subject: int, at_s: float = 0.0) -> None:
        """Apply an event: its kind, and a request, a container or a host."""
        self.now = at_s
        self.cluster.lives.predict(at_s)
        if kind == PLACE:
            self._place(list(range(int(self.begin[subject]), int(self.begin[subject + 1]))))
        elif kind == RELEASE:
            host = int(self.where[subject])
            if host >= 0:
                self.cluster.release(host, int(self.app[subject]))
                self.cluster.lives.end(subject, at_s)
            if host != WAITING:
                self.where[subject] = ENDED
        elif kind == FAIL:
            if not self.cluster.failed[subject]:
                self._fail(subject)
        elif kind == DRAIN:
            self.cluster.drain(subject)
        elif kind == JOIN and self.cluster.failed[subject]:
            self.cluster.join(self.cluster.hosts[subject])
        else:
            self.cluster.resume(subject)

    def _place(self, numbers: list[int]) -> None:
        app = int(self.app[numbers[0]])
        self._declare(numbers[0])
        choices = place_request(self.cluster, self.policy, app, len(numbers), partial=True, keys=numbers)
        self.where[numbers] = REJECTED
        self.where[numbers[: len(choices)]] = [choice.host for choice in choices]
        self.began.update(dict.fromkeys(numbers, self.now))
        self._reject(app, len(numbers) - len(choices))

    def _declare(self, number: int | None) -> None:
        self.cluster.declare(None if number is None else self.lifetimes[number], self.now)

    def _reject(self, app: int, times: int) -> None:
        self.rejected += times
        if times:
            for obstacle, hosts in self.cluster.reasons(app).items():
                self.obstacles[obstacle] = self.obstacles.get(obstacle, 0) + hosts * times

    def _fail(self, host: int) -> None:
        ran = np.flatnonzero(self.where == host)
        for app, count in sorted(self.cluster.fail(host).items()):
            self.cluster.saw(count)
            numbers = ran[self.app[ran] == app]
            for k in range(count):
                known = int(numbers[k]) if k < len(numbers) else None
                self._declare(known)
                choice = choose(self.cluster, self.policy, app, count)
                if choice is None:
                    self._reject(app, 1)
                else:
                    self.cluster.place(choice.host, app)
                if known is not None:
                    self.where[known] = REJECTED if choice is None else choice.host
                    if choice is None:
                        self.cluster.lives.forget(known, self.now)
                    else:
                        self.cluster.lives.move(known, choice.host, self.now)

    def migrate(self) -> int:
        """Move the container whose move shortens the lives of hosts most, as predicted; return how many: 0 or 1.

        A move ends its host at the end of the container before it. It may make the other host end later.
        """
        cluster, known = self.cluster, self.cluster.lives.fit
        moves = []
        for host in np.flatnonzero(cluster.open & ~cluster.drained & ~cluster.failed).tolist():
            ends = []
            for number in np.flatnonzero(self.where == host).tolist():
                hint, age_s = ln_of(self.lifetimes[number]), self.now - self.began[number]
                ends.append((float(life_left(known.a + known.b * hint, known.residual, age_s)), number))
            (last_s, number), *others = sorted(ends, reverse=True)
            app = int(self.app[number])
            cluster.drain(host)
            cluster.declare(self.lifetimes[number], self.now, self.began[number])
            choice = choose(cluster, self.policy, app, 1)
            cluster.resume(host)
            if choice is not None and not choice.is_new:
                before_s = others[0][0] if others else 0.0
                until_s = float(cluster.lives.left_s(np.array([choice.host]), self.now)[0])
                gain = (last_s - before_s) - (max(last_s, until_s) - until_s)
                moves.append((gain, -host, number, app, choice.host))
        if not moves or max(moves)[0] <= 0.0:
            return 0
        _, host, number, app, target = max(moves)
        cluster.release(-host, app)
        cluster.place(target, app)
        cluster.lives.move(number, target, self.now)
        self.where[number] = target
        return 1


def twin_of(instance: Instance, policy: Policy, most: int | None = None) -> Twin:
    """Return the twin at the begin of an instance; most: hosts beyond those of the snapshot."""
    cluster = cluster_of(instance, most)
    app = [cluster.application(request.application) for request in instance.requests]
    counts = [request.count for request in instance.requests]
    return Twin(
        cluster,
        policy,
        np.repeat(np.array(app, dtype=np.int64), counts),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        np.full(instance.containers, WAITING, dtype=np.int32),
        [request.lifetime_s for request in instance.requests for _ in range(request.count)],
    )


def play_plainly(
    instance: Instance, policy: Policy, events: Ints, most: int | None = None, times: Floats | None = None
) -> Twin:
    """Return the twin after events [E, 2] at these seconds [E], as `simulator.placement.engine.play` takes them."""
    twin = twin_of(instance, policy, most)
    moments = [0.0] * len(events) if times is None else times.tolist()
    for (kind, subject), at_s in zip(events.tolist(), moments, strict=True):
        twin.turn(kind, subject, at_s)
    return twin


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
