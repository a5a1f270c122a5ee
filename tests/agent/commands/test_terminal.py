"""On a real terminal of 80 columns and 24 rows: nothing is cut in the middle, and the dry run's story has room."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from agent.decisions.text import fitting, in_minutes

ROOT = Path(__file__).parents[3]
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
VIEW = """
from rich.console import Console
from agent.rehearsal.faults import InjectedFault, plan_named
from agent.rehearsal.screens import LiveScreen
from domain.clock import VirtualClock
from domain.decisions import Reason
from tests.agent.rehearsal.turns import NINE, decision, held, snapshot, turn

console = Console()
screen = LiveScreen(console, "story")
clock = VirtualClock(NINE + 3000.0)
screen._clock, screen._start = clock, NINE
for number, fault in enumerate(plan_named("story").faults):
    screen.fault(InjectedFault(fault, NINE + 60.0 * number, ""))
why = "cooling down for another 3540 s after the last scale-out, as AWS has none, " + "and so on, " * 20
for n in range(4, 40):
    reason = (Reason.COOLING_DOWN, Reason.STEP_LIMIT)[n % 2]
    rail = held("cooldown", (2, 0, 0), (1, 0, 0), reason, why)
    screen.turn(turn(snapshot((1, 0, 0)), decision(n, (1, 0, 0), (1, 0, 0), rail, proposed=(2, 0, 0), reason=reason)))
console.print(screen)
"""


def on_terminal(command: list[str], columns: int = 80, rows: int = 24, **environ: str) -> list[str]:
    """Run a command on a terminal of its own, and return the lines that it wrote, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    known = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environ = {**known, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", **environ}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environ)
    os.close(theirs)
    written = b""
    # The other end reports an error once the process has ended and everything was read.
    while select.select([ours], [], [], 60.0)[0]:
        try:
            written += os.read(ours, 65_536)
        except OSError:
            break
    os.close(ours)
    assert process.wait() == 0, written.decode()
    return CONTROLS.sub("", written.decode()).replace("\r\n", "\n").rstrip("\n").split("\n")


def test_the_dry_run_has_at_least_ten_lines_of_story_beside_three_faults() -> None:
    lines = on_terminal([sys.executable, "-c", VIEW])
    assert len(lines) <= 23
    assert {cell_len(line) for line in lines} == {80}
    story = [line for line in lines if " held: " in line]
    assert len(story) >= 10
    assert len([line for line in lines if "⚡" in line]) == 3
    for line in story:
        assert "web-" in line
        assert "(cooling down for another 59 min)" in line
        assert "workers_s 1→2" in line
    (row,) = [line for line in lines if "m5a.large" in line]
    assert "workers_s" in row


@pytest.mark.parametrize("verb", ["status", "explain last", "decisions"])
def test_no_line_is_wider_than_the_terminal(verb: str, ledger: str) -> None:
    command = [sys.executable, "-c", "from agent.commands.main import app; app()", *verb.split(), "--ledger", ledger]
    lines = on_terminal(command)
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
