"""`trimtab promote placement`: a policy's file decides for a placement pool if it opens fewer hosts."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from domain.errors import BadInput
from domain.units import DAY_S
from trainer.commands.options import Bounds, epilog
from trainer.commands.promote import Promotion, one_of_settings

OF_INSTANCE = 20
"""Orders of an instance that is judged on."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from domain.rules.placement.policies import Policy
    from trainer.promotion.directory import ModelsWriter
    from trainer.promotion.gate import Gate
    from trainer.promotion.placement import HeldOut


@dataclass(frozen=True, kw_only=True)
class PromotePlacement(Promotion):
    """Let a policy's file decide for a placement pool if it opens fewer hosts than the policy in use.

    The file is what `trimtab train placement` or `learn placement` wrote. It decides where the POLICY, CANARY or SHADOW
    of the pool is `learned`; the agent takes it up with the next turn.
    """

    DECISION = "placement"
    EPILOG = epilog(
        """
The gate: windows of the record, or instances, as they came and in other orders.
  fewer open hosts than the policy in use, in 95 % of paired bootstrap resamples;
  no more than best fit; every placement held to the rules by a checker.
  Else the policy in use stays, and the exit status is 1.
""",
        calls=(
            "trimtab promote placement main POLICY.json --recent /var/lib/trimtab/ledger.db",
            "trimtab promote placement main POLICY.json --instance large-42",
            "trimtab promote placement main --rollback",
        ),
    )

    recent: Annotated[str | None, "LEDGER", "Judge on this ledger's record of the pool."] = None
    days: Annotated[float, "DAYS", "How many of its last days are used.", Bounds(min=0.1)] = 30.0
    instance: Annotated[list[str] | None, "NAME|FILE", "Judge on instances, as `simulate` has them; repeatable."] = None
    against: Annotated[
        str, "POLICY", "Policy in use without a champion, as in the settings; else that of the settings."
    ] = ""

    def verify(self, path: Path) -> object:
        """Raise BadInput for a file without a policy."""
        from agent.placement.choosing import read_policy

        return read_policy(path)

    def gate(self) -> Gate:
        """Return windows of the record and orders of instances."""
        from trainer.promotion.gate import Limits
        from trainer.promotion.placement import digest_of_cases, placement_gate

        windows = _of_record(self.recent, self.subject, self.days) if self.recent is not None else []
        windows += _of_instances(self.instance or ())
        if not windows:
            raise BadInput("--recent", self.recent, "give the ledger of the pool, or at least one --instance")
        facts = {
            "recent": self.recent is not None,
            "instances": list(self.instance or ()),
            "sha256": digest_of_cases(windows),
        }
        now = policy_in_use(self.subject, self.models, self.against)
        return placement_gate(windows, Limits(), now=now, facts=facts)


def policy_in_use(pool: str, directory: ModelsWriter, against: str = "") -> Policy:
    """Return what decides for a pool now: as the settings say, with its champion, or `against` where it is given.

    Where the settings have no placement pools, the champion, else the policy that comes with the agent. BadInput.
    """
    from agent.placement.choosing import named_policy
    from agent.placement.settings import LEARNED, SUBJECTS
    from agent.settings import load_settings

    pools = SUBJECTS.of(load_settings(os.environ))
    known = one_of_settings("pool", pool, [*pools])
    return named_policy(against or (pools[pool].policy if known else LEARNED), pool, directory)


def _of_record(ledger: str, pool: str, days: float) -> list[HeldOut]:
    from trainer.learning.placements import read_placements, reordered, windows_of
    from trainer.promotion.placement import held_out

    now_s = time.time()
    found = windows_of(read_placements(ledger, pool, now_s - days * DAY_S, now_s))
    return held_out(found.held_out, found.length_s, reordered)


def _of_instances(names: Sequence[str]) -> list[HeldOut]:
    """Return other orders of instances, each a window of its own; those with releases last to their last event."""
    from simulator.placement.instances import instance_of, shuffled
    from trainer.learning.placements import reordered
    from trainer.promotion.placement import FIRST_ORDER, held_out

    found = []
    for name in names:
        one = instance_of(name)
        length_s = max([0.0, *(request.at_s for request in one.requests), *(end.at_s for end in one.releases)])
        reorder = reordered if one.releases else shuffled
        orders = [reorder(one, FIRST_ORDER + k) for k in range(OF_INSTANCE)]
        found += held_out(orders, length_s, reorder, orders=0)
    return found
