"""Pending groups: admitted and raised, or refused and told why, each change made once."""

from __future__ import annotations

from agent.admission.deployments import Stage
from agent.admission.gate.records import group_records
from domain.decisions import Mode
from tests.agent.admission.gate.yard import MakeYard, Yard
from tests.golden import figures


def test_a_group_that_fits_is_raised_to_its_size_and_tagged_with_the_decision(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    yard.turn()
    (decision,) = yard.decisions()
    assert (decision.admit, decision.cores, decision.deployment_id) == (True, 12, "batch-a.1")
    assert (yard.desired("batch-a"), yard.cores("batch-a")) == (3, 12)
    yard.turn(2)
    assert yard.tags("batch-a") == {"admission": "admitted", "requested": "3", "decision": decision.decision_id}
    assert yard.mutations == [("SetDesiredCapacity", "batch-a"), ("CreateOrUpdateTags", "batch-a")]


def test_its_cores_are_taken_from_the_decision_on_and_it_runs_when_its_vms_are_there(yard: Yard) -> None:
    yard.ask("batch-a", 3)
    yard.turn()
    known = yard.known("batch-a")
    assert known is not None
    assert (known.stage, yard.total) == (Stage.RESERVED, 12)
    yard.turn(2)
    known = yard.known("batch-a")
    assert known is not None
    assert (known.stage, known.cores, yard.kinds()) == (Stage.LIVE, 12, [("batch-a.1", "started", 12)])


def test_a_group_that_does_not_fit_is_left_at_nothing_and_tagged_with_the_reason(yard: Yard) -> None:
    yard.ask("batch-a", 9)
    yard.turn()
    (decision,) = yard.decisions()
    assert yard.desired("batch-a") == 0
    assert yard.tags("batch-a") == {
        "admission": "refused:rejected_feasibility",
        "requested": "9",
        "decision": decision.decision_id,
    }
    assert yard.mutations == [("CreateOrUpdateTags", "batch-a")]
    assert (yard.total, figures(decision.detail)) == (0, [36, 32])


def test_a_rule_that_looks_ahead_refuses_what_would_fit_now(make_yard: MakeYard) -> None:
    yard = make_yard(threshold=20.0)
    yard.ask("batch-a", 3)
    yard.ask("batch-b", 3)
    yard.turn()
    assert (yard.answer("batch-b"), yard.desired("batch-b")) == ("refused:rejected_rule", 0)
    assert yard.desired("batch-a") == 3


def test_groups_are_asked_for_by_name_each_knowing_those_before_it(yard: Yard) -> None:
    for name in ("c", "a", "b"):
        yard.ask(name, 4)
    yard.turn()
    assert [(d.deployment_id, d.admit, d.total_cores) for d in yard.decisions()] == [
        ("a.1", True, 0),
        ("b.1", True, 16),
        ("c.1", False, 32),
    ]
    assert [yard.desired(name) for name in "abc"] == [4, 4, 0]


def test_nothing_more_is_called_once_all_is_answered(yard: Yard) -> None:
    yard.ask("batch-a", 2)
    yard.ask("batch-b", 20, largest=20)
    yard.turn(3)
    before, rows = len(yard.mutations), yard.ledger.newest_seq()
    yard.turn(3)
    assert (len(yard.mutations), yard.ledger.newest_seq()) == (before, rows)
    assert [yard.record(name).open for name in ("batch-a", "batch-b")] == [False, False]


def test_a_refused_group_may_ask_again_and_is_another_deployment(yard: Yard) -> None:
    yard.ask("batch-a", 9)
    yard.turn(2)
    yard.ask_again("batch-a", 2)
    yard.turn()
    assert [(d.deployment_id, d.admit) for d in yard.decisions()] == [("batch-a.1", False), ("batch-a.2", True)]
    assert yard.desired("batch-a") == 2


def test_a_group_that_ended_may_ask_again(yard: Yard) -> None:
    yard.ask("batch-a", 2)
    yard.turn(3)
    yard.world.desire(0, "batch-a")
    yard.turn(2)
    yard.ask_again("batch-a", 4)
    yard.turn(3)
    assert yard.kinds() == [("batch-a.1", "started", 8), ("batch-a.1", "shutdown", 0), ("batch-a.2", "started", 16)]
    assert (yard.desired("batch-a"), yard.total) == (4, 16)


def test_observe_mode_changes_nothing_and_says_what_it_would_do_and_why(make_yard: MakeYard) -> None:
    yard = make_yard(mode=Mode.OBSERVE)
    yard.ask("batch-a", 3)
    yard.ask("batch-b", "many")
    yard.ask("batch-c", 9)
    told = yard.turn(3)
    assert (yard.mutations, yard.total, yard.kinds()) == ([], 0, [])
    assert [(event.about, event.reason.value) for event in told] == [
        ("batch-a", "observe_mode"),
        ("batch-b", "rejected_input"),
        ("batch-c", "observe_mode"),
    ]
    assert "batch-a would be admitted with 3 x m5a.xlarge" in told[0].detail
    assert "(rejected_feasibility) with 9 x m5a.xlarge" in told[2].detail
    assert [(d.deployment_id, d.advice, d.admit, d.cores) for d in yard.decisions()] == [
        ("batch-a.1", True, True, 12),
        ("batch-c.1", True, False, 36),
    ]
    assert group_records(yard.ledger).read()[0] == {}


def test_advice_is_recorded_again_only_when_it_changes(make_yard: MakeYard) -> None:
    yard = make_yard(mode=Mode.OBSERVE)
    yard.ask("batch-a", 5)
    yard.turn(25)
    yard.restart()
    yard.turn(2)
    assert len(yard.decisions()) == 1
    # By hand another group takes the room: the next look finds it.
    yard.group("by-hand", vms=6)
    yard.turn(12)
    yard.tag("batch-a", requested="1")
    yard.turn()
    assert [(d.cores, d.admit, d.total_cores) for d in yard.decisions()] == [
        (20, True, 0),
        (20, False, 24),
        (4, True, 24),
    ]
    assert (yard.total, yard.mutations) == (24, [])


def test_what_another_rail_holds_gets_no_advice(make_yard: MakeYard) -> None:
    yard = make_yard(mode=Mode.OBSERVE)
    yard.ask("batch-a", 3)
    yard.world.groups.suspend_processes(AutoScalingGroupName="batch-a", ScalingProcesses=["Launch"])
    told = yard.turn()
    assert [(event.about, event.reason.value) for event in told] == [("batch-a", "launch_suspended")]
    assert yard.decisions() == []


def test_what_was_pending_under_observe_mode_comes_in_once_the_agent_may_act(make_yard: MakeYard) -> None:
    yard = make_yard(mode=Mode.OBSERVE)
    yard.ask("batch-a", 3)
    yard.turn(2)
    yard.restart(Mode.ACT)
    yard.turn()
    assert yard.desired("batch-a") == 3


def test_a_request_left_open_is_not_touched_in_observe_mode_and_carried_on_after_it(yard: Yard) -> None:
    yard.world.control.add_fault("throttle", operations=["SetDesiredCapacity"], rate=1.0, duration_s=70.0)
    yard.ask("batch-a", 3)
    yard.turn()
    yard.restart(Mode.OBSERVE)
    before = len(yard.mutations)
    yard.turn(2)
    assert (len(yard.mutations), yard.desired("batch-a"), yard.record("batch-a").open) == (before, 0, True)
    yard.restart(Mode.ACT)
    yard.turn(3)
    assert (yard.desired("batch-a"), yard.answer("batch-a"), len(yard.decisions())) == (3, "admitted", 1)
