"""What the gate goes by for one cluster, as its settings say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateTerms:
    """What the gate goes by for one cluster.

    quota_code: a quota of EC2 in vCPUs, such as L-1216C47A, that is the capacity; reservation_id: the capacity
    reservation that is it; neither: it is fixed by settings. set_aside_cores: of the quota or reservation, kept for
    what is not in the cluster's groups. boot_deadline_s: an admitted group has so long to come to its size.
    """

    quota_code: str = ""
    reservation_id: str = ""
    set_aside_cores: int = 0
    boot_deadline_s: float = 600.0

    @property
    def fixed(self) -> bool:
        """Whether there is nothing to read."""
        return not (self.quota_code or self.reservation_id)
