"""Without a terminal a dry run writes lines, or JSON for programs."""

import io
import json

from agent.rehearsal.faults import InjectedFault, plan_named
from agent.rehearsal.screens import JsonScreen, LineScreen
from domain.clock import VirtualClock
from domain.decisions import Reason, Status
from tests.agent.rehearsal.turns import NINE, decision, event, held, outcome, snapshot, turn
from tests.golden import check_wording

SPOT = InjectedFault(plan_named("spot").faults[0], NINE + 2445.0, "i-1")


def cooling(number: int, after: tuple[int, ...] = (1, 0, 0)):
    rail = held("cooldown", (2, 0, 0), after, Reason.COOLING_DOWN, "cooling down")
    return decision(number, (1, 0, 0), after, rail, proposed=(2, 0, 0), reason=Reason.COOLING_DOWN)


def written(*turns):
    out = io.StringIO()
    screen = LineScreen(out)
    for one in turns:
        screen.turn(one)
    return out.getvalue().splitlines()


def test_lines_read_as_they_are_held_in_the_golden_file():
    out = io.StringIO()
    screen = LineScreen(out)
    screen.workload("jobs of a day")
    screen.check("ledger", "ledger.db")
    with screen.running(VirtualClock(NINE), NINE, 60, "queue-rule", ()), screen.comparing():
        screen.fault(SPOT)
    parts = (
        decision(4, (1, 0, 0), (2, 0, 0)),
        event(Reason.DRAINED, "i-1 is idle", "i-1"),
        event(Reason.PROTECTED, "i-2 is protected", "i-2"),
        outcome(Status.DONE, Reason.DONE, 1, 1, "holds 1 VMs"),
        outcome(Status.IN_PROGRESS, Reason.ACCEPTED, 1, 0, "asked"),
    )
    late = event(Reason.DRAINING, "i-1 of workers_s draining; terminated in at most 3540 s")
    turns = {
        "a change, an event and a final outcome, and no routine": turn(snapshot((1, 0, 0)), *parts),
        "a long duration in minutes": turn(snapshot(), late),
        "a turn that executed nothing": turn(failure="the disk is full"),
    }
    texts = {name: "\n".join(written(one)) for name, one in turns.items()}
    check_wording("line_view", {"every part, the beginning and a fault": out.getvalue(), **texts})


def test_a_decision_held_as_the_one_before_it_is_written_once():
    seen = snapshot((1, 0, 0))
    lines = written(turn(seen, cooling(4)), turn(seen, cooling(5)), turn(seen), turn(seen, cooling(7)))
    assert [line.split()[1] for line in lines] == ["web-4", "web-7"]


def test_json_has_one_object_a_line_with_its_kind():
    out = io.StringIO()
    screen = JsonScreen(out)
    screen.workload("jobs of a day")
    screen.check("ledger", "ledger.db")
    with screen.running(VirtualClock(NINE), NINE, 60, "queue-rule", "threshold"), screen.comparing():
        screen.fault(SPOT)
        screen.turn(turn(snapshot()))
    assert [json.loads(line)["kind"] for line in out.getvalue().splitlines()] == ["workload", "up", "begin", "fault"]
    assert json.loads(out.getvalue().splitlines()[-1])["vm"] == "i-1"
