"""Why the champion of a fleet decides nothing: the settings name another policy, and no promotion changes these."""

from __future__ import annotations

from typing import Final

from agent.models.directory import ModelsDirectory
from domain.errors import TrimtabError
from domain.subject import fleet_subject

OF_MODELS: Final = ("learned", "model")
"""Policies of the settings under which a model decides."""


def unused_champion(directory: ModelsDirectory, fleet: str, policy: str) -> str:
    """Return that a fleet's champion does not decide, with the remedy; "" where it decides, and without one.

    policy: POLICY of the settings. A pointer that cannot be read has no champion here.
    """
    if policy.partition(":")[0] in OF_MODELS:
        return ""
    try:
        champion = directory.champion(fleet_subject(fleet))
    except TrimtabError:
        return ""
    if champion is None:
        return ""
    name = champion.model.partition(".")[0][:12]
    variable = f"TRIMTAB_FLEETS__{fleet}__POLICY=learned"
    return f"{name} is the champion of {fleet} and does not decide: POLICY is {policy}; set {variable}"
