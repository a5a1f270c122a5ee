"""What happens to groups of a cluster becomes events of their deployments: each told once, and they add up."""

from __future__ import annotations

import pytest

from actuators.activities import Activity, Kind
from agent.admission.deployments import Deployment, Stage
from agent.admission.gate.watch import settled_cores, shortage, size_event
from collectors.tagged_groups import ClusterGroup
from domain.decisions import Direction, Intent, Outcome, Reason, Status
from domain.fleet import Fleet, Group, VmType
from tests.agent.admission.gate.yard import MakeYard, Yard
from tests.golden import figures


def grown(yard: Yard, name: str, vms: int) -> None:
    yard.world.desire(vms, name)
    yard.world.control.ready_now(name)
    yard.turn()


def test_growing_shrinking_and_ending_are_reported_as_they_are_seen(yard: Yard) -> None:
    yard.ask("batch-a", 2)
    yard.turn(3)
    grown(yard, "batch-a", 5)
    yard.world.desire(3, "batch-a")
    yard.turn()
    yard.world.desire(0, "batch-a")
    yard.turn()
    assert yard.kinds() == [
        ("batch-a.1", "started", 8),
        ("batch-a.1", "scaled", 12),
        ("batch-a.1", "core_ended", 8),
        ("batch-a.1", "shutdown", 0),
    ]
    assert [event.cores_after for event in yard.told()] == [8, 20, 12, 0]
    assert yard.total == 0


def test_a_group_that_never_asked_counts_with_what_it_has_in_service(yard: Yard) -> None:
    yard.group("old", vms=3, vm_type="m5a.2xlarge")
    told = yard.turn()
    assert yard.kinds() == [("old.1", "started", 24)]
    assert [(event.reason.value, figures(event.detail)) for event in told] == [("started", [24])]
    yard.ask("batch-a", 3)
    yard.turn()
    assert yard.answer("batch-a") == "refused:rejected_feasibility"


def test_a_deleted_group_has_ended(yard: Yard) -> None:
    yard.group("old", vms=2)
    yard.turn()
    yard.world.groups.delete_auto_scaling_group(AutoScalingGroupName="old", ForceDelete=True)
    yard.turn(2)
    assert (yard.kinds()[-1], yard.total) == (("old.1", "shutdown", 0), 0)


def test_a_group_taken_out_of_the_cluster_has_left_it(yard: Yard) -> None:
    yard.group("old", vms=2)
    yard.turn()
    yard.world.groups.delete_tags(
        Tags=[{"ResourceId": "old", "ResourceType": "auto-scaling-group", "Key": "trimtab:cluster"}]
    )
    yard.turn()
    assert (yard.kinds()[-1], yard.total, yard.desired("old")) == (("old.1", "shutdown", 0), 0, 2)


def test_a_vm_that_aws_replaces_is_no_end_and_no_growth(yard: Yard) -> None:
    yard.group("old", vms=3)
    yard.turn()
    before = yard.kinds()
    yard.world.client("ec2").terminate_instances(InstanceIds=yard.world.ids("old")[:1])
    yard.turn(5)
    assert len(yard.world.states("old")) == 3
    assert yard.kinds() == before


def test_nothing_is_reported_twice_by_a_process_that_was_started_again(yard: Yard) -> None:
    yard.group("old", vms=2)
    yard.turn()
    grown(yard, "old", 4)
    before = yard.kinds()
    yard.restart()
    yard.turn(2)
    assert (yard.kinds(), yard.total) == (before, 16)


def test_what_changed_while_the_agent_was_away_is_reported_when_it_is_back(yard: Yard) -> None:
    yard.group("old", vms=2)
    yard.turn()
    yard.world.desire(4, "old")
    yard.world.control.ready_now("old")
    yard.restart()
    yard.turn()
    assert yard.kinds()[-1] == ("old.1", "scaled", 8)


@pytest.mark.exhaustive
def test_a_scale_out_for_which_aws_has_no_vm_is_reported_as_refused_once(yard: Yard) -> None:
    yard.ask("batch-a", 2)
    yard.turn(3)
    yard.world.control.add_fault("capacity", instance_type="m5a.xlarge")
    yard.world.desire(5, "batch-a")
    yard.turn(4)
    yard.restart()
    yard.turn(2)
    assert [kind for kind in yard.kinds() if kind[1] == "refused"] == [("batch-a.1", "refused", 12)]
    gauges = yard.service.gauges(yard.clock.now())
    assert (gauges.requests_month_to_date, gauges.failures_month_to_date) == (1, 1)


def test_asking_in_vain_a_second_time_is_a_second_refusal(yard: Yard) -> None:
    yard.ask("batch-a", 2)
    yard.turn(3)
    yard.world.control.add_fault("capacity", instance_type="m5a.xlarge")
    for desired in (4, 2, 5):
        yard.world.desire(desired, "batch-a")
        yard.turn()
    assert [kind for kind in yard.kinds() if kind[1] == "refused"] == [
        ("batch-a.1", "refused", 8),
        ("batch-a.1", "refused", 12),
    ]


