"""Names that deployments have, a label and an owner, and what is kept of each; `labels` makes laws of it.

This module needs no numpy, so that settings and stored decisions can be read without it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from domain.errors import BadInput

HALF_LIFE_DAYS: Final = 90.0
"""Default: a deployment that ended so long ago counts half."""
MOST_NAMES: Final = 1000
"""Names, labels and owners together, of which something is kept; beyond it those fall away that ended longest ago."""
LONGEST_NAME: Final = 64
NAME_OR_NONE: Final = r"^([A-Za-z0-9][A-Za-z0-9._:/@+-]*)?$"
"""A name of at most LONGEST_NAME characters, or "" for none."""
RATES: Final = 3

Name = tuple[str, str]
"""(owner, label): an owner's own tally has no label; a label without an owner is nobody's."""


def check_name(field: str, value: object) -> None:
    """Raise BadInput unless the value can be a label or an owner; "" is none."""
    if not isinstance(value, str) or len(value) > LONGEST_NAME or re.fullmatch(NAME_OR_NONE[1:-1], value) is None:
        remedy = f"give at most {LONGEST_NAME} letters, digits and . _ : / @ + -, a letter or digit first"
        raise BadInput(field, value if isinstance(value, str) else repr(value), remedy)


@dataclass(frozen=True, slots=True)
class Tally:
    """What was gathered of a name until `at` (epoch seconds).

    sums: for ln mu, ln lam and ln sig in turn the weight, the weighted sum and the weighted sum of squares; rates per
    hour. deployments: how many ended, faded as the sums are. power: that of the population they were gathered by.
    """

    at: float
    deployments: float
    sums: tuple[float, ...]
    power: float

    def __post_init__(self) -> None:
        if len(self.sums) != 3 * RATES or not all(math.isfinite(part) for part in self.sums):
            raise BadInput("sums", list(self.sums), f"give {3 * RATES} finite numbers")


def beyond(tallies: Mapping[Name, Tally], most: int = MOST_NAMES) -> tuple[Name, ...]:
    """Return the names to drop so that at most so many stay: those whose last end is longest ago, labels first."""
    over = len(tallies) - most
    if over <= 0:
        return ()
    return tuple(sorted(tallies, key=lambda name: (tallies[name].at, not name[1], name))[:over])
