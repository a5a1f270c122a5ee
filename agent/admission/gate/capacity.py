"""How large a cluster is: fixed by its settings, or read from a quota of EC2 or a capacity reservation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.admission.gate.terms import GateTerms
from agent.admission.gate.turn import GateJournal, GateTurn
from agent.admission.service import AdmissionService
from collectors.clusters import ClusterReader
from domain.decisions import Reason
from domain.errors import CloudError

EVERY_S: Final = 300.0
"""How long a quota or reservation that was read is taken for unchanged."""
CAPACITY: Final = "capacity"


class Capacities:
    """Reads capacities and gives them to the clusters; one that cannot be read stays as it was."""

    def __init__(
        self,
        reader: ClusterReader,
        clusters: Mapping[str, AdmissionService],
        terms: Mapping[str, GateTerms],
        journal: GateJournal,
    ) -> None:
        self._reader, self._clusters, self._terms, self._journal = reader, clusters, terms, journal
        self._measured: dict[str, tuple[float, int]] = {}

    def measure(self, turn: GateTurn) -> None:
        """Read those that are due."""
        for name, terms in self._terms.items():
            read_at, before = self._measured.get(name, (float("-inf"), 0))
            if terms.fixed or 0.0 <= turn.now - read_at < EVERY_S:
                continue
            with self._journal.alone(turn, name, CAPACITY):
                try:
                    cores = max(0, self._read(terms) - terms.set_aside_cores)
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
        return self._terms[cluster].fixed or self._measured.get(cluster, (0.0, 0))[1] >= 1

    def _read(self, terms: GateTerms) -> int:
        if terms.quota_code:
            return self._reader.quota_cores(terms.quota_code)
        return self._reader.reserved_cores(terms.reservation_id)
