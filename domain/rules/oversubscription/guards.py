"""What stands between a rate and a machine, and how many hot hours it lets pass (§12.4, §12.6): files and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from domain.errors import BadInput

SHIELD, FILTER = "shield", "filter"
USUAL_BUDGET: Final = 0.003
"""Expected hot hours of a machine in a day that are let pass where nobody says otherwise."""
LARGEST_BUDGET: Final = 24.0


@dataclass(frozen=True, slots=True)
class RateGuard:
    """`shield` raises the rate of a risky request, `filter` looks for another machine; BadInput for what is neither.

    budget: expected hot hours of a machine in the next day, above 0 and at most 24.
    """

    kind: str
    budget: float

    def __post_init__(self) -> None:
        if self.kind not in (SHIELD, FILTER):
            raise BadInput("guard", self.kind, f"choose {SHIELD} or {FILTER}")
        check_budget("guard's budget", self.budget)

    def as_data(self) -> dict[str, Any]:
        """Return what a file says of it."""
        return {"kind": self.kind, "budget": self.budget}


def check_budget(name: str, budget: float) -> float:
    """Return expected hot hours a day that may be let pass; BadInput for what cannot be."""
    if not (math.isfinite(budget) and 0.0 < budget <= LARGEST_BUDGET):
        raise BadInput(name, budget, "give expected hot hours a day, above 0 and at most 24; 0.001 to 0.03 is usual")
    return float(budget)


def guard_of_file(name: str, said: object) -> RateGuard | None:
    """Return the guard that a file of rates names, None where it says null or nothing; BadInput, begun with `name`."""
    if said is None:
        return None
    kind, budget = (said.get("kind"), said.get("budget")) if isinstance(said, Mapping) else (None, None)
    if not isinstance(kind, str) or isinstance(budget, bool) or not isinstance(budget, int | float):
        raise BadInput(f"{name}, guard", said, 'give null, or an object such as {"kind": "shield", "budget": 0.003}')
    try:
        return RateGuard(kind, float(budget))
    except BadInput as error:
        raise BadInput(f"{name}, {error.field}", error.value, error.remedy) from None
