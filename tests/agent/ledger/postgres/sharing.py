"""A leader of the fleet `web` on a ledger that several agents share.

`web` is the share of `first`, not of `heir`: it moves only where `first` is gone.
"""

from __future__ import annotations

from agent.ledger import Ledger
from agent.ledger.leases import AgentRecord
from agent.ledger.schema import REVISIONS
from agent.service.leader import LeaseLeader
from agent.service.shares import Managed, units
from domain.clock import Clock
from domain.subject import fleet_subject

WEB = fleet_subject("web")
MANAGED = Managed({WEB: "digest"}, units([WEB], []))


def leader_of_web(
    ledger: Ledger, name: str, clock: Clock, lease_s: float, renew_s: float, managed: Managed = MANAGED
) -> LeaseLeader:
    """Return the leader of an agent of this name, by default of `web` alone, not started yet."""
    me = AgentRecord(name, f"process-of-{name}", REVISIONS[-1])
    return LeaseLeader(ledger, me, clock, lease_s, renew_s, lambda: managed)
