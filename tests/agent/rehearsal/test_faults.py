"""Fault plans: faults are injected in their minute, and the ledger must hold the responses, in order."""

from typing import Any

import pytest

from agent.ledger.journal import JournalEntry, Kind
from agent.rehearsal.faults import (
    NO_VM,
    PLANS,
    Fault,
    FaultInjector,
    FaultPlan,
    FaultTarget,
    missing,
    plan_named,
    recorded_reasons,
    required_reasons,
)
from agent.rehearsal.faults import (
    RecordedReason as Recorded,
)
from agent.rehearsal.scenario import AGENT_KEY
from domain.decisions import Reason
from domain.errors import BadInput
from domain.subject import fleet_subject


class Cloud:
    """Records the faults injected into it and into the site's metrics; the busiest VM is `vm`."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.vm: str | None = None
        self.target = FaultTarget(self, "queue", lambda seconds: self.done.append(("gap", seconds)), lambda: self.vm)

    def add_fault(self, kind: str, **about: Any) -> None:
        self.done.append((kind, about))

    def spot_notice(self, instance_ids: list[str], queue: str) -> None:
        self.done.append(("spot", instance_ids, queue))


def entry(kind: Kind, reason: str, ref: str, at: float = 0.0, effects: tuple[str, ...] = ()) -> JournalEntry:
    return JournalEntry(
        1, at, fleet_subject("web"), kind, ref, reason, {"effects": [{"reason": name} for name in effects]}
    )


def test_each_fault_is_injected_once_in_its_minute_and_in_order():
    injector, cloud = FaultInjector(plan_named("story")), Cloud()
    titles = [
        [injected.fault.title for injected in injector.advance(minute, 60.0 * minute, cloud.target)]
        for minute in (0.0, 1.0, 26.5, 27.0)
    ]
    assert titles == [["no m5a.2xlarge for 8 min"], [], ["no measurements for 3 min"], []]
    assert cloud.done == [("capacity", {"instance_type": "m5a.2xlarge", "duration_s": 480.0}), ("gap", 180.0)]


def test_a_fault_that_is_not_possible_yet_is_tried_again():
    injector, cloud = FaultInjector(plan_named("spot")), Cloud()
    assert injector.advance(41.0, 2460.0, cloud.target) == ()
    cloud.vm = "i-7"
    (injected,) = injector.advance(42.0, 2520.0, cloud.target)
    assert (injected.vm, injected.at) == ("i-7", 2520.0)
    assert injector.advance(43.0, 2580.0, cloud.target) == ()
    assert cloud.done == [("spot", ["i-7"], "queue")]


@pytest.mark.parametrize("name", ["throttle", "timeout"])
def test_only_the_agents_calls_are_throttled_or_time_out(name: str):
    injector, cloud = FaultInjector(plan_named(name)), Cloud()
    assert injector.advance(60.0, 3600.0, cloud.target)
    assert all(about["access_keys"] == [AGENT_KEY] for _, about in cloud.done)


def test_an_injection_that_fails_is_tried_again():
    def refuse(_: object) -> str:
        raise OSError("no route")

    injector = FaultInjector(FaultPlan("s", (Fault(0.0, "t", refuse),), ()))
    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            injector.advance(1.0, 60.0, Cloud().target)


def test_an_unknown_plan_is_refused_with_the_list_of_names():
    with pytest.raises(BadInput, match="story, none, throttle"):
        plan_named("flood")


def test_every_fault_of_every_plan_has_responses():
    assert all(fault.responses for plan in PLANS for fault in plan.faults)
    assert all(plan.required(60.0) == plan.required() != () for plan in PLANS)


def test_a_run_requires_what_its_faults_lead_to_by_its_end():
    story = plan_named("story")
    assert story.required(10.0) == ()
    assert story.required(15.0)[-1] is Reason.DONE
    assert Reason.METRICS_LOST not in story.required(30.0)
    for plan in PLANS:
        for minutes in range(5, 61, 5):
            reasons = set(plan.required(minutes))
            begun = [fault for fault in plan.faults if fault.minute <= minutes]
            later = {reason for fault in plan.faults if fault not in begun for reason in fault.responses}
            of_begun = {reason for fault in begun for reason in fault.responses}
            assert not reasons & (later - of_begun), (plan.name, minutes)


def test_the_default_plan_requires_the_eight_events_of_the_demonstration():
    required = plan_named("story").required()
    assert len(required) >= 8
    assert {
        Reason.QUEUE_GREW,
        Reason.CAPACITY_LOST,
        Reason.CAPACITY_RETURNED,
        Reason.NO_CAPACITY,
        Reason.METRICS_LOST,
        Reason.METRICS_RETURNED,
        Reason.SPOT_INTERRUPTION,
        Reason.DRAINED,
    } <= set(required)


A, B, C = Reason.QUEUE_GREW, Reason.CAPACITY_LOST, Reason.DONE


def test_reasons_in_their_order_are_not_missing():
    assert missing((A, B, C), [Recorded(A, 1.0), Recorded(C, 2.0), Recorded(B, 3.0), Recorded(C, 4.0)]) == ()


def test_a_reason_before_its_turn_does_not_count():
    assert missing((A, B), [Recorded(B, 1.0), Recorded(A, 2.0)]) == (B,)


def test_within_one_turn_any_order_will_do():
    assert missing((A, B), [Recorded(B, 2.0), Recorded(A, 2.0)]) == ()


def test_an_absent_reason_does_not_hide_those_after_it():
    assert missing((A, B, C), [Recorded(A, 1.0), Recorded(C, 2.0)]) == (B,)


def test_only_the_drain_of_the_interrupted_vm_counts_after_a_spot_interruption():
    required = (Reason.SPOT_INTERRUPTION, Reason.DRAINED)
    recorded = [Recorded(Reason.SPOT_INTERRUPTION, 1.0, "i-1"), Recorded(Reason.DRAINED, 2.0, "i-2")]
    assert missing(required, recorded) == (Reason.DRAINED,)
    assert missing(required, [*recorded, Recorded(Reason.DRAINED, 3.0, "i-1")]) == ()


def test_a_drain_without_an_interruption_before_it_may_be_of_any_vm():
    assert missing((Reason.DRAINED,), [Recorded(Reason.DRAINED, 2.0, "i-2")]) == ()


def test_the_rails_reasons_of_a_decision_follow_its_own():
    recorded = recorded_reasons(
        [entry(Kind.DECISION, "cooling_down", "web-4", 5.0, ("step_limit", "cooling_down", ""))]
    )
    assert recorded == [
        Recorded(Reason.COOLING_DOWN, 5.0, "web-4"),
        Recorded(Reason.STEP_LIMIT, 5.0, "web-4"),
    ]


def test_a_fallback_without_an_intent_does_not_count():
    held = entry(Kind.DECISION, "cooling_down", "web-4", 1.0, ("capacity_fallback",))
    done = entry(Kind.DECISION, "capacity_fallback", "web-5", 2.0, ("capacity_fallback",))
    intent = entry(Kind.INTENT, "capacity_fallback", "web-5.workers_m", 2.0)
    assert {one.at for one in recorded_reasons([held, done, intent]) if one.reason is Reason.CAPACITY_FALLBACK} == {2.0}


def test_an_unknown_reason_is_left_out():
    assert recorded_reasons([entry(Kind.EVENT, "no_such_reason", NO_VM)]) == []


def test_of_a_learned_policy_its_own_reason_is_required_and_nothing_that_is_its_choice():
    plan = plan_named("story")
    required = required_reasons(plan, "learned")
    assert required[0] is Reason.LEARNED
    assert set(plan.required()) - set(required) == {
        Reason.QUEUE_GREW,
        Reason.NO_CAPACITY,
        Reason.CAPACITY_LOST,
        Reason.CAPACITY_RETURNED,
    }
    assert required_reasons(plan, "queue-rule:horizon_s=150") == plan.required()
