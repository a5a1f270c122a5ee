"""A plan of moves that empties hosts, within a budget (placement specification §9.3, §12).

The plan is a proposal: nothing here moves a container. Each move is feasible once those before it are done, while the
container still runs where it was; so a plan may be stopped after any move, and every rule holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from domain.errors import BadInput
from domain.rules.placement.cluster import Cluster
from domain.rules.placement.policies import Ints

LIGHTEST = 300
"""Hosts that are tried, the lightest first, before the search for one that can be emptied ends."""
CHAINS = 400
"""Pairs of a host and a container on it that are tried to make room for one container."""


@dataclass(frozen=True, slots=True)
class Move:
    """One container of an application goes from a host to another, by index.

    why: `cure` (it runs against a rule), `room` (it makes room for the next one), or `empty`. closed: hosts that are
    empty once the plan is done up to this move.
    """

    application: int
    source: int
    target: int
    why: str
    closed: int


@dataclass(frozen=True, slots=True)
class Repacking:
    """Moves in their order. closed: hosts that become empty. cured: moves that end what runs against a rule.

    violations: hosts and applications on them for which no such move was found. hosts: open before.
    """

    moves: tuple[Move, ...]
    closed: int
    cured: int
    violations: int
    hosts: int

    def per_hour(self, most: int) -> Iterator[tuple[Move, ...]]:
        """Yield the moves of each hour, at most so many; BadInput below 1."""
        if most < 1:
            raise BadInput("per_hour", most, "give 1 or more moves an hour")
        for start in range(0, len(self.moves), most):
            yield self.moves[start : start + most]


def plan_repacking(cluster: Cluster, budget: int | None = None) -> Repacking:
    """Return at most `budget` moves (any number for None) that cure violations and then empty hosts.

    The hosts to be emptied are tried from the lightest on, drained ones first. A container goes to the fullest host
    that takes it; where none does, another one makes room, if there is a host for that. A host that cannot be emptied
    within what is left of the budget keeps its containers. The first one that can is emptied, and the search begins
    anew; where none of LIGHTEST hosts can, the plan ends. The cluster is left as it is. Raises BadInput for a budget
    below 0.
    """
    if budget is not None and budget < 0:
        raise BadInput("budget", budget, "give 0 or more moves")
    trial = cluster.copy()
    left = int(trial.containers.sum()) * len(trial.hosts) if budget is None else budget
    moves: list[Move] = []
    while len(moves) < left:
        cures = ((host, app, _fullest(trial, app, {host})) for host, app in _violating(trial))
        cure = next(((host, app, target) for host, app, target in cures if target is not None), None)
        if cure is None:
            break
        host, app, target = cure
        _carry(trial, app, host, target)
        moves.append(Move(app, host, target, "cure", 0))
    cured, closed = len(moves), 0
    while len(moves) < left:
        lightest = _lightest(trial)[:LIGHTEST]
        found = next((one for host in lightest if (one := _emptied(trial, host, left - len(moves)))), None)
        if found is None:
            break
        moves += [Move(app, source, target, why, closed) for app, source, target, why in found[:-1]]
        closed += 1
        moves.append(Move(*found[-1], closed))
    return Repacking(tuple(moves), closed, cured, len(list(_violating(trial))), cluster.open_hosts)


_Step = tuple[int, int, int, str]


def _violating(cluster: Cluster) -> list[tuple[int, int]]:
    """Return host and application of what runs against a rule, each once, as (host, application)."""
    return sorted({(host, app) for host, app, _ in cluster.violations()})


def _lightest(cluster: Cluster) -> list[int]:
    """Return the open hosts, drained ones first, then by the largest share in use of any dimension, lightest first."""
    opened = np.flatnonzero(cluster.open)
    share = (cluster.used[:, opened] / np.maximum(cluster.capacity[:, opened], 1)).max(axis=0)
    order = np.lexsort((opened, share, ~cluster.drained[opened]))
    return [int(host) for host in opened[order]]


def _emptied(cluster: Cluster, host: int, budget: int) -> list[_Step] | None:
    """Carry out the moves that empty a host and return them; None, and the cluster unchanged, without such moves."""
    containers = [app for app, count in cluster.containers_on(host).items() for _ in range(count)]
    if len(containers) > budget:
        return None
    steps: list[_Step] = []
    for app in sorted(containers, key=lambda one: (-cluster.applications[one].demand[0], one)):
        target = _fullest(cluster, app, {host})
        if target is None:
            room = _room(cluster, app, host) if len(steps) + 2 <= budget else None
            if room is None:
                break
            _carry(cluster, *room[:3])
            steps.append(room)
            target = room[1]
        _carry(cluster, app, host, target)
        steps.append((app, host, target, "empty"))
        if len(steps) > budget:
            break
    if cluster.containers[host] == 0 and len(steps) <= budget:
        return steps
    for app, source, target, _ in reversed(steps):
        cluster.release(target, app)
        cluster.restore(source, app, 1)
    return None


def _fullest(cluster: Cluster, app: int, without: set[int]) -> int | None:
    """Return the open host that takes a container and is the fullest after it, None for none."""
    hosts = _open_feasible(cluster, app, without)
    if not hosts.size:
        return None
    rest = (cluster.capacity[:, hosts] - cluster.used[:, hosts]) / cluster.capacity[:, hosts]
    return int(hosts[np.argmin(rest.sum(axis=0))])


def _open_feasible(cluster: Cluster, app: int, without: set[int]) -> Ints:
    hosts = cluster.feasible(app)
    hosts = hosts[cluster.containers[hosts] > 0]
    return hosts[~np.isin(hosts, list(without))]


def _room(cluster: Cluster, app: int, host: int) -> _Step | None:
    """Return the move of one container off another host that lets a container from `host` go there; None for none."""
    tries = 0
    for other in _candidates(cluster, host):
        for one in sorted(cluster.containers_on(other), key=lambda held: cluster.applications[held].demand[0]):
            if tries == CHAINS:
                return None
            tries += 1
            cluster.release(other, one)
            fits = cluster.containers[other] > 0 and cluster.allows(other, app) is None
            cluster.restore(other, one, 1)
            if fits and one != app:
                target = _fullest(cluster, one, {host, other})
                if target is not None:
                    return one, other, target, "room"
    return None


def _candidates(cluster: Cluster, host: int) -> Sequence[int]:
    """Return the open hosts to which a container might go if one were not there, those with most free cores first."""
    hosts = len(cluster.hosts)
    opened = np.flatnonzero(cluster.open & ~cluster.drained[:hosts] & ~cluster.failed[:hosts])
    free = cluster.capacity[0, opened] - cluster.used[0, opened]
    order = np.lexsort((opened, -free))
    return [int(one) for one in opened[order] if one != host]


def _carry(cluster: Cluster, app: int, source: int, target: int) -> None:
    cluster.place(target, app)
    cluster.release(source, app)