def test_what_a_fleet_asked_for_in_vain_is_refused_to_its_deployment(yard: Yard) -> None:
    yard.group("old", vms=2)
    yard.turn()
    fleet = Fleet("web", (Group("small", "old", VmType("m5a.xlarge", 4, 16.0, 0.172), 0, 10),))
    now = yard.clock.now()
    intent = Intent("web-7.small", "web-7", "web", "small", Direction.OUT, 2, 5, (), 1, now, now + 600.0)
    outcome = Outcome("web-7.small", Status.PARTIAL, Reason.NO_CAPACITY, 3, 1, yard.clock.now())
    yard.turn(fleets=[fleet], results=[(intent, outcome)])
    yard.turn(fleets=[fleet], results=[(intent, outcome)])
    assert yard.kinds()[-1] == ("old.1", "refused", 8)
    assert len(yard.kinds()) == 2


def test_a_deployment_of_more_than_the_cluster_is_reported_and_does_not_stop_the_others(make_yard: MakeYard) -> None:
    yard = make_yard(cores=16)
    yard.group("old", vms=5)
    yard.group("other", vms=1)
    told = yard.turn(2)
    assert [(event.about, event.reason.value) for event in told] == [("old", "sizes_repaired"), ("other", "started")]
    assert yard.total == 4


def group_of(desired: int, in_service: int, there: int | None = None) -> ClusterGroup:
    return ClusterGroup(
        name="g",
        cluster="gpu",
        tags={},
        desired=desired,
        minimum=0,
        maximum=10,
        in_service={"m5a.xlarge": in_service},
        there=in_service if there is None else there,
        vm_cores={"m5a.xlarge": 4},
    )


def test_settled_cores_keep_what_is_still_desired_and_add_only_what_is_in_service() -> None:
    table = {(3, 3): 12, (3, 1): 12, (1, 1): 4, (0, 2): 8, (5, 3): 12, (5, 5): 20, (2, 0): 8}
    assert {key: settled_cores(12, group_of(*key)) for key in table} == table


def weighted(yard: Yard, vms: int, weight: int) -> None:
    """Let a group ask for VMs that count as several capacity units each."""
    template = {"LaunchTemplateName": "m5a.xlarge", "Version": "$Latest"}
    overrides = [{"InstanceType": "m5a.xlarge", "WeightedCapacity": str(weight)}]
    mixed = {"LaunchTemplate": {"LaunchTemplateSpecification": template, "Overrides": overrides}}
    wanted = {"trimtab:cluster": "gpu", "trimtab:admission": "pending", "trimtab:requested": str(vms)}
    tags = [{"Key": key, "Value": value, "PropagateAtLaunch": False} for key, value in wanted.items()]
    yard.world.group("batch-a", size=(0, 0, 10 * weight), MixedInstancesPolicy=mixed, Tags=tags)


def test_a_weighted_group_comes_in_with_the_vms_that_it_asked_for(yard: Yard) -> None:
    weighted(yard, 3, 5)
    yard.turn(3)
    assert (yard.answer("batch-a"), yard.desired("batch-a")) == ("admitted", 15)
    assert yard.kinds() == [("batch-a.1", "started", 12)]
    yard.world.desire(10, "batch-a")
    yard.turn()
    assert yard.kinds()[1:] == [("batch-a.1", "core_ended", 4)]


def test_vms_that_aws_has_not_for_a_weighted_group_are_reported_as_vms(yard: Yard) -> None:
    weighted(yard, 2, 5)
    yard.turn(3)
    yard.world.control.add_fault("capacity", instance_type="m5a.xlarge")
    yard.world.desire(25, "batch-a")
    yard.turn(2)
    assert yard.kinds()[1:] == [("batch-a.1", "refused", 12)]


def test_the_same_change_has_the_same_id_and_another_change_another() -> None:
    live = Deployment("g.1", Stage.LIVE, 12, 0.0, 100.0)
    again = [size_event(live, group_of(1, 1), now) for now in (200.0, 260.0)]
    other = size_event(live, group_of(2, 2), 200.0)
    assert again[0] is not None
    assert again[1] is not None
    assert other is not None
    assert again[0].event_id == again[1].event_id != other.event_id
    assert size_event(live, group_of(3, 3), 200.0) is None


def test_an_event_never_lies_before_what_was_told_last() -> None:
    live = Deployment("g.1", Stage.LIVE, 12, 0.0, 100.0)
    event = size_event(live, None, 40.0)
    assert event is not None
    assert (event.time, event.kind.value) == (100.0, "shutdown")


def test_attempts_of_one_request_are_one_shortage() -> None:
    cause = "At 2026-11-21T05:00:00Z a user request explicitly set group desired capacity changing the desired capacity"
    first = Activity(
        Kind.LAUNCH,
        10.0,
        "Failed",
        "We currently do not have sufficient m5a.xlarge capacity",
        desired_to=5,
        cause=f"{cause} from 2 to 5.  At 2026-11-21T05:00:01Z an instance was started",
    )
    retry = Activity(Kind.LAUNCH, 70.0, "Failed", "We currently do not have sufficient m5a.xlarge capacity")
    found = shortage(group_of(5, 2), [retry, first])
    assert found is not None
    assert (found.vms, found.name) == (3, "2026-11-21T05:00:00Z")
    assert shortage(group_of(2, 2), [retry, first]) is None
    assert shortage(group_of(4, 2), [retry, first]) is None
