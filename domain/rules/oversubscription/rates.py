"""Oversubscription rates: the levels there are, what a valid rate is, how fast one may move, and the moving average."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from domain.errors import BadInput

ACTIONS = (0.2, 0.3, 0.4, 0.5, 0.6, 1.0)
"""Shares of the requested cores that may be reserved (oversubscription specification §1)."""
LOWEST_RATE = 0.05
"""Continuous rates, those of the moving average and the regression, are kept above this (§5)."""
KNOWN_AFTER_H, KNOWN_AFTER_VM_DAYS = 24.0, 5.0
"""Hours of history and VM-days of usage below which nothing is oversold (§11)."""
TRUSTED_AFTER_H = 168.0
"""Hours of history from which a subscriber's own rate counts in full."""


def check_actions(actions: Sequence[float]) -> tuple[float, ...]:
    """Return the levels as a tuple; BadInput unless they rise, lie in (0, 1] and contain 1.0."""
    levels = tuple(float(level) for level in actions)
    if not levels or not all(math.isfinite(level) and 0.0 < level <= 1.0 for level in levels):
        raise BadInput("actions", list(actions), "give rates above 0 and up to 1")
    if any(a >= b for a, b in pairwise(levels)):
        raise BadInput("actions", list(actions), "give rates in rising order, each once")
    if levels[-1] != 1.0:
        raise BadInput("actions", list(actions), "add 1.0, the rate without overselling")
    return levels


def check_rate(name: str, rate: float) -> float:
    """Return a rate; BadInput unless it is in (0, 1]."""
    if not (math.isfinite(rate) and 0.0 < rate <= 1.0):
        raise BadInput(name, rate, "give a rate above 0 and up to 1")
    return float(rate)


def clip_rate(rate: float) -> float:
    """Return a continuous rate within [LOWEST_RATE, 1]; 1.0 for one that is not finite (fail-safe)."""
    return min(max(rate, LOWEST_RATE), 1.0) if math.isfinite(rate) else 1.0


def level_at_least(rate: float, actions: Sequence[float]) -> int:
    """Return the index of the lowest level that reserves at least this rate."""
    for index, level in enumerate(actions):
        if level >= rate - 1e-9:
            return index
    return len(actions) - 1


def next_level(rate: float, actions: Sequence[float]) -> float:
    """Return the next safer level above a rate, 1.0 from the last one on."""
    for level in actions:
        if level > rate + 1e-9:
            return level
    return 1.0


def with_little_history(rate: float, history_h: float, vm_days: float) -> float:
    """Return the rate for a subscriber seen so long: 1.0 at first, its own after a week, between them by time (§11)."""
    if history_h < KNOWN_AFTER_H or vm_days < KNOWN_AFTER_VM_DAYS:
        return 1.0
    trust = min(1.0, history_h / TRUSTED_AFTER_H)
    return 1.0 - (1.0 - rate) * trust


def violation_hours(horizon_h: int) -> int:
    """Return the hot hours that break the promise in so many hours: three of 120 (§10.1)."""
    return max(1, math.ceil(horizon_h / 40))


SHIELD, FILTER = "shield", "filter"
USUAL_BUDGET: Final = 0.003
"""The default budget: expected hot hours of a machine in a day."""
LARGEST_BUDGET: Final = 24.0


@dataclass(frozen=True, slots=True)
class RateGuard:
    """`shield` raises the rate of a risky request, `filter` looks for another machine; BadInput for another kind.

    budget: expected hot hours of a machine in the next day, above 0 and at most 24.
    """

    kind: str
    budget: float

    def __post_init__(self) -> None:
        if self.kind not in (SHIELD, FILTER):
            raise BadInput("guard", self.kind, f"choose {SHIELD} or {FILTER}")
        check_budget("guard's budget", self.budget)

    def as_data(self) -> dict[str, Any]:
        """Return the guard as a file holds it."""
        return {"kind": self.kind, "budget": self.budget}


MOST_LEVEL: Final = 2.0
MOST_TURN_H: Final = 12
MOST_SPREAD: Final = 6.0
LEVEL_SPREAD: Final = 0.15
"""A usual drift multiplies each subscriber's level by exp(0.15 normal), §9 B5."""
TURN_H: Final = 2
"""It turns each subscriber's day by up to so many hours, to either side."""
USUAL_SPREAD: Final = 2.5
"""Standard deviations of usual drifts that a pool reserves room for, see docs/train/learn.md."""


@dataclass(frozen=True, slots=True)
class Margin:
    """The drift of usage that a guard leaves room for, before there is any; BadInput names a size out of range.

    level: by how much all usage may rise, as a share of itself, 0 to 2. turn_h: by how many hours the day of each
    subscriber may shift, to either side, 0 to 12, each for itself. spread: how many standard deviations above its mean
    a machine's usage may lie over usual drifts, in which each subscriber changes by itself, 0 to 6; 0: none.
    """

    level: float = 0.0
    turn_h: int = 0
    spread: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.level) and 0.0 <= self.level <= MOST_LEVEL):
            raise BadInput("drift_level", self.level, f"give a share from 0 to {MOST_LEVEL:g}, such as 0.3")
        if isinstance(self.turn_h, bool) or int(self.turn_h) != self.turn_h or not 0 <= self.turn_h <= MOST_TURN_H:
            raise BadInput("drift_hours", self.turn_h, f"give whole hours from 0 to {MOST_TURN_H}, such as 2")
        if not (math.isfinite(self.spread) and 0.0 <= self.spread <= MOST_SPREAD):
            raise BadInput("drift_spread", self.spread, f"give 0 to {MOST_SPREAD:g}, such as {USUAL_SPREAD:g}")

    @property
    def factor(self) -> float:
        """What a mean is multiplied by."""
        return 1.0 + self.level

    def budget(self, given: float) -> float:
        """Return the budget of a guard with this margin, given that of its file; the usual spread goes with 0.003."""
        return min(given, USUAL_BUDGET) if self.spread else given


NO_MARGIN: Final = Margin()


def check_budget(name: str, budget: float) -> float:
    """Return a budget of expected hot hours a day; BadInput for one out of range."""
    if not (math.isfinite(budget) and 0.0 < budget <= LARGEST_BUDGET):
        raise BadInput(name, budget, "give expected hot hours a day, above 0 and at most 24; 0.001 to 0.03 is usual")
    return float(budget)


def guard_of_file(name: str, given: object) -> RateGuard | None:
    """Return the guard in a file of rates, None for null or no entry; BadInput, prefixed with `name`."""
    if given is None:
        return None
    kind, budget = (given.get("kind"), given.get("budget")) if isinstance(given, Mapping) else (None, None)
    if not isinstance(kind, str) or isinstance(budget, bool) or not isinstance(budget, int | float):
        raise BadInput(f"{name}, guard", given, 'give null, or an object such as {"kind": "shield", "budget": 0.003}')
    try:
        return RateGuard(kind, float(budget))
    except BadInput as error:
        raise BadInput(f"{name}, {error.field}", error.value, error.remedy) from None
