"""A pool whose hosts are the VMs of a fleet that is sized by their containers: machine-hours, coupled or not.

Once a minute the fleet follows W by the rule of the policy `signal-tracking`: W are the cores that containers hold or
wait for over the target use. VMs that it starts take containers after their boot. VMs that it has too many end once
they are empty: of a coupled pool hosts that drain (`domain.rules.placement.coupling`), else the newest. A container
without a host waits, asks again each minute, and runs for its whole life from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from domain.rules.autoscaling import signal_tracking_step
from domain.rules.placement.cluster import Cluster, Host, choose
from domain.rules.placement.coupling import by_end, draining, resumed
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Bools, Ints, Policy
from domain.units import HOUR_S, MINUTE_S

TARGET = 0.85
"""Cores that containers hold over those of the VMs that the fleet wants."""
SCALE_IN_FACTOR, IN_PERIODS = 0.9, 15
"""Of signal tracking: VMs go when W was below this share of their cores for this number of minutes."""
BOOT_S = 120.0, 300.0
"""A boot, uniform between these."""
MOST_VMS = 100_000


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """Hours of VMs from their start to their end, and seconds that a container waited for a host, in the mean.

    open_hours: of VMs with containers, the bound of a fleet with the same hosts whose VMs end in the minute in which
    they are empty. delayed: share of the containers that waited. Over the span that is measured.
    """

    machine_hours: float
    open_hours: float
    wait_s: float
    delayed: float


@dataclass(slots=True)
class _Container:
    app: int
    lifetime_s: float | None
    life_s: float
    asked_s: float


@dataclass(slots=True)
class _Pool:
    """The pool at one moment. waiting: containers without a host. boots: moments at which VMs take containers."""

    instance: Instance
    policy: Policy
    coupled: bool
    target: float
    in_periods: int
    from_s: float
    draws: np.random.Generator
    cluster: Cluster
    waiting: list[_Container] = field(default_factory=list)
    boots: list[float] = field(default_factory=list)
    ends: list[tuple[float, int, int, int]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    number: int = 0
    above: int = 0
    below: int = 0

    def place(self, one: _Container, now: float) -> bool:
        """Return whether a host takes the container, where no other can also one that drains."""
        self.cluster.declare(one.lifetime_s, now)
        if self._placed(one, now):
            return True
        hosts = len(self.cluster.hosts)
        drained = np.flatnonzero(self.cluster.drained[:hosts] & ~self.cluster.failed[:hosts]).tolist()
        with resumed(self.cluster, drained):
            return bool(drained) and self._placed(one, now)

    def _placed(self, one: _Container, now: float) -> bool:
        choice = choose(self.cluster, self.policy, one.app, 1)
        if choice is None:
            return False
        self.number += 1
        self.cluster.place(choice.host, one.app, self.number)
        heappush(self.ends, (now + one.life_s, self.number, choice.host, one.app))
        if one.asked_s >= self.from_s:
            self.waits.append(now - one.asked_s)
        return True

    def end_until(self, now: float) -> None:
        """Let containers end."""
        while self.ends and self.ends[0][0] <= now:
            at_s, number, host, app = heappop(self.ends)
            self.cluster.release(host, app)
            self.cluster.lives.end(number, at_s)

    def turn(self, now: float) -> None:
        """Take a minute's turn: VMs join, containers ask again, the pool drains hosts, the fleet is sized."""
        cluster = self.cluster
        for _ in [at for at in self.boots if at <= now]:
            cluster.join(Host(f"vm-{len(cluster.hosts)}", self.instance.hosts[0].capacity))
        self.boots = [at for at in self.boots if at > now]
        cluster.declare(None, now)
        there = ~cluster.failed[: len(cluster.hosts)]
        cores = self.instance.hosts[0].capacity[0]
        held = float(cluster.used[0, : there.size][there].sum())
        missing = float(sum(cluster.applications[one.app].demand[0] for one in self.waiting))
        self.waiting = [one for one in self.waiting if not self.place(one, now)]
        vms = int(there.sum()) + len(self.boots)
        desired, self.above, self.below = signal_tracking_step(
            (held + missing) / self.target,
            float(vms * cores),
            [cores],
            [vms],
            [0],
            [MOST_VMS],
            SCALE_IN_FACTOR,
            1,
            self.in_periods,
            self.above,
            self.below,
            not self.boots,
        )
        more = int(desired[0]) - vms
        if self.coupled:
            self._drain(-more, there)
        self.boots += (now + self.draws.uniform(*BOOT_S, max(more, 0))).tolist()
        empty = there & (cluster.containers[: there.size] == 0)
        if self.coupled:
            empty &= cluster.drained[: there.size]
        for host in by_end(cluster, np.flatnonzero(empty))[: max(-more, 0)].tolist():
            cluster.fail(host)

    def _taking(self, there: Bools) -> Ints:
        return np.flatnonzero(there & ~self.cluster.drained[: there.size])

    def _drain(self, leaving: int, there: Bools) -> None:
        cluster = self.cluster
        before = np.flatnonzero(there & cluster.drained[: there.size])
        after = draining(cluster, self._taking(there), before, leaving)
        for host in np.setdiff1d(before, after).tolist():
            cluster.resume(host)
        for host in np.setdiff1d(after, before).tolist():
            cluster.drain(host)


def play_fleet(
    instance: Instance,
    policy: Policy,
    *,
    coupled: bool,
    seed: int,
    measured_from_s: float,
    target: float = TARGET,
    in_periods: int = IN_PERIODS,
) -> FleetOutcome:
    """Play an instance of one type of hosts, up to its last request; seed: of the boots."""
    index = {app.name: k for k, app in enumerate(instance.applications)}
    ends = {(one.request, one.index): one.at_s for one in instance.releases}
    last = instance.requests[-1].at_s
    draws, cluster = np.random.default_rng(seed), Cluster([], instance.applications)
    pool = _Pool(instance, policy, coupled, target, in_periods, measured_from_s, draws, cluster)
    vms = opened = 0
    tick = 0.0
    for request in instance.requests:
        while tick <= request.at_s:
            pool.end_until(tick)
            pool.turn(tick)
            if tick >= measured_from_s:
                vms += len(pool.boots) + int((~cluster.failed[: len(cluster.hosts)]).sum())
                opened += cluster.open_hosts
            tick += MINUTE_S
        pool.end_until(request.at_s)
        for k in range(request.count):
            life_s = ends.get((request.name, k), np.inf) - request.at_s
            one = _Container(index[request.application], request.lifetime_s, life_s, request.at_s)
            if not pool.place(one, request.at_s):
                pool.waiting.append(one)
    waits = np.array([*pool.waits, *(last - one.asked_s for one in pool.waiting)])
    hours = MINUTE_S / HOUR_S
    return FleetOutcome(vms * hours, opened * hours, float(waits.mean()), float((waits > 0.0).mean()))
