"""On a real terminal of 80 columns and 24 rows: nothing is cut in the middle, and the dry run's story has room."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import traceback
from collections.abc import Callable

import pytest
from rich.cells import cell_len
from rich.console import Console

from agent.commands.main import app
from agent.kernel.text import fitting, in_minutes
from agent.rehearsal.faults import InjectedFault, plan_named
from agent.rehearsal.screens import LiveScreen
from domain.clock import VirtualClock
from domain.decisions import Reason
from tests.agent.rehearsal.turns import NINE, decision, held, snapshot, turn

CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(draw: Callable[[], object], columns: int = 80, rows: int = 24) -> list[str]:
    """Draw in a forked process on a terminal of this size, and return the lines, without colours."""
    pid, terminal = pty.fork()
    if pid == 0:
        status = 1
        try:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.environ |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
            sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            draw()
            status = 0
        except SystemExit as error:
            status = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    written = b""
    # The other end reports an error once the process has ended and everything was read.
    while True:
        try:
            written += os.read(terminal, 65_536)
        except OSError:
            break
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0, written.decode()
    return CONTROLS.sub("", written.decode()).replace("\r\n", "\n").rstrip("\n").split("\n")


def draw_story() -> None:
    """Draw a dry run with three faults and minutes that were held for two reasons in turn."""
    console = Console()
    screen = LiveScreen(console, "story")
    screen._clock, screen._start = VirtualClock(NINE + 3000.0), NINE
    for number, fault in enumerate(plan_named("story").faults):
        screen.fault(InjectedFault(fault, NINE + 60.0 * number, ""))
    why = "cooling down for another 3540 s after the last scale-out, as AWS has none, " + "and so on, " * 20
    for n in range(4, 40):
        reason = (Reason.COOLING_DOWN, Reason.STEP_LIMIT)[n % 2]
        rail = held("cooldown", (2, 0, 0), (1, 0, 0), reason, why)
        made = decision(n, (1, 0, 0), (1, 0, 0), rail, proposed=(2, 0, 0), reason=reason)
        screen.turn(turn(snapshot((1, 0, 0)), made))
    console.print(screen)


def test_the_dry_run_has_at_least_ten_lines_of_story_beside_three_faults() -> None:
    lines = on_terminal(draw_story)
    assert len(lines) <= 23
    assert {cell_len(line) for line in lines} == {80}
    story = [line for line in lines if " held: " in line]
    assert len(story) >= 10
    assert len([line for line in lines if "⚡" in line]) == 3
    for line in story:
        assert "web-" in line
        assert "another 59 min)" in line
        assert "workers_s 1→2" in line
    (row,) = [line for line in lines if "m5a.large" in line]
    assert "workers_s" in row


@pytest.mark.parametrize("verb", ["status", "explain last", "decisions"])
def test_no_line_is_wider_than_the_terminal(verb: str, ledger: str) -> None:
    lines = on_terminal(lambda: app([*verb.split(), "--ledger", ledger]))
    assert max(map(cell_len, lines)) <= 80
    assert any("web-4" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "room", "shown"),
    [
        ("web-4 held: no change  (22 jobs wait, 4 cores busy, 6 free)", 80, None),
        (
            "web-4 held: no change  (22 jobs wait, 4 cores busy, 6 free)",
            52,
            "web-4 held: no change  (22 jobs wait, 4 cores busy)",
        ),
        ("web-4 a 1→2, b 3→4  (one long reason of many words)", 40, "web-4 a 1→2, b 3→4  (one long reason…"),
        ("AWS has no m5a.large; trying m5a.xlarge", 30, "AWS has no m5a.large"),
        ("AWS has no m5a.large; not asked for again (and 1 more)", 30, "AWS has no m5a.large"),
        ("x" * 30, 10, "x" * 9 + "…"),
    ],
)
def test_a_sentence_loses_whole_clauses_first(text: str, room: int, shown: str | None) -> None:
    assert fitting(text, room) == (text if shown is None else shown)
    assert len(fitting(text, room)) <= room


def test_durations_are_spelled_as_people_say_them() -> None:
    assert (
        in_minutes("for another 3540 s; 120 core-s each; 90 s; 7.5 s")
        == "for another 59 min; 120 core-s each; 90 s; 7.5 s"
    )
