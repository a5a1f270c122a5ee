"""How many hosts any packing of what runs needs at least (placement specification §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.rules.placement.instance import DIMENSIONS, MOST, UNLIMITED, Application

Ints = NDArray[np.int64]
Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """Hosts that are open at the same time in every packing, and what asks for them.

    by: a dimension, `limit` (one application on hosts enough for its limit), `exclusion` (applications of which no two
    share a host) or `snapshot` (hosts that are open from the begin).
    """

    hosts: int
    by: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What a bound asks of applications: demand (A, 3), limit (A,), and groups of which each excludes each other.

    members: of all groups, one after the other, as positions; begins: where each group begins among them.
    """

    demand: Ints
    limit: Ints
    members: Ints
    begins: Ints


def needs_of(applications: Sequence[Application], groups: Sequence[Group] = ()) -> Needs:
    """Return what a bound asks of applications; groups: as positions among them."""
    demand = np.array([app.demand for app in applications], dtype=np.int64).reshape(-1, len(DIMENSIONS))
    limit = np.array([MOST if app.limit >= UNLIMITED else app.limit for app in applications], dtype=np.int64)
    members = np.array([k for group in groups for k in group], dtype=np.int64)
    begins = np.cumsum([0, *(len(group) for group in groups)], dtype=np.int64)[:-1]
    return Needs(demand, limit, members, begins)


def least_hosts(running: NDArray[np.integer[Any]], needs: Needs, sizes: NDArray[np.integer[Any]]) -> Bound:
    """Return the largest of the bounds on so many containers of each application, (A,).

    By totals over capacity, the largest hosts first; by instances over limit; by groups that exclude one another.
    sizes: capacities of the hosts that there are, (3, H), H at least 1; any further one is as large as the largest.
    """
    totals, by_limit = running @ needs.demand, -(-running // needs.limit)
    found = [Bound(_by_total(int(totals[k]), sizes[k]), name) for k, name in enumerate(DIMENSIONS)]
    found.append(Bound(int(by_limit.max(initial=0)), "limit"))
    if len(needs.begins):
        found.append(Bound(int(np.add.reduceat(by_limit[needs.members], needs.begins).max()), "exclusion"))
    return max(found, key=lambda bound: bound.hosts)


def _by_total(total: int, sizes: NDArray[np.integer[Any]]) -> int:
    largest = int(sizes.max(initial=0))
    if total <= 0 or not largest:
        return 0
    if total <= largest:
        return 1
    room = np.sort(sizes)[::-1].cumsum(dtype=np.int64)
    if total <= room[-1]:
        return int(np.searchsorted(room, total)) + 1
    return len(room) - (-(total - int(room[-1])) // largest)
