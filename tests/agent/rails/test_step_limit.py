"""Rail 6 limits what one decision may change, per direction, absolute and in percent."""

import pytest

from agent.rails.step_limit import RAIL, largest_step
from domain.decisions import Origin, Reason, Verdict
from tests.agent.rails.scenes import ask, passes, proposal, scene


def test_the_sentence_has_the_numbers():
    effect = ask(RAIL, proposal(4, 0, 0), scene((2, 0, 0), limits={"max_step_out": 1}))
    assert (effect.verdict, effect.reason, effect.after) == (Verdict.SHRUNK, Reason.STEP_LIMIT, (3, 0, 0))
    assert effect.detail == "workers_m 2 -> 4 shrunk to 3: at most 1 VM out per decision"


def test_each_direction_has_its_own_limit():
    context = scene((10, 10, 10), limits={"max_step_out": 5, "max_step_in": 2})
    assert passes(RAIL, proposal(15, 8, 10), context)
    assert ask(RAIL, proposal(16, 7, 10), context).after == (15, 8, 10)


@pytest.mark.parametrize(
    ("current", "percent", "step"),
    [(10, 50.0, 5), (11, 50.0, 5), (10, 10.0, 2), (0, 50.0, 2), (10, 0.0, 2), (3, 100.0, 3)],
)
def test_the_larger_of_absolute_and_percent_allows(current, percent, step):
    assert largest_step(current, 2, percent) == step


def test_percent_is_of_the_current_size():
    limits = {"max_step_out": 1, "max_step_out_percent": 50.0, "max_step_in": 1, "max_step_in_percent": 20.0}
    assert ask(RAIL, proposal(20, 0, 4), scene((10, 10, 4), limits=limits)).after == (15, 8, 4)


def test_growth_from_zero_uses_the_absolute_limit():
    limits = {"max_step_out": 2, "max_step_out_percent": 100.0}
    assert ask(RAIL, proposal(9, 0, 0), scene((0, 0, 0), limits=limits)).after == (2, 0, 0)


def test_a_limit_of_zero_holds_the_direction():
    effect = ask(RAIL, proposal(5, 4, 4), scene(limits={"max_step_out": 0}))
    assert (effect.verdict, effect.after) == (Verdict.VETOED, (4, 4, 4))


@pytest.mark.parametrize("origin", [Origin.PIN, Origin.FLOOR])
def test_pins_and_the_safe_floor_walk_in_steps_too(origin):
    assert ask(RAIL, proposal(9, 4, 4, origin=origin), scene(limits={"max_step_out": 2})).after == (6, 4, 4)


def test_a_group_outside_awss_bounds_may_return_to_them_at_once():
    high = scene((12, 4, 4), {"workers_m": {"maximum": 8}}, limits={"max_step_in": 1})
    assert passes(RAIL, proposal(8, 4, 4), high)
    assert ask(RAIL, proposal(6, 4, 4), high).after == (8, 4, 4)
    low = scene((0, 4, 4), {"workers_m": {"minimum": 3}}, limits={"max_step_out": 1})
    assert ask(RAIL, proposal(5, 4, 4), low).after == (3, 4, 4)
