"""What other parts read of a fleet: the cores that its warm VMs have, and those of them that nothing uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from agent.autoscaling.decision import SPARE_FRESH_S, AutoscalingPart
from agent.kernel.decision import Capacity
from domain.clock import VirtualClock
from domain.controls import PauseScope
from domain.decisions import Direction, Reason, VmRefusal
from tests.agent.autoscaling.test_decide import decided
from tests.agent.rails.scenes import paused, pinned, scene

NOW = 1_790_002_800.0


def capacity(
    *groups: tuple[int, int, float | None],
    age_s: float = 0.0,
    proposed: Sequence[int] = (),
    desired: Sequence[int] = (),
    reason: Reason = Reason.LOAD_IN_BAND,
    going: Mapping[str, int] = MappingProxyType({}),
    refused: Sequence[VmRefusal] = (),
) -> Capacity | None:
    """Of a fleet with groups of this many cores for each VM, warm VMs, and busy cores, of which ten VMs may exist.

    proposed, desired: sizes before and after the rail that decides. going: VMs of open scale-ins by group. refused: of
    each group.
    """
    part: Any = object.__new__(AutoscalingPart)
    described = [
        SimpleNamespace(key=f"g{n}", maximum=10, vm_type=SimpleNamespace(cores=own[0])) for n, own in enumerate(groups)
    ]
    seen = [
        SimpleNamespace(requested=warm, in_service=warm, warm=warm, busy_cores=busy, refused=refused)
        for _, warm, busy in groups
    ]
    inputs = SimpleNamespace(
        fleet=SimpleNamespace(groups=described), snapshot=SimpleNamespace(groups=seen, taken_at=NOW - age_s)
    )
    effects = [
        SimpleNamespace(before=(9,) * len(proposed), reason=None),
        SimpleNamespace(before=proposed, reason=reason),
    ]
    decision = SimpleNamespace(effects=effects, desired=desired, reason=reason)
    part.store = SimpleNamespace(newest=lambda subject: SimpleNamespace(inputs=inputs, decision=decision))
    intents = [
        SimpleNamespace(group=key, direction=Direction.IN, victims=("vm",) * n, candidates=("vm",) * n + ("spare",))
        for key, n in going.items()
    ]
    part.host = SimpleNamespace(ledger=SimpleNamespace(open_intents=lambda subject: intents), clock=VirtualClock(NOW))
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


@pytest.mark.parametrize(
    ("reason", "leaving"),
    [
        # 2 VMs of the first group and 1 of the second are proposed to go, and the rails let one of the first go.
        (Reason.BUSY, {"g0": 2, "g1": 1}),
        (Reason.COOLING_DOWN, {"g0": 2, "g1": 1}),
        (Reason.LOAD_LOW, {"g0": 1}),
        (Reason.NOT_YET_STABLE, {"g0": 1}),
        (Reason.PAUSED, {"g0": 1}),
    ],
)
def test_vms_leave_that_go_or_that_wait_until_they_may(reason: Reason, leaving: dict[str, int]) -> None:
    fleet = ((4, 3, 5.0), (8, 1, 0.5))
    found = capacity(*fleet, proposed=(1, 0), desired=(2, 1), reason=reason)
    assert found is not None
    assert found.leaving == leaving


def test_nothing_leaves_by_an_old_decision_or_one_without_a_proposal() -> None:
    for found in (
        capacity((4, 3, 5.0), proposed=(1,), desired=(1,), age_s=SPARE_FRESH_S + 1.0),
        capacity((4, 3, 5.0), reason=Reason.CLOUD_UNREADABLE),
        capacity((4, 3, 5.0), proposed=(7,), desired=(7,)),
    ):
        assert found is not None
        assert found.leaving == {}


def test_vms_that_a_scale_in_under_way_names_leave() -> None:
    found = capacity((4, 3, 5.0), proposed=(3,), desired=(3,), going={"g0": 2})
    assert found is not None
    assert found.leaving == {"g0": 2}
    assert found.victims == ("vm", "vm", "spare")


def test_idle_vms_that_may_not_go_are_named() -> None:
    found = capacity((4, 3, 5.0), refused=[VmRefusal("i-7", Reason.PROTECTED)])
    assert found is not None
    assert (found.kept, found.victims) == (("i-7",), ())


@pytest.mark.parametrize(
    ("wanted", "more", "vms"),
    [
        # workers_m has four VMs, and none of them may be removed.
        ((1, 4, 4), {}, 3),
        ((4, 4, 4), {"controls": pinned({"workers_m": 2})}, 2),
        ((1, 4, 4), {"controls": paused(PauseScope.ALL)}, 0),
        ((5, 4, 4), {}, 0),
    ],
)
def test_vms_that_the_rails_hold_until_one_may_go_leave(
    wanted: tuple[int, ...], more: dict[str, Any], vms: int
) -> None:
    context = scene(groups={"workers_m": {"removable": ()}}, **more)
    found = decided(context, *wanted).decision
    part: Any = object.__new__(AutoscalingPart)
    part.host = SimpleNamespace(clock=VirtualClock(NOW))
    pairs = list(zip(context.fleet.groups, context.snapshot.groups, strict=True))
    leaving = part._leaving(found, NOW, pairs)
    assert leaving["workers_m"] == sum(leaving.values()) == vms
