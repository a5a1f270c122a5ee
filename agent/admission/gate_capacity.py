"""How large a cluster is: fixed by its settings, or read from a quota of EC2 or a capacity reservation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.admission.gate_turn import GateJournal, GateTurn
from agent.admission.service import AdmissionService
from collectors.clusters import ClusterReader
from domain.decisions import Reason
from domain.errors import CloudError

EVERY_S: Final = 300.0
"""How long a quota or reservation that was read is taken for unchanged."""
CAPACITY: Final = "capacity"


@dataclass(frozen=True, slots=True)
class CapacitySource:
    """Where a cluster's capacity is read; neither: it is fixed by settings.

    quota_code: a quota of EC2 in vCPUs, such as L-1216C47A. set_aside_cores: of the quota or reservation, kept for what
    is not in the cluster's groups.
    """

    quota_code: str = ""
    reservation_id: str = ""
    set_aside_cores: int = 0

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to read."""
        return not (self.quota_code or self.reservation_id)


class Capacities:
    """Reads capacities and gives them to the clusters; one that cannot be read stays as it was."""

    def __init__(
        self,
        reader: ClusterReader,
        clusters: Mapping[str, AdmissionService],
        sources: Mapping[str, CapacitySource],
        journal: GateJournal,
    ) -> None:
        self._reader, self._clusters, self._sources, self._journal = reader, clusters, sources, journal
        self._measured: dict[str, tuple[float, int]] = {}

    def measure(self, turn: GateTurn) -> None:
        """Read those that are due."""
        for name, source in self._sources.items():
            read_at, before = self._measured.get(name, (float("-inf"), 0))
            if source.fixed or 0.0 <= turn.now - read_at < EVERY_S:
                continue
            try:
                cores = max(0, self._read(source) - source.set_aside_cores)
            except CloudError as error:
                detail = f"the capacity could not be read: {error}"
                self._journal.say(turn, name, CAPACITY, Reason.CLOUD_UNREADABLE, detail)
                continue
            self._journal.over(name, CAPACITY)
            self._measured[name] = (turn.now, cores)
            if cores >= 1 and cores != before:
                self._clusters[name].resize(cores)

    def known(self, cluster: str) -> bool:
        """Return whether the cluster's capacity is known, and there is any."""
        return self._sources[cluster].fixed or self._measured.get(cluster, (0.0, 0))[1] >= 1

    def _read(self, source: CapacitySource) -> int:
        if source.quota_code:
            return self._reader.quota_cores(source.quota_code)
        return self._reader.reserved_cores(source.reservation_id)
