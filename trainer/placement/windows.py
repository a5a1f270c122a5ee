"""What a policy costs on an instance with releases, held to a bound and to the rules at every placement.

The cost is the mean number of open hosts over the time of the instance; where nothing ends, the hosts that are open at
its end. A container without a host counts as many hosts (`trainer.placement.samples.PRICE_OF_REJECTION`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from domain.rules.placement.bounds import least_hosts, needs_of
from domain.rules.placement.cluster import choose, cluster_of
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Policy
from domain.units import HOUR_S
from simulator.placement import engine
from simulator.placement.choosing import Arrays
from trainer.placement.bounds import largest_host, lower_bound
from trainer.placement.checker import REJECTED, Packing, violations
from trainer.placement.evaluation import FigureWrong
from trainer.placement.playing import events
from trainer.placement.samples import PRICE_OF_REJECTION


@dataclass(frozen=True, slots=True)
class Case:
    """An instance that is played often. length_s: of its time, 0 where nothing ends in it."""

    instance: Instance
    length_s: float
    arrays: Arrays

    @classmethod
    def of(cls, instance: Instance, length_s: float) -> Case:
        """Return an instance as a case; without releases the time does not matter."""
        return cls(instance, length_s if instance.releases else 0.0, engine.arrays_of(instance))

    def cost(self, policy: Policy) -> float:
        """Return what a policy costs."""
        found = engine.play(self.instance, policy, arrays=self.arrays, until_s=self.length_s or None)
        hosts = found.host_hours * HOUR_S / self.length_s if self.length_s else float(found.hosts)
        return hosts + PRICE_OF_REJECTION * found.rejected

    def checked_cost(self, policy: Policy) -> float:
        """Return what a policy costs, with every placement held to the rules by the independent checker.

        The plain rules place the containers once more for it. FigureWrong where a rule is broken, or where the compiled
        simulator has another cost.
        """
        cost, (packing, hosts) = self.cost(policy), _placed(self.instance, policy, self.length_s)
        wrong = violations(self.instance, packing, may_reject=True)
        plain = hosts + PRICE_OF_REJECTION * packing.rejected
        if wrong or abs(plain - cost) > 1e-6 * max(cost, 1.0):
            why = "; ".join(wrong[:3]) or f"it costs {cost:g}, and {plain:g} by the plain rules"
            raise FigureWrong(f"{policy.name} on {self.instance.name}: {why}")
        return cost

    def bound(self) -> float:
        """Return a cost that no policy can be below, by the totals over capacity and the limits at every moment."""
        instance = self.instance
        if not self.length_s:
            return float(lower_bound(instance).hosts)
        apps = {app.name: k for k, app in enumerate(instance.applications)}
        needs, most = needs_of(instance.applications), largest_host(instance)
        owner = {request.name: (apps[request.application], request.count) for request in instance.requests}
        running = np.zeros(len(apps), dtype=np.int64)
        total, last, hosts = 0.0, 0.0, 0
        for at_s, kind, name, _ in events(instance):
            if (now_s := min(at_s, self.length_s)) > last:
                total, last = total + hosts * (now_s - last), now_s
            app, count = owner[name]
            running[app] += count if kind == "place" else -1
            hosts = least_hosts(running, needs, most).hosts
        return (total + hosts * (self.length_s - last)) / self.length_s


def _placed(instance: Instance, policy: Policy, length_s: float) -> tuple[Packing, float]:
    """Return where the plain rules place every container, and the mean of the open hosts (at the end for no length)."""
    cluster = cluster_of(instance)
    where: dict[tuple[str, int], tuple[int, int]] = {}
    placed: dict[tuple[str, int], int] = {}
    by_name = {request.name: request for request in instance.requests}
    total, last = 0.0, 0.0
    for at_s, kind, name, index in events(instance):
        now_s = min(at_s, length_s)
        if now_s > last:
            total, last = total + cluster.open_hosts * (now_s - last), now_s
        if kind == "release":
            if (name, index) in where:
                cluster.release(*where.pop((name, index)))
            continue
        request = by_name[name]
        app = cluster.application(request.application)
        cluster.saw(request.count)
        for index in range(request.count):
            choice = choose(cluster, policy, app, request.count)
            if choice is not None:
                cluster.place(choice.host, app)
                where[name, index] = choice.host, app
                placed[name, index] = choice.host
    used = {host: k for k, host in enumerate(sorted(set(placed.values())))}
    keys = [(request.name, index) for request in instance.requests for index in range(request.count)]
    hosts = tuple(used[placed[key]] if key in placed else REJECTED for key in keys)
    packing = Packing(tuple(cluster.hosts[host].kind for host in used), hosts)
    mean = (total + cluster.open_hosts * (length_s - last)) / length_s if length_s else float(cluster.open_hosts)
    return packing, mean
