"""Rail 14 lets only the leader change anything."""

from agent.rails.leader_epoch import RAIL
from domain.decisions import Origin, Reason
from tests.agent.rails.scenes import ask, passes, proposal, scene


def test_the_leader_acts():
    assert passes(RAIL, proposal(5, 3, 4), scene(leader=True))


def test_anybody_else_holds_whoever_asks():
    for origin in Origin:
        effect = ask(RAIL, proposal(5, 3, 4, origin=origin), scene(leader=False))
        assert (effect.reason, effect.after) == (Reason.NOT_LEADER, (4, 4, 4))
