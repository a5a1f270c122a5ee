"""What other parts read of a fleet: the cores that its warm VMs have, and those of them that nothing uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent.autoscaling.decision import SPARE_FRESH_S, AutoscalingPart
from agent.kernel.decision import Capacity
from domain.clock import VirtualClock

NOW = 1_790_002_800.0


def capacity(*groups: tuple[int, int, float | None], age_s: float = 0.0) -> Capacity | None:
    """Of a fleet with groups of this many cores for each VM, warm VMs, and busy cores, of which ten VMs may exist."""
    part: Any = object.__new__(AutoscalingPart)
    described = [
        SimpleNamespace(key=f"g{n}", maximum=10, vm_type=SimpleNamespace(cores=own[0])) for n, own in enumerate(groups)
    ]
    seen = [SimpleNamespace(requested=warm, in_service=warm, warm=warm, busy_cores=busy) for _, warm, busy in groups]
    inputs = SimpleNamespace(
        fleet=SimpleNamespace(groups=described), snapshot=SimpleNamespace(groups=seen, taken_at=NOW - age_s)
    )
    part.store = SimpleNamespace(newest=lambda subject: SimpleNamespace(inputs=inputs))
    part.host = SimpleNamespace(ledger=SimpleNamespace(open_intents=lambda subject: []), clock=VirtualClock(NOW))
    found: Capacity | None = part.capacity("web")
    return found


def test_spare_is_what_warm_vms_have_and_do_not_use() -> None:
    assert capacity((4, 3, 5.0), (8, 1, 0.5)) == Capacity(free=100.0, spare=14.5, total=20.0)


@pytest.mark.parametrize("busy", [12.5, 1e9])
def test_spare_is_never_below_none(busy: float) -> None:
    assert capacity((4, 3, busy)) == Capacity(free=28.0, spare=0.0, total=12.0)


def test_spare_is_not_known_where_a_group_was_not_measured_or_long_ago() -> None:
    for found in (capacity((4, 3, 5.0), (4, 1, None)), capacity((4, 3, 5.0), age_s=SPARE_FRESH_S + 1.0)):
        assert found is not None
        assert found.spare is None
    fresh = capacity((4, 3, 5.0), (4, 0, None), age_s=SPARE_FRESH_S)
    assert fresh is not None
    assert fresh.spare == 7.0
