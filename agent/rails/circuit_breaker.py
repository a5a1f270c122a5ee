"""Rail 14, and what outcomes do to the circuit breaker of a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.rails.base import Power, RailContext, RailLimits, Word, changing, held, rail, shrunk, utc
from agent.rails.limits import aws_accepts
from agent.rails.state import Breaker
from domain.decisions import Outcome, Proposal, Reason, Status
from domain.errors import FailureClass

# Throttled, unavailable, short of capacity, read-only, not yet known: none of these says that the group is broken.
_TRIPPING_FAILURES = (FailureClass.PERMANENT, FailureClass.CREDENTIALS)
_TRIPPING_REASONS = (Reason.PERMANENT_FAILURE, Reason.CREDENTIALS, Reason.OVERDUE)


def is_open(breaker: Breaker, now: float) -> bool:
    """Return whether the breaker is open; a clock set back cannot prolong that beyond its length."""
    return 0.0 < breaker.open_until - now <= breaker.length_s


def held_open(breakers: Sequence[Breaker], thing: str, now: float, trials: int | None = None) -> str | None:
    """Return why a change of a thing is held, None when it may be made.

    trials: failures in a row from which on one VM is tried first; None when this change is that trial.
    """
    breaker = next((breaker for breaker in breakers if breaker.group == thing), None)
    if breaker is None:
        return None
    failed = f"{breaker.failures} failures in a row"
    if is_open(breaker, now):
        return f"circuit open after {failed}; next probe {utc(breaker.open_until)}"
    if trials is not None and breaker.failures >= trials:
        return f"after {failed} one VM is tried first"
    return None


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


@rail(Power.SHRINK)
def circuit_breaker(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 14: a group whose changes keep failing rests, then may try one VM; throttles and shortages never count.

    Hold changes of a group whose breaker is open; let a half-open one change by a single VM.
    """
    breakers = context.state.breakers
    for index, current, asked in changing(proposal, context):
        key = context.fleet.groups[index].key
        if (why := held_open(breakers, key, context.now)) is not None:
            yield held(context, index, asked, Reason.CIRCUIT_OPEN, why)
            continue
        trials = context.limits.breaker_failures if abs(asked - current) > 1 else None
        if (why := held_open(breakers, key, context.now, trials)) is not None:
            probe = current + 1 if asked > current else current - 1
            allowed = probe if aws_accepts(context, index, probe) else current
            yield shrunk(context, index, asked, allowed, Reason.CIRCUIT_OPEN, why)
