"""VMs that may not go: how long a refusal is remembered, what it keeps out of a decision, and when it is an event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.rails.state import LoopState, RefusalMark
from domain.decisions import Event, Reason, VmRefusal
from domain.subject import fleet_subject
from domain.units import HOUR_S

FIRST_S = 120.0
"""A VM that AWS refused is left out for so long at first, twice as long after each further refusal."""
LONGEST_S = 1500.0
"""Shorter than the time after which an alarm without a new event ends."""
EVENT_AFTER = 3
"""Refusals of one VM from which on each is an event."""


def with_refusals(marks: Sequence[RefusalMark], refusals: Iterable[VmRefusal], now: float) -> tuple[RefusalMark, ...]:
    """Return the marks with each refusal counted, once while its mark holds; one over for an hour is forgotten."""
    known = {mark.vm: mark for mark in marks if now - mark.until < HOUR_S}
    for refusal in refusals:
        before = known.get(refusal.vm)
        if before is None or not before.active(now):
            times = 1 if before is None else before.times + 1
            length_s = min(LONGEST_S, FIRST_S * 2.0 ** min(times - 1, 30))
            known[refusal.vm] = RefusalMark(refusal.vm, refusal.reason, times, now + length_s, length_s)
    return tuple(known.values())


def refused_by_aws(state: LoopState, now: float) -> frozenset[str]:
    """Return the VMs that are not asked for because AWS refused them; protection is read anew each minute."""
    return frozenset(m.vm for m in state.refusals if m.reason is not Reason.PROTECTED and m.active(now))


def refusal_events(fleet: str, before: LoopState, after: LoopState, now: float) -> tuple[Event, ...]:
    """Return an event for each VM that was refused once more, and often enough."""
    counted = {mark.vm: mark.times for mark in before.refusals}
    return tuple(
        Event(fleet_subject(fleet), now, Reason.REMOVAL_REFUSED, _detail(mark), mark.vm)
        for mark in after.refusals
        if mark.times >= EVENT_AFTER and mark.times != counted.get(mark.vm)
    )


def _detail(mark: RefusalMark) -> str:
    if mark.reason is Reason.PROTECTED:
        why = "another party, or an agent whose ledger is lost, protects it from scale-in: take the protection off, "
        why += "or the VM is paid while it is idle"
    else:
        why = "AWS refuses to terminate it: see the outcomes of its scale-ins, and its scaling activities"
    return f"{mark.vm} may not go, found {mark.times} times; others go in its place: {why}"
