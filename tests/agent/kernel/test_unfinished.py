"""Unfinished files: those of writers that live stay, and the next writer removes the leftovers of the others."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.kernel.unfinished import remove_unfinished, unfinished

WRITER = """
import sys, time
from pathlib import Path
from agent.kernel.unfinished import unfinished
with unfinished(Path(sys.argv[1]), is_folder=sys.argv[2] == "folder") as fresh:
    print(fresh, flush=True)
    time.sleep(600)
"""


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_leftover_of_a_killed_writer_goes_with_the_next_write_and_not_before(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "one.json"), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        fresh = Path(writer.stdout.readline().strip())
        if kind == "folder":
            (fresh / "part").write_text("half")
        remove_unfinished(tmp_path)
        is_kept = fresh.exists()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert is_kept
    assert fresh.exists()
    with unfinished(tmp_path / "one.json") as mine:
        assert names(tmp_path) == [mine.name]
    assert names(tmp_path) == []


def test_what_is_renamed_stays_and_what_is_left_goes(tmp_path: Path) -> None:
    with unfinished(tmp_path / "kept") as fresh:
        fresh.write_text("whole")
        fresh.replace(tmp_path / "kept")
    with unfinished(tmp_path / "kept") as fresh:
        fresh.write_text("half")
    assert (tmp_path / "kept").read_text() == "whole"
    assert names(tmp_path) == ["kept"]


def test_a_link_under_the_name_is_removed_and_not_written_through(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    links = [tmp_path / f".one.{os.getpid()}-{number}.part" for number in range(5)]
    for link in links:
        link.symlink_to(elsewhere)
    with unfinished(tmp_path / "one") as fresh:
        assert not fresh.is_symlink()
        fresh.write_text("ours")
        assert not any(link.is_symlink() for link in links)
    assert elsewhere.read_text() == "not ours"


def test_other_hidden_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".one.part").write_text("")
    (tmp_path / "one.7.part").write_text("")
    remove_unfinished(tmp_path)
    remove_unfinished(tmp_path / "missing")
    assert names(tmp_path) == [".one.part", "one.7.part"]


def test_writers_that_clean_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for number in range(200):
            with unfinished(tmp_path / name) as fresh:
                fresh.write_text(str(number))
                fresh.replace(tmp_path / name)

    threads = [threading.Thread(target=write, args=(f"file-{k}",)) for k in range(4)]
    failed: list[object] = []
    threading.excepthook = lambda args: failed.append(args.exc_value)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    threading.excepthook = threading.__excepthook__
    assert failed == []
    assert [(tmp_path / name).read_text() for name in names(tmp_path)] == ["199"] * 4


def test_a_writer_removes_no_file_of_another_name(tmp_path: Path) -> None:
    (tmp_path / ".thesis-download.7.part").write_text("foreign")
    (tmp_path / ".photos.8.part").mkdir()
    (tmp_path / ".one.7.part").write_text("a leftover")
    with unfinished(tmp_path / "one") as fresh:
        assert names(tmp_path) == sorted([".photos.8.part", ".thesis-download.7.part", fresh.name])


@pytest.mark.parametrize("is_folder", [False, True])
def test_without_locks_a_leftover_with_the_own_number_stops_no_write(
    is_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(handle: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    monkeypatch.setattr("agent.kernel.unfinished._COUNT", iter(range(7, 20)))
    (tmp_path / f".one.{os.getpid()}-7.part").write_text("half")
    with unfinished(tmp_path / "one", is_folder=is_folder) as fresh:
        assert fresh.name == f".one.{os.getpid()}-8.part"


def test_two_writers_of_one_path_in_a_process_have_their_own_files(tmp_path: Path) -> None:
    with unfinished(tmp_path / "one") as first, unfinished(tmp_path / "one") as second:
        first.write_text("first")
        second.write_text("second")
        second.replace(tmp_path / "one")
        first.replace(tmp_path / "one")
    assert (names(tmp_path), (tmp_path / "one").read_text()) == (["one"], "first")
