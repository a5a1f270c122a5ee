"""Why the champion of a fleet decides nothing: the settings name another policy, and no promotion changes these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agent.models.directory import Champion, ModelsDirectory
from domain.errors import TrimtabError
from domain.subject import Subject, fleet_subject

OF_MODELS: Final = ("learned", "model")
"""Policies of the settings under which a model decides."""


def readable_champions(directory: ModelsDirectory) -> Mapping[Subject, Champion]:
    """Return the champions of a directory; nothing where the pointer cannot be read."""
    try:
        return directory.champions()
    except TrimtabError:
        return {}


def unused_champion(champions: Mapping[Subject, Champion], fleet: str, policy: str) -> str:
    """Return that a fleet's own champion does not decide, with the remedy; "" where it decides, and without one.

    champions: of a models directory. policy: as the settings or the loop have it. A champion of all fleets is unused
    by no mistake of a fleet with another policy.
    """
    policy = policy.partition(":")[0]
    champion = champions.get(fleet_subject(fleet))
    if champion is None or policy in OF_MODELS:
        return ""
    name = champion.model.partition(".")[0][:12]
    variable = f"TRIMTAB_FLEETS__{fleet}__POLICY=learned"
    return f"{name} is the champion of {fleet} and does not decide: POLICY is {policy}; set {variable}"
