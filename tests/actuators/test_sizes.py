"""The check before the first side effect, over every group that could be there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.base import Refusal
from actuators.sizes import Clearance, check
from domain.decisions import Direction, Intent, Reason, Status
from domain.errors import FailureClass
from domain.observed import GroupObserved, Instance, Lifecycle
from tests.actuators.scripted import Cloud, apply, error, group, leaving, vms

VMS = tuple(f"i-0000000{number}" for number in range(6))
instances = st.builds(
    Instance,
    vm=st.sampled_from(VMS),
    zone=st.just("us-east-1a"),
    lifecycle=st.sampled_from(Lifecycle),
    protected=st.booleans(),
)
groups = st.builds(
    GroupObserved,
    name=st.just("web-s"),
    desired=st.integers(0, 8),
    minimum=st.integers(0, 4),
    maximum=st.integers(4, 8),
    instances=st.lists(instances, unique_by=lambda one: one.vm).map(tuple),
    suspended=st.lists(st.sampled_from(["Launch", "Terminate", "AZRebalance"]), unique=True).map(tuple),
    refreshing=st.booleans(),
)


@st.composite
def intents(draw: st.DrawFn) -> Intent:
    direction = draw(st.sampled_from(Direction))
    before = draw(st.integers(0, 8))
    victims = () if direction is Direction.OUT else tuple(draw(st.lists(st.sampled_from(VMS), unique=True, min_size=1)))
    target = {Direction.OUT: before + 1, Direction.IN: max(0, before - len(victims)), Direction.REPLACE: before}[
        direction
    ]
    return Intent("i1", "d1", "web", "s", direction, before, target, victims, 1, 0.0, 600.0)


@given(intents(), groups, st.frozensets(st.sampled_from(VMS)))
def test_what_is_cleared_is_always_allowed(intent: Intent, group: GroupObserved, ours: frozenset[str]) -> None:
    cleared = check(intent, group, ours)
    if isinstance(cleared, Refusal):
        assert cleared.detail
        return
    serving = {one.vm: one for one in group.serving}
    assert all(vm in serving and vm in intent.victims for vm in cleared.victims)
    assert all(not serving[vm].protected or vm in ours for vm in cleared.victims)
    if intent.direction is Direction.OUT:
        assert group.desired < intent.target <= group.maximum
        assert "Launch" not in group.suspended
        assert not group.refreshing
        assert cleared == Clearance()
    else:
        assert "Terminate" not in group.suspended
        assert cleared.victims
    if intent.direction is Direction.IN:
        assert group.desired - len(cleared.victims) >= max(intent.target, group.minimum)
        assert not group.refreshing


@given(
    st.integers(1, 6),
    st.frozensets(st.sampled_from(VMS)),
    st.dictionaries(st.sampled_from(VMS), st.sampled_from([FailureClass.UNAVAILABLE, FailureClass.PERMANENT])),
)
def test_with_any_set_of_vms_that_may_not_go_the_first_of_all_others_go(
    count: int, protected: frozenset[str], refused: dict[str, FailureClass]
) -> None:
    there = [replace(one, protected=one.vm in protected) for one in vms(*VMS)]
    fails = {vm: error(failure, "ScalingActivityInProgress") for vm, failure in refused.items()}
    cloud = Cloud(group(6, *there), fails=dict(fails))
    outcome = apply(cloud, replace(leaving(*VMS[:count], before=6), spares=VMS[count:]))
    gone = [about["InstanceId"] for _, about in cloud.calls if about["InstanceId"] not in refused]
    assert gone == [vm for vm in VMS if vm not in protected and vm not in refused][:count]
    assert not protected & {about["InstanceId"] for _, about in cloud.calls}
    assert outcome.achieved == len(gone)
    assert (outcome.status is Status.DONE) == (len(gone) == count)
    assert {one.vm for one in outcome.refusals if one.reason is Reason.PROTECTED} == protected
    asked = {about["InstanceId"] for _, about in cloud.calls}
    assert {one.vm for one in outcome.refusals if one.reason is Reason.REMOVAL_REFUSED} == asked & set(refused)


def test_only_as_many_leave_as_another_party_has_not_removed() -> None:
    vms = tuple(Instance(vm, "us-east-1a", Lifecycle.IN_SERVICE) for vm in VMS)
    intent = Intent("i1", "d1", "web", "s", Direction.IN, 6, 3, VMS[:3], 1, 0.0, 600.0)
    assert check(intent, GroupObserved("web-s", 4, 0, 8, vms), ()) == Clearance((VMS[0],), spares=VMS[1:3])


def test_a_vm_protected_by_another_party_stays_and_one_of_ours_may_go() -> None:
    vms = tuple(Instance(vm, "us-east-1a", Lifecycle.IN_SERVICE, protected=True) for vm in VMS[:2])
    group = GroupObserved("web-s", 2, 0, 8, vms)
    intent = Intent("i1", "d1", "web", "s", Direction.IN, 2, 0, VMS[:2], 1, 0.0, 600.0)
    assert check(intent, group, (VMS[1],)) == Clearance((VMS[1],), {VMS[0]: Reason.PROTECTED})


def test_a_scale_out_that_is_there_already_is_not_sent_again() -> None:
    intent = Intent("i1", "d1", "web", "s", Direction.OUT, 2, 3, (), 1, 0.0, 600.0)
    assert check(intent, GroupObserved("web-s", 2, 0, 8), ()) == Clearance()
    assert refused(intent, GroupObserved("web-s", 3, 0, 8)) is Reason.NOTHING_TO_DO


def test_a_scale_in_below_the_minimum_that_the_group_has_now_is_refused() -> None:
    vms = tuple(Instance(vm, "us-east-1a", Lifecycle.IN_SERVICE) for vm in VMS[:3])
    intent = Intent("i1", "d1", "web", "s", Direction.IN, 3, 1, VMS[:2], 1, 0.0, 600.0)
    assert refused(intent, GroupObserved("web-s", 3, 2, 8, vms)) is Reason.BELOW_MINIMUM


def test_a_replacement_goes_on_while_launches_are_suspended_or_a_refresh_runs() -> None:
    """The VM is lost anyway: draining it saves its work."""
    vm = Instance(VMS[0], "us-east-1a", Lifecycle.IN_SERVICE)
    group = GroupObserved("web-s", 2, 0, 8, (vm,), suspended=("Launch",), refreshing=True)
    intent = Intent("i1", "d1", "web", "s", Direction.REPLACE, 2, 2, (VMS[0],), 1, 0.0, 600.0)
    assert check(intent, group, ()) == Clearance((VMS[0],))


def refused(intent: Intent, group: GroupObserved) -> Reason | None:
    found = check(intent, group, ())
    return found.reason if isinstance(found, Refusal) else None


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"desired": 2, "maximum": 3}, None),
        ({"desired": 3, "maximum": 3}, Reason.NOTHING_TO_DO),
        ({"desired": 4, "maximum": 8}, Reason.NOTHING_TO_DO),
        ({"desired": 2, "maximum": 2}, Reason.ABOVE_MAXIMUM),
        ({"desired": 2, "maximum": 8, "minimum": 3}, None),
        ({"desired": 2, "maximum": 8, "minimum": 4}, Reason.BELOW_MINIMUM),
        ({"desired": 2, "maximum": 8, "suspended": ("Launch",)}, Reason.LAUNCH_SUSPENDED),
        ({"desired": 2, "maximum": 8, "suspended": ("Terminate",)}, None),
        ({"desired": 2, "maximum": 8, "refreshing": True}, Reason.REFRESH_IN_PROGRESS),
    ],
)
def test_a_scale_out_to_three_is_refused_for_one_reason(about: dict[str, Any], reason: Reason | None) -> None:
    intent = Intent("i1", "d1", "web", "s", Direction.OUT, 2, 3, (), 1, 0.0, 600.0)
    assert refused(intent, GroupObserved("web-s", **({"minimum": 0} | about))) is reason


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"desired": 3}, None),
        ({"desired": 2}, Reason.NOTHING_TO_DO),
        ({"desired": 1}, Reason.NOTHING_TO_DO),
        ({"desired": 3, "minimum": 2}, None),
        ({"desired": 3, "minimum": 3}, Reason.BELOW_MINIMUM),
        ({"desired": 3, "maximum": 1}, None),
        ({"desired": 3, "suspended": ("Launch",)}, None),
        ({"desired": 3, "suspended": ("Terminate",)}, Reason.TERMINATE_SUSPENDED),
        ({"desired": 3, "refreshing": True}, Reason.REFRESH_IN_PROGRESS),
    ],
)
def test_a_scale_in_to_two_is_refused_for_one_reason(about: dict[str, Any], reason: Reason | None) -> None:
    intent = Intent("i1", "d1", "web", "s", Direction.IN, 3, 2, VMS[:1], 1, 0.0, 600.0)
    vms = tuple(Instance(vm, "us-east-1a", Lifecycle.IN_SERVICE) for vm in VMS[:3])
    assert refused(intent, GroupObserved("web-s", **({"minimum": 0, "maximum": 8, "instances": vms} | about))) is reason


def test_a_replacement_asks_no_bounds_and_not_what_is_desired() -> None:
    vm = Instance(VMS[0], "us-east-1a", Lifecycle.IN_SERVICE)
    intent = Intent("i1", "d1", "web", "s", Direction.REPLACE, 2, 2, VMS[:1], 1, 0.0, 600.0)
    for desired, minimum, maximum in ((2, 3, 8), (2, 0, 1), (1, 0, 8), (5, 0, 8)):
        assert refused(intent, GroupObserved("web-s", desired, minimum, maximum, (vm,))) is None
    assert refused(intent, GroupObserved("web-s", 2, 0, 8, (vm,), suspended=("Terminate",))) is (
        Reason.TERMINATE_SUSPENDED
    )


def test_victims_that_all_left_or_are_kept_by_others_are_a_refusal() -> None:
    intent = Intent("i1", "d1", "web", "s", Direction.REPLACE, 2, 2, VMS[:2], 1, 0.0, 600.0)
    kept = Instance(VMS[0], "us-east-1a", Lifecycle.IN_SERVICE, protected=True)
    assert refused(intent, GroupObserved("web-s", 2, 0, 8)) is Reason.VICTIM_GONE
    assert refused(intent, GroupObserved("web-s", 2, 0, 8, (kept,))) is Reason.PROTECTED
