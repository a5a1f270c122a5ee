"""`trimtab promote queue-rule`: the way back from a tuned setting of a fleet's queue rule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from domain.errors import BadInput
from domain.subject import QUEUE_RULE
from trainer.commands.options import epilog
from trainer.commands.promote import ALL, Promotion

if TYPE_CHECKING:
    from trainer.promotion.gate import Gate


@dataclass(frozen=True, kw_only=True)
class PromoteQueueRule(Promotion):
    """Go back to the setting of a fleet's queue rule before the present one, or show which one is in use.

    Settings are found by SELF_TUNE, and put in use by it or by `trimtab approve`. A fleet whose settings give HORIZON_S
    or IDLE_S follows none.
    """

    DECISION = QUEUE_RULE
    EPILOG = epilog("", calls=("trimtab promote queue-rule web --rollback", "trimtab promote queue-rule web --status"))

    def check(self) -> None:
        """Raise BadInput for all fleets: a setting is that of one."""
        if self.subject == ALL:
            raise BadInput("SUBJECT", self.subject, "name a fleet: each one has its own setting")

    def verify(self, path: Path) -> object:
        """Raise ModelRefused for a file without a setting."""
        from agent.models.queue_rule import load_rule

        return load_rule(path)

    def gate(self) -> Gate:
        """Raise BadInput: a setting is judged where it is found, on the fleet's own record."""
        remedy = "SELF_TUNE judges settings on the fleet's record; --force REASON puts one in use without a judgement"
        raise BadInput("FILE", str(self.challenger), remedy)
