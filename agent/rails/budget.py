"""Rail 11: dollars per hour and per UTC day, and the account of what a fleet has cost since midnight UTC."""

from __future__ import annotations

import math
from collections.abc import Iterable

from agent.rails.base import Power, RailContext, Word, changing, rail, shrunk
from agent.rails.circuit_breaker import circuit_breaker
from agent.rails.limits import bounds_of, group_state
from agent.rails.state import Spend
from domain.decisions import Proposal, Reason
from domain.fleet import Fleet
from domain.snapshot import Snapshot
from domain.units import DAY_S, HOUR_S


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
    return Spend(day_start, dollars + rate * max(0.0, now - since) / HOUR_S, now)


def forecast(context: RailContext, rate: float) -> float:
    """Return this UTC day's dollars if the fleet costs `rate` per hour for one more hour and its minimum thereafter."""
    spent, hour, later = _rest_of_day(context)
    return spent + rate * hour + later


@rail(Power.SHRINK)
def budget(proposal: Proposal, context: RailContext) -> Iterable[Word]:
    """Rail 11: dollars per hour and per UTC day limit scale-out; they force no scale-in and hold no falling bill.

    Take VMs off increases, the most expensive first, until the bill per hour and the forecast to midnight UTC fit.

    Pins and the safe floor are held to the budget too. What counts is the bill after the decreases that later rails
    will let through; while it is over budget anyway, increases are allowed as far as decreases pay for them.
    """
    limits, fleet, current = context.limits, context.fleet, context.snapshot.requested
    if limits.budget_per_hour is None and limits.budget_per_day is None:
        return ()
    desired = _without_held_decreases(proposal, context)
    asked_rate = dollars_per_hour(fleet, tuple(desired))
    ceiling = max(_allowed_rate(context), dollars_per_hour(fleet, current))
    tolerance = 1e-9 * max(1.0, ceiling)
    words: list[Word] = []
    growing = [(index, asked) for index, now, asked in changing(proposal, context) if asked > now]
    for index, asked in sorted(growing, key=lambda item: (-fleet.prices_per_hour[item[0]], item[0])):
        excess = dollars_per_hour(fleet, tuple(desired)) - ceiling - tolerance
        price = fleet.prices_per_hour[index]
        if excess <= 0.0 or price <= 0.0:
            break
        increase = asked - current[index]
        dropped = increase if excess >= price * increase else math.ceil(excess / price)
        desired[index] -= dropped
        why = _sentence(context, asked_rate)
        words.append(shrunk(context, index, asked, asked - dropped, Reason.OVER_BUDGET, why))
    return sorted(words, key=lambda word: word.index)


def _without_held_decreases(proposal: Proposal, context: RailContext) -> list[int]:
    """Return the desired sizes, with decreases as far as the group's state and the circuit breaker will admit them."""
    admitted = circuit_breaker.apply(group_state.apply(proposal, context)[0], context)[0].desired
    sizes = zip(proposal.desired, admitted, context.snapshot.requested, strict=True)
    return [later if asked < current else asked for asked, later, current in sizes]


def _rest_of_day(context: RailContext) -> tuple[float, float, float]:
    """Return dollars spent today, hours (at most one) that a rate decided now lasts, and dollars at minimum after."""
    fleet, now = context.fleet, context.now
    spend = account(context.state.spend, fleet, context.snapshot, now)
    rest = spend.day_start + DAY_S - now
    hour = min(HOUR_S, rest)
    smallest = tuple(bounds_of(context, index)[0] for index in range(len(fleet.groups)))
    return spend.dollars, hour / HOUR_S, dollars_per_hour(fleet, smallest) * (rest - hour) / HOUR_S


def _allowed_rate(context: RailContext) -> float:
    allowed = math.inf
    if context.limits.budget_per_hour is not None:
        allowed = context.limits.budget_per_hour
    if context.limits.budget_per_day is not None:
        spent, hour, later = _rest_of_day(context)
        left = context.limits.budget_per_day - spent - later
        # In the last instants before midnight a rate costs next to nothing today, and the division could overflow.
        allowed = min(allowed, left / max(hour, 1e-9))
    return allowed


def _sentence(context: RailContext, rate: float) -> str:
    limits, parts = context.limits, []
    if limits.budget_per_hour is not None and rate > limits.budget_per_hour:
        parts.append(f"${rate:.3f} per hour asked, budget ${limits.budget_per_hour:.3f}")
    if limits.budget_per_day is not None and forecast(context, rate) > limits.budget_per_day:
        spent = _rest_of_day(context)[0]
        parts.append(
            f"${spent:.2f} spent today, forecast to midnight UTC ${forecast(context, rate):.2f}, "
            f"budget ${limits.budget_per_day:.2f}"
        )
    return " and ".join(parts)
