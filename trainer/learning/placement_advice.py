"""The advice on a pool's policy by its recorded containers (`trainer.placement.advice`), left for the agent.

A filling begins with a request for a pool without containers and ends when the pool is empty again. It counts where it
placed LEAST_CONTAINERS or more and at most STILL of them ended before its last request. Where fillings have MOST_FILLED
of the containers of the record, they decide, else the thirds of the record. A filling that began before the record is
left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from agent.placement.advice import PolicyAdvice, advice_file, read_advice
from domain.errors import BadInput
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import Policy
from domain.units import DAY_S
from trainer.kit.files import replace_file
from trainer.learning.placements import Life, PlacementRecord, window_of
from trainer.placement.advice import (
    LEAST_DAYS,
    LEAST_FILLINGS,
    LEAST_GAIN,
    ORDERS,
    Check,
    Replayed,
    better_by_days,
    better_by_fillings,
    kept_a_day,
    replayed_days,
    replayed_fillings,
)

LEAST_CONTAINERS: Final = 20
STILL: Final = 0.1
MOST_FILLED: Final = 0.9
MOST_DAYS: Final = 14.0
"""Of a record: an older one is of other times."""
MOST_FILLINGS: Final = 100
"""The newest are replayed: the file of the advice has a cost of each under each policy."""
MOST_PLACES: Final = 20_000
"""Applications times hosts up to which policies that count places are replayed."""
MOST_REJECTED: Final = 0.01
"""Share of the containers, all of which had a host, that may find none in the replay: the fleet may be smaller now."""


def advise(
    recorded: PlacementRecord,
    policies: Mapping[str, Policy],
    in_use: tuple[str, Policy],
    before: PolicyAdvice | None,
    now: float,
    check: Check = lambda _: None,
) -> PolicyAdvice:
    """Return the advice on a record.

    policies: every bundled one, by word. in_use: word and policy. before: the last advice, None for none. now: epoch
    seconds. check: called with the policy before each replay, may raise.
    """
    word, policy = in_use
    places = len(recorded.basis.applications) * sum(kind.count or 0 for kind in recorded.basis.hosts)
    candidates = {
        name: one
        for name, one in policies.items()
        if one.digest != policy.digest and (places <= MOST_PLACES or not one.counts_places)
    } | {word: policy}
    begin = max(recorded.since, recorded.lives[0].begin)
    length_s = recorded.until - begin
    played = fillings_of(recorded)[-MOST_FILLINGS:]
    if len(played) >= LEAST_FILLINGS:
        found = replayed_fillings(played, candidates, check)
        better, what = better_by_fillings(found, word), f"{len(played)} recorded fillings"
        unit, orders = "hosts in the mean", 1 + ORDERS
    else:
        found, played = {}, (window_of(recorded, begin, recorded.until),)
        if length_s >= LEAST_DAYS * DAY_S:
            found = replayed_days(*played, candidates, length_s, check)
        better, what = better_by_days(found, word, length_s), f"{length_s / DAY_S:.1f} recorded days"
        unit, orders = "host-hours", 1
    asked = orders * sum(request.count for one in played for request in one.requests)
    rejected = found[word].rejected / asked if found else 0.0
    better = better if rejected <= MOST_REJECTED else ""
    same = before is not None and before.policy_digest == policy.digest
    last, changed_at = (before.advised, before.changed_at) if before is not None and same else ("", 0.0)
    advised, changed_at = kept_a_day(better, last, changed_at, now)
    why = _why(found, word, better, what, unit)
    if rejected > MOST_REJECTED:
        why = f"in {what} {word} has no host for {rejected:.1%} of the containers: the pool had more hosts then"
    if advised != better:
        why += "; advice changes once a day"
    costs = {name: one.costs for name, one in found.items()}
    return PolicyAdvice(recorded.pool, now, word, policy.digest, advised, why, changed_at, length_s / DAY_S, costs)


def _why(found: Mapping[str, Replayed], word: str, better: str, what: str, unit: str) -> str:
    if not found:
        return f"{what}, {LEAST_DAYS:g} are needed, or {LEAST_FILLINGS} fillings"
    gains = {name: 1.0 - sum(one.costs) / max(sum(found[word].costs), 1e-9) for name, one in found.items()}
    if better:
        parts = " to ".join(f"{gain:.1%}" for gain in _ends(found[better], found[word]))
        return f"in {what} {better} takes {gains[better]:.1%} fewer {unit} than {word} (by part {parts})"
    best = max((name for name in found if name != word), key=lambda name: gains[name])
    return f"in {what} no policy is surely {LEAST_GAIN:.0%} below {word}; next {best} with {-gains[best]:+.1%} {unit}"


def _ends(one: Replayed, other: Replayed) -> tuple[float, float]:
    """Return the lowest and the highest gain by part."""
    gains = [1.0 - mine / max(theirs, 1e-9) for mine, theirs in zip(one.costs, other.costs, strict=True)]
    return min(gains), max(gains)


def fillings_of(recorded: PlacementRecord) -> tuple[Instance, ...]:
    """Return the fillings of a record, oldest first; none where other containers are more than a tenth of all.

    Each is an instance that begins with an empty pool. A last one under way is not among them.
    """
    stretches: list[list[Life]] = []
    ends = -math.inf
    for life in recorded.lives:
        if life.begin >= ends:
            stretches.append([])
        stretches[-1].append(life)
        ends = max(ends, max(life.ends) if len(life.ends) == life.count else math.inf)
    filled = [one for one in stretches if one[0].begin >= recorded.since and _is_filled(one)]
    if ends >= recorded.until and stretches[-1] in filled:
        filled.remove(stretches.pop())
    counts = [sum(life.count for one in group for life in one) for group in (filled, stretches)]
    if counts[0] < MOST_FILLED * counts[1]:
        return ()
    # A window has the requests after its begin, here of no other filling: the next may follow within a second.
    return tuple(
        window_of(replace(recorded, lives=tuple(one)), one[0].begin - 1.0, max(max(life.ends) for life in one) + 1.0)
        for one in filled
    )


def _is_filled(stretch: Sequence[Life]) -> bool:
    """Return whether a stretch between two moments without containers is a filling."""
    containers, last = sum(life.count for life in stretch), stretch[-1].begin
    ended = sum(end < last for life in stretch for end in life.ends)
    return containers >= LEAST_CONTAINERS and ended <= STILL * containers


def last_advice(models: Path, pool: str) -> PolicyAdvice | None:
    """Return the advice before, None where there is none that can be read."""
    try:
        return read_advice(models, pool)
    except (OSError, BadInput):
        return None


def leave(models: Path, advice: PolicyAdvice) -> Path:
    """Replace a pool's advice, whole or not at all; return its file. OSError when the directory takes no file."""
    models.mkdir(parents=True, exist_ok=True)
    file = advice_file(models, advice.pool)
    replace_file(file, json.dumps(asdict(advice), sort_keys=True, indent=1, allow_nan=False) + "\n")
    return file
