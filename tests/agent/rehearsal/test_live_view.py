"""The terminal view shows fleet, jobs, rent, faults and decisions, at any size of the terminal."""

import io

import pytest
from rich.console import Console

from agent.rehearsal.faults import InjectedFault, plan_named
from agent.rehearsal.screens import LiveScreen, Turn, sparkline
from domain.clock import VirtualClock
from domain.decisions import Mode, Reason, Status
from tests.agent.rehearsal.turns import NINE, decision, event, held, moved, outcome, snapshot, turn

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


def test_the_header_shows_the_dry_run_its_mode_and_the_minute():
    text = Terminal().text(turn(snapshot(), decision(4, (1, 2, 0), (1, 2, 0))))
    assert "DRY RUN, fake AWS" in text
    assert " ACT " in text
    assert "21:14:30 UTC  minute 14 of 60" in text
    assert "policy queue-rule" in text


def test_observe_mode_has_its_own_badge():
    text = Terminal().text(turn(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), mode=Mode.OBSERVE)))
    assert " OBSERVE " in text
    assert " ACT " not in text


def test_the_shadow_policys_proposal_is_shown():
    one = turn(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), shadow=(1, 1, 1)))
    assert "shadow threshold would want workers_m 2→1, workers_l 0→1" in Terminal().text(one)
    one = turn(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), shadow=(1, 2, 0)))
    assert "shadow threshold would change nothing" in Terminal().text(one)


def test_each_type_has_a_bar_of_its_vms_and_their_numbers():
    lines = Terminal().lines(turn(snapshot((1, 3, 0), booting=(0, 2, 0), draining=(0, 0, 1))))
    rows = {line.split()[2]: line for line in lines if "m5a." in line}
    assert "██ ·· ··" in rows["m5a.large"]
    assert "██ ▒▒ ▒▒" in rows["m5a.xlarge"]
    assert "░░ ·· ··" in rows["m5a.2xlarge"]
    assert rows["m5a.xlarge"].split()[-6:-1] == ["3", "1", "2", "·", "50%"]


def test_the_new_target_is_shown_beside_the_requested_size():
    lines = Terminal().lines(turn(snapshot((1, 2, 0)), decision(4, (1, 2, 0), (1, 3, 0))))
    assert any("m5a.xlarge" in line and "2→3" in line for line in lines[3:8])


def test_queue_jobs_and_money_are_there():
    text = Terminal().text(turn(snapshot(), rent=0.517))
    assert "38 waiting    2 running    0 done" in text
    assert "$ 0.517 so far   $0.430 per hour now" in text


def test_the_price_counts_vms_that_boot_or_drain():
    text = Terminal().text(turn(snapshot((0, 1, 0), booting=(0, 1, 0), draining=(0, 0, 1))))
    assert "$0.516 per hour now" in text


def test_absent_input_is_shown_beside_the_rent():
    assert "holding: no cpu, queue" in Terminal().text(turn(snapshot(absent=("cpu", "queue"))))
    assert "no reading of the queue" in Terminal().text(turn(snapshot(queue=None)))


def test_a_fault_is_shown_at_once_and_later_with_the_responses():
    injected = InjectedFault(SHORTAGE, NINE, "")
    before = Terminal().text(turn(snapshot()), faults=(injected,))
    assert "21:00 ⚡ no m5a.2xlarge for 8 min → …" in before
    lost = event(Reason.CAPACITY_LOST, "AWS has no m5a.2xlarge")
    fallback = decision(5, (1, 1, 0), (1, 3, 0), moved((1, 1, 1), (1, 3, 0)), reason=Reason.CAPACITY_FALLBACK)
    back = event(Reason.CAPACITY_RETURNED, "m5a.2xlarge may be asked for again", minute=15)
    text = Terminal().text(
        turn(snapshot(), lost), turn(snapshot(), fallback), turn(snapshot(), back), faults=(injected,)
    )
    assert "no m5a.2xlarge for 8 min → fallback to m5a.xlarge → asked for again" in text


def test_only_the_drain_of_the_interrupted_vm_is_a_response():
    injected = InjectedFault(SPOT, NINE, "i-1")
    text = Terminal().text(
        turn(snapshot(), event(Reason.SPOT_INTERRUPTION, "AWS takes i-1", "i-1")),
        turn(snapshot(), event(Reason.DRAINED, "i-2 is idle", "i-2")),
        faults=(injected,),
    )
    assert "spot notice for a VM → replaced │" in " ".join(text.split())
    drained = turn(snapshot(), event(Reason.DRAINED, "i-1 is idle", "i-1"))
    assert "→ replaced → drained" in Terminal().text(
        turn(snapshot(), event(Reason.SPOT_INTERRUPTION, "AWS takes i-1", "i-1")), drained, faults=(injected,)
    )


