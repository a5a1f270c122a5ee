"""The terminal view shows fleet, jobs, rent, faults and decisions, at any size of the terminal."""

import io

import pytest
from rich.console import Console

from agent.rehearsal.faults import InjectedFault, plan_named
from agent.rehearsal.screens import LiveScreen, Turn, sparkline
from domain.clock import VirtualClock
from domain.decisions import Mode, Reason, Status
from tests.agent.rehearsal.turns import NINE, decision, event, held, moved, outcome, snapshot, turn
from tests.golden import check_wording

SHORTAGE, GAP, SPOT = plan_named("story").faults


class Terminal:
    """A terminal of a given size; the simulated time is minute 14.5."""

    def __init__(self, width: int = 100, height: int = 30, shadows: tuple[str, ...] = ("threshold",)) -> None:
        self.console = Console(
            width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None, record=True
        )
        self.screen = LiveScreen(self.console, "story")
        self._shadows = shadows

    def lines(self, *turns: Turn, faults: tuple[InjectedFault, ...] = ()) -> list[str]:
        """Show the faults and the turns, then return what is drawn."""
        clock = VirtualClock(NINE + 14.5 * 60.0)
        with self.screen.running(clock, NINE, 60, "queue-rule:horizon_s=150", self._shadows):
            for fault in faults:
                self.screen.fault(fault)
            for one in turns:
                self.screen.turn(one)
            self.console.export_text()
        self.console.export_text()
        self.console.print(self.screen)
        return self.console.export_text().rstrip().split("\n")

    def text(self, *turns: Turn, faults: tuple[InjectedFault, ...] = ()) -> str:
        return "\n".join(self.lines(*turns, faults=faults))


PLAIN = turn(snapshot(), decision(4, (1, 2, 0), (1, 2, 0)))
ONE = snapshot((1, 0, 0))
STEP = held("step_limit", (9, 0, 0), (2, 0, 0), Reason.STEP_LIMIT, "at most 1 VM out per decision")
OF_S = held("step_limit", (0, 0, 0), (1, 0, 0), Reason.STEP_LIMIT, "workers_s 3 -> 0 shrunk to 1: at most 2 VMs in")
OF_M = held("flap_guard", (1, 0, 0), (1, 2, 0), Reason.NOT_YET_STABLE, "workers_m 2 -> 0 held at 2: 1 of 3 times")
OF_L = held(
    *("flap_guard", (1, 1, 1), (3, 3, 3), Reason.NOT_YET_STABLE),
    "workers_l 3 -> 1 held at 3: scale-in proposed 1 of 3 times in a row",
)
HELD_ALL = turn(
    snapshot((3, 3, 3)),
    decision(4, (3, 3, 3), (3, 3, 3), OF_L, proposed=(1, 1, 1), reason=Reason.NOT_YET_STABLE),
)
NO_LARGE = InjectedFault(SHORTAGE, NINE, "")
NOTICE = InjectedFault(SPOT, NINE, "i-1")
TAKEN = turn(snapshot(), event(Reason.SPOT_INTERRUPTION, "AWS takes i-1", "i-1"))
FALLBACK = decision(5, (1, 1, 0), (1, 3, 0), moved((1, 1, 1), (1, 3, 0)), reason=Reason.CAPACITY_FALLBACK)
RESPONSES = (
    turn(snapshot(), event(Reason.CAPACITY_LOST, "AWS has no m5a.2xlarge")),
    turn(snapshot(), FALLBACK),
    turn(snapshot(), event(Reason.CAPACITY_RETURNED, "m5a.2xlarge may be asked for again", minute=15)),
)
FAILED = outcome(Status.FAILED, Reason.NO_CAPACITY, 3, 0, "no m5a.2xlarge in us-east-1a")
DONE = outcome(Status.DONE, Reason.DONE, 1, 1, "workers_l holds 1 VMs")
SCREENS: dict[str, tuple[Turn, ...]] = {
    "observe mode": (turn(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), mode=Mode.OBSERVE)),),
    "a shadow that proposes another fleet": (turn(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), shadow=(1, 1, 1))),),
    "a shadow that proposes the same": (turn(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), shadow=(1, 2, 0))),),
    "a target beside the requested size": (turn(snapshot((1, 2, 0)), decision(4, (1, 2, 0), (1, 3, 0))),),
    "the rent so far": (turn(snapshot(), rent=0.517),),
    "a price of VMs that boot and drain": (turn(snapshot((0, 1, 0), booting=(0, 1, 0), draining=(0, 0, 1))),),
    "absent input": (turn(snapshot(absent=("cpu", "queue"))),),
    "no queue": (turn(snapshot(queue=None)),),
    "a change with its reason": (turn(ONE, decision(4, (1, 0, 0), (2, 0, 0))),),
    "a change that a rail changed": (turn(ONE, decision(4, (1, 0, 0), (2, 0, 0), STEP, proposed=(9, 0, 0))),),
    "a change beside a group that is held": (
        turn(snapshot((3, 2, 0)), decision(4, (3, 2, 0), (1, 2, 0), OF_S, OF_M, proposed=(0, 0, 0))),
    ),
    "events of one kind": (
        turn(snapshot(), *(event(Reason.DRIFT_ADOPTED, f"group {n} was changed by hand") for n in (1, 2, 3))),
    ),
    "a failure, and no routine outcome": (turn(snapshot(), FAILED, DONE),),
    "a turn that saw nothing": (PLAIN, turn(failure="the disk is full")),
    "nothing before the first turn": (),
}
UNDER_FAULTS: dict[str, tuple[InjectedFault, tuple[Turn, ...]]] = {
    "a fault": (NO_LARGE, (turn(snapshot()),)),
    "a fault with its responses": (NO_LARGE, RESPONSES),
    "a drain of another VM, which is no response": (
        NOTICE,
        (TAKEN, turn(snapshot(), event(Reason.DRAINED, "i-2 is idle", "i-2"))),
    ),
    "a drain of the interrupted VM": (NOTICE, (TAKEN, turn(snapshot(), event(Reason.DRAINED, "i-1 is idle", "i-1")))),
}


