"""`trimtab ledger restore`, the one safe way to put a copy in place, and `check`, which finds damage."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.autoscaling.state import FleetStore
from agent.commands.main import app
from agent.ledger import Kind, Ledger, lock_directory, lock_ledger
from domain.controls import Pause, PauseScope
from domain.errors import Fenced, LedgerReplaced
from tests.agent.ledger.records import START, made
from tests.agent.ledger.test_identity import KILLED, ROOT, copy_of, moved, opened, overwritten

PAUSE = Pause(PauseScope.ALL, "ana", "incident 7", START)


def trimtab(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def restored(path: Path, *arguments: object) -> str:
    status, output = trimtab("ledger", "restore", *arguments, "--ledger", path)
    assert status == 0, output
    return output


@pytest.fixture
def ended(url: str, path: Path) -> Path:
    """A ledger of an agent that ended after web-3, was paused, and has a copy from after web-1, `copy.db`."""
    path.parent.mkdir()
    with opened(url, path) as ledger:
        ledger.take_epoch("host-a:1", START)
        FleetStore(ledger).record([made(0, groups=("workers_2",))])
        copy_of(path)
        FleetStore(ledger).record([made(1), made(2)])
        ledger.take_epoch("host-a:2", START)
        ledger.pause("autoscaling", "web", PAUSE)
    return path


def test_a_restored_copy_is_taken_by_the_next_start_and_by_every_agent_that_knew_the_ledger(
    ended: Path, url: str, tmp_path: Path
) -> None:
    restored(ended, ended.with_name("copy.db"))
    with opened(url, ended) as ledger:
        assert ledger.take_epoch("host-a:3", START) == 4
        FleetStore(ledger).record([made(3, epoch=4)])


def test_ids_go_on_where_nobody_was_open_intents_stay_and_the_leader_of_before_is_fenced(ended: Path, url: str) -> None:
    output = restored(ended, ended.with_name("copy.db"))
    assert "decisions continue from number 1000001" in output
    assert "epoch 3" in output
    with opened(url, ended) as ledger:
        assert FleetStore(ledger).loop_state("web").decisions == 1_000_000
        assert [intent.epoch for intent in ledger.open_intents()] == [1]
        with pytest.raises(Fenced, match="ledger restore leads since epoch 3"):
            ledger.check_epoch(2)
        (note,) = [entry for entry in ledger.journal() if entry.reason == "ledger_restored"]
        assert note.kind is Kind.EVENT
        assert "; epoch 3, decisions continue from 1000001, 1 " in note.body["detail"]
    restored(ended, ended.with_name("copy.db"))
    with opened(url, ended) as ledger:
        assert FleetStore(ledger).loop_state("web").decisions == 2_000_000, (
            "what the first restore numbered never comes again"
        )


def test_what_was_in_place_is_kept_and_switches_that_the_copy_lacks_are_named(ended: Path) -> None:
    before = ended.read_bytes()
    output = restored(ended, ended.with_name("copy.db"))
    (kept,) = ended.parent.glob("ledger.db.replaced-*")
    assert kept.read_bytes() == before
    assert "LOST: autoscaling/web was paused (all) by ana" in output


def test_a_copy_put_in_place_by_hand_is_refused_until_it_is_restored_as_it_is(ended: Path, url: str) -> None:
    moved(ended.with_name("copy.db"), ended)
    with pytest.raises(LedgerReplaced):
        opened(url, ended)
    restored(ended)
    opened(url, ended).close()


def test_without_a_ledger_in_place_the_next_start_begins_a_new_one(ended: Path, url: str) -> None:
    ended.unlink()
    assert restored(ended).startswith("no ledger in place")
    with opened(url, ended) as ledger:
        assert ledger.epoch() == 0


def test_the_log_of_a_killed_agent_never_reaches_the_copy(url: str, path: Path) -> None:
    Ledger.open(url).close()
    older = copy_of(path)
    subprocess.run([sys.executable, "-c", KILLED, url], cwd=ROOT, check=True)
    log = path.with_name("ledger.db-wal").read_bytes()
    restored(path, older)
    assert not path.with_name("ledger.db-wal").exists()
    (kept,) = path.parent.glob("ledger.db.replaced-*-wal")
    assert kept.read_bytes() == log
    with Ledger.open(url) as ledger:
        assert (ledger.damage(), FleetStore(ledger).loop_state("web").decisions) == ("", 0)


def test_an_overwritten_file_is_taken_without_the_log_beside_it_when_it_is_restored_as_it_is(
    url: str, path: Path
) -> None:
    Ledger.open(url).close()
    older = copy_of(path)
    subprocess.run([sys.executable, "-c", KILLED, url], cwd=ROOT, check=True)
    overwritten(older, path)
    restored(path)
    with Ledger.open(url) as ledger:
        assert (ledger.damage(), FleetStore(ledger).decisions()) == ("", [])


@pytest.mark.parametrize("held", ["state directory", "ledger"])
def test_while_an_agent_runs_nothing_is_restored(ended: Path, held: str) -> None:
    with lock_directory(ended.parent) if held == "state directory" else lock_ledger(ended):
        status, output = trimtab("ledger", "restore", ended.with_name("copy.db"), "--ledger", ended)
    assert status == 1
    assert "stop that agent" in output
    assert not list(ended.parent.glob("*.replaced-*"))


def test_a_copy_of_another_ledger_is_refused_unless_it_is_meant(ended: Path) -> None:
    other = ended.with_name("other.db")
    Ledger.open(f"sqlite:///{other}").close()
    status, output = trimtab("ledger", "restore", other, "--ledger", ended)
    assert (status, "it is a copy of another ledger" in output) == (2, True)
    restored(ended, other, "--another")


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "it is not a readable ledger: name another copy"), (b"a shopping list\n" * 400, "is damaged")],
    ids=["empty", "text"],
)
def test_what_is_no_ledger_is_refused_and_nothing_is_changed(ended: Path, content: bytes, words: str) -> None:
    before = ended.read_bytes()
    other = ended.with_name("other.db")
    other.write_bytes(content)
    status, output = trimtab("ledger", "restore", other, "--ledger", ended)
    assert status in (1, 2)
    assert words in " ".join(output.split())
    assert ended.read_bytes() == before
    assert not list(ended.parent.glob("*.rest*"))


def test_what_agents_remember_of_the_ledger_before_is_forgotten(ended: Path) -> None:
    assert (ended.parent / "ledger.witness").read_bytes().strip()
    restored(ended, ended.with_name("copy.db"))
    assert (ended.parent / "ledger.witness").read_bytes() == b""


def test_the_restored_file_has_the_owner_and_the_mode_of_the_one_before(ended: Path) -> None:
    # Only root may give a file away; anybody else's stays their own.
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    if os.geteuid() == 0:
        os.chown(ended, owner, owner)
    ended.chmod(0o640)
    restored(ended, ended.with_name("copy.db"))
    assert (ended.stat().st_uid, ended.stat().st_mode & 0o777) == (owner, 0o640)


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8192:] = os.urandom(len(content) - 8192)
    path.write_bytes(content)


def test_a_damaged_file_makes_check_exit_with_1_and_a_damaged_copy_is_refused(ended: Path) -> None:
    assert trimtab("ledger", "check", "--ledger", ended)[0] == 0
    copy = ended.with_name("copy.db")
    damaged(copy)
    status, output = trimtab("ledger", "restore", copy, "--ledger", ended)
    assert status == 1
    assert "is damaged (" in output
    damaged(ended)
    assert trimtab("ledger", "check", "--ledger", ended)[0] == 1


def test_a_copy_that_finds_no_room_is_not_called_damaged(ended: Path) -> None:
    before = ended.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        status, output = trimtab("ledger", "restore", ended.with_name("copy.db"), "--ledger", ended)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 1
    assert "damaged" not in output
    assert "cannot be used now" in " ".join(output.split())
    assert ended.read_bytes() == before


def test_a_tree_page_that_only_the_quick_check_reads_is_found(ended: Path) -> None:
    with closing(sqlite3.connect(ended)) as direct:
        (page,) = direct.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'decisions_by_time'").fetchone()
        (size,) = direct.execute("PRAGMA page_size").fetchone()
    content = bytearray(ended.read_bytes())
    content[(page - 1) * size : page * size] = bytes(size)
    ended.write_bytes(content)
    status, output = trimtab("ledger", "check", "--ledger", ended)
    assert status == 1
    assert "`trimtab ledger restore FILE`" in output


def test_an_older_versions_copy_is_refused_and_the_ledger_stays(ended: Path, url: str) -> None:
    copy = ended.with_name("copy.db")
    with closing(sqlite3.connect(copy)) as direct, direct:
        direct.execute("UPDATE alembic_version SET version_num = '0009'")
    status, output = trimtab("ledger", "restore", copy, "--ledger", ended)
    assert (status, "has schema 0009, older than the 0010" in output) == (1, True)
    opened(url, ended).close()


def test_a_link_to_the_ledger_stays_a_link(ended: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(ended)
    restored(link, ended.with_name("copy.db"))
    assert link.is_symlink()
    assert list(ended.parent.glob("ledger.db.replaced-*"))
