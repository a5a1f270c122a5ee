"""Changes of groups whose VMs weigh several capacity units, on an AWS that counts as AWS does.

Whatever the weights, bounds and sizes are: the VMs that were decided come, only chosen VMs end, and the group stays
within its bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actuators.sizes import LAG_S, GroupSizes
from collectors.aws import AwsSession
from collectors.inventory import Inventory
from domain.decisions import Direction, Intent, Outcome, Reason, Status
from domain.errors import CloudError, FailureClass
from domain.fleet import Group, VmType
from domain.observed import GroupObserved
from tests.actuators.scripted import NOW, activity
from tests.golden import check_wording

NO_CAPACITY = activity("Failed", message="We currently do not have sufficient m5a.large capacity")
GROUP = Group("s", "web-s", VmType("m5a.large", 2, 8.0, 0.086), 0, 1000)


@dataclass
class Aws:
    """One group as AWS keeps it. present: the weight of each VM by its id. ended: VMs that ended, in order.

    room: how many VMs it can still launch. lagging: VMs that ended and that it shows as in service.
    """

    weight: int
    present: dict[str, int]
    desired: int
    minimum: int = 0
    maximum: int = 1000
    room: int = 1000
    ended: list[str] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    lagging: dict[str, int] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)
    activities: list[dict[str, Any]] = field(default_factory=list)
    read_only: bool = False

    @property
    def counted(self) -> int:
        return sum(self.present.values())

    def pages(self, service: str, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        yield {"Activities": self.activities} if operation.endswith("Activities") else self._described()

    def read(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        return {}

    def mutate(self, service: str, operation: str, **parameters: Any) -> None:
        if operation == "SetDesiredCapacity":
            size = parameters["DesiredCapacity"]
            assert self.minimum <= size <= self.maximum
            self.sent.append(size)
            self.desired = size
        else:
            vm = parameters["InstanceId"]
            assert vm in self.present
            if parameters["ShouldDecrementDesiredCapacity"]:
                assert self.desired - self.present[vm] >= self.minimum
                self.desired -= self.present[vm]
            self.chosen.append(vm)
            self._end(vm)
        self.settle()

    def settle(self) -> None:
        """Launch up to the desired capacity, or end VMs whose loss still leaves it."""
        while self.counted < self.desired and self.room:
            self.room -= 1
            self.present[f"i-{len(self.present) + len(self.ended):08x}"] = self.weight
        while fitting := [vm for vm, units in self.present.items() if units <= self.counted - self.desired]:
            self._end(fitting[0])

    def _end(self, vm: str) -> None:
        del self.present[vm]
        self.ended.append(vm)

    def _described(self) -> dict[str, Any]:
        shown = [
            {
                "InstanceId": vm,
                "InstanceType": "m5a.large",
                "AvailabilityZone": "us-east-1a",
                "LifecycleState": "InService",
                "WeightedCapacity": str(units),
            }
            for vm, units in {**self.present, **self.lagging}.items()
        ]
        override = {"InstanceType": "m5a.large", "WeightedCapacity": str(self.weight)}
        group = {
            "AutoScalingGroupName": GROUP.name,
            "DesiredCapacity": self.desired,
            "MinSize": self.minimum,
            "MaxSize": self.maximum,
            "Instances": shown,
            "MixedInstancesPolicy": {"LaunchTemplate": {"Overrides": [override]}},
        }
        return {"AutoScalingGroups": [group]}

    def see(self) -> GroupObserved:
        return self._inventory().fresh(GROUP.name, NOW)

    def apply(self, intent: Intent, now: float = NOW) -> Outcome:
        return self._sizes().apply(intent, GROUP, now, lambda call: None)

    def follow(self, intent: Intent, now: float = NOW) -> Outcome:
        observed = self._inventory().observe([GROUP.name], now)
        return self._sizes().follow(intent, GROUP, observed, now, lambda call: None)

    def _inventory(self) -> Inventory:
        return Inventory(cast("AwsSession", self))

    def _sizes(self) -> GroupSizes:
        return GroupSizes(cast("AwsSession", self), self._inventory())


def made(weights: list[int], weight: int, **about: Any) -> Aws:
    """Return a group at rest with VMs of these weights."""
    return Aws(weight, {f"i-{number:08x}": units for number, units in enumerate(weights)}, sum(weights), **about)


def intent(direction: Direction, before: int, target: int, *victims: str) -> Intent:
    return Intent("i1", "d1", "web", "s", direction, before, target, victims, 1, NOW, NOW + 600.0)


@st.composite
def groups(draw: st.DrawFn) -> Aws:
    """Draw a group at rest: VMs of one weight or of several, a desired capacity that is no sum of weights too."""
    weight = draw(st.integers(1, 6))
    kept = st.integers(1, 6) if draw(st.booleans()) else st.just(weight)
    weights = draw(st.lists(kept, max_size=6))
    aws = made(weights, weight)
    aws.desired -= draw(st.integers(0, min(weights) - 1)) if weights else 0
    aws.minimum = draw(st.integers(0, aws.desired))
    aws.maximum = aws.desired + draw(st.integers(0, 30))
    return aws


@given(groups(), st.integers(1, 6))
def test_a_scale_out_brings_the_vms_that_were_decided_and_ends_none(aws: Aws, more: int) -> None:
    before, there, bounded = len(aws.present), set(aws.present), aws.see()
    assert bounded.desired == before
    target = min(before + more, bounded.maximum)
    if target == before:
        return
    outcome = aws.apply(intent(Direction.OUT, before, target))
    assert outcome.reason is Reason.ACCEPTED
    assert (len(aws.present), aws.ended) == (target, [])
    assert there <= set(aws.present)
    assert aws.counted <= aws.maximum
    assert aws.follow(intent(Direction.OUT, before, target)).status is Status.DONE
    assert len(aws.sent) == 1


@given(groups(), st.integers(1, 30))
def test_more_vms_than_the_maximum_holds_are_not_asked_for(aws: Aws, more: int) -> None:
    seen = aws.see()
    outcome = aws.apply(intent(Direction.OUT, seen.desired, seen.maximum + more))
    assert (outcome.reason, aws.sent) == (Reason.ABOVE_MAXIMUM, [])


@given(groups(), st.data())
def test_a_scale_in_ends_chosen_vms_alone_and_stays_above_the_minimum(aws: Aws, data: st.DataObject) -> None:
    if not aws.present:
        return
    names = list(aws.present)
    victims = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    before = len(names)
    outcome = aws.apply(intent(Direction.IN, before, before - len(victims), *victims))
    assert aws.ended == aws.chosen
    assert set(aws.ended) <= set(victims)
    assert aws.desired >= aws.minimum
    assert len(aws.present) == before - len(aws.ended)
    if outcome.status is Status.DONE:
        assert aws.ended == victims
    else:
        assert outcome.reason is Reason.BELOW_MINIMUM
        assert before - len(victims) < made_minimum(aws, before)


def made_minimum(aws: Aws, before: int) -> int:
    """Return the fewest VMs that the heaviest ones' removal was sure to leave."""
    assert aws.ended == []
    return aws.see().minimum