def test_a_change_is_shown_with_its_reason_and_a_rail_that_changed_it():
    text = Terminal().text(turn(snapshot((1, 0, 0)), decision(4, (1, 0, 0), (2, 0, 0))))
    assert "21:04 web-4 workers_s 1→2  (38 jobs wait)" in text
    step = held("step_limit", (9, 0, 0), (2, 0, 0), Reason.STEP_LIMIT, "at most 1 VM out per decision")
    text = Terminal().text(turn(snapshot((1, 0, 0)), decision(4, (1, 0, 0), (2, 0, 0), step, proposed=(9, 0, 0))))
    assert "web-4 workers_s 1→2  (at most 1 VM out per decision)" in text


def test_what_held_another_group_back_is_no_reason_for_a_change():
    step = held("step_limit", (0, 0, 0), (1, 0, 0), Reason.STEP_LIMIT, "workers_s 3 -> 0 shrunk to 1: at most 2 VMs in")
    guard = held("flap_guard", (1, 0, 0), (1, 2, 0), Reason.NOT_YET_STABLE, "workers_m 2 -> 0 held at 2: 1 of 3 times")
    made = decision(4, (3, 2, 0), (1, 2, 0), step, guard, proposed=(0, 0, 0))
    assert "web-4 workers_s 3→1  (at most 2 VMs in)" in Terminal().text(turn(snapshot((3, 2, 0)), made))


def test_where_the_groups_leave_no_room_for_the_reason_the_change_of_the_fleet_is_shown():
    why = "scale-in proposed 1 of 3 times in a row"
    rail = held("flap_guard", (1, 1, 1), (3, 3, 3), Reason.NOT_YET_STABLE, f"workers_l 3 -> 1 held at 3: {why}")
    of = decision(4, (3, 3, 3), (3, 3, 3), rail, proposed=(1, 1, 1), reason=Reason.NOT_YET_STABLE)
    one = turn(snapshot((3, 3, 3)), of)
    assert f"web-4 held: workers_s 3→1, workers_m 3→1, workers_l 3→1  ({why})" in Terminal(120).text(one)
    assert f"web-4 held: 9→3 VMs  ({why})" in Terminal(80, 24).text(one)


def test_minutes_held_for_one_reason_are_one_line_that_counts():
    def held_turn(number: int) -> Turn:
        rail = held("cooldown", (2, 0, 0), (1, 0, 0), Reason.COOLING_DOWN, f"cooling down for another {60 - number} s")
        of = decision(number, (1, 0, 0), (1, 0, 0), rail, proposed=(2, 0, 0), reason=Reason.COOLING_DOWN)
        return turn(snapshot((1, 0, 0)), of)

    lines = [line for line in Terminal().lines(held_turn(4), held_turn(5), held_turn(6)) if "held" in line]
    (line,) = lines
    assert "21:06 ×3 web-6 held: workers_s 1→2  (cooling down for another 54 s)" in line


def test_events_of_one_kind_in_one_turn_share_a_line():
    lost = [event(Reason.DRIFT_ADOPTED, f"group {n} was changed by hand") for n in (1, 2, 3)]
    assert "group 1 was changed by hand (and 2 more)" in Terminal().text(turn(snapshot(), *lost))


def test_failures_are_shown_and_routine_outcomes_are_not():
    failed = outcome(Status.FAILED, Reason.NO_CAPACITY, 3, 0, "no m5a.2xlarge in us-east-1a")
    done = outcome(Status.DONE, Reason.DONE, 1, 1, "workers_l holds 1 VMs")
    text = Terminal().text(turn(snapshot(), failed, done))
    assert "web-3.workers_l failed, 0 of 3: no m5a.2xlarge in us-east-1a" in text
    assert "workers_l holds" not in text


def test_a_turn_that_saw_nothing_leaves_the_fleet_as_it_was_seen_last():
    lines = Terminal().lines(turn(snapshot((1, 2, 0))), turn(failure="the disk is full"))
    assert any("m5a.xlarge" in line and "██ ██ ··" in line for line in lines)
    assert any("nothing was executed: the disk is full" in line for line in lines)


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


def test_before_the_first_turn_it_shows_that_it_measures():
    assert "the first minute is being measured" in Terminal().text()


def test_the_sparkline_has_the_given_width_and_its_highest_is_full():
    assert sparkline([0, 5, 10, 20], 3) == "▃▅█"
    assert sparkline([0, 0], 10) == "▁▁"
    assert sparkline([1, 2], 0) == ""
