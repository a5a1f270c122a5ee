"""The rails in their one fixed order, and the pass of a proposal through all of them."""

from __future__ import annotations

from dataclasses import replace

from agent.rails.base import Rail, RailContext
from agent.rails.budget import budget
from agent.rails.capacity_memory import capacity_memory
from agent.rails.circuit_breaker import circuit_breaker, held_open
from agent.rails.inputs import finite_and_schema, sickness, snapshot_fits, staleness_and_coverage
from agent.rails.limits import bounds, group_state, step_limit
from agent.rails.permissions import holding, leader_epoch, mode, pause_and_pin, pause_sentence
from agent.rails.schedule import schedule
from agent.rails.stability import cooldown, flap_guard, warmup
from domain.decisions import Direction, Proposal, RailEffect, Verdict

_BEFORE_BOUNDS: tuple[Rail, ...] = (finite_and_schema, staleness_and_coverage, sickness, pause_and_pin)
# What a move to another VM type must pass once more.
_SIZING: tuple[Rail, ...] = (schedule, bounds, step_limit, cooldown, warmup, flap_guard, budget, capacity_memory)
_ADMISSION: tuple[Rail, ...] = (group_state, circuit_breaker, leader_epoch, mode)

RAILS: tuple[Rail, ...] = (*_BEFORE_BOUNDS, *_SIZING, *_ADMISSION)


def apply_rails(proposal: Proposal, context: RailContext) -> tuple[Proposal, tuple[RailEffect, ...]]:
    """Return what remains of the proposal, and every rail's effect in the order in which they were asked.

    Each effect's `before` is the `after` of the one before it. The schedule is asked where the fleet has windows, so
    that what was decided without any is replayed as it was. A move to another VM type starts over at the schedule,
    once per move and at most once per group; changing effects of such a pass say "after the move". A group that takes
    VMs over is not held by a cool-down that began before the shortage: they were decided then, and did not come. When
    the snapshot is of other groups than the fleet's, no rail but the first is asked and its sizes are held.
    """
    current, first = finite_and_schema.apply(proposal, context)
    effects = [first]
    if not snapshot_fits(context):
        return current, tuple(effects)
    current, ran = _run(_BEFORE_BOUNDS[1:], current, context)
    effects += ran
    counts_pending, sizing = current.counts_pending, context
    for repeat in range(len(context.fleet.groups) + 1):
        current, ran = _run(_SIZING, current, sizing)
        effects += ran if repeat == 0 else [_after_move(effect) for effect in ran]
        if ran[-1].verdict is not Verdict.MOVED:
            break
        sizing = _after_shortage(_with_counted(sizing, ran[-1]), ran[-1])
        current = replace(current, counts_pending=counts_pending)
    current, ran = _run(_ADMISSION, replace(current, counts_pending=True), context)
    return current, (*effects, *ran)


def replaceable(
    interrupted: tuple[tuple[str, str], ...], context: RailContext
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return which interrupted VMs (group key, VM) may be replaced now, and a sentence for each group that waits.

    A replacement takes a VM and brings one, so a pause of either direction holds it; its size stays, which leaves the
    circuit breaker: an open one holds the group, a half-open one lets a single VM be tried.
    """
    pause = holding(context.controls, (Direction.OUT, Direction.IN), context.now)
    allowed: list[tuple[str, str]] = []
    waiting: dict[str, str] = {}
    for key, vm in interrupted:
        trials = context.limits.breaker_failures if key in dict(allowed) else None
        why = held_open(context.state.breakers, key, context.now, trials)
        if pause is not None:
            waiting[key] = pause_sentence(pause, context.now)
        elif why is not None:
            waiting[key] = why
        else:
            allowed.append((key, vm))
    return tuple(allowed), tuple(f"{key}: replacement waits: {why}" for key, why in waiting.items())


def _run(rails: tuple[Rail, ...], proposal: Proposal, context: RailContext) -> tuple[Proposal, list[RailEffect]]:
    effects = []
    for rail in rails:
        if rail is schedule and not context.windows:
            continue
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
        rest.group
        for rest in context.state.cooldowns
        if rest.group in grown and rest.direction is Direction.OUT and rest.until - rest.length_s < short_since
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
