"""AWS throttles, credentials expire, one call is denied: each is its own kind of trouble, and none becomes a storm."""

import pytest

from domain.decisions import Direction, Reason, Status
from domain.errors import CloudError, FailureClass, Fenced, LedgerUnavailable
from tests.actuators.shift import AGENT, Shift


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_thirty_percent_of_throttling_never_doubles_an_action(shift: Shift, seed: int) -> None:
    # Time to be sent at all, and for the new VMs to be in service then.
    out = shift.intent(Direction.OUT, target=4, deadline_s=1800.0)
    into = shift.intent(Direction.IN, "m", victims=shift.serving("m")[:1], deadline_s=1800.0)
    shift.control.add_fault("throttle", rate=0.3 + 0.03 * seed)
    outcomes = {out: shift.apply(out), into: shift.apply(into)}
    for _ in range(60):
        outcomes = {i: o if o.status.final else shift.tick(i, 30.0) for i, o in outcomes.items()}
    shift.control.clear_faults()
    assert {outcome.status for outcome in outcomes.values()} == {Status.DONE}
    assert (len(shift.serving("s")), len(shift.serving("m"))) == (4, 1)
    took_effect = [c["operation"] for c in shift.control.mutations(access_key=AGENT) if c["status"] == 200]
    assert sorted(took_effect) == ["SetDesiredCapacity", "TerminateInstanceInAutoScalingGroup"]


def test_expired_credentials_end_the_intent_with_the_remedy_and_one_call(shift: Shift) -> None:
    intent = shift.intent(Direction.OUT, target=4)
    shift.control.add_fault("expired_token", access_keys=[AGENT])
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason, outcome.failure) == (
        Status.FAILED,
        Reason.CREDENTIALS,
        FailureClass.CREDENTIALS,
    )
    assert "`trimtab preflight`" in outcome.detail
    assert shift.mutations == []


def test_an_endpoint_that_is_not_there_is_unavailable_and_nothing_was_sent(shift: Shift) -> None:
    intent, observed = shift.intent(Direction.OUT, target=4), shift.observe()
    shift.world.running.stop()
    outcome = shift.actuator.apply(intent, observed, shift.now, shift.permit)
    assert (outcome.status, outcome.reason, outcome.failure) == (
        Status.IN_PROGRESS,
        Reason.UNAVAILABLE,
        FailureClass.UNAVAILABLE,
    )


def test_a_fence_that_closes_leaves_the_intent_to_the_new_leader(shift: Shift) -> None:
    allowed = [True, False]

    def fence() -> None:
        if not allowed.pop(0):
            raise Fenced("epoch 1 was superseded by 2")

    victims = shift.serving()
    shift.start_agent(fence=fence)
    intent = shift.intent(Direction.IN, victims=victims)
    outcome = shift.apply(intent)
    assert (outcome.status, outcome.reason, outcome.achieved) == (Status.IN_PROGRESS, Reason.NOT_LEADER, 1)
    assert [vm for _, vm in shift.mutations] == victims[:1]


def test_a_ledger_that_cannot_be_asked_stops_everything_and_the_intent_is_taken_up_again(shift: Shift) -> None:
    def fence() -> None:
        raise LedgerUnavailable("the disk is full")

    victim = shift.serving()[0]
    intent = shift.intent(Direction.IN, victims=[victim])
    shift.start_agent(fence=fence)
    with pytest.raises(LedgerUnavailable, match="the disk is full"):
        shift.apply(intent)
    assert shift.mutations == []
    shift.start_agent()
    assert shift.tick(intent).status is Status.DONE
    assert [vm for _, vm in shift.mutations] == [victim]


def test_in_observe_mode_no_change_leaves_the_process(shift: Shift) -> None:
    shift.start_agent(read_only=True)
    first = shift.serving()[0]
    for intent in (
        shift.intent(Direction.OUT, target=4),
        shift.intent(Direction.IN, victims=[first]),
        shift.intent(Direction.REPLACE, victims=[first]),
    ):
        for outcome in (shift.apply(intent), shift.tick(intent)):
            assert (outcome.status, outcome.reason) == (Status.SKIPPED, Reason.OBSERVE_MODE)
    assert shift.tend({first: 2.0}) == []
    assert shift.mutations == []
    with pytest.raises(CloudError, match="observe mode"):
        shift.session.mutate("autoscaling", "SetDesiredCapacity", AutoScalingGroupName="web-s", DesiredCapacity=9)
    assert shift.mutations == []