def test_each_screen_reads_as_it_is_held_in_the_golden_file() -> None:
    """A plain screen whole, of the others the lines that differ."""
    plain = Terminal().lines(PLAIN)
    screens = {name: Terminal().lines(*turns) for name, turns in SCREENS.items()}
    screens |= {name: Terminal().lines(*turns, faults=(fault,)) for name, (fault, turns) in UNDER_FAULTS.items()}
    screens["a held change on 120 columns"] = Terminal(120).lines(HELD_ALL)
    screens["a held change of the fleet on 80 columns"] = Terminal(80, 24).lines(HELD_ALL)
    differing = {
        name: "\n".join(line for line in lines if line not in plain and line.strip(" │─╭╮╰╯"))
        for name, lines in screens.items()
    }
    check_wording("live_view", {"a plain screen": "\n".join(plain), **differing})


def test_each_type_has_a_bar_of_its_vms_and_their_numbers():
    lines = Terminal().lines(turn(snapshot((1, 3, 0), booting=(0, 2, 0), draining=(0, 0, 1))))
    rows = {line.split()[2]: line for line in lines if "m5a." in line}
    assert "██ ·· ··" in rows["m5a.large"]
    assert "██ ▒▒ ▒▒" in rows["m5a.xlarge"]
    assert "░░ ·· ··" in rows["m5a.2xlarge"]
    assert rows["m5a.xlarge"].split()[-6:-1] == ["3", "1", "2", "·", "50%"]


def test_minutes_held_for_one_reason_are_one_line_that_counts():
    def held_turn(number: int) -> Turn:
        rail = held("cooldown", (2, 0, 0), (1, 0, 0), Reason.COOLING_DOWN, f"cooling down for another {60 - number} s")
        of = decision(number, (1, 0, 0), (1, 0, 0), rail, proposed=(2, 0, 0), reason=Reason.COOLING_DOWN)
        return turn(snapshot((1, 0, 0)), of)

    lines = [line for line in Terminal().lines(held_turn(4), held_turn(5), held_turn(6)) if "held" in line]
    (line,) = lines
    assert "21:06 ×3 web-6 held: " in line
    assert "another 54 s" in line


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (60, 20), (200, 60)])
def test_it_fits_the_terminal_it_is_drawn_on(width: int, height: int):
    faults = (
        InjectedFault(SHORTAGE, NINE, ""),
        InjectedFault(GAP, NINE + 1560.0, ""),
        InjectedFault(SPOT, NINE + 2445.0, "i-1"),
    )
    many = [
        turn(snapshot(minute=n), decision(n, (1, 2, 0), (1, 2, 1)), event(Reason.DRIFT_ADOPTED, f"{n} " + "x" * 300))
        for n in range(4, 40)
    ]
    lines = Terminal(width, height).lines(*many, faults=faults)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 22)
    assert all(line[0] in "╭│╰" and line[-1] in "╮│╯" for line in lines)


def test_at_80_columns_no_heading_is_cut():
    text = Terminal(80, 24).text(turn(snapshot()))
    assert all(word in text for word in ("type", "VMs", "requested", "warm", "booting", "draining", "CPU"))
    assert "m5a.2xlarge" in text


def test_the_sparkline_has_the_given_width_and_its_highest_is_full():
    assert sparkline([0, 5, 10, 20], 3) == "▃▅█"
    assert sparkline([0, 0], 10) == "▁▁"
    assert sparkline([1, 2], 0) == ""
