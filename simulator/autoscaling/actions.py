"""The actions of a policy: an index, a vector, an ordered list (§4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput

MULTI_CHANGES: tuple[int, ...] = (-5, -2, -1, 0, 1, 2, 5)
"""Changes of one type in act-multi, in the order of its mask."""

OUT, IN = 0, 1


class Order(NamedTuple):
    """A change of one VM type: `change` VMs more, or fewer when negative."""

    kind: int
    change: int


class Outcome(NamedTuple):
    """The outcome of a step's orders: VMs added, removed and refused per type."""

    added: tuple[int, ...]
    removed: tuple[int, ...]
    refused: tuple[int, ...]


def orders_of_index(action: int, kinds: int) -> list[Order]:
    """Return the orders of an act-7 index: 0 nothing, 2k + 1 add one VM of type k, 2k + 2 remove one."""
    if not 0 <= action <= 2 * kinds:
        raise BadInput("action", action, f"give an index in 0..{2 * kinds}")
    return [] if action == 0 else [Order((action - 1) // 2, 1 if action % 2 == 1 else -1)]


def orders_of_vector(changes: Sequence[int] | NDArray[np.int64], cores: Sequence[int]) -> list[Order]:
    """Return the orders of a change per type: removals first, then additions, types with more cores first in both."""
    if len(changes) != len(cores):
        raise BadInput("action", list(changes), f"give {len(cores)} changes, one per VM type")
    by_size = sorted(range(len(cores)), key=lambda k: -cores[k])
    removals = [Order(k, int(changes[k])) for k in by_size if changes[k] < 0]
    return removals + [Order(k, int(changes[k])) for k in by_size if changes[k] > 0]
