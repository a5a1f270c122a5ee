"""Advice on the policy of a pool: its record, replayed under every bundled policy.

Rule of a pool whose containers end (placement with lifetimes, §6; not measured there): at least LEAST_DAYS of record,
and host-hours lower by LEAST_GAIN in each of three disjoint thirds of it. Of the policies that pass, the one with the
lowest host-hours in all is advised. A policy that rejects more containers than the one in use is never advised.

Rule of a pool that fills again and again: after LEAST_FILLINGS recorded fillings, each is replayed in its order and in
ORDERS others; the policy that opens the fewest hosts in the mean is advised, if they are fewer by LEAST_GAIN.

Advice changes at most once a day, and never switches a policy. Figures: docs/evidence/placement.md#advice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from agent.placement.choosing import SHIPPED_SMALL, read_policy
from agent.placement.settings import BUNDLED, LEARNED, SMALL_POOLS
from domain.rules.placement.instance import Instance
from domain.rules.placement.policies import NAMED, Policy
from domain.units import DAY_S
from simulator.placement.engine import arrays_of, events_of, play, play_orders
from simulator.placement.instances import shuffle_order

LEAST_DAYS: Final = 3.0
LEAST_GAIN: Final = 0.02
PARTS: Final = 3
LEAST_FILLINGS: Final = 2
ORDERS: Final = 10
"""Other orders of a filling, so that one large request at its end does not decide."""
FIRST_ORDER: Final = 60_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """A policy on a record. costs: host-hours of each third, or mean hosts of each filling. rejected: containers."""

    costs: tuple[float, ...]
    rejected: int


def bundled(learned: Policy) -> dict[str, Policy]:
    """Return every policy that needs no file of the operator, by its word; learned: the meaning of `learned`."""
    files = {LEARNED: learned, SMALL_POOLS: read_policy(SHIPPED_SMALL)}
    return {word: files.get(word) or NAMED[word] for word in BUNDLED}


Check = Callable[[str], None]
"""Called with the name of a policy before each of its replays; may raise."""


def replayed_days(
    instance: Instance, policies: Mapping[str, Policy], length_s: float, check: Check = lambda _: None
) -> dict[str, Replayed]:
    """Return the host-hours of each third of a record of this length under each policy."""
    arrays, (happens, times) = arrays_of(instance), events_of(instance)
    end, marks = int(np.searchsorted(times, length_s, side="right")), thirds_of(length_s)
    found = {}
    for name, policy in policies.items():
        check(name)
        made = play(instance, policy, events=(happens[:end], times[:end]), arrays=arrays, until_s=length_s, marks=marks)
        hours = np.diff([0.0, *made.hours_to, made.host_hours])
        found[name] = Replayed(tuple(hours.tolist()), made.rejected)
    return found


def thirds_of(length_s: float) -> list[float]:
    """Return the ends of the parts of a record but the last one."""
    return [length_s * (k + 1) / PARTS for k in range(PARTS - 1)]


def replayed_fillings(
    fillings: Sequence[Instance], policies: Mapping[str, Policy], check: Check = lambda _: None
) -> dict[str, Replayed]:
    """Return the mean hosts of each filling over its order and ORDERS others; releases within them are left out."""
    rows: dict[str, list[tuple[float, int]]] = {name: [] for name in policies}
    for filling in fillings:
        one = replace(filling, releases=())
        given = np.arange(len(one.requests))
        others = [shuffle_order(len(one.requests), FIRST_ORDER + k) for k in range(ORDERS)]
        orders, arrays = np.array([given, *others], dtype=np.int64), arrays_of(one)
        for name, policy in policies.items():
            check(name)
            found = play_orders(one, policy, orders, arrays)
            rows[name].append((float(found[:, 0].mean()), int(found[:, 1].sum())))
    return {name: Replayed(tuple(hosts for hosts, _ in row), sum(n for _, n in row)) for name, row in rows.items()}


def better_by_days(found: Mapping[str, Replayed], in_use: str, length_s: float) -> str:
    """Return the policy that the rule of days advises, "" for none."""
    if length_s < LEAST_DAYS * DAY_S:
        return ""
    now = found[in_use]
    passed = [
        name
        for name, one in found.items()
        if one.rejected <= now.rejected
        and all(
            mine <= (1.0 - LEAST_GAIN) * theirs and theirs > 0.0
            for mine, theirs in zip(one.costs, now.costs, strict=True)
        )
    ]
    return min(passed, key=lambda name: sum(found[name].costs), default="")


def better_by_fillings(found: Mapping[str, Replayed], in_use: str) -> str:
    """Return the policy that the rule of fillings advises, "" for none."""
    now = found[in_use]
    if len(now.costs) < LEAST_FILLINGS:
        return ""
    allowed = [name for name, one in found.items() if one.rejected <= now.rejected]
    best = min(allowed, key=lambda name: sum(found[name].costs))
    return best if sum(found[best].costs) <= (1.0 - LEAST_GAIN) * sum(now.costs) else ""


def kept_a_day(advised: str, before: str, changed_at: float, now: float) -> tuple[str, float]:
    """Return the advice and since when: a change within a day of the last one waits. "" for no advice."""
    if advised == before or 0.0 <= now - changed_at < DAY_S:
        return before, changed_at
    return advised, now
