"""`trimtab dry-run` as a user runs it: real processes, real sockets, and nothing left of them afterwards."""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from agent.commands.main import app
from agent.rehearsal.faults import plan_named
from agent.rehearsal.run import CLOCKS, TURN_AFTER_S, DryRun, DryRunOptions, PartFailed, fresh_directory
from agent.rehearsal.scenario import AGENT_KEY
from agent.rehearsal.screens import Screen, Turn
from agent.rehearsal.site import SiteFailed
from agent.rehearsal.summary import Summary
from domain.clock import Clock
from simulator.aws.client import CloudControl
from tests.waiting import until

PROGRAM = [sys.executable, "-c", "from agent.commands.main import app; app()", "dry-run"]
MARK = "TRIMTAB_TEST_MARK"


class Started:
    """A dry run in a process, marked so that its children can be found after their parent has ended."""

    def __init__(self, directory: Path, *arguments: str, section: str = "fleet", **environment: str) -> None:
        self._mark = uuid.uuid4().hex
        self.popen = subprocess.Popen(
            [*PROGRAM, "--keep", str(directory), "--section", section, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: self._mark, **environment},
        )

    def left(self) -> list[str]:
        """Command lines of what still runs."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark:
                    found.append(" ".join(process.cmdline()))
        return found

    def wait_for(self, text: str) -> None:
        """Read on until a line holds the text."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if text in line:
                return
        pytest.fail(f"ended without {text!r}: {self.popen.communicate()[1]}")


