"""Groups that ask for what makes no sense, or that must wait: told once each, and never let in by mistake."""

from __future__ import annotations

import pytest

from agent.admission.gate.requests import GroupRequest, request_of, vms_wanted
from collectors.tagged_groups import ClusterGroup
from domain.controls import Pause, PauseScope
from domain.errors import BadInput
from domain.fleet import Fleet, Group, VmType
from tests.agent.admission.gate.yard import MakeYard, Yard
from tests.golden import check_wording


def asking(text: str, largest: int = 10) -> ClusterGroup:
    tags = {"trimtab:admission": "pending", "trimtab:requested": text}
    return ClusterGroup("batch-a", "gpu", tags, 0, 0, largest, in_service={}, there=0, vm_cores={})


@pytest.mark.parametrize("text", ["", "many", "0", "-2", "2.5", "1e3", "٣", "9999999", " 3"])
def test_a_size_that_is_no_number_of_vms_is_none(text: str) -> None:
    with pytest.raises(BadInput, match=r"^tag trimtab:requested is "):
        vms_wanted(asking(text))


def test_more_than_the_groups_maximum_is_none_either() -> None:
    assert vms_wanted(asking("4", largest=4)) == 4
    with pytest.raises(BadInput, match=r"is 5: the group's maximum is 4"):
        vms_wanted(asking("5", largest=4))


def test_a_request_that_its_cluster_could_not_take_is_refused_at_the_gate() -> None:
    request = request_of(asking("2"), GroupRequest(2, "m5a.large", 2), 3)
    assert (request.deployment_id, request.request_id, request.cores) == ("batch-a.3", "batch-a.3", 4)
    with pytest.raises(BadInput, match=r"^cores is 12000000: "):
        request_of(asking("2"), GroupRequest(2, "m5a.large", 6_000_000), 3)


def ask_with(yard: Yard, name: str, *overrides: dict[str, str]) -> None:
    """Make a pending group that may launch these."""
    template = {"LaunchTemplateName": "m5a.large", "Version": "$Latest"}
    mixed = {"LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": overrides}}
    wanted = {"trimtab:cluster": "gpu", "trimtab:admission": "pending", "trimtab:requested": "2"}
    tags = [{"Key": key, "Value": value, "PropagateAtLaunch": False} for key, value in wanted.items()]
    yard.world.group(name, size=(0, 0, 10), MixedInstancesPolicy=mixed, Tags=tags)


def test_groups_that_ask_for_nonsense_are_refused_without_a_decision(yard: Yard) -> None:
    yard.ask("no-number", "many")
    ask_with(yard, "two-types", {"InstanceType": "m5a.large"}, {"InstanceType": "m5a.2xlarge"})
    ask_with(
        yard,
        "two-weights",
        {"InstanceType": "m5a.large", "WeightedCapacity": "2"},
        {"InstanceType": "m5a.xlarge", "WeightedCapacity": "4"},
    )
    events = yard.turn()
    assert yard.tags("no-number") == {"admission": "refused:rejected_input", "requested": "many", "decision": ""}
    names = ("no-number", "two-types", "two-weights")
    assert [(yard.answer(name), yard.desired(name)) for name in names] == [("refused:rejected_input", 0)] * 3
    assert (yard.decisions(), [event.reason.value for event in events]) == ([], ["rejected_input"] * 3)
    texts = {name: event.detail for name in names for event in events if name in event.detail}
    check_wording("admission-gate", texts)


def test_a_cluster_that_no_setting_describes_is_reported_and_its_groups_are_left_alone(yard: Yard) -> None:
    yard.ask("batch-a", 2, cluster="nowhere")
    told = yard.turn(2)
    (event,) = told
    assert (event.reason.value, event.detail[:17], event.detail[-5:]) == (
        "rejected_input",
        "nowhere: batch-a ",
        ": gpu",
    )
    assert (yard.mutations, yard.answer("batch-a")) == ([], "pending")


def test_a_group_with_vms_already_waits_until_it_is_emptied(yard: Yard) -> None:
    yard.ask("batch-a", 3, vms=1)
    yard.turn(2)
    assert (yard.mutations, yard.decisions(), yard.answer("batch-a")) == ([], [], "pending")
    assert yard.total == 4
    yard.world.desire(0, "batch-a")
    yard.turn(4)
    assert (yard.desired("batch-a"), yard.answer("batch-a"), yard.total) == (3, "admitted", 12)


def test_a_group_that_a_fleet_sizes_is_left_to_the_fleet(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    vm_type = VmType("m5a.xlarge", 4, 16.0, 0.172)
    fleet = Fleet("web", (Group("a", "batch-a", vm_type, 0, 10),))
    told = yard.turn(2, fleets=[fleet])
    assert [(event.reason.value, event.about) for event in told] == [("in_flight", "batch-a")]
    assert (yard.mutations, yard.answer("batch-a")) == ([], "pending")
    yard.turn()
    assert yard.desired("batch-a") == 3


def test_a_suspended_launch_is_waited_for_and_nothing_is_set_aside_meanwhile(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    yard.world.groups.suspend_processes(AutoScalingGroupName="batch-a", ScalingProcesses=["Launch"])
    told = yard.turn(2)
    assert [(event.reason.value, event.about) for event in told] == [("launch_suspended", "batch-a")]
    assert (yard.mutations, yard.total) == ([], 0)
    yard.world.groups.resume_processes(AutoScalingGroupName="batch-a", ScalingProcesses=["Launch"])
    yard.turn()
    assert yard.desired("batch-a") == 3


def test_a_pause_of_the_cluster_holds_admissions(yard: Yard) -> None:
    yard.ledger.pause("admission", "gpu", Pause(PauseScope.ALL, "ada", "moving house", yard.clock.now(), None))
    yard.ask("batch-a", 3)
    (event,) = yard.turn(2)
    assert event.reason.value == "paused"
    assert "moving house" in event.detail
    assert (yard.mutations, yard.decisions()) == ([], [])
    yard.ledger.resume("admission", "gpu", PauseScope.ALL, at=yard.clock.now(), owner="ada")
    yard.turn()
    assert yard.desired("batch-a") == 3


@pytest.mark.exhaustive
def test_no_more_than_twenty_are_decided_on_in_a_turn(make_yard: MakeYard) -> None:
    yard = make_yard(cores=1000)
    for number in range(23):
        yard.ask(f"batch-{number:02d}", 1, vm_type="m5a.large")
    yard.turn()
    assert len(yard.decisions()) == 20
    yard.turn()
    assert len(yard.decisions()) == 23


def test_groups_that_cannot_be_read_keep_everybody_out_and_it_is_said_once(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    yard.world.control.add_fault("throttle", operations=["DescribeAutoScalingGroups"], rate=1.0, access_keys=["agent"])
    told = yard.turn(3)
    assert [event.reason.value for event in told] == ["cloud_unreadable"]
    assert (yard.mutations, yard.decisions()) == ([], [])
    yard.world.control.clear_faults()
    yard.turn()
    assert yard.desired("batch-a") == 3


def test_a_name_of_255_characters_is_no_trouble(yard: Yard) -> None:
    name = "batch-" + "x" * 249
    yard.ask(name, 2)
    yard.turn(3)
    (decision,) = yard.decisions()
    assert (yard.desired(name), len(decision.deployment_id) < 200, yard.answer(name)) == (2, True, "admitted")
