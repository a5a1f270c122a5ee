"""The evidence on a placement pool's models: recorded requests, placed again under champion or challenger.

Both are held to the policy before, or to the one in use: the recorded requests are placed again under both, window by
window, and a window in which more hosts are open than under the other is a bad one. Half of them may be: surely more
are not chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from agent.models.directory import Champion, Probationer
from agent.placement.records import COMPARISON, Comparison
from agent.placement.state import PlacementStore
from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Policy
from domain.units import HOUR_S
from trainer.learning.ledgers import reading
from trainer.learning.placements import read_placements, window_of
from trainer.learning.trial import Promise, PromiseReplay, end_of
from trainer.placement.evaluation import Case

WINDOW_H: Final = 6
LEAST_WINDOWS: Final = 5
"""Fewer windows cannot surely be worse, even if all of them are."""
ALLOWED: Final = 0.5
"""Share of windows in which chance alone opens more hosts under one of two equal policies."""
COST: Final = "open hosts"
BAD: Final = "windows had more hosts open than under the other policy"


def lived(source: str, pool: str, champion: Champion, policies: tuple[Policy, Policy], now_s: float) -> Promise | str:
    """Return the windows since its promotion in which a champion opened more hosts, or why they are not known.

    policies: the policy before it, and the champion. now_s: epoch seconds. LedgerUnavailable.
    """
    assert champion.at_s is not None, "a promotion that is watched has a time"
    try:
        windows = _windows(source, pool, champion.at_s, now_s)
    except BadInput as error:
        return str(error)
    if len(windows) < LEAST_WINDOWS:
        return f"{len(windows)} windows of {WINDOW_H} h with requests are recorded, {LEAST_WINDOWS} are needed"
    before, after = (_costs(windows, policy) for policy in policies)
    return kept_of(after, before)


def kept_of(ours: Sequence[float], theirs: Sequence[float]) -> Promise:
    """Return the number of windows in which `ours` opened more hosts than `theirs`."""
    worse = sum(one > other + 1e-9 for one, other in zip(ours, theirs, strict=True))
    return Promise(worse, len(ours), ALLOWED, BAD)


def replay(source: str, pool: str, one: Probationer, policies: tuple[Policy, Policy], now_s: float) -> PromiseReplay:
    """Return the hours of a probation, replayed; LedgerUnavailable.

    policies: the one in use, and the challenger.
    """
    until = min(now_s, end_of(one))
    with reading(source) as ledger:
        made = PlacementStore(ledger).newest(pool, 1000, COMPARISON)
    days = [row for row in made if isinstance(row, Comparison) and one.since <= row.at < until]
    asked = [row for row in days if row.shadow == policies[1].name]
    saved = f", and would have saved {np.mean([row.saved for row in asked]):+.1f} hosts" if asked else ""
    none = PromiseReplay(COST, len(asked), 0, f"as a shadow it followed {len(asked)} days{saved}")
    try:
        windows = _windows(source, pool, one.since, until)
    except BadInput as error:
        return replace(none, unknown=str(error))
    if len(windows) < LEAST_WINDOWS:
        why = f"{len(windows)} windows of {WINDOW_H} h with requests are recorded, {LEAST_WINDOWS} are needed"
        return replace(none, unknown=why)
    now, challenger = (_costs(windows, policy) for policy in policies)
    names = tuple(window.name for window in windows)
    return replace(none, windows=names, now=now, challenger=challenger, kept=kept_of(challenger, now))


def _windows(source: str, pool: str, since: float, until: float) -> list[Instance]:
    recorded = read_placements(source, pool, since, until)
    marks = np.arange(since, until + 1.0, WINDOW_H * HOUR_S).tolist()
    found = [window_of(recorded, low, high) for low, high in pairwise(marks)]
    return [one for one in found if any(request.at_s > 0.0 for request in one.requests)]


def _costs(windows: Sequence[Instance], policy: Policy) -> tuple[float, ...]:
    """Return the mean number of open hosts of each window; every placement is checked."""
    return tuple(Case.of(one, WINDOW_H * HOUR_S).checked_cost(policy) for one in windows)
