"""The terminal view shows at a glance what an operator wants to know, at any size of the terminal."""

import io

import pytest
from rich.console import Console

from agent.rehearsal.live_view import LiveScreen, sparkline
from agent.rehearsal.screen import Moment
from agent.rehearsal.story import Struck, story_named
from domain.clock import VirtualClock
from domain.decisions import Mode, Reason, Status
from tests.agent.rehearsal.turns import NINE, decision, event, held, moment, moved, outcome, snapshot

SHORTAGE, GAP, SPOT = story_named("story").beats


class Terminal:
    """A terminal of a given size; the simulated time is minute 14.5."""

    def __init__(self, width: int = 100, height: int = 30, shadow: str | None = "threshold") -> None:
        self.console = Console(
            width=width, height=height, file=io.StringIO(), force_terminal=True, color_system=None, record=True
        )
        self.screen = LiveScreen(self.console, "story")
        self._shadow = shadow

    def lines(self, *moments: Moment, faults: tuple[Struck, ...] = ()) -> list[str]:
        """Show the faults and the turns, then return what is drawn."""
        clock = VirtualClock(NINE + 14.5 * 60.0)
        with self.screen.living(clock, NINE, 60, "queue-rule:horizon_s=150", self._shadow):
            for fault in faults:
                self.screen.beat(fault)
            for turn in moments:
                self.screen.show(turn)
            self.console.export_text()
        self.console.export_text()
        self.console.print(self.screen)
        return self.console.export_text().rstrip().split("\n")

    def text(self, *moments: Moment, faults: tuple[Struck, ...] = ()) -> str:
        return "\n".join(self.lines(*moments, faults=faults))


def test_it_says_that_this_is_a_dry_run_in_which_mode_and_how_far_it_is():
    text = Terminal().text(moment(snapshot(), decision(4, (1, 2, 0), (1, 2, 0))))
    assert "DRY RUN, fake AWS" in text
    assert " ACT " in text
    assert "21:14:30 UTC  minute 14 of 60" in text
    assert "policy queue-rule" in text


def test_observe_mode_has_its_own_badge():
    text = Terminal().text(moment(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), mode=Mode.OBSERVE)))
    assert " OBSERVE " in text
    assert " ACT " not in text


def test_the_shadow_says_what_it_would_have_done():
    turn = moment(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), shadow=(1, 1, 1)))
    assert "shadow threshold would want m5a.xlarge 2→1, m5a.2xlarge 0→1" in Terminal().text(turn)
    turn = moment(snapshot(), decision(4, (1, 2, 0), (1, 2, 0), shadow=(1, 2, 0)))
    assert "shadow threshold would change nothing" in Terminal().text(turn)


def test_each_type_has_a_bar_of_its_vms_and_their_numbers():
    lines = Terminal().lines(moment(snapshot((1, 3, 0), booting=(0, 2, 0), draining=(0, 0, 1))))
    rows = {line.split()[1]: line for line in lines if "m5a." in line}
    assert "██ ·· ··" in rows["m5a.large"]
    assert "██ ▒▒ ▒▒" in rows["m5a.xlarge"]
    assert "░░ ·· ··" in rows["m5a.2xlarge"]
    assert rows["m5a.xlarge"].split()[-6:-1] == ["3", "1", "2", "·", "50%"]


def test_what_has_just_been_asked_for_stands_beside_what_is_requested():
    lines = Terminal().lines(moment(snapshot((1, 2, 0)), decision(4, (1, 2, 0), (1, 3, 0))))
    assert any("m5a.xlarge" in line and "2→3" in line for line in lines[3:8])


def test_queue_jobs_and_money_are_there():
    text = Terminal().text(moment(snapshot(), rent=0.517))
    assert "38 waiting    2 running    0 done" in text
    assert "$ 0.517 so far   $0.430 per hour now" in text


def test_the_price_counts_vms_that_boot_or_drain():
    text = Terminal().text(moment(snapshot((0, 1, 0), booting=(0, 1, 0), draining=(0, 0, 1))))
    assert "$0.516 per hour now" in text


def test_absent_input_is_said_where_the_money_is():
    assert "holding: no cpu, queue" in Terminal().text(moment(snapshot(absent=("cpu", "queue"))))
    assert "no reading of the queue" in Terminal().text(moment(snapshot(queue=None)))


def test_a_fault_appears_as_it_strikes_and_then_how_it_was_met():
    struck = Struck(SHORTAGE, NINE, "")
    before = Terminal().text(moment(snapshot()), faults=(struck,))
    assert "21:00 ⚡ no m5a.2xlarge for 8 min → …" in before
    lost = event(Reason.CAPACITY_LOST, "AWS has no m5a.2xlarge")
    fallback = decision(5, (1, 1, 0), (1, 3, 0), moved((1, 1, 1), (1, 3, 0)), reason=Reason.CAPACITY_FALLBACK)
    back = event(Reason.CAPACITY_RETURNED, "m5a.2xlarge may be asked for again", minute=15)
    text = Terminal().text(
        moment(snapshot(), lost), moment(snapshot(), fallback), moment(snapshot(), back), faults=(struck,)
    )
    assert "no m5a.2xlarge for 8 min → fallback to m5a.xlarge → asked for again" in text


