"""Drains and protection, step by step, on an AWS that answers as a test says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actuators.base import Act, Held, Refusal, change
from actuators.drain import HEARTBEATS_PER_PERIOD, JUST_BEGUN_S, Drains, DrainSettings
from actuators.protection import CALLS_PER_TICK, IDS_PER_CALL, Protection, owned_from_now, still_owned
from domain.decisions import Event, Reason
from domain.errors import CloudError, FailureClass, Fenced
from domain.fleet import Fleet, Group, VmType
from domain.observed import GroupObserved, Lifecycle, Observed
from tests.actuators.scripted import HOOK, NOW, Cloud, activity, error, group, vms

A, B, C = "i-0000000a", "i-0000000b", "i-0000000c"
HEARTBEAT, COMPLETE, PROTECT = "RecordLifecycleActionHeartbeat", "CompleteLifecycleAction", "SetInstanceProtection"
SETTINGS = DrainSettings(deadline_s=900.0, notice_s=30.0)


def draining(*names: str, **about: object) -> GroupObserved:
    return replace(group(2, *vms(*names, lifecycle=Lifecycle.DRAINING), drain_hook=HOOK), **about)  # type: ignore[arg-type]


class Watch:
    """Drains under way; `step` tends them at a time after NOW and returns (reason, VM) of what happened."""

    def __init__(self, cloud: Cloud, settings: DrainSettings = SETTINGS, were_busy: tuple[str, ...] = ()) -> None:
        self.cloud, self.drains = cloud, Drains(cloud, lambda fleet: settings, were_busy)  # type: ignore[arg-type]
        self.events: list[Event] = []

    def step(
        self, after_s: float, busy: dict[str, float | None], seen: GroupObserved | None = None
    ) -> list[tuple[Reason, str]]:
        shown = draining(*busy) if seen is None else seen
        self.events = []
        self.drains.tend("web", shown, busy, NOW + after_s, self.cloud.permit, self.events)
        return [(event.reason, event.about) for event in self.events]

    def sent(self) -> list[tuple[str, str]]:
        made = [(operation, parameters["InstanceId"]) for operation, parameters in self.cloud.calls]
        self.cloud.calls.clear()
        return made


def test_a_drain_is_announced_once_with_its_end() -> None:
    watch = Watch(Cloud())
    assert watch.step(0.0, {A: 2.0, B: None}) == [(Reason.DRAINING, A), (Reason.DRAINING, B)]
    assert watch.step(60.0, {A: 2.0, B: None}) == []


def test_without_a_hook_or_a_held_vm_there_is_nothing_to_do() -> None:
    watch = Watch(Cloud())
    assert watch.step(0.0, {A: 2.0}, draining(A, drain_hook=None)) == []
    assert watch.step(0.0, {A: 2.0}, group(2, *vms(A), drain_hook=HOOK)) == []
    assert watch.sent() == []


def test_a_busy_vm_has_its_hook_renewed_four_times_a_period() -> None:
    watch = Watch(Cloud())
    watch.step(0.0, {A: 2.0})
    assert watch.sent() == [(HEARTBEAT, A)]
    watch.step(74.9, {A: 2.0})
    assert watch.sent() == []
    watch.step(75.0, {A: 2.0})
    assert watch.sent() == [(HEARTBEAT, A)]


def test_a_heartbeat_names_group_hook_and_vm_and_a_completion_lets_it_go() -> None:
    watch = Watch(Cloud())
    watch.step(0.0, {A: 2.0})
    watch.step(60.0, {A: 0.0})
    about = {"AutoScalingGroupName": "web-s", "LifecycleHookName": "drain", "InstanceId": A}
    assert watch.cloud.calls == [(HEARTBEAT, about), (COMPLETE, about | {"LifecycleActionResult": "CONTINUE"})]
    assert [(call.act, call.subject, call.group, call.vm) for call in watch.cloud.asked] == [
        (Act.HEARTBEAT, "web", "web-s", A),
        (Act.COMPLETE_HOOK, "web", "web-s", A),
    ]


def test_an_idle_vm_is_let_go_once_it_could_know_that_it_drains() -> None:
    watch = Watch(Cloud())
    assert watch.step(0.0, {A: 0.0}) == [(Reason.DRAINING, A)]
    assert watch.sent() == [(HEARTBEAT, A)]
    assert watch.step(SETTINGS.notice_s - 0.1, {A: 0.0}) == []
    assert watch.step(SETTINGS.notice_s, {A: 0.0}) == [(Reason.DRAINED, A)]
    assert watch.sent() == [(COMPLETE, A)]


def test_a_silent_vm_is_neither_kept_nor_let_go_before_its_time() -> None:
    watch = Watch(Cloud())
    watch.step(0.0, {A: None})
    watch.step(899.9, {A: None})
    assert watch.sent() == []
    assert watch.step(900.0, {A: None}) == [(Reason.DRAIN_TIMED_OUT, A)]
    assert watch.sent() == [(COMPLETE, A)]


def test_while_no_vm_reports_one_that_was_busy_is_kept_and_let_go_at_its_deadline() -> None:
    watch = Watch(Cloud())
    period_s = HOOK.heartbeat_s / HEARTBEATS_PER_PERIOD
    watch.step(0.0, {A: 2.0, B: 0.0})
    watch.sent()
    for n in range(1, 4):
        assert watch.step(n * period_s, {A: None, B: None}) == []
        assert watch.sent() == [(HEARTBEAT, A)]
    assert watch.step(4 * period_s, {A: 0.0, B: None}) == [(Reason.DRAINED, A)]
    watch.step(5 * period_s, {B: None})
    watch = Watch(Cloud())
    watch.step(0.0, {A: 2.0})
    assert watch.step(900.0, {A: None}) == [(Reason.DRAIN_TIMED_OUT, A)]
    assert "not reporting" in watch.events[0].detail


def test_a_drain_that_begins_while_no_vm_reports_is_kept_where_the_vm_was_busy_before() -> None:
    watch = Watch(Cloud())
    watch.step(0.0, {A: 2.0, B: 2.0, C: None}, group(3, *vms(A, B, C), drain_hook=HOOK))
    watch.step(60.0, {A: None, B: 0.0, C: None}, group(3, *vms(A, B, C), drain_hook=HOOK))
    watch.step(300.0, {A: None, B: None, C: None})
    assert watch.sent() == [(HEARTBEAT, A)]
    # Gone, and back under its name: nothing is known of it.
    watch.step(360.0, {C: None})
    watch.step(480.0, {A: None, C: None})
    assert watch.sent() == []


def test_a_drain_found_after_a_restart_while_no_vm_reports_is_kept_where_the_vm_was_busy_before_it() -> None:
    watch = Watch(Cloud(), were_busy=(A,))
    watch.step(0.0, {A: None, B: None})
    assert watch.sent() == [(HEARTBEAT, A)]
    gone = CloudError(HEARTBEAT, FailureClass.PERMANENT, "ValidationError", "No active Lifecycle Action found")
    watch = Watch(Cloud(fails={A: gone}), were_busy=(A,))
    assert watch.step(0.0, {A: None}) == [(Reason.DRAINING, A), (Reason.DRAIN_TIMED_OUT, A)]


def test_a_vm_that_alone_does_not_report_may_be_gone_and_is_not_kept() -> None:
    watch = Watch(Cloud())
    watch.step(0.0, {A: 2.0, B: 2.0})
    watch.sent()
    assert watch.step(150.0, {A: None, B: 2.0}) == []
    assert watch.sent() == [(HEARTBEAT, B)]


def test_the_earlier_of_our_deadline_and_the_hooks_limit_ends_a_drain() -> None:
    short = replace(HOOK, limit_s=100.0)
    watch = Watch(Cloud())
    watch.step(0.0, {A: 3.0}, draining(A, drain_hook=short))
    assert "terminated in at most 100 s" in watch.events[0].detail
    assert watch.step(99.9, {A: 3.0}, draining(A, drain_hook=short)) == []
    assert watch.step(100.0, {A: 3.0}, draining(A, drain_hook=short)) == [(Reason.DRAIN_TIMED_OUT, A)]
    assert "with 3 cores still busy" in watch.events[0].detail


def test_a_completion_is_given_again_at_the_second_tick_after_it() -> None:
    watch = Watch(Cloud())
    watch.step(0.0, {A: 0.0})
    watch.step(60.0, {A: 0.0})
    watch.sent()
    assert watch.step(120.0, {A: 0.0}) == []
    assert watch.sent() == []
    assert watch.step(180.0, {A: 5.0}) == []
    assert watch.sent() == [(COMPLETE, A)]
    watch.step(240.0, {A: 0.0})
    assert watch.sent() == []
    watch.step(300.0, {A: 0.0})
    assert watch.sent() == [(COMPLETE, A)]


def test_a_vm_that_left_and_drains_anew_is_a_new_drain() -> None:
    watch = Watch(Cloud())
    watch.step(0.0, {A: 2.0})
    watch.step(60.0, {B: 2.0})
    assert watch.step(120.0, {A: 2.0, B: 2.0}) == [(Reason.DRAINING, A)]
    assert "at most 900 s" in watch.events[0].detail


def test_a_drain_from_before_a_restart_has_the_time_that_aws_gives_it() -> None:
    began = activity("InProgress", at=NOW - 600.0, kind="Terminating", vm=A)
    watch = Watch(Cloud(activities=[began]))
    watch.step(0.0, {A: 2.0})
    assert "terminated in at most 300 s" in watch.events[0].detail
    assert watch.step(300.0, {A: 2.0}) == [(Reason.DRAIN_TIMED_OUT, A)]


@pytest.mark.parametrize(
    "found",
    [
        activity("Successful", at=NOW - 600.0, kind="Terminating", vm=A),
        activity("InProgress", at=NOW - 600.0, kind="Launching", vm=A),
        activity("InProgress", at=NOW - 600.0, kind="Terminating", vm=B),
        activity("InProgress", at=NOW - 901.0, kind="Terminating", vm=A),
        activity("InProgress", at=NOW + 50.0, kind="Terminating", vm=A),
    ],
)
def test_other_activities_say_nothing_of_a_drains_begin(found: dict[str, object]) -> None:
    watch = Watch(Cloud(activities=[found]))
    watch.step(0.0, {A: 2.0})
    assert "terminated in at most 900 s" in watch.events[0].detail


def test_activities_that_cannot_be_read_leave_the_drain_beginning_now() -> None:
    watch = Watch(Cloud(activities=error(FailureClass.THROTTLE)))
    assert watch.step(0.0, {A: 2.0}) == [(Reason.DRAINING, A)]
    assert watch.sent() == [(HEARTBEAT, A)]


@pytest.mark.parametrize(("age_s", "renewed"), [(JUST_BEGUN_S - 0.1, False), (JUST_BEGUN_S, True)])
def test_the_hook_of_a_drain_that_just_began_needs_no_heartbeat(age_s: float, renewed: bool) -> None:
    watch = Watch(Cloud(activities=[activity("InProgress", at=NOW - age_s, kind="Terminating", vm=A)]))
    watch.step(0.0, {A: 2.0})
    assert watch.sent() == ([(HEARTBEAT, A)] if renewed else [])
    # A period after its begin, not after it was seen.
    watch.step(HOOK.heartbeat_s / HEARTBEATS_PER_PERIOD - age_s, {A: 2.0})
    assert watch.sent() == ([] if renewed else [(HEARTBEAT, A)])


@pytest.mark.parametrize(
    ("failure", "reasons", "next_too"),
    [
        (FailureClass.CREDENTIALS, [Reason.CREDENTIALS], False),
        (FailureClass.PERMANENT, [Reason.PERMANENT_FAILURE], True),
        (FailureClass.THROTTLE, [], False),
        (FailureClass.UNAVAILABLE, [], False),
    ],
)
def test_a_failure_that_the_next_vm_would_meet_ends_the_groups_turn(
    failure: FailureClass, reasons: list[Reason], next_too: bool
) -> None:
    cloud = Cloud()
    watch = Watch(cloud)
    watch.step(0.0, {A: 2.0, B: 2.0})
    watch.sent()
    cloud.fails[A] = error(failure, operation=HEARTBEAT)
    assert watch.step(100.0, {A: 2.0, B: 2.0}) == [(reason, A) for reason in reasons]
    assert watch.sent() == [(HEARTBEAT, A), *([(HEARTBEAT, B)] if next_too else [])]
    for event in watch.events:
        assert event.detail.startswith(f"drain of {A} in web-s: {HEARTBEAT}: Odd")


def test_a_refusal_holds_one_vm_and_a_lost_lead_all() -> None:
    cloud = Cloud(refusals={A: Refusal(Reason.PAUSED, "paused")})
    watch = Watch(cloud)
    watch.step(0.0, {A: 2.0, B: 2.0})
    assert watch.sent() == [(HEARTBEAT, B)]
    cloud = Cloud(fails={A: Fenced("another leads")})
    watch = Watch(cloud)
    watch.step(0.0, {A: 2.0, B: 2.0})
    assert watch.sent() == [(HEARTBEAT, A)]


def test_a_hook_that_ran_out_is_no_failure() -> None:
    gone = CloudError(HEARTBEAT, FailureClass.PERMANENT, "ValidationError", "No active Lifecycle Action found")
    watch = Watch(Cloud(fails={A: gone}))
    assert watch.step(0.0, {A: 0.0}) == [(Reason.DRAINING, A)]
    assert watch.step(60.0, {A: 0.0}) == []
    assert watch.sent() == [(HEARTBEAT, A)]


def test_a_vm_that_our_hook_does_not_hold_gets_one_call_and_a_busy_one_an_event() -> None:
    gone = CloudError(HEARTBEAT, FailureClass.PERMANENT, "ValidationError", "No active Lifecycle Action found")
    watch = Watch(Cloud(fails={A: gone}))
    assert watch.step(0.0, {A: 2.0}) == [(Reason.DRAINING, A), (Reason.DRAIN_TIMED_OUT, A)]
    for at in range(1, 40):
        assert watch.step(60.0 * at, {A: 2.0 if at < 20 else 0.0}) == []
    assert watch.sent() == [(HEARTBEAT, A)]


def test_a_step_of_the_clock_moves_every_drain_along() -> None:
    watch = Watch(Cloud())
    watch.step(0.0, {A: 2.0, B: 0.0})
    watch.step(60.0, {A: 2.0, B: 0.0})
    watch.sent()
    watch.drains.clock_stepped(5000.0)
    period = HOOK.heartbeat_s / HEARTBEATS_PER_PERIOD
    watch.step(5000.0 + period - 0.1, {A: 2.0, B: 0.0})
    assert watch.sent() == []
    watch.step(5000.0 + period, {A: 2.0, B: 0.0})
    assert watch.sent() == [(HEARTBEAT, A), (COMPLETE, B)]
    assert watch.step(5000.0 + 899.9, {A: None, B: 0.0}) == []
    assert watch.step(5000.0 + 900.0, {A: None, B: 0.0}) == [(Reason.DRAIN_TIMED_OUT, A)]


# Protection


def tend(
    cloud: Cloud, protection: Protection, busy: dict[str, float | None], seen: GroupObserved
) -> list[tuple[Reason, str]]:
    events: list[Event] = []
    protection.tend("web", seen, busy, NOW, cloud.permit, events)
    return [(event.reason, event.detail) for event in events]


def protection_calls(cloud: Cloud) -> list[tuple[list[str], bool]]:
    made = [(parameters["InstanceIds"], parameters["ProtectedFromScaleIn"]) for _, parameters in cloud.calls]
    cloud.calls.clear()
    return made


def test_busy_vms_are_protected_and_ours_given_back_when_idle() -> None:
    cloud = Cloud()
    protection = Protection(cloud, (C,))  # type: ignore[arg-type]
    seen = group(3, *vms(A, B), *vms(C, protected=True))
    happened = tend(cloud, protection, {A: 1.0, B: 0.0, C: 0.0}, seen)
    assert [reason for reason, _ in happened] == [Reason.PROTECTED] * 2
    assert protection_calls(cloud) == [([A], True), ([C], False)]
    assert [call.act for call in cloud.asked] == [Act.PROTECT, Act.UNPROTECT]
    assert protection.ours == {A}


def test_what_another_party_protected_stays_until_it_takes_it_off() -> None:
    cloud = Cloud()
    protection = Protection(cloud)  # type: ignore[arg-type]
    theirs, free = group(1, *vms(A, protected=True)), group(1, *vms(A))
    for busy in (2.0, 0.0, 2.0, 0.0):
        assert tend(cloud, protection, {A: busy}, theirs) == []
    assert protection.ours == set()
    tend(cloud, protection, {A: 0.0}, free)
    tend(cloud, protection, {A: 1.0}, free)
    assert protection_calls(cloud) == [([A], True)]
    tend(cloud, protection, {A: 0.0}, theirs)
    assert protection_calls(cloud) == [([A], False)]


def test_protection_that_another_party_took_off_is_ours_no_more_also_while_the_vm_does_not_report() -> None:
    cloud = Cloud()
    protection = Protection(cloud, (A,))  # type: ignore[arg-type]
    tend(cloud, protection, {A: None}, group(1, *vms(A)))
    assert protection.ours == set()
    tend(cloud, protection, {A: 0.0}, group(1, *vms(A, protected=True)))
    assert protection_calls(cloud) == []


def test_a_vm_that_does_not_report_or_is_not_in_service_stays_as_it_is() -> None:
    cloud = Cloud()
    protection = Protection(cloud, (B,))  # type: ignore[arg-type]
    seen = group(3, *vms(A, lifecycle=Lifecycle.PENDING), *vms(B, protected=True), *vms(C))
    tend(cloud, protection, {A: 1.0, B: None}, seen)
    assert protection_calls(cloud) == []
    assert protection.ours == {B}


def test_a_vm_that_left_is_forgotten() -> None:
    cloud = Cloud()
    protection = Protection(cloud, (A,))  # type: ignore[arg-type]
    tend(cloud, protection, {A: 1.0}, group(1, *vms(A, protected=True)))
    assert protection.ours == {A}
    tend(cloud, protection, {B: 0.0}, group(1, *vms(B, protected=True)))
    assert protection.ours == set()


def test_two_calls_of_fifty_vms_are_made_a_tick() -> None:
    cloud = Cloud()
    protection = Protection(cloud)  # type: ignore[arg-type]
    names = [f"i-{number:08x}" for number in range(120)]
    assert (IDS_PER_CALL, CALLS_PER_TICK) == (50, 2)
    tend(cloud, protection, dict.fromkeys(names, 1.0), group(120, *vms(*names)))
    assert protection_calls(cloud) == [(names[:50], True), (names[50:100], True)]
    assert protection.ours == set(names[:100])


@pytest.mark.parametrize(
    ("failure", "reported"),
    [(FailureClass.CREDENTIALS, True), (FailureClass.THROTTLE, False), (FailureClass.PERMANENT, False)],
)
def test_a_failed_call_ends_the_groups_turn_and_keeps_what_may_be_ours(failure: FailureClass, reported: bool) -> None:
    cloud = Cloud(fails={PROTECT: error(failure, operation=PROTECT)})
    protection = Protection(cloud, (C,))  # type: ignore[arg-type]
    events = tend(cloud, protection, {A: 1.0, C: 0.0}, group(3, *vms(A), *vms(C, protected=True)))
    assert [reason for reason, _ in events] == ([Reason.CREDENTIALS] if reported else [])
    assert len(cloud.calls) == 1
    # If the answer was lost the VM may be protected: it stays ours to unprotect.
    assert protection.ours == {A, C}


def test_a_pause_keeps_protection_on_and_goes_on_protecting() -> None:
    cloud = Cloud(refusals={"unprotect": Refusal(Reason.PAUSED, "paused")})
    protection = Protection(cloud, (C,))  # type: ignore[arg-type]
    seen = group(2, *vms(A), *vms(C, protected=True))
    assert [reason for reason, _ in tend(cloud, protection, {A: 1.0, C: 0.0}, seen)] == [Reason.PROTECTED]
    assert protection_calls(cloud) == [([A], True)]
    assert C in protection.ours
    cloud = Cloud(refusals={"protect": Refusal(Reason.PAUSED, "paused")})
    protection = Protection(cloud, (C,))  # type: ignore[arg-type]
    tend(cloud, protection, {A: 1.0, C: 0.0}, seen)
    assert protection_calls(cloud) == [([C], False)]
    cloud = Cloud(fails={PROTECT: Fenced("another leads")})
    tend(cloud, Protection(cloud, (C,)), {A: 1.0, C: 0.0}, seen)  # type: ignore[arg-type]
    assert len(cloud.calls) == 1


WEB = Fleet("web", tuple(Group(key, f"web-{key}", VmType("m", 2, 8.0, 0.1), 0, 9) for key in ("s", "m")))


def test_what_is_owned_from_now_on_is_recorded_before_it_is_protected() -> None:
    seen = Observed(NOW, {"web-s": group(3, *vms(A, protected=True), *vms(B))})
    # A is protected still, B no longer is, C's group was not read: it stays while it reports.
    assert owned_from_now(WEB, seen, (A, B, C), {C: 0.0}, gives_back=True) == (A, C)
    assert owned_from_now(WEB, seen, (C,), {}, gives_back=True) == ()
    # A is another party's, busy or not. A group that is held is cared for as well.
    busy: dict[str, float | None] = {A: 2.0, B: 0.5, C: None}
    assert owned_from_now(WEB, seen, (), busy, gives_back=True) == (B,)
    assert owned_from_now(WEB, Observed(NOW, held=seen.groups), (), busy, gives_back=True) == (B,)


def test_what_is_given_back_is_recorded_before_it_is_and_is_owned_again_where_no_call_was_answered() -> None:
    seen = Observed(NOW, {"web-s": group(3, *vms(A, B, C, protected=True))})
    idle: dict[str, float | None] = {A: 0.0, B: 1.0, C: None}
    assert owned_from_now(WEB, seen, (A, B, C), idle, gives_back=True) == (B, C)
    assert owned_from_now(WEB, seen, (A, B, C), idle, gives_back=False) == (A, B, C)
    assert owned_from_now(WEB, Observed(NOW, held=seen.groups), (A,), idle, gives_back=True) == (A,)
    assert still_owned(WEB, seen, (B, C), {A, B, "i-other"}) == (A, B)


# The one way to change anything


def test_a_change_asks_its_permit_and_sends_nothing_when_it_is_refused() -> None:
    from actuators.base import ChangingCall

    cloud = Cloud(refusals={"launch": Refusal(Reason.PAUSED, "held by ben")})
    call = ChangingCall(Act.LAUNCH, "web", "s")
    with pytest.raises(Held, match="held by ben") as caught:
        change(cloud, cloud.permit, call, "autoscaling", "SetDesiredCapacity", DesiredCapacity=3)  # type: ignore[arg-type]
    assert caught.value.refusal.reason is Reason.PAUSED
    assert cloud.calls == []
    cloud.refusals.clear()
    change(cloud, cloud.permit, call, "autoscaling", "SetDesiredCapacity", DesiredCapacity=3)  # type: ignore[arg-type]
    assert cloud.calls == [("SetDesiredCapacity", {"DesiredCapacity": 3})]


def test_a_vm_whose_calls_always_fail_comes_last_and_keeps_no_other_from_its_heartbeat() -> None:
    cloud = Cloud(fails={A: error(FailureClass.UNAVAILABLE, operation=HEARTBEAT)})
    watch = Watch(cloud)
    watch.step(0.0, {A: 2.0, B: 2.0, C: 2.0})
    assert watch.sent() == [(HEARTBEAT, A)]
    watch.step(60.0, {A: 2.0, B: 2.0, C: 2.0})
    assert watch.sent() == [(HEARTBEAT, B), (HEARTBEAT, C), (HEARTBEAT, A)]


def test_a_vm_that_another_activity_holds_does_not_end_the_groups_turn() -> None:
    cloud = Cloud(fails={A: error(FailureClass.UNAVAILABLE, "ScalingActivityInProgress", HEARTBEAT)})
    watch = Watch(cloud)
    watch.step(0.0, {A: 2.0, B: 2.0})
    assert watch.sent() == [(HEARTBEAT, A), (HEARTBEAT, B)]


def test_a_vm_that_aws_names_in_its_refusal_keeps_no_other_from_its_protection() -> None:
    refused = CloudError(PROTECT, FailureClass.PERMANENT, "ValidationError", f"The instance {A} is not in InService")

    class Picky(Cloud):
        def mutate(self, service: str, operation: str, **parameters: object) -> None:
            super().mutate(service, operation, **parameters)
            if A in parameters["InstanceIds"]:  # type: ignore[operator]
                raise refused

    cloud = Picky()
    tend(cloud, Protection(cloud), {A: 1.0, B: 1.0, C: 1.0}, group(3, *vms(A, B, C)))  # type: ignore[arg-type]
    assert protection_calls(cloud) == [([A, B, C], True), ([B, C], True)]
