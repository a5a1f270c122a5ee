"""Rail 12 begins nothing that the group would not carry out."""

from agent.rails.group_state import RAIL
from domain.decisions import Reason
from tests.agent.rails.scenes import ask, passes, proposal, scene


def test_no_increase_while_launch_is_suspended():
    context = scene(groups={"workers_m": {"suspended": ("AZRebalance", "Launch")}})
    effect = ask(RAIL, proposal(5, 5, 4), context)
    assert (effect.reason, effect.after) == (Reason.LAUNCH_SUSPENDED, (4, 5, 4))
    assert passes(RAIL, proposal(3, 4, 4), context)


def test_no_drain_while_terminate_is_suspended():
    context = scene(groups={"workers_m": {"suspended": ("Terminate",)}})
    effect = ask(RAIL, proposal(3, 3, 4), context)
    assert (effect.reason, effect.after) == (Reason.TERMINATE_SUSPENDED, (4, 3, 4))
    assert "no drain is begun" in effect.detail
    assert passes(RAIL, proposal(5, 4, 4), context)


def test_no_drain_while_instances_are_refreshed():
    context = scene(groups={"workers_m": {"refreshing": True}})
    effect = ask(RAIL, proposal(3, 4, 4), context)
    assert (effect.reason, effect.after) == (Reason.REFRESH_IN_PROGRESS, (4, 4, 4))
    assert passes(RAIL, proposal(5, 4, 4), context)


def test_other_suspended_processes_do_not_matter():
    context = scene(groups={"workers_m": {"suspended": ("AlarmNotification", "ScheduledActions")}})
    assert passes(RAIL, proposal(5, 3, 4), context)


def test_a_size_that_aws_would_refuse_is_not_asked_for():
    high = scene((12, 4, 4), {"workers_m": {"maximum": 8}})
    effect = ask(RAIL, proposal(10, 4, 4), high)
    assert (effect.reason, effect.after) == (Reason.ABOVE_MAXIMUM, (12, 4, 4))
    low = scene((0, 4, 4), {"workers_m": {"minimum": 3}})
    assert ask(RAIL, proposal(1, 4, 4), low).reason is Reason.BELOW_MINIMUM
