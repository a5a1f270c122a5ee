"""What the containers of a pool need of its fleet, as readings that the fleet is sized by.

A VM's busy cores are those of the containers on it: one that has some is protected from scale-in, is not removed as
idle, and drains before it goes. The fleet's signal `placed_cores`, where it has one, is what its size follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from agent.placement.records import Origin, PlacementDecision
from agent.placement.reserve import PlacementPool
from domain.samples import Sample, SignalSeries, VmMetric, VmSeries
from domain.units import MINUTE_S

SIGNAL: Final = "placed_cores"
REFUSED_S: Final = 5.0 * MINUTE_S
"""A container that found no host is asked for again within this time, or is not wanted any more."""


class FleetDemand:
    """The collector of one pool's demand on its fleet.

    signal: whether the fleet has the signal `placed_cores`.
    """

    interval_s: Final = 15.0
    timeout_s: Final = 10.0

    def __init__(self, pool: PlacementPool, fleet: str, *, signal: bool) -> None:
        self.name = f"placement:{pool.name}"
        self._pool, self._fleet, self._signal = pool, fleet, signal

    def collect(self, now: float) -> Iterator[Sample]:
        """Yield the busy cores of each VM of the fleet, and the cores that containers hold there or found no host for.

        Cores are those reserved: the requested ones times the pool's rate.

        LedgerUnavailable where the ledger cannot be read: then the readings are absent, and VMs not known to be idle.
        """
        held = 0.0
        for name, group, requested in self._pool.held_cores(Origin.FLEET):
            cores = requested * self._pool.head.rate
            held += cores
            yield Sample(VmSeries(self._fleet, group, name, VmMetric.BUSY_CORES), cores, now)
        if self._signal:
            asked = self._pool.store.requests_between(self._pool.name, now - REFUSED_S, now + 1.0)
            cores_of = self._pool.cores_of()
            missing = sum(count * cores_of.get(application, 0) for application, count in unplaced(asked).items())
            yield Sample(SignalSeries(self._fleet, SIGNAL), held + missing * self._pool.head.rate, now)


def unplaced(asked: Sequence[PlacementDecision]) -> dict[str, int]:
    """Return how many containers of each application found no host, of decisions in the order of their time.

    A request that is refused comes again: the largest counts, and none once one of the application was placed whole.
    """
    found: dict[str, int] = {}
    for one in asked:
        if one.advice:
            continue
        found[one.application] = max(found.get(one.application, 0), one.unplaced) if one.unplaced else 0
    return {application: count for application, count in found.items() if count}
