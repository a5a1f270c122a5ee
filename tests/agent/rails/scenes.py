"""Scenes for the rails' tests: three groups at noon, healthy and calm, with what a test wants otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent.rails.base import Rail, RailContext, RailLimits
from agent.rails.state import LoopState
from domain.controls import Controls, Pause, PauseScope, Pin
from domain.decisions import Mode, Proposal, RailEffect, Reason, Verdict
from domain.fleet import Fleet, Group, VmType
from domain.snapshot import GroupSnapshot, Snapshot

NOON = 1_795_176_000.0  # 2026-11-20 12:00:00 UTC
TYPES = (
    VmType("m5a.large", 2, 8.0, 0.086),
    VmType("m5a.xlarge", 4, 16.0, 0.172),
    VmType("m5a.2xlarge", 8, 32.0, 0.344),
)
KEYS = ("workers_m", "workers_l", "workers_xl")


def fleet(maximum: int = 20, minimum: int = 0, size: int = 3) -> Fleet:
    """A fleet of the first `size` groups."""
    pairs = zip(KEYS[:size], TYPES, strict=False)
    return Fleet("web", tuple(Group(key, f"web-{key}", vm_type, minimum, maximum) for key, vm_type in pairs))


def group(key: str, requested: int, **other: Any) -> GroupSnapshot:
    """A group whose VMs are all warm, mature and removable, within AWS's bounds 0..20 in two zones."""
    calm: dict[str, Any] = {
        "requested": requested,
        "in_service": requested,
        "warm": requested,
        "booting": 0,
        "overdue": 0,
        "draining": 0,
        "silent": 0,
        "unhealthy": 0,
        "idle_long": 0,
        "mature": requested,
        "minimum": 0,
        "maximum": 20,
        "zones": ("us-east-1a", "us-east-1b"),
        "removable": tuple(f"{key}-{n}" for n in range(requested)),
    }
    return GroupSnapshot(key, **(calm | other))


def scene(
    requested: Sequence[int] = (4, 4, 4),
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    limits: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    snapshot: Mapping[str, Any] | None = None,
    **context: Any,
) -> RailContext:
    """A calm minute at noon in act mode under leadership; every argument overrides some of it."""
    of = context.pop("fleet", None) or fleet(size=len(requested))
    seen = Snapshot(
        of.name,
        bin_end=NOON,
        taken_at=NOON,
        groups=tuple(
            group(g.key, n, **(groups or {}).get(g.key, {})) for g, n in zip(of.groups, requested, strict=True)
        ),
        queue=None,
        coverage=1.0,
        age_s=10.0,
    )
    calm: dict[str, Any] = {
        "now": NOON,
        "fleet": of,
        "snapshot": replace(seen, **(snapshot or {})),
        "state": LoopState(**({"in_streak": dict.fromkeys(KEYS, 99)} | dict(state or {}))),
        "controls": Controls(),
        "limits": RailLimits(**({"max_step_out": 99, "max_step_in": 99} | dict(limits or {}))),
        "mode": Mode.ACT,
        "leader": True,
    }
    return RailContext(**(calm | context))


def proposal(*desired: int, **other: Any) -> Proposal:
    """What a policy asks for."""
    return Proposal("web", "threshold", desired, Reason.LOAD_HIGH, **other)


def pinned(desired: Mapping[str, int], minutes: float = 60.0) -> Controls:
    """Controls with a pin by ana until `minutes` after noon."""
    return Controls(pin=Pin(desired, "ana", "load test", NOON - 600.0, NOON + 60.0 * minutes))


def paused(scope: PauseScope, until: float | None = None, pin: Pin | None = None) -> Controls:
    """Controls with a pause by ben since five to twelve."""
    return Controls((Pause(scope, "ben", "deploying", NOON - 300.0, until),), pin)


def ask(rail: Rail, wanted: Proposal, context: RailContext) -> RailEffect:
    """Apply one rail and return its effect, which must tell the truth about the proposal."""
    after, effect = rail.apply(wanted, context)
    assert effect.rail == rail.name
    assert effect.after == after.desired
    if effect.verdict is Verdict.PASSED:
        assert (effect.before, effect.reason, effect.detail) == (effect.after, None, "")
    else:
        assert effect.detail
        assert effect.reason is not None
    return effect


def passes(rail: Rail, wanted: Proposal, context: RailContext) -> bool:
    """Whether the rail leaves the proposal's sizes alone."""
    return ask(rail, wanted, context).verdict is Verdict.PASSED
