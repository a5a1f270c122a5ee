"""AWS answers late, wrongly or not at all, or another agent leads: nothing is done twice, and nobody is forgotten."""

from __future__ import annotations

import pytest

from agent.admission.deployments import Stage
from agent.admission.records import AdmissionRequest
from domain.errors import Fenced
from tests.agent.admission.gate.yard import MakeYard, Yard


def test_a_lost_answer_to_the_raise_is_read_back_and_not_repeated(yard: Yard) -> None:
    yard.world.control.add_fault("timeout_after", operations=["SetDesiredCapacity"], count=1)
    yard.ask("batch-a", 3)
    yard.turn(4)
    assert (yard.desired("batch-a"), yard.answer("batch-a"), yard.cores("batch-a")) == (3, "admitted", 12)
    assert [operation for operation, _ in yard.mutations].count("SetDesiredCapacity") == 1


def test_a_raise_that_never_reached_aws_is_sent_again(yard: Yard) -> None:
    yard.world.control.add_fault("timeout_before", operations=["SetDesiredCapacity"], count=1)
    yard.ask("batch-a", 3)
    yard.turn()
    assert yard.desired("batch-a") == 0
    yard.turn(3)
    assert (yard.desired("batch-a"), yard.answer("batch-a"), len(yard.decisions())) == (3, "admitted", 1)


def test_a_lost_answer_to_the_tags_is_read_back_and_not_repeated(yard: Yard) -> None:
    yard.world.control.add_fault("timeout_after", operations=["CreateOrUpdateTags"], count=1)
    yard.ask("batch-a", 9)
    yard.turn(3)
    assert yard.answer("batch-a") == "refused:rejected_feasibility"
    assert (yard.mutations, yard.record("batch-a").open) == ([("CreateOrUpdateTags", "batch-a")], False)


def test_throttled_tags_are_written_later_and_the_group_is_asked_for_once(yard: Yard) -> None:
    yard.world.control.add_fault("throttle", operations=["CreateOrUpdateTags"], rate=1.0, duration_s=150.0)
    yard.ask("batch-a", 9)
    yard.turn(2)
    assert (yard.answer("batch-a"), len(yard.decisions())) == ("pending", 1)
    yard.turn(3)
    assert (yard.answer("batch-a"), len(yard.decisions())) == ("refused:rejected_feasibility", 1)
    assert yard.reasons("batch-a").count("throttled") == 1


def test_without_permission_to_tag_the_refusal_stands_and_is_reported_once(yard: Yard) -> None:
    yard.world.control.add_fault("access_denied", operations=["CreateOrUpdateTags"], rate=1.0, access_keys=["agent"])
    yard.ask("batch-a", 9)
    yard.turn(4)
    assert (yard.desired("batch-a"), yard.answer("batch-a"), len(yard.decisions())) == (0, "pending", 1)
    assert yard.reasons("batch-a").count("credentials") == 1
    assert yard.record("batch-a").open


def test_a_group_that_aws_has_no_vm_for_gives_its_cores_back_and_is_tagged_so(yard: Yard) -> None:
    yard.world.control.add_fault("capacity", instance_type="m5a.xlarge")
    yard.ask("batch-a", 3)
    yard.turn(4)
    assert (yard.answer("batch-a"), yard.desired("batch-a"), yard.total) == ("refused:no_capacity", 0, 0)
    (decision,) = yard.decisions()
    assert decision.admit
    assert yard.tags("batch-a")["decision"] == decision.decision_id
    yard.ask("batch-b", 1)
    yard.turn()
    assert (yard.answer("batch-b"), yard.reasons("batch-b")) == ("pending", ["no_capacity"])


@pytest.mark.exhaustive
def test_a_group_that_aws_has_some_vms_for_counts_with_those(yard: Yard) -> None:
    yard.ask("batch-a", 4)
    yard.world.control.add_fault("timeout_before", operations=["SetDesiredCapacity"], count=1)
    yard.turn()
    # By hand, what AWS does when it runs out in the middle: two come, two are refused.
    yard.world.desire(2, "batch-a")
    yard.world.control.ready_now("batch-a")
    yard.world.control.add_fault("capacity", instance_type="m5a.xlarge")
    yard.turn(5)
    assert (yard.answer("batch-a"), yard.desired("batch-a"), yard.cores("batch-a")) == ("admitted", 2, 8)
    # Both at one instant.
    assert sorted(yard.kinds()) == [("batch-a.1", "refused", 8), ("batch-a.1", "started", 8)]


def test_a_deposed_leader_does_nothing(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    yard.ledger.take_epoch("another", yard.clock.now())
    with pytest.raises(Fenced):
        yard.turn()
    assert (yard.mutations, yard.desired("batch-a")) == ([], 0)


def test_what_a_deposed_leader_had_decided_is_done_by_the_next(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    yard.ledger.take_epoch("another", yard.clock.now())
    with pytest.raises(Fenced):
        yard.turn()
    yard.restart()
    yard.turn(3)
    assert (yard.desired("batch-a"), yard.answer("batch-a"), len(yard.decisions())) == (3, "admitted", 1)


def test_an_admission_that_lapsed_while_the_agent_was_away_is_not_carried_out(make_yard: MakeYard) -> None:
    yard = make_yard(start_within_s=600.0)
    yard.world.control.add_fault("timeout_before", operations=["SetDesiredCapacity"], count=1)
    yard.ask("batch-a", 3)
    yard.turn()
    yard.world.control.advance(3600.0)
    yard.restart()
    yard.ask("batch-b", 8)
    yard.turn(3)
    known = yard.known("batch-a")
    assert known is not None
    assert (known.stage, yard.desired("batch-a"), yard.answer("batch-a")) == (Stage.GONE, 0, "refused:overdue")
    assert (yard.desired("batch-b"), yard.total) == (8, 32)


def test_a_group_deleted_while_it_is_raised_is_forgotten(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    yard.turn()
    yard.world.groups.delete_auto_scaling_group(AutoScalingGroupName="batch-a", ForceDelete=True)
    yard.turn(4)
    assert (yard.total, yard.record("batch-a").open) == (0, False)


def test_a_request_that_changed_between_a_crash_and_the_restart_is_asked_anew(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    name = "batch-a.1"
    yard.service.answer([AdmissionRequest(deployment_id=name, cores=12, requested_by="gate", request_id=name)])
    yard.tag("batch-a", requested="2")
    yard.turn(3)
    assert (yard.desired("batch-a"), yard.total) == (2, 8)
    assert [(d.deployment_id, d.cores) for d in yard.decisions()] == [("batch-a.1", 12), ("batch-a.2", 8)]