def on_a_terminal(columns: int, rows: int, *arguments: str) -> str:
    """Return what the program writes to a terminal of this size, without escape sequences."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="", LINES="")
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.execv(PROGRAM[0], [*PROGRAM, *arguments])
    read = b""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 65536):
            read += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0, read.decode()[-2000:]
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", read.decode()).replace("\r", "\n")


@pytest.mark.exhaustive
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (120, 40)])
def test_no_line_is_wider_than_the_terminal_and_no_view_higher(columns: int, rows: int, tmp_path: Path):
    arguments = ("--keep", str(tmp_path), "--fault", "none", "--minutes", "20")
    text = on_a_terminal(columns, rows, "--section", "fleet", *arguments)
    assert [line for line in text.split("\n") if len(line.rstrip()) > columns] == []
    views = text.split("╭─ trimtab dry run")[1:]
    assert len(views) >= 5
    assert max(view.partition("╰")[0].count("\n│") for view in views) <= rows - 2
    # The ten lines come after the last view, each whole.
    assert [name for name in ("bill ", "target-tracking ", "at maximum ") if f"\n{name}" not in text] == []


def answers(address: str | None, port: int | None) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address or "127.0.0.1", port or 0)) == 0


@pytest.mark.exhaustive
def test_headless_json_has_the_events_in_order_and_leaves_nothing_behind(tmp_path: Path):
    run = Started(
        tmp_path,
        "--headless",
        "--json",
        "--minutes",
        "15",
        "--speed",
        "120",
        "--fault",
        "capacity",
        "--workload",
        "nasa",
        section="all",
    )
    out, err = run.popen.communicate(timeout=400.0)
    assert (run.popen.returncode, err) == (0, "")
    entries: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    kinds = [entry["kind"] for entry in entries]
    assert kinds[:5] == ["workload", "up", "up", "up", "up"]
    assert kinds[-5:] == ["admission", "oversubscription", "placement", "deferral", "summary"]
    admission, oversubscription, placement = entries[-5:-2]
    assert admission["asked"] == admission["admitted"] + sum(admission["refused"].values()) > 0
    assert oversubscription["hot_hours"] >= 3
    assert set(oversubscription["final"].values()) == {1.0}
    assert placement["moved"] > 0
    assert {"begin", "fault", "decision", "intent", "outcome", "event"} <= set(kinds)
    numbers = [(entry["ledger"], entry["seq"]) for entry in entries if "seq" in entry]
    # That of the fleet comes first.
    assert numbers == sorted(set(numbers))
    assert len({ledger for ledger, _ in numbers}) == 2
    assert kinds.count("decision") == 15
    assert [entry["at"] % 60.0 for entry in entries if entry["kind"] == "decision"] == [TURN_AFTER_S] * 15
    summary = entries[-1]
    assert summary["missing"] == []
    assert summary["lived"]["finished"] > 0
    assert summary["lived"]["cost"] == pytest.approx(summary["lived"]["rent"] + summary["lived"]["waiting_cost"])
    named = [other["name"].partition(":")[0] for other in summary["others"]]
    assert named[0] == "queue-rule"
    assert set(named) >= {"75 % threshold", "held at maximum", "best in hindsight"}
    assert {"same faults" in other["how"] for other in summary["others"]} == {True}
    assert summary["saved"]["dollars"] == pytest.approx(summary["others"][-1]["cost"] - summary["lived"]["cost"])
    assert run.left() == []
    endpoint = urlsplit(next(entry["detail"] for entry in entries if entry.get("what") == "fake AWS"))
    assert not answers(endpoint.hostname, endpoint.port)
    listener = next(entry["detail"] for entry in entries if entry.get("what") == "agent")
    assert not answers("127.0.0.1", int(listener.rpartition(" ")[2]))
    explained = CliRunner().invoke(
        app, ["explain", summary["next"][0].split()[2], "--ledger", str(tmp_path / "ledger.db")]
    )
    assert explained.exit_code == 0
    assert "capacity_memory" in explained.output


@pytest.mark.exhaustive
def test_the_fleet_of_a_world_file_and_jobs_of_ones_own_are_run(tmp_path: Path):
    world, jobs = tmp_path / "mine.toml", tmp_path / "jobs.csv"
    kind = "[[vm_types]]\nname = '{}'\ncores = {}\nmemory_gb = 4\nprice_per_hour = 0.1\nlimit = 4\nminimum = {}\n"
    world.write_text("version = 1\n" + kind.format("c5.large", 2, 1) + kind.format("c5.xlarge", 4, 0), "utf-8")
    jobs.write_text("arrival_s,service_s\n" + "30,120\n" * 20, "utf-8")
    own = ["--world", str(world), "--workload", str(jobs), "--fault", "none", "--speed", "120", "--minutes", "6"]
    started = Started(tmp_path / "kept", *own, "--headless", "--json")
    out, errors = started.popen.communicate(timeout=180)
    assert started.popen.returncode == 0, errors
    assert "workers_2" in out
    assert started.left() == []


@pytest.mark.exhaustive
def test_a_fault_plan_whose_events_are_missing_ends_with_status_1(tmp_path: Path):
    hold = ("--set", "FLEETS__web__POLICY=hold")
    run = Started(tmp_path, "--headless", "--minutes", "15", "--speed", "240", "--fault", "none", *hold)
    out, err = run.popen.communicate(timeout=90.0)
    assert run.popen.returncode == 1
    assert ": queue_grew, done" in out
    assert err.startswith("error: ")


@pytest.mark.exhaustive
def test_a_short_run_succeeds_and_names_what_was_not_due(tmp_path: Path):
    run = Started(tmp_path, "--headless", "--json", "--minutes", "10", "--speed", "240")
    out, err = run.popen.communicate(timeout=90.0)
    assert (run.popen.returncode, err) == (0, "")
    summary = json.loads(out.splitlines()[-1])
    assert summary["missing"] == []
    assert {"metrics_lost", "spot_interruption", "capacity_returned"} <= set(summary["not_due"])


@pytest.mark.exhaustive
@pytest.mark.parametrize(("number", "speed"), [(signal.SIGINT, "60"), (signal.SIGTERM, "1")])
def test_a_signal_ends_it_within_seconds_with_nothing_left_behind(tmp_path: Path, number: int, speed: str):
    run = Started(tmp_path, "--headless", "--speed", speed, section="all")
    run.wait_for("min begin")
    time.sleep(1.5)
    run.popen.send_signal(number)
    out, err = run.popen.communicate(timeout=60.0)
    assert (run.popen.returncode, err) == (130, "")
    assert "nothing is left running" in out
    assert run.left() == []


@pytest.mark.exhaustive
def test_a_killed_dry_run_takes_its_processes_with_it(tmp_path: Path):
    run = Started(tmp_path, "--headless", section="all")
    run.wait_for("min begin")
    run.popen.kill()
    run.popen.communicate(timeout=60.0)
    until(lambda: not run.left(), every_s=0.2)
    assert list(tmp_path.glob(CLOCKS)) == []


@pytest.mark.exhaustive
def test_a_second_run_in_the_same_directory_is_refused_and_the_first_goes_on(tmp_path: Path):
    first = Started(tmp_path, "--headless")
    first.wait_for("min begin")
    second = Started(tmp_path, "--headless")
    _, err = second.popen.communicate(timeout=60.0)
    assert second.popen.returncode == 1
    assert f"is in use by process {first.popen.pid}" in err
    assert second.left() == []
    assert first.popen.poll() is None
    first.popen.send_signal(signal.SIGINT)
    first.popen.communicate(timeout=60.0)


class CallScreen(Screen):
    """Reads the agent's calls from the fake AWS before it ends; calls `at_start` as the hour begins."""

    def __init__(self, at_start: Any = lambda: None) -> None:
        self._at_start = at_start
        self._endpoint = ""
        self.calls: list[str] = []
        self.changes: list[str] = []
        self.decisions = 0

    def check(self, what: str, detail: str) -> None:
        if what == "fake AWS":
            self._endpoint = detail

    @contextlib.contextmanager
    def running(
        self, clock: Clock, start: float, minutes: int, policy: str, shadows: tuple[str, ...]
    ) -> Iterator[None]:
        self._at_start()
        yield
        control = CloudControl(self._endpoint)
        self.calls = [call["operation"] for call in control.calls(access_key=AGENT_KEY)]
        self.changes = [call["operation"] for call in control.mutations(access_key=AGENT_KEY)]

    def turn(self, turn: Turn) -> None:
        self.decisions += len(turn.report.decisions)


