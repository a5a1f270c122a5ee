"""How large a cluster is: read from a quota or a reservation, followed when it changes, never guessed."""

from __future__ import annotations

from agent.admission.settings import ClusterSettings
from tests.agent.admission.gate.yard import MakeYard, Yard
from tests.golden import figures

QUOTA = "L-1216C47A"


def quota_yard(make_yard: MakeYard, set_aside_cores: int = 0) -> Yard:
    return make_yard(
        cores=1000, terms=ClusterSettings(capacity_cores=1, quota_code=QUOTA, set_aside_cores=set_aside_cores)
    )


def test_a_quota_less_what_is_set_aside_is_the_capacity(make_yard: MakeYard) -> None:
    yard = quota_yard(make_yard, set_aside_cores=10)
    yard.world.control.set_quota(QUOTA, 26.0)
    yard.ask("a", 4)
    yard.ask("b", 1)
    yard.turn()
    assert yard.service.rules.capacity_cores == 16
    assert [(d.deployment_id, d.admit, figures(d.detail)) for d in yard.decisions()][1:] == [
        ("b.1", False, [16, 16, 4])
    ]
    assert yard.desired("a") == 4


def test_a_quota_that_was_raised_lets_the_next_one_in(make_yard: MakeYard) -> None:
    yard = quota_yard(make_yard)
    yard.world.control.set_quota(QUOTA, 16.0)
    yard.ask("a", 5)
    yard.turn()
    assert yard.answer("a") == "refused:rejected_feasibility"
    yard.world.control.set_quota(QUOTA, 20.0)
    yard.turn(5)
    yard.ask_again("a", 5)
    yard.turn()
    assert (yard.desired("a"), yard.service.rules.capacity_cores) == (5, 20)


def test_a_quota_is_read_every_five_minutes(make_yard: MakeYard) -> None:
    yard = quota_yard(make_yard)
    yard.world.control.set_quota(QUOTA, 16.0)
    yard.turn(11)
    assert len(yard.world.control.calls(operation="GetServiceQuota", access_key="agent")) == 3


def test_nobody_comes_in_while_the_quota_was_never_read(make_yard: MakeYard) -> None:
    yard = quota_yard(make_yard)
    yard.ask("a", 1)
    told = yard.turn(2)
    assert [event.reason.value for event in told] == ["cloud_unreadable", "cloud_unreadable"]
    assert "gpu: the capacity could not be read" in told[0].detail
    assert told[1].detail.startswith("gpu: a waits: ")
    assert (yard.mutations, yard.decisions()) == ([], [])


def test_a_quota_that_was_read_once_stands_while_it_cannot_be_read(make_yard: MakeYard) -> None:
    yard = quota_yard(make_yard)
    yard.world.control.set_quota(QUOTA, 16.0)
    yard.turn()
    yard.world.control.add_fault("throttle", operations=["GetServiceQuota"], rate=1.0, access_keys=["agent"])
    yard.turn(6)
    yard.ask("a", 4)
    yard.turn()
    assert (yard.desired("a"), yard.service.rules.capacity_cores) == (4, 16)


def test_a_reservation_is_worth_the_cores_of_its_vms_until_it_is_over(make_yard: MakeYard) -> None:
    yard = make_yard(cores=1000, terms=ClusterSettings(capacity_cores=1, reservation_id="cr-00000000000000001"))
    machines = yard.world.client("ec2")
    machines.create_capacity_reservation(
        InstanceType="m5a.2xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=3
    )
    yard.ask("a", 6)
    yard.turn()
    assert (yard.desired("a"), yard.service.rules.capacity_cores) == (6, 24)
    machines.cancel_capacity_reservation(CapacityReservationId="cr-00000000000000001")
    yard.turn(6)
    yard.ask("b", 1)
    yard.turn()
    assert (yard.answer("b"), yard.desired("b")) == ("pending", 0)


def test_a_raised_quota_is_known_after_a_restart_before_anyone_is_judged(make_yard: MakeYard) -> None:
    yard = quota_yard(make_yard)
    yard.world.control.set_quota(QUOTA, 16.0)
    yard.turn()
    yard.world.control.set_quota(QUOTA, 40.0)
    yard.restart()
    yard.ask("a", 10)
    yard.turn()
    assert yard.desired("a") == 10
