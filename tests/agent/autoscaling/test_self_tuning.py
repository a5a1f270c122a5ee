"""The process that tunes the queue rule: when it starts, its limits, and that none of its faults reaches a decision."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import structlog.testing

from agent.autoscaling.self_tuning import ALARM_FROM, PATIENCE_S, SelfTuning
from domain.clock import VirtualClock
from domain.decisions import Reason
from domain.subject import fleet_subject
from tests.architecture.product import ROOT
from tests.waiting import until
from tests.without_training import WITHOUT_TRAINING

HOUR_S, DAY_S, START = 3600.0, 86_400.0, 1_772_366_400.0
ANSWER = {"did": "tuned", "why": "24 hours of record", "outcome": "kept"}
WRITES_ITS_NAME = """
import json, os, sys
with open(os.environ["STARTS"], "a") as file:
    print(os.getpid(), sys.argv[-1], file=file)
"""
ANSWERS = f"{WRITES_ITS_NAME}print(json.dumps({ANSWER!r}))"
WAITS = f"{WRITES_ITS_NAME}import time; time.sleep(600.0)"
FAILS = f"{WRITES_ITS_NAME}sys.exit('no room on the disk')"


@dataclass
class Tried:
    """A stand-in for the program, and the processes that were started, as pairs of number and fleet."""

    folder: Path
    program: str = ANSWERS
    fleets: Sequence[str] = ("web",)
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(START))
    tuning: SelfTuning = field(init=False)

    def __post_init__(self) -> None:
        environ = {**os.environ, "STARTS": str(self.folder / "starts"), "NOTIFY_SOCKET": "/run/systemd/notify"}
        command = [sys.executable, "-c", self.program, "self-tune"]
        self.tuning = SelfTuning(lambda: self.fleets, self.clock, environ, self.folder, command=command)
        self.tuning.look()

    @property
    def starts(self) -> list[tuple[int, str]]:
        file = self.folder / "starts"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(line.split()[0]), line.split()[1]) for line in lines]

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.starts]

    def started(self, count: int) -> int:
        """The number of the process, once so many have been started and have written their names."""
        until(lambda: len(self.starts) == count)
        return self.starts[-1][0]

    def hours(self, count: int = 1) -> None:
        """Let hours pass, looking once in each, each process with its end."""
        for _ in range(count):
            before = len(self.starts)
            self.clock.sleep(HOUR_S)
            self.tuning.look()
            pid = self.started(before + 1)
            ended(pid)
            self.tuning.look()


def running(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def ended(pid: int) -> None:
    """Wait until a process has ended."""
    until(lambda: not running(pid))


@pytest.fixture
def made() -> Iterator[list[Tried]]:
    kept: list[Tried] = []
    yield kept
    for one in kept:
        one.tuning.stop()


def tried(made: list[Tried], folder: Path, program: str = ANSWERS, fleets: Sequence[str] = ("web",)) -> Tried:
    made.append(Tried(folder, program, fleets))
    return made[-1]


def test_it_starts_once_in_each_hour_and_not_with_the_agent(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path)
    site.hours()
    for _ in range(59):
        site.clock.sleep(60.0)
        site.tuning.look()
    assert site.names == ["web"]
    site.hours()
    site.hours()
    assert site.names == ["web"] * 3


def test_its_answer_is_logged(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path)
    with structlog.testing.capture_logs() as logged:
        site.hours()
    assert logged == [{"event": "self_tuning", "log_level": "info", "fleet": "web"} | ANSWER]
    assert (site.tuning.problem(), list(site.tuning.events(START))) == ("", [])


def test_fleets_are_tuned_one_after_the_other(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path, WAITS, ("web", "night"))
    site.clock.sleep(HOUR_S)
    site.tuning.look()
    first = site.started(1)
    site.tuning.look()
    assert len(site.starts) == 1
    os.kill(first, signal.SIGKILL)
    ended(first)
    site.tuning.look()
    site.started(2)
    assert sorted(site.names) == ["night", "web"]


def test_every_fleet_has_its_turn_where_an_hour_is_too_short_for_all(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path, fleets=("web", "night", "third"))
    for count in range(1, 7):
        site.clock.sleep(HOUR_S)
        site.tuning.look()
        ended(site.started(count))
    assert site.names == ["web", "night", "third"] * 2


def test_one_that_is_its_own_no_more_is_ended_and_its_failures_forgotten(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path, FAILS)
    site.hours(ALARM_FROM)
    assert site.tuning.problem()
    site.fleets = ()
    site.tuning.look()
    assert (site.tuning.problem(), list(site.tuning.events(START))) == ("", [])
    site = tried(made, tmp_path, WAITS)
    site.clock.sleep(HOUR_S)
    site.tuning.look()
    pid = site.started(ALARM_FROM + 1)
    site.fleets = ("other",)
    site.tuning.look()
    assert not running(pid)


def test_a_fleet_that_is_not_to_be_tuned_is_left_alone(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path, fleets=())
    site.clock.sleep(HOUR_S)
    site.tuning.look()
    assert not (tmp_path / "starts").exists()


def test_it_is_the_first_out_of_memory_and_answers_for_no_service(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path, WAITS)
    site.clock.sleep(HOUR_S)
    site.tuning.look()
    pid = site.started(1)
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
    assert os.getpgid(pid) != os.getpgid(0)
    assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize(("of_directory", "of_file"), [(0o2770, 0o660), (0o755, 0o600)])
def test_its_files_are_for_the_group_that_writes_the_models(
    made: list[Tried], tmp_path: Path, of_directory: int, of_file: int
) -> None:
    tmp_path.chmod(of_directory)
    site = tried(made, tmp_path)
    site.hours()
    assert (tmp_path / "starts").stat().st_mode & 0o777 == of_file


def test_one_that_hangs_is_ended_and_a_look_waits_for_none(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path, WAITS)
    site.clock.sleep(HOUR_S)
    began = time.monotonic()
    site.tuning.look()
    pid = site.started(1)
    site.clock.sleep(PATIENCE_S - 1.0)
    site.tuning.look()
    assert running(pid)
    with structlog.testing.capture_logs() as logged:
        site.clock.sleep(1.0)
        site.tuning.look()
    assert not running(pid)
    assert [one["event"] for one in logged] == ["self_tuning_failed"]
    assert time.monotonic() - began < 300.0


def test_it_ends_with_the_agent_and_starts_no_more(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path, WAITS)
    site.clock.sleep(HOUR_S)
    site.tuning.look()
    pid = site.started(1)
    site.tuning.stop()
    assert not running(pid)
    site.clock.sleep(HOUR_S)
    site.tuning.look()
    assert len(site.starts) == 1


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (FAILS, "no room on the disk"),
        (WRITES_ITS_NAME, "no answer"),
        (f"{WRITES_ITS_NAME}print('[1]')", "no answer"),
        (f"{WRITES_ITS_NAME}os.kill(os.getpid(), 9)", "killed: memory or CPU limit"),
        (f"{WRITES_ITS_NAME}os.kill(os.getpid(), 24)", "killed: memory or CPU limit"),
        (f"{WRITES_ITS_NAME}os.kill(os.getpid(), 15)", "SIGTERM"),
        (f"{WRITES_ITS_NAME}os.kill(os.getpid(), 40)", "signal 40"),
        (f"{WRITES_ITS_NAME}sys.stdout.write('x' * 10_000_000)", "no answer"),
    ],
)
def test_a_failure_is_logged_once_and_raised_after_several(
    made: list[Tried], tmp_path: Path, program: str, why: str
) -> None:
    site = tried(made, tmp_path, program)
    with structlog.testing.capture_logs() as logged:
        site.hours(ALARM_FROM - 1)
        assert (list(site.tuning.events(START)), site.tuning.problem()) == ([], "")
        site.hours()
    assert [one["event"] for one in logged] == ["self_tuning_failed"]
    (event,) = site.tuning.events(START)
    assert (event.reason, event.subject) == (Reason.SELF_TUNING_FAILED, fleet_subject("web"))
    assert why in event.detail
    assert why in site.tuning.problem()
    assert not list(site.tuning.events(START + DAY_S - 1.0))
    assert len(list(site.tuning.events(START + DAY_S))) == 1


def test_after_a_success_the_failures_are_forgotten(made: list[Tried], tmp_path: Path) -> None:
    fails_first = f"{WRITES_ITS_NAME}n = len(open(os.environ['STARTS']).readlines())\n"
    fails_first += f"print(json.dumps({ANSWER!r}) if n > {ALARM_FROM} else '')"
    site = tried(made, tmp_path, fails_first)
    site.hours(ALARM_FROM)
    assert site.tuning.problem()
    site.hours()
    assert (site.tuning.problem(), list(site.tuning.events(START))) == ("", [])


def test_a_program_that_is_not_there_is_a_failure(made: list[Tried], tmp_path: Path) -> None:
    site = tried(made, tmp_path)
    site.tuning = SelfTuning(lambda: ("web",), site.clock, {}, tmp_path, command=[str(tmp_path / "none")])
    for _ in range(ALARM_FROM + 1):
        site.tuning.look()
        site.clock.sleep(HOUR_S)
    assert "cannot be started" in site.tuning.problem()


def test_the_daemon_loads_nothing_of_the_trainer() -> None:
    program = f"""{WITHOUT_TRAINING}
import agent.commands.run, agent.service.daemon, agent.autoscaling.loop, agent.autoscaling.self_tuning
from agent.kernel.parts import kinds
kinds()
print([name for name in sys.modules if name.split(".")[0] in ("trainer", "simulator")])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
