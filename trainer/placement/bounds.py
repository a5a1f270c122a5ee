"""How many hosts any packing of an instance needs at least (placement specification §5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from domain.errors import BadInput
from domain.rules.placement.bounds import Bound, Ints, least_hosts, needs_of
from domain.rules.placement.instance import DIMENSIONS, Instance, excluded_pairs


def lower_bound(instance: Instance) -> Bound:
    """Return the largest of the bounds: totals over capacity, instances over limit, cliques of exclusions.

    Containers that were released before others came count while they run. Raises BadInput where no host can take a
    container at all.
    """
    most, needs = largest_host(instance), needs_of(instance.applications, cliques(instance))
    if not (needs.demand <= most[:, 0]).all():
        raise BadInput("instance", instance.name, "no host can take some container: add hosts")
    found = (least_hosts(running, needs, most) for running in _peaks(instance))
    return max([Bound(len(instance.snapshot), "snapshot"), *found], key=lambda bound: bound.hosts)


def largest_host(instance: Instance) -> Ints:
    """Return the most that a host of an instance has in each dimension, (3, 1)."""
    sizes = [host.capacity for host in instance.hosts if host.count != 0]
    most: Ints = np.array(sizes, dtype=np.int64).reshape(-1, len(DIMENSIONS)).max(axis=0, initial=0)[:, None]
    return most


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
