"""Without a terminal a dry run writes lines, or JSON for programs."""

import io
import json

from agent.rehearsal.faults import InjectedFault, plan_named
from agent.rehearsal.screens import JsonScreen, LineScreen
from domain.clock import VirtualClock
from domain.decisions import Reason, Status
from tests.agent.rehearsal.turns import NINE, decision, event, held, outcome, snapshot, turn

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


def test_every_part_and_the_beginning_are_announced():
    out = io.StringIO()
    screen = LineScreen(out)
    screen.workload("jobs of a day")
    screen.check("ledger", "ledger.db")
    with screen.running(VirtualClock(NINE), NINE, 60, "queue-rule", ()), screen.comparing():
        screen.fault(SPOT)
    assert out.getvalue().splitlines() == [
        "jobs of a day",
        "up: ledger: ledger.db",
        "21:00:00 60 min begin; policy queue-rule, shadows none",
        "21:40:45 FAULT spot notice for a VM: i-1",
    ]


def test_changes_events_and_final_outcomes_are_written_and_routine_is_not():
    assert written(
        turn(
            snapshot((1, 0, 0)),
            decision(4, (1, 0, 0), (2, 0, 0)),
            event(Reason.DRAINED, "i-1 is idle", "i-1"),
            event(Reason.PROTECTED, "i-2 is protected", "i-2"),
            outcome(Status.DONE, Reason.DONE, 1, 1, "holds 1 VMs"),
            outcome(Status.IN_PROGRESS, Reason.ACCEPTED, 1, 0, "asked"),
        )
    ) == [
        "21:04:00 web drained: i-1 is idle",
        "21:04:00 web-4 the sentence of web-4",
        "21:04:00 web-3.workers_l done, 1 of 1: holds 1 VMs",
    ]


def test_a_decision_held_as_the_one_before_it_is_written_once():
    seen = snapshot((1, 0, 0))
    lines = written(turn(seen, cooling(4)), turn(seen, cooling(5)), turn(seen), turn(seen, cooling(7)))
    assert [line.split()[1] for line in lines] == ["web-4", "web-7"]


def test_long_durations_are_written_in_minutes():
    late = event(Reason.DRAINING, "i-1 of workers_s drains; at the latest in 3540 s it is let go")
    assert written(turn(snapshot(), late)) == [
        "21:04:00 web draining: i-1 of workers_s drains; at the latest in 59 min it is let go"
    ]


def test_a_turn_that_executed_nothing_shows_the_failure():
    assert written(turn(failure="the disk is full")) == ["21:00:00 nothing was executed: the disk is full"]


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