def played(directory: Path, screen: CallScreen, **options: Any) -> Summary:
    fresh_directory(directory)
    chosen = {"speed": 120.0, "minutes": 8, "directory": directory, **options}
    return DryRun(DryRunOptions(plan_named("capacity"), **chosen), screen).run()


@pytest.mark.exhaustive
def test_in_observe_mode_the_agent_decides_and_changes_nothing(tmp_path: Path):
    screen = CallScreen()
    summary = played(tmp_path, screen, mode="observe")
    assert screen.decisions == 8
    assert "DescribeAutoScalingGroups" in screen.calls
    assert screen.changes == []
    assert summary.changes == 0
    assert summary.held > 0


def test_in_act_mode_the_same_minutes_change_something(tmp_path: Path):
    screen = CallScreen()
    assert played(tmp_path, screen, minutes=4).changes > 0
    assert "SetDesiredCapacity" in screen.changes


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """Keep every core busy for the block."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


@pytest.mark.exhaustive
@pytest.mark.parametrize("machine", [contextlib.nullcontext, busy_machine])
def test_lived_it_costs_what_it_does_simulated_on_a_busy_machine_too(tmp_path: Path, machine: Any):
    fresh_directory(tmp_path)
    options = DryRunOptions(plan_named("none"), speed=120.0, minutes=20, workload="nasa", directory=tmp_path)
    with machine():
        summary = DryRun(options, CallScreen()).run()
    simulated = summary.others[0].run
    assert summary.live.cost.cost == pytest.approx(simulated.cost, rel=0.05)
    assert summary.live.cost.jobs_finished == pytest.approx(simulated.jobs_finished, rel=0.05)


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", ["simulator.aws", "agent.rehearsal.site"])
def test_a_part_that_dies_ends_the_run_with_its_name_and_nothing_is_left(tmp_path: Path, part: str):
    before = set(psutil.Process().children())

    def kill_it() -> None:
        for child in set(psutil.Process().children()) - before:
            if part in child.cmdline():
                child.kill()

    with pytest.raises((PartFailed, SiteFailed), match=r"fake AWS|job source"):
        played(tmp_path, CallScreen(kill_it))
    left = set(psutil.Process().children()) - before
    assert not [child for child in left if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.exhaustive
def test_the_page_shows_the_run_behind_its_token(tmp_path: Path):
    run = Started(tmp_path, "--headless", "--page", "--minutes", "5", "--speed", "60", "--fault", "none")
    assert run.popen.stdout is not None
    line = run.popen.stdout.readline()
    assert line.startswith("up: page: ")
    url = httpx.URL(line.split()[-1])
    assert url.host == "127.0.0.1"
    assert httpx.get(url.copy_with(userinfo=b"")).status_code == 401
    until(lambda: "web-1<" in httpx.get(url).text, every_s=0.2)
    assert "m5a.2xlarge" in httpx.get(url).text
    run.wait_for("The page stays up until Ctrl-C")
    assert run.popen.stdout.readline().strip() == line.split()[-1]
    assert "m5a.2xlarge" in httpx.get(url).text
    run.popen.send_signal(signal.SIGINT)
    run.popen.communicate(timeout=60.0)
    assert run.popen.returncode == 0
    assert run.left() == []
    assert not answers(url.host, url.port)