@given(groups(), st.integers(1, 6), st.integers(0, 5))
def test_giving_back_ends_no_vm_and_asks_for_no_more(aws: Aws, more: int, room: int) -> None:
    before = len(aws.present)
    target = before + more
    aws.maximum += 100
    aws.room = room
    aws.apply(intent(Direction.OUT, before, target))
    aws.activities = [NO_CAPACITY]
    outcome = aws.follow(intent(Direction.OUT, before, target), NOW + 60.0)
    assert aws.ended == []
    assert len(aws.present) == min(target, before + room)
    assert outcome.achieved == min(more, room)
    assert outcome.status.final
    if room < more:
        # Nothing is on its way any more, so that AWS does not go on trying.
        assert aws.sent[-1] == max(aws.counted, aws.minimum) < aws.sent[0]
        assert aws.see().desired == len(aws.present)


def test_vms_are_sent_and_given_back_in_units_and_reported_in_both() -> None:
    aws = made([2, 2], 2, room=1)
    texts = {"sent": aws.apply(intent(Direction.OUT, 2, 5)).detail}
    aws.activities = [NO_CAPACITY]
    texts["given back"] = aws.follow(intent(Direction.OUT, 2, 5), NOW + 60.0).detail
    assert aws.sent == [10, 6]
    check_wording("actuators-units", texts)


def test_a_scale_in_of_vms_that_keep_a_heavier_weight_stops_where_the_minimum_would_break() -> None:
    aws = made([1, 4], 1, minimum=2)
    heavy = intent(Direction.IN, 2, 1, "i-00000001")
    assert aws.see().minimum == 2
    assert (aws.apply(heavy).reason, aws.ended) == (Reason.BELOW_MINIMUM, [])
    aws.minimum = 1
    assert (aws.apply(heavy).status, aws.ended, aws.desired) == (Status.DONE, ["i-00000001"], 1)


def test_a_size_that_another_party_set_in_units_counts_as_ours_had_been_there() -> None:
    aws = made([2, 2], 2)
    aws.desired = 5
    out = intent(Direction.OUT, 2, 4)
    cause = {"Cause": "a user request changing the desired capacity from 4 to 8. An instance was started"}
    aws.activities = [{**NO_CAPACITY, "StatusCode": "Successful", **cause}]
    outcome = aws.follow(out)
    assert outcome.reason is Reason.SUPERSEDED


@pytest.mark.parametrize("weights", [[2, 2, 2], [1, 4, 4], [4, 1, 1], [1, 2, 3]])
def test_a_termination_that_aws_does_not_show_yet_is_not_repeated(weights: list[int]) -> None:
    aws = made(weights, 2)
    victim = "i-00000000"
    gone = intent(Direction.IN, 3, 2, victim)
    assert aws.apply(gone).status is Status.DONE
    aws.lagging = {victim: weights[0]}
    outcome = aws.follow(gone, NOW + LAG_S - 1.0)
    assert (outcome.status, outcome.reason) == (Status.IN_PROGRESS, Reason.ACCEPTED)
    assert victim in outcome.detail
    assert aws.chosen == [victim]


def test_a_group_whose_next_vm_may_have_several_weights_is_neither_grown_nor_shrunk() -> None:
    aws = made([2], 2)
    described = aws._described()
    overrides = described["AutoScalingGroups"][0]["MixedInstancesPolicy"]["LaunchTemplate"]["Overrides"]
    overrides.append({"InstanceType": "m5a.xlarge", "WeightedCapacity": "4"})
    aws._described = lambda: described  # type: ignore[method-assign]
    for wanted in (intent(Direction.OUT, 1, 2), intent(Direction.IN, 1, 0, "i-00000000")):
        outcome = aws.apply(wanted)
        assert (outcome.status, outcome.reason, aws.sent) == (Status.FAILED, Reason.GROUP_UNSUPPORTED, [])
    with pytest.raises(CloudError, match="several weights") as caught:
        aws.see()
    assert caught.value.failure is FailureClass.UNSUPPORTED


def test_a_replacement_ends_one_vm_and_keeps_the_size() -> None:
    aws = made([2, 2], 2)
    assert aws.apply(intent(Direction.REPLACE, 2, 2, "i-00000001")).status is Status.DONE
    assert (len(aws.present), aws.desired, aws.ended) == (2, 4, ["i-00000001"])
