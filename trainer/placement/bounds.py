"""How many hosts any packing of an instance needs at least (placement specification §5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.placement.instance import DIMENSIONS, Instance, excluded_pairs

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bound:
    """Hosts that are open at the same time in every packing, and what asks for them.

    by: a dimension, `limit` (one application on hosts enough for its limit), `exclusion` (applications of which no two
    share a host) or `snapshot` (hosts that are open from the begin).
    """

    hosts: int
    by: str


def lower_bound(instance: Instance) -> Bound:
    """Return the largest of the bounds: totals over capacity, instances over limit, cliques of exclusions.

    Containers that were released before others came count while they run. Raises BadInput where no host can take a
    container at all.
    """
    most = np.array([host.capacity for host in instance.hosts if host.count != 0]).max(axis=0, initial=0)
    apps = instance.applications
    demand = np.array([app.demand for app in apps], dtype=np.int64).reshape(-1, len(DIMENSIONS))
    limit = np.array([app.limit for app in apps], dtype=np.int64)
    if not (demand <= most).all():
        raise BadInput("instance", instance.name, "no host can take some container: add hosts")
    grown = cliques(instance)
    members = np.array([k for clique in grown for k in clique], dtype=np.int64)
    starts = np.cumsum([0, *(len(clique) for clique in grown)])[:-1]
    best = Bound(len(instance.snapshot), "snapshot")
    for running in _peaks(instance):
        total, needs = running @ demand, -(-running // limit)
        found = [Bound(-(-int(total[k]) // int(most[k])), name) for k, name in enumerate(DIMENSIONS) if most[k]]
        found.append(Bound(int(needs.max(initial=0)), "limit"))
        if grown:
            found.append(Bound(int(np.add.reduceat(needs[members], starts).max()), "exclusion"))
        best = max([best, *found], key=lambda bound: bound.hosts)
    return best


def cliques(instance: Instance) -> list[tuple[int, ...]]:
    """Return applications, as positions, of which each excludes each other: one clique grown from every pair.

    Of those that all excluded have in common, the one that needs most hosts in all is added, greedily.
    """
    wanted: Counter[str] = Counter()
    for request in instance.requests:
        wanted[request.application] += request.count
    place = {app.name: k for k, app in enumerate(instance.applications)}
    needs = {app.name: -(-wanted[app.name] // app.limit) for app in instance.applications}
    excludes = {app.name: app.excludes for app in instance.applications}
    found = set()
    for name, other in excluded_pairs(instance.applications):
        clique, common = [name, other], excludes[name] & excludes[other]
        while common:
            heaviest = max(sorted(common), key=lambda one: needs[one])
            clique.append(heaviest)
            common &= excludes[heaviest]
        found.add(tuple(sorted(place[one] for one in clique)))
    return sorted(found)


def _peaks(instance: Instance) -> Iterator[Ints]:
    """Yield how many containers of each application run at the end, and before every run of releases, (A,)."""
    place = {app.name: k for k, app in enumerate(instance.applications)}
    running = np.zeros(len(place), dtype=np.int64)
    for _, held in instance.snapshot:
        for name, number in held.items():
            running[place[name]] += number
    owner = {request.name: place[request.application] for request in instance.requests}
    ends = sorted(instance.releases, key=lambda release: release.at_s)
    ended, since = 0, False
    for request in instance.requests:
        while ended < len(ends) and ends[ended].at_s <= request.at_s:
            if since:
                yield running
                since = False
            running[owner[ends[ended].request]] -= 1
            ended += 1
        running[place[request.application]] += request.count
        since = True
    yield running
