"""Rail 13 rests a group whose changes keep failing, then probes with one VM."""

import pytest

from agent.rails.base import RailLimits
from agent.rails.circuit_breaker import after_outcome, circuit_breaker, is_open, record_outcome
from agent.rails.state import Breaker
from domain.decisions import Outcome, Reason, Status, Verdict
from domain.errors import FailureClass
from tests.agent.rails.scenes import NOON, ask, passes, proposal, scene

LIMITS = RailLimits(breaker_failures=3, breaker_open_s=300.0, breaker_max_s=1000.0)
OPEN = {"breakers": (Breaker("workers_m", 3, NOON + 300.0, 300.0),)}


def outcome(status: Status, reason: Reason, failure: FailureClass | None = None) -> Outcome:
    return Outcome("d1.workers_m", status, reason, asked=2, achieved=0, at=NOON, failure=failure)


REFUSED = outcome(Status.FAILED, Reason.PERMANENT_FAILURE, FailureClass.PERMANENT)


def failing(times: int) -> Breaker:
    breaker = Breaker("workers_m")
    for _ in range(times):
        breaker = after_outcome(breaker, REFUSED, LIMITS, NOON)
    return breaker


def test_an_open_breaker_holds_both_directions_and_names_the_next_probe():
    for desired in ((5, 5, 4), (3, 5, 4)):
        effect = ask(circuit_breaker, proposal(*desired), scene(state=OPEN))
        assert (effect.verdict, effect.reason, effect.after) == (Verdict.VETOED, Reason.CIRCUIT_OPEN, (4, 5, 4))
        assert "12:05:00 UTC" in effect.detail


def test_it_stays_open_to_the_last_moment_and_no_longer():
    assert not passes(circuit_breaker, proposal(5, 4, 4), scene(state=OPEN, now=NOON + 299.9))
    assert passes(circuit_breaker, proposal(5, 4, 4), scene(state=OPEN, now=NOON + 300.0))


@pytest.mark.parametrize(("desired", "after"), [((9, 4, 4), (5, 4, 4)), ((0, 4, 4), (3, 4, 4))])
def test_half_open_tries_one_vm(desired, after):
    effect = ask(circuit_breaker, proposal(*desired), scene(state=OPEN, now=NOON + 300.0))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.CIRCUIT_OPEN, after)


def test_a_probe_that_aws_would_refuse_is_not_made():
    context = scene((12, 4, 4), {"workers_m": {"maximum": 8}}, state=OPEN, now=NOON + 300.0)
    assert ask(circuit_breaker, proposal(8, 4, 4), context).after == (12, 4, 4)


def test_a_clock_set_back_does_not_keep_it_open():
    assert passes(circuit_breaker, proposal(5, 4, 4), scene(state=OPEN, now=NOON - 3600.0))


def test_fewer_failures_than_the_limit_hold_nothing():
    assert passes(circuit_breaker, proposal(9, 4, 4), scene(state={"breakers": (Breaker("workers_m", 2),)}))


def test_it_opens_at_the_limit_and_doubles_to_its_maximum():
    assert failing(2) == Breaker("workers_m", 2)
    assert failing(3) == Breaker("workers_m", 3, NOON + 300.0, 300.0)
    assert failing(4) == Breaker("workers_m", 4, NOON + 600.0, 600.0)
    assert failing(5) == Breaker("workers_m", 5, NOON + 1000.0, 1000.0)
    assert failing(100).length_s == 1000.0


@pytest.mark.parametrize(
    "counted",
    [
        REFUSED,
        outcome(Status.FAILED, Reason.CREDENTIALS, FailureClass.CREDENTIALS),
        outcome(Status.FAILED, Reason.OVERDUE),
    ],
)
def test_permanent_failures_credentials_and_overdue_changes_count(counted):
    assert after_outcome(Breaker("workers_m"), counted, LIMITS, NOON).failures == 1


@pytest.mark.parametrize(
    "ignored",
    [
        outcome(Status.FAILED, Reason.THROTTLED, FailureClass.THROTTLE),
        outcome(Status.FAILED, Reason.UNAVAILABLE, FailureClass.UNAVAILABLE),
        outcome(Status.FAILED, Reason.NO_CAPACITY, FailureClass.CAPACITY),
        outcome(Status.FAILED, Reason.OVERDUE, FailureClass.CAPACITY),
        outcome(Status.FAILED, Reason.OBSERVE_MODE, FailureClass.READ_ONLY),
        outcome(Status.UNKNOWN, Reason.UNKNOWN_OUTCOME, FailureClass.UNKNOWN_OUTCOME),
        outcome(Status.SKIPPED, Reason.TERMINATE_SUSPENDED),
        outcome(Status.IN_PROGRESS, Reason.ACCEPTED),
    ],
)
def test_nothing_else_counts_or_resets(ignored):
    assert after_outcome(failing(2), ignored, LIMITS, NOON) == failing(2)


@pytest.mark.parametrize("status", [Status.DONE, Status.PARTIAL])
def test_any_success_closes_it(status):
    assert after_outcome(failing(4), outcome(status, Reason.DONE), LIMITS, NOON) == Breaker("workers_m")


def test_breakers_are_recorded_per_group_and_closed_ones_forgotten():
    after = record_outcome((Breaker("workers_l", 1),), "workers_m", REFUSED, LIMITS, NOON)
    assert after == (Breaker("workers_l", 1), Breaker("workers_m", 1))
    assert record_outcome(after, "workers_l", outcome(Status.DONE, Reason.DONE), LIMITS, NOON) == (after[1],)


def test_a_change_by_one_vm_is_a_trial_already():
    state = {"breakers": (Breaker("workers_m", 3),)}
    # Whether AWS takes the size is another rail's question: this one adds nothing to a change of one.
    assert passes(circuit_breaker, proposal(11, 4, 4), scene((12, 4, 4), {"workers_m": {"maximum": 8}}, state=state))
    assert passes(circuit_breaker, proposal(5, 4, 4), scene(state=state))


def test_a_breaker_that_never_failed_is_closed():
    fresh = Breaker("workers_m")
    assert (fresh.failures, fresh.open_until, fresh.length_s) == (0, 0.0, 0.0)
    assert not any(is_open(fresh, now) for now in (-1.0, -0.5, 0.0, 0.5, NOON))


def test_a_breaker_is_open_for_its_length_at_most_and_not_at_its_end():
    breaker = Breaker("workers_m", 3, 100.0, 30.0)
    assert [is_open(breaker, now) for now in (69.9, 70.0, 99.9, 100.0)] == [False, True, True, False]
