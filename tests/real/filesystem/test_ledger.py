"""A ledger on a disk that is full: it says so, loses nothing that it confirmed, and goes on once there is room."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger
from agent.ledger.sqlite_file import index_of
from agent.service.chores import room_problem
from domain.errors import LedgerReplaced, LedgerUnavailable
from tests.agent.ledger.records import made
from tests.real.filesystem.disks import Disk, small_disk
from tests.real.filesystem.test_world import LITTLE


def record_until_full(ledger: Ledger, number: int) -> tuple[int, LedgerUnavailable]:
    """Record a decision a minute; return the first number that was refused, and the refusal."""
    while True:
        try:
            FleetStore(ledger).record([made(number)])
        except LedgerUnavailable as refusal:
            return number, refusal
        number += 1


@pytest.mark.parametrize("leave", [0, LITTLE, 64 * 1024])
def test_what_a_full_disk_refuses_is_said_and_what_was_confirmed_can_be_read(disk: Disk, leave: int) -> None:
    with Ledger.open(f"sqlite:///{disk.path}/ledger.db") as ledger:
        FleetStore(ledger).record([made(n) for n in range(5)])
        disk.fill(leave)
        number, refusal = record_until_full(ledger, 5)
        assert not isinstance(refusal, LedgerReplaced)
        assert "disk is full" in str(refusal)
        with pytest.raises(LedgerUnavailable):
            ledger.check_writable()
        if leave == 0:
            # A new connection makes the index of the log, and without one block of room even a reader cannot.
            disk.free()
        assert FleetStore(ledger).loop_state("web").decisions == number
        assert [inputs for inputs, _ in FleetStore(ledger).inputs("web")] == [made(n)[0] for n in range(number)]


@pytest.mark.parametrize("leave", [0, LITTLE])
@pytest.mark.parametrize("folded", [0, 30])
def test_it_goes_on_once_there_is_room_in_this_process_and_in_the_next(disk: Disk, leave: int, folded: int) -> None:
    url, state = f"sqlite:///{disk.path}/ledger.db", disk.path.parent
    with Ledger.open(url, witness_in=state) as ledger:
        FleetStore(ledger).record([made(n) for n in range(folded)])
    with Ledger.open(url, witness_in=state) as ledger:
        ledger.take_epoch("host:1", 0.0)
        disk.fill(leave)
        number, _ = record_until_full(ledger, folded)
        ledger.check_epoch(1)
        disk.free()
        ledger.check_epoch(1)
        FleetStore(ledger).record([made(number)])
    with Ledger.open(url, witness_in=state) as ledger:
        assert ledger.damage() == ""
        assert [inputs for inputs, _ in FleetStore(ledger).inputs("web")] == [made(n)[0] for n in range(number + 1)]


def killed_when_full(disk: Disk, leave: int, url: str, state: Path) -> int:
    """Record in a process of its own until the disk is full, kill it there, and return how much was confirmed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ledger = Ledger.open(url, witness_in=state)
            FleetStore(ledger).record([made(n) for n in range(3)])
            disk.fill(leave)
            number, _ = record_until_full(ledger, 3)
            os.write(writing, b"%d" % number)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(writing)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with open(reading, "rb") as pipe:
        return int(pipe.read())


def damage_unless_full(url: str, state: Path | None) -> str:
    """Return what a check of the ledger finds, "" when the disk is too full for one."""
    try:
        with Ledger.open(url, read_only=state is None, witness_in=state) as ledger:
            return ledger.damage()
    except LedgerUnavailable as refusal:
        is_full = "is full" in str(refusal) and not isinstance(refusal, LedgerReplaced)
        return "" if is_full else str(refusal)


