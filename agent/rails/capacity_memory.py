"""Rail 12, and how long a shortage of a VM type in a zone is remembered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.rails.base import Power, RailContext, RailLimits, Word, changing, held, rail, utc
from agent.rails.limits import bounds_of
from agent.rails.permissions import active_pin
from agent.rails.state import CapacityMark
from domain.decisions import CapacityShortage, Origin, Proposal, Reason, Verdict


def record_shortage(
    marks: Sequence[CapacityMark], shortages: Sequence[CapacityShortage], now: float, limits: RailLimits
) -> tuple[CapacityMark, ...]:
    """Return the marks that still hold, with each shortage marked for `capacity_memory_s` from now."""
    fresh = {(s.vm_type, s.zone): s.failing for s in shortages}
    kept = (mark for mark in marks if mark.active(now) and (mark.vm_type, mark.zone) not in fresh)
    until, length_s = now + limits.capacity_memory_s, limits.capacity_memory_s
    added = (CapacityMark(*place, until, length_s, failing) for place, failing in sorted(fresh.items()))
    return (*kept, *added)


def with_failing(
    marks: tuple[CapacityMark, ...], vm_type: str, at: float, now: float, limits: RailLimits
) -> tuple[CapacityMark, ...]:
    """Return the marks with a type left alone whose VMs end before they are in service; `at`: the newest that did."""
    mark = CapacityMark(vm_type, "", at + limits.capacity_memory_s, limits.capacity_memory_s, failing=True)
    if not mark.active(now) or any(
        one.until >= mark.until for one in marks if (one.vm_type, one.zone) == (vm_type, "")
    ):
        return marks
    return (*(one for one in marks if (one.vm_type, one.zone) != (vm_type, "")), mark)


def short_until(marks: Sequence[CapacityMark], vm_type: str, zones: Sequence[str], now: float) -> float | None:
    """Return when a type may be asked for again; None means now, for some zone is not marked (no zones: any)."""
    until: dict[str, float] = {}
    for mark in marks:
        if mark.vm_type == vm_type and mark.active(now):
            until[mark.zone] = max(mark.until, until.get(mark.zone, 0.0))
    everywhere = until.get("")
    if not zones:
        return everywhere
    per_zone = [max(until.get(zone, 0.0), everywhere or 0.0) for zone in zones]
    return min(per_zone) if min(per_zone) > 0.0 else None


def shortage_until(context: RailContext, index: int) -> float | None:
    """Return when the group's type may be asked for again, None for now."""
    vm_type, zones = context.fleet.groups[index].vm_type.name, context.snapshot.groups[index].zones
    return short_until(context.state.capacity, vm_type, zones, context.now)


def no_type(context: RailContext, index: int) -> str:
    """Return why the group's type is not asked for, as a phrase."""
    vm_type = context.fleet.groups[index].vm_type.name
    if any(mark.failing and mark.vm_type == vm_type and mark.active(context.now) for mark in context.state.capacity):
        return f"launches of {vm_type} end before they are in service"
    return f"no {vm_type} in {_zones(context, index)}"


@rail(Power.REPLACE)
def capacity_memory(proposal: Proposal, context: RailContext) -> Iterator[Word]:
    """Rail 12: a VM type that AWS just did not have in any zone of the group is not asked for again; the next type is.

    Move the increase of the first group without capacity to the next type; hold increases that no type can take.

    The cheapest type per core comes next, among equals the one nearest in cores; as many VMs as give the same cores,
    rounded up. Moved increases pass the rails from the bounds on once more, which is why one call moves one group. What
    was asked of this very group is held instead of moved, or it would be moved again every minute: a pin, the minimum,
    and a safe floor whose cores the fleet has already.
    """
    moved = False
    for index, current, asked in changing(proposal, context):
        until = shortage_until(context, index) if asked > current else None
        if until is None:
            continue
        place = no_type(context, index)
        next_attempt = f"next attempt {utc(until)}"
        cores, obstacle = _movable_cores(proposal, context, index)
        following = _next_type(proposal, context, index) if cores > 0 else None
        if following is None:
            why = f"{place}; {obstacle if cores <= 0 else 'no other type can take it'}; {next_attempt}"
            yield held(context, index, asked, Reason.NO_CAPACITY, why)
        elif not moved:
            moved = True
            sentence = f"{place}; trying {context.fleet.groups[following].vm_type.name}; {next_attempt}"
            yield from _move(proposal, context, index, following, cores, sentence)


def _movable_cores(proposal: Proposal, context: RailContext, index: int) -> tuple[int, str]:
    """Return how many cores of the group's increase another type may give instead; if none, why not."""
    current, asked, of = context.snapshot.requested, proposal.desired[index], context.fleet.cores
    if _is_pinned(context, index):
        return 0, "the pin asks for this type"
    increase = (asked - max(current[index], bounds_of(context, index)[0])) * of[index]
    if increase <= 0:
        return 0, "the minimum asks for this type"
    if proposal.origin is not Origin.FLOOR:
        return increase, ""
    without = (*proposal.desired[:index], current[index], *proposal.desired[index + 1 :])
    lack = sum(n * cores for n, cores in zip(context.limits.safe_floor, of, strict=False))
    lack -= sum(n * cores for n, cores in zip(without, of, strict=True))
    return min(increase, max(0, lack)), "the fleet has the cores of the safe floor"


def _move(
    proposal: Proposal, context: RailContext, source: int, target: int, cores: int, sentence: str
) -> tuple[Word, Word]:
    groups = context.fleet.groups
    current, asked = context.snapshot.groups[source].requested, proposal.desired[source]
    own = proposal.desired[target]
    size = min(own - (-cores // groups[target].vm_type.cores), bounds_of(context, target)[1])
    why = f"{sentence} ({groups[source].key} {asked} -> {current}, {groups[target].key} {own} -> {size})"
    return (
        Word(source, current, Verdict.MOVED, Reason.CAPACITY_FALLBACK, "", why),
        Word(target, size, Verdict.MOVED, Reason.CAPACITY_FALLBACK, "", why),
    )


def _next_type(proposal: Proposal, context: RailContext, source: int) -> int | None:
    """Return the group to try instead: itself not short, with room, able to launch, no open intent, not pinned."""
    groups = context.fleet.groups
    cores = groups[source].vm_type.cores
    best: tuple[float, int, bool, int] | None = None
    for index, group in enumerate(groups):
        state = context.snapshot.groups[index]
        usable = (
            index != source
            and group.vm_type.name != groups[source].vm_type.name
            and shortage_until(context, index) is None
            and proposal.desired[index] < bounds_of(context, index)[1]
            and "Launch" not in state.suspended
            and state.key not in context.in_flight
            and not _is_pinned(context, index)
        )
        if usable:
            vm = group.vm_type
            # Rounded, so that types of one family whose price grows with the cores count as equal.
            rank = (round(vm.price_per_hour / vm.cores, 9), abs(vm.cores - cores), vm.cores < cores, index)
            best = rank if best is None else min(best, rank)
    return None if best is None else best[-1]


def _is_pinned(context: RailContext, index: int) -> bool:
    pin = active_pin(context)
    return pin is not None and context.fleet.groups[index].key in pin.desired


def _zones(context: RailContext, index: int) -> str:
    return ", ".join(context.snapshot.groups[index].zones) or "any zone"
