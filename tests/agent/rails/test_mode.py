"""Rail 15 keeps observe mode from doing anything, and keeps what would have been done."""

from agent.rails.mode import RAIL
from domain.decisions import Mode, Reason, Verdict
from tests.agent.rails.scenes import ask, passes, proposal, scene


def test_act_mode_passes():
    assert passes(RAIL, proposal(5, 3, 4), scene(mode=Mode.ACT))


def test_observe_mode_shows_what_would_be_done_and_holds_it():
    effect = ask(RAIL, proposal(5, 3, 4), scene(mode=Mode.OBSERVE))
    assert (effect.verdict, effect.reason) == (Verdict.VETOED, Reason.OBSERVE_MODE)
    assert (effect.before, effect.after) == ((5, 3, 4), (4, 4, 4))
    assert "observe mode: this is what act mode would do" in effect.detail


def test_observe_mode_of_a_fleet_that_stays_as_it_is_says_nothing():
    assert passes(RAIL, proposal(0, 0, 0), scene((0, 0, 0), mode=Mode.OBSERVE))
