"""Carries the loop's deadlines over a step of the wall clock, so that none vanishes and none lasts longer."""

from __future__ import annotations

from dataclasses import replace

from agent.state import LoopState


def shifted(state: LoopState, step_s: float) -> LoopState:
    """Return the state with every stored time moved by `step_s`, the seconds by which the wall clock was set."""
    return replace(
        state,
        cooldowns=tuple(replace(c, until=c.until + step_s) for c in state.cooldowns),
        changes=tuple(replace(c, at=c.at + step_s) for c in state.changes),
        capacity=tuple(replace(m, until=m.until + step_s) for m in state.capacity),
        breakers=tuple(replace(b, open_until=b.open_until + step_s) if b.open_until else b for b in state.breakers),
        spend=replace(state.spend, at=state.spend.at + step_s) if state.spend.at else state.spend,
        interrupted={vm: at + step_s for vm, at in state.interrupted.items()},
        seen_interruptions={vm: at + step_s for vm, at in state.seen_interruptions.items()},
        last_busy_at=None if state.last_busy_at is None else state.last_busy_at + step_s,
        last_bin_end=None,
    )
