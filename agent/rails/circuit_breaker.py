"""Rail 13: a group whose changes keep failing rests, then may try one VM; throttles and shortages never count."""

from __future__ import annotations

from collections.abc import Sequence

from agent.autoscaling.state import Breaker
from agent.rails.base import Power, Rail, RailContext, RailLimits
from agent.rails.bounds import aws_accepts
from agent.rails.effects import Word, changing, conclude, held, shrunk, utc
from domain.decisions import Outcome, Proposal, RailEffect, Reason, Status
from domain.errors import FailureClass

NAME = "circuit_breaker"

# Throttled, unavailable, short of capacity, read-only, not yet known: none of these says that the group is broken.
_TRIPPING_FAILURES = (FailureClass.PERMANENT, FailureClass.CREDENTIALS)
_TRIPPING_REASONS = (Reason.PERMANENT_FAILURE, Reason.CREDENTIALS, Reason.OVERDUE)


def is_open(breaker: Breaker, now: float) -> bool:
    """Return whether the breaker is open; a clock set back cannot prolong that beyond its length."""
    return 0.0 < breaker.open_until - now <= breaker.length_s


def after_outcome(breaker: Breaker, outcome: Outcome, limits: RailLimits, now: float) -> Breaker:
    """Return the breaker as it stands after an intent's outcome.

    DONE and PARTIAL close it. A FAILED outcome that is permanent, about credentials or overdue counts; from
    `breaker_failures` in a row on it opens for `breaker_open_s`, doubling with each further failure up to
    `breaker_max_s`. All else changes nothing.
    """
    if outcome.status in (Status.DONE, Status.PARTIAL):
        return Breaker(breaker.group)
    tripping = outcome.failure in _TRIPPING_FAILURES if outcome.failure else outcome.reason in _TRIPPING_REASONS
    if outcome.status is not Status.FAILED or not tripping:
        return breaker
    failures = breaker.failures + 1
    beyond = failures - limits.breaker_failures
    if beyond < 0:
        return Breaker(breaker.group, failures)
    # Thirty doublings exceed any sensible maximum; the cap keeps the power from overflowing.
    length_s = min(limits.breaker_max_s, limits.breaker_open_s * 2.0 ** min(beyond, 30))
    return Breaker(breaker.group, failures, now + length_s, length_s)


def record_outcome(
    breakers: Sequence[Breaker], group: str, outcome: Outcome, limits: RailLimits, now: float
) -> tuple[Breaker, ...]:
    """Return all breakers after an outcome of the group; closed ones without failures are left out."""
    before = next((breaker for breaker in breakers if breaker.group == group), Breaker(group))
    others = tuple(breaker for breaker in breakers if breaker.group != group)
    after = after_outcome(before, outcome, limits, now)
    return (*others, after) if after.failures else others


def apply(proposal: Proposal, context: RailContext) -> tuple[Proposal, RailEffect]:
    """Hold changes of a group whose breaker is open; let a half-open one change by a single VM."""
    breakers = {breaker.group: breaker for breaker in context.state.breakers}
    words: list[Word] = []
    for index, current, asked in changing(proposal, context):
        breaker = breakers.get(context.fleet.groups[index].key)
        if breaker is None:
            continue
        failed = f"{breaker.failures} failures in a row"
        if is_open(breaker, context.now):
            why = f"circuit open after {failed}; next probe {utc(breaker.open_until)}"
            words.append(held(context, index, asked, Reason.CIRCUIT_OPEN, why))
        elif breaker.failures >= context.limits.breaker_failures and abs(asked - current) > 1:
            probe = current + 1 if asked > current else current - 1
            allowed = probe if aws_accepts(context, index, probe) else current
            why = f"after {failed} one VM is tried first"
            words.append(shrunk(context, index, asked, allowed, Reason.CIRCUIT_OPEN, why))
    return conclude(NAME, proposal, words)


RAIL = Rail(NAME, Power.SHRINK, apply)
