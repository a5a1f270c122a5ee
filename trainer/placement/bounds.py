"""How many hosts any packing of an instance needs at least (placement specification §5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from domain.errors import BadInput
from domain.rules.placement.instance import DIMENSIONS, Instance


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
    demand = {app.name: np.array(app.demand) for app in instance.applications}
    limit = {app.name: app.limit for app in instance.applications}
    if not all((need <= most).all() for need in demand.values()):
        raise BadInput("instance", instance.name, "no host can take some container: add hosts")
    best = Bound(len(instance.snapshot), "snapshot")
    for running in _peaks(instance):
        total = sum((demand[name] * number for name, number in running.items()), np.zeros(len(DIMENSIONS), int))
        needs = {name: -(-number // limit[name]) for name, number in running.items()}
        found = [Bound(-(-int(total[k]) // int(most[k])), name) for k, name in enumerate(DIMENSIONS) if most[k]]
        found.append(Bound(max(needs.values(), default=0), "limit"))
        found.append(Bound(sum(needs.get(name, 0) for name in heaviest_clique(instance, needs)), "exclusion"))
        best = max([best, *found], key=lambda bound: bound.hosts)
    return best


def heaviest_clique(instance: Instance, weights: Mapping[str, int]) -> tuple[str, ...]:
    """Return applications of which each excludes each other, heavy together: the best of those grown from every pair.

    From each application on, the heaviest of those that all excluded have in common are added, greedily.
    """
    excludes = {app.name: app.excludes for app in instance.applications}
    best: tuple[str, ...] = ()

    def weight_of(names: Sequence[str]) -> int:
        return sum(weights.get(name, 0) for name in names)

    for name, others in excludes.items():
        for other in sorted(others):
            if name < other:
                clique, common = [name, other], excludes[name] & excludes.get(other, frozenset())
                while common:
                    heaviest = max(sorted(common), key=lambda one: weights.get(one, 0))
                    clique.append(heaviest)
                    common &= excludes[heaviest]
                if weight_of(clique) > weight_of(best):
                    best = tuple(clique)
    return best


def _peaks(instance: Instance) -> Iterator[Counter[str]]:
    """Yield what runs at the end, and before every run of releases; without releases that is the end alone."""
    running: Counter[str] = Counter()
    for _, held in instance.snapshot:
        running.update(held)
    owner = {request.name: request.application for request in instance.requests}
    ends = sorted(instance.releases, key=lambda release: release.at_s)
    ended, since = 0, False
    for request in instance.requests:
        while ended < len(ends) and ends[ended].at_s <= request.at_s:
            if since:
                yield running
                since = False
            running[owner[ends[ended].request]] -= 1
            ended += 1
        running[request.application] += request.count
        since = True
    yield running
