"""The rails in their one fixed order, and the pass of a proposal through all of them."""

from __future__ import annotations

from dataclasses import replace

from agent.rails import (
    bounds,
    budget,
    capacity_memory,
    circuit_breaker,
    cooldown,
    finite_and_schema,
    flap_guard,
    group_state,
    leader_epoch,
    mode,
    pause_and_pin,
    sickness,
    staleness_and_coverage,
    step_limit,
    warmup,
)
from agent.rails.base import Rail, RailContext
from agent.rails.effects import utc
from domain.decisions import Direction, Proposal, RailEffect, Verdict

_BEFORE_BOUNDS: tuple[Rail, ...] = (
    finite_and_schema.RAIL,
    staleness_and_coverage.RAIL,
    sickness.RAIL,
    pause_and_pin.RAIL,
)
# What a move to another VM type must pass once more.
_SIZING: tuple[Rail, ...] = (
    bounds.RAIL,
    step_limit.RAIL,
    cooldown.RAIL,
    warmup.RAIL,
    flap_guard.RAIL,
    budget.RAIL,
    capacity_memory.RAIL,
)
_ADMISSION: tuple[Rail, ...] = (group_state.RAIL, circuit_breaker.RAIL, leader_epoch.RAIL, mode.RAIL)

RAILS: tuple[Rail, ...] = (*_BEFORE_BOUNDS, *_SIZING, *_ADMISSION)


def apply_rails(proposal: Proposal, context: RailContext) -> tuple[Proposal, tuple[RailEffect, ...]]:
    """Return what remains of the proposal, and every rail's effect in the order in which they were asked.

    Each effect's `before` is the `after` of the one before it. A move to another VM type starts over at the bounds,
    once per move and at most once per group; changing effects of such a pass say "after the move". A group that takes
    VMs over is not held by a cool-down that began before the shortage: they were decided then, and did not come. When
    the snapshot is of other groups than the fleet's, no rail but the first is asked and its sizes are held.
    """
    current, first = finite_and_schema.apply(proposal, context)
    effects = [first]
    if not finite_and_schema.snapshot_fits(context):
        return current, tuple(effects)
    current, told = _run(_BEFORE_BOUNDS[1:], current, context)
    effects += told
    counts_pending, sizing = current.counts_pending, context
    for repeat in range(len(context.fleet.groups) + 1):
        current, told = _run(_SIZING, current, sizing)
        effects += told if repeat == 0 else [_after_move(effect) for effect in told]
        if told[-1].verdict is not Verdict.MOVED:
            break
        sizing = _after_shortage(_with_counted(sizing, told[-1]), told[-1])
        current = replace(current, counts_pending=counts_pending)
    current, told = _run(_ADMISSION, replace(current, counts_pending=True), context)
    return current, (*effects, *told)


def replaceable(
    interrupted: tuple[tuple[str, str], ...], context: RailContext
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return which interrupted VMs (group key, VM) may be replaced now, and a sentence for each group that waits.

    A replacement takes a VM and brings one, so a pause of either direction holds it; its size stays, which leaves the
    circuit breaker: an open one holds the group, a half-open one lets a single VM be tried.
    """
    pause = pause_and_pin.holding(context.controls, (Direction.OUT, Direction.IN), context.now)
    breakers = {breaker.group: breaker for breaker in context.state.breakers}
    allowed: list[tuple[str, str]] = []
    waiting: dict[str, str] = {}
    for key, vm in interrupted:
        breaker = breakers.get(key)
        if pause is not None:
            waiting[key] = pause_and_pin.pause_sentence(pause, context.now)
        elif breaker is not None and circuit_breaker.is_open(breaker, context.now):
            failed = f"{breaker.failures} failures in a row"
            waiting[key] = f"circuit open after {failed}; next probe {utc(breaker.open_until)}"
        elif breaker is not None and breaker.failures >= context.limits.breaker_failures and key in dict(allowed):
            waiting[key] = f"after {breaker.failures} failures in a row one VM is tried first"
        else:
            allowed.append((key, vm))
    return tuple(allowed), tuple(f"{key}: replacement waits: {why}" for key, why in waiting.items())


def _run(rails: tuple[Rail, ...], proposal: Proposal, context: RailContext) -> tuple[Proposal, list[RailEffect]]:
    effects = []
    for rail in rails:
        proposal, effect = rail.apply(proposal, context)
        effects.append(effect)
    return proposal, effects


def _after_move(effect: RailEffect) -> RailEffect:
    return replace(effect, detail=f"after the move: {effect.detail}") if effect.detail else effect


def _with_counted(context: RailContext, move: RailEffect) -> RailContext:
    """Return the context without the booting VMs of groups that grew before the move: they were taken off already."""
    groups = tuple(
        replace(group, booting=0) if asked > group.requested else group
        for group, asked in zip(context.snapshot.groups, move.before, strict=True)
    )
    return replace(context, snapshot=replace(context.snapshot, groups=groups))


def _after_shortage(context: RailContext, move: RailEffect) -> RailContext:
    """Return the context without the cool-downs of the groups that the move lets grow, if they began before it.

    One that began with or after the shortage holds: so a shortage excuses one change of a group, not one a minute.
    """
    groups = context.fleet.groups
    short = {group.vm_type.name for k, group in enumerate(groups) if move.after[k] < move.before[k]}
    short_since = max(
        (m.until - m.length_s for m in context.state.capacity if m.vm_type in short), default=float("-inf")
    )
    grown = {group.key for k, group in enumerate(groups) if move.after[k] > move.before[k]}
    excused = {
        cooldown.group
        for cooldown in context.state.cooldowns
        if cooldown.group in grown
        and cooldown.direction is Direction.OUT
        and cooldown.until - cooldown.length_s < short_since
    }
    return replace(
        context,
        state=replace(
            context.state,
            cooldowns=tuple(
                c for c in context.state.cooldowns if c.group not in excused or c.direction is not Direction.OUT
            ),
        ),
        snapshot=replace(
            context.snapshot,
            groups=tuple(
                replace(group, cooldown_out_s=0.0) if group.key in excused else group
                for group in context.snapshot.groups
            ),
        ),
    )
