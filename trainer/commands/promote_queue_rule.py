"""`trimtab promote queue-rule`: the way back from a tuned setting of a fleet's queue rule."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from domain.errors import BadInput
from domain.subject import QUEUE_RULE
from trainer.commands.options import epilog
from trainer.commands.promote import ALL, Promotion

if TYPE_CHECKING:
    from agent.models.queue_rule import TunedSetting
    from trainer.promotion.gate import Gate


def rule_of(fleet: str, path: Path) -> TunedSetting:
    """Return the setting in a file; ModelRefused for a file without one, BadInput for that of another fleet."""
    from agent.models.queue_rule import load_rule

    found = load_rule(path)
    if found.fleet != fleet:
        raise BadInput("FILE", str(path), f"it is a setting of fleet {found.fleet}: the agent refuses it for {fleet}")
    return found


def check_follows(fleet: str) -> None:
    """Raise BadInput for a fleet of the settings that follows no setting."""
    from agent.settings import load_settings

    fleets = load_settings(os.environ).fleets
    if fleet in fleets and not fleets[fleet].follows:
        why = "it has another policy, or sets HORIZON_S or IDLE_S by hand, so that the agent uses no other setting"
        raise BadInput("SUBJECT", fleet, f"{why}: remove these lines first")


@dataclass(frozen=True, kw_only=True)
class PromoteQueueRule(Promotion):
    """Go back to the setting of a fleet's queue rule before the present one, or show which one is in use.

    Settings are found by SELF_TUNE, and put in use by it or by `trimtab approve`. A fleet whose settings give HORIZON_S
    or IDLE_S follows none.
    """

    DECISION = QUEUE_RULE
    EPILOG = epilog("", calls=("trimtab promote queue-rule web --rollback", "trimtab promote queue-rule web --status"))

    def check(self) -> None:
        """Raise BadInput for all fleets, since a setting is that of one, and for a fleet that follows none."""
        if self.subject == ALL:
            raise BadInput("SUBJECT", self.subject, "name a fleet: each one has its own setting")
        if self.challenger is not None:
            check_follows(self.subject)

    def verify(self, path: Path) -> object:
        """Raise ModelRefused for a file without a setting, BadInput for that of another fleet."""
        return rule_of(self.subject, path)

    def gate(self) -> Gate:
        """Raise BadInput: a setting is judged where it is found, on the fleet's own record."""
        remedy = "SELF_TUNE judges settings on the fleet's record; --force REASON puts one in use without a judgement"
        raise BadInput("FILE", str(self.challenger), remedy)
