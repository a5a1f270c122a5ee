"""systemd's notifications, on a real socket: what is said, and that nobody listening is no trouble."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.service.systemd import Heart, Notifier
from tests.agent.service.supervisor import Supervisor
from tests.waiting import until

STATUS = "act; 2 fleets\nweb: add 2 VMs"


@pytest.fixture(params=["path", "abstract"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(f"@trimtab-{tmp_path.name}" if request.param == "abstract" else str(tmp_path / "notify")) as made:
        yield made


def test_ready_carries_the_status_on_one_line(supervisor: Supervisor) -> None:
    Notifier(supervisor.environ).ready(STATUS)
    assert supervisor.next() == {"READY": "1", "STATUS": STATUS.replace("\n", " ")}


def test_a_long_status_is_cut(supervisor: Supervisor) -> None:
    Notifier(supervisor.environ).status("x" * 10_000)
    assert supervisor.next() == {"STATUS": "x" * 400}


def test_stopping_says_so(supervisor: Supervisor) -> None:
    Notifier(supervisor.environ).stopping("ends")
    assert supervisor.next() == {"STOPPING": "1", "STATUS": "ends"}


def test_a_supervisor_that_went_away_or_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    with Supervisor(str(tmp_path / "notify")) as supervisor:
        notifier = Notifier(supervisor.environ)
        for _ in range(5000):
            notifier.alive()
    notifier.alive()


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_without_a_supervisor_nothing_is_sent(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": value})
    made: list[object] = []
    monkeypatch.setattr(socket, "socket", lambda *about: made.append(about))
    notifier.ready("up")
    assert made == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_s_time_is_meant_for_the_process_it_names(environ: dict[str, str], expected: float | None) -> None:
    assert Notifier(environ, pid=7).watchdog_s == expected


@pytest.fixture
def heart(supervisor: Supervisor) -> Iterator[Callable[[Callable[[], bool]], Heart]]:
    hearts: list[Heart] = []

    def start(beats: Callable[[], bool]) -> Heart:
        made = Heart(Notifier({**supervisor.environ, "WATCHDOG_USEC": "150000"}), beats)
        hearts.append(made)
        made.start()
        return made

    yield start
    for made in hearts:
        made.stop()


def test_the_heart_beats_three_times_a_period_while_the_loop_turns(
    supervisor: Supervisor, heart: Callable[[Callable[[], bool]], Heart]
) -> None:
    began = time.monotonic()
    heart(lambda: True)
    for _ in range(4):
        assert supervisor.next() == {"WATCHDOG": "1"}
    assert time.monotonic() - began >= 0.13


def test_the_heart_stands_still_while_the_loop_does_and_beats_again_with_it(
    supervisor: Supervisor, heart: Callable[[Callable[[], bool]], Heart]
) -> None:
    turning, answered = [True], []
    heart(lambda: answered.append(turning[0]) or turning[0])  # type: ignore[func-returns-value]
    assert supervisor.next() == {"WATCHDOG": "1"}
    turning[0] = False
    until(lambda: answered.count(False) >= 2)
    supervisor.drain()
    with pytest.raises(TimeoutError):
        supervisor.next(timeout_s=0.4)
    turning[0] = True
    assert supervisor.next() == {"WATCHDOG": "1"}