def test_only_the_interrupted_vms_drain_meets_its_notice():
    struck = Struck(SPOT, NINE, "i-1")
    text = Terminal().text(
        moment(snapshot(), event(Reason.SPOT_INTERRUPTION, "AWS takes i-1", "i-1")),
        moment(snapshot(), event(Reason.DRAINED, "i-2 is idle", "i-2")),
        faults=(struck,),
    )
    assert "spot notice for a VM → replaced │" in " ".join(text.split())
    drained = moment(snapshot(), event(Reason.DRAINED, "i-1 is idle", "i-1"))
    assert "→ replaced → drained" in Terminal().text(
        moment(snapshot(), event(Reason.SPOT_INTERRUPTION, "AWS takes i-1", "i-1")), drained, faults=(struck,)
    )


def test_a_change_is_told_with_its_reason_and_a_rail_that_changed_it():
    text = Terminal().text(moment(snapshot((1, 0, 0)), decision(4, (1, 0, 0), (2, 0, 0))))
    assert "21:04 web-4 m5a.large 1→2  (38 jobs wait)" in text
    step = held("step_limit", (9, 0, 0), (2, 0, 0), Reason.STEP_LIMIT, "at most 1 VM out per decision")
    text = Terminal().text(moment(snapshot((1, 0, 0)), decision(4, (1, 0, 0), (2, 0, 0), step, proposed=(9, 0, 0))))
    assert "web-4 m5a.large 1→2  (at most 1 VM out per decision)" in text


def test_minutes_held_for_one_reason_are_one_line_that_counts():
    def turn(number: int) -> Moment:
        rail = held("cooldown", (2, 0, 0), (1, 0, 0), Reason.COOLING_DOWN, f"cooling down for another {60 - number} s")
        of = decision(number, (1, 0, 0), (1, 0, 0), rail, proposed=(2, 0, 0), reason=Reason.COOLING_DOWN)
        return moment(snapshot((1, 0, 0)), of)

    lines = [line for line in Terminal().lines(turn(4), turn(5), turn(6)) if "held" in line]
    (line,) = lines
    assert "21:06 ×3 web-6 held: m5a.large 1→2  (cooling down for another 54 s)" in line


def test_events_of_one_kind_in_one_turn_share_a_line():
    lost = [event(Reason.DRIFT_ADOPTED, f"group {n} was changed by hand") for n in (1, 2, 3)]
    assert "group 1 was changed by hand (and 2 more)" in Terminal().text(moment(snapshot(), *lost))


def test_failures_are_told_and_what_simply_worked_is_not():
    failed = outcome(Status.FAILED, Reason.NO_CAPACITY, 3, 0, "no m5a.2xlarge in us-east-1a")
    done = outcome(Status.DONE, Reason.DONE, 1, 1, "workers_l holds 1 VMs")
    text = Terminal().text(moment(snapshot(), failed, done))
    assert "web-3.workers_l failed, 0 of 3: no m5a.2xlarge in us-east-1a" in text
    assert "workers_l holds" not in text


def test_a_turn_that_saw_nothing_leaves_the_fleet_as_it_was_seen_last():
    lines = Terminal().lines(moment(snapshot((1, 2, 0))), moment(failure="the disk is full"))
    assert any("m5a.xlarge" in line and "██ ██ ··" in line for line in lines)
    assert any("nothing was executed: the disk is full" in line for line in lines)


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (60, 20), (200, 60)])
def test_it_fits_the_terminal_it_is_drawn_on(width: int, height: int):
    faults = (Struck(SHORTAGE, NINE, ""), Struck(GAP, NINE + 1560.0, ""), Struck(SPOT, NINE + 2445.0, "i-1"))
    many = [
        moment(snapshot(minute=n), decision(n, (1, 2, 0), (1, 2, 1)), event(Reason.DRIFT_ADOPTED, f"{n} " + "x" * 300))
        for n in range(4, 40)
    ]
    lines = Terminal(width, height).lines(*many, faults=faults)
    assert max(map(len, lines)) <= width
    assert len(lines) <= max(height, 22)
    assert all(line[0] in "╭│╰" and line[-1] in "╮│╯" for line in lines)


def test_at_80_columns_no_heading_is_cut():
    text = Terminal(80, 24).text(moment(snapshot()))
    assert all(word in text for word in ("type", "VMs", "requested", "warm", "booting", "draining", "CPU"))
    assert "m5a.2xlarge" in text


def test_before_the_first_turn_it_says_what_it_waits_for():
    assert "the first minute is being measured" in Terminal().text()


def test_the_sparkline_is_as_wide_as_asked_and_its_highest_is_full():
    assert sparkline([0, 5, 10, 20], 3) == "▃▅█"
    assert sparkline([0, 0], 10) == "▁▁"
    assert sparkline([1, 2], 0) == ""
