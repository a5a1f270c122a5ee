"""Keeps account of what a fleet has cost since midnight UTC."""

from __future__ import annotations

from agent.autoscaling.state import Spend
from domain.fleet import Fleet
from domain.snapshot import Snapshot

DAY_S = 86_400.0


def dollars_per_hour(fleet: Fleet, sizes: tuple[int, ...]) -> float:
    """Return what `sizes` VMs per group cost in an hour."""
    return sum(n * price for n, price in zip(sizes, fleet.prices_per_hour, strict=True))


def account(spend: Spend, fleet: Fleet, snapshot: Snapshot, now: float) -> Spend:
    """Return the account with the time since it was last kept charged at the fleet's present size.

    What is billed is what is requested and what is still draining. A new UTC day starts at zero; a clock set back
    charges nothing.
    """
    day_start = now - now % DAY_S
    rate = dollars_per_hour(fleet, tuple(g.requested + g.draining for g in snapshot.groups))
    since = max(spend.at, day_start) if spend.at else now
    dollars = spend.dollars if spend.day_start == day_start else 0.0
    return Spend(day_start, dollars + rate * max(0.0, now - since) / 3600.0, now)