def test_an_agent_killed_on_a_full_disk_goes_on_wherever_its_fold_ended(disk: Disk, tmp_path: Path) -> None:
    for number, room in enumerate(range(0, 96 * 1024, 8 * 1024)):
        state = tmp_path / f"{number}"
        state.mkdir()
        directory = disk.path / f"{number}"
        url = f"sqlite:///{directory}/ledger.db"
        with Ledger.open(url, witness_in=state) as ledger:
            ledger.take_epoch("host:1", 0.0)
        confirmed = killed_when_full(disk, room, url, state)
        for opened_in in (None, state, None):
            assert damage_unless_full(url, opened_in) == ""
        disk.free()
        with Ledger.open(url, witness_in=state) as ledger:
            FleetStore(ledger).record([made(confirmed)])
            assert [inputs for inputs, _ in FleetStore(ledger).inputs("web")] == [
                made(n)[0] for n in range(confirmed + 1)
            ]
            assert ledger.damage() == ""
        shutil.rmtree(directory)


def test_a_reader_that_finds_no_room_for_the_index_of_the_log_says_so(disk: Disk) -> None:
    url = f"sqlite:///{disk.path}/ledger.db"
    child = os.fork()
    if child == 0:
        try:
            FleetStore(Ledger.open(url)).record([made(n) for n in range(3)])
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    index_of(disk.path / "ledger.db").unlink()
    disk.fill()
    with pytest.raises(LedgerUnavailable, match="is full"):
        Ledger.open(url, read_only=True)
    disk.free()
    with Ledger.open(url, read_only=True) as ledger:
        assert FleetStore(ledger).loop_state("web").decisions == 3


@pytest.mark.needs_loop
@pytest.mark.needs_mkfs
def test_a_file_system_that_the_kernel_made_read_only_is_named(tmp_path: Path) -> None:
    with small_disk("ext4", tmp_path / "disk") as disk:
        ledger = Ledger.open(f"sqlite:///{disk.path}/ledger.db")
        FleetStore(ledger).record([made(0)])
        disk.fail()
        for _ in range(3):
            with pytest.raises(LedgerUnavailable, match="file system is read-only"):
                FleetStore(ledger).record([made(1)])
        ledger.close()


def test_a_full_state_directory_stops_no_ledger_that_is_elsewhere(disk: Disk, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    disk.fill()
    assert room_problem(disk.path, tmp_path / "ledger.db").startswith(f"{disk.path} has 0%")
    for number in range(3):
        with Ledger.open(url, witness_in=disk.path) as ledger:
            assert ledger.take_epoch(f"host:{number}", 0.0) == number + 1
            FleetStore(ledger).record([made(number, epoch=number + 1)])
            ledger.check_epoch(number + 1)
    with Ledger.open(url, read_only=True) as ledger:
        assert FleetStore(ledger).loop_state("web").decisions == 3


def test_the_disk_of_a_ledger_that_is_elsewhere_is_watched(disk: Disk, tmp_path: Path) -> None:
    link = tmp_path / "ledger.db"
    link.symlink_to(disk.path / "ledger.db")
    for ledger in (disk.path / "ledger.db", link):
        assert room_problem(tmp_path, ledger) == ""
    disk.fill(leave=32 * 1024)
    for ledger in (disk.path / "ledger.db", link):
        problem = room_problem(tmp_path, ledger)
        assert problem.startswith(f"{disk.path} has 1%")
        assert "nothing can be decided" in problem
        assert str(tmp_path) not in problem.removeprefix(str(disk.path))
    assert room_problem(tmp_path, None) == ""


def test_an_older_copy_is_known_although_the_witness_had_no_room_for_a_time(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(f"sqlite:///{path}", witness_in=disk.path) as ledger:
        FleetStore(ledger).record([made(0)])
    older = path.read_bytes()
    disk.fill()
    with Ledger.open(f"sqlite:///{path}", witness_in=disk.path) as ledger:
        FleetStore(ledger).record([made(1)])
    path.write_bytes(older)
    with pytest.raises(LedgerReplaced):
        Ledger.open(f"sqlite:///{path}", witness_in=disk.path)
