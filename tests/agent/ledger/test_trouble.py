"""Trouble: a full disk, a read-only directory, a lock, a damaged, lost or newer file are said plainly and survived."""

import importlib
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, event
from sqlalchemy.pool import Pool

from agent.autoscaling.decide import DecisionInputs, DecisionResult
from agent.autoscaling.state import FleetStore
from agent.ledger import Ledger, lock_directory, migrations
from agent.ledger.schema import REVISIONS, metadata
from domain.controls import Pause, PauseScope
from domain.errors import LedgerError, LedgerReplaced, LedgerUnavailable
from tests.agent.ledger.records import START, made


class Disk:
    """The size that SQLite files may have, in pages."""

    ROOM = 2**30
    pages = ROOM

    def limit(self, connection: Any, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={self.pages}")


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    event.listen(Pool, "checkout", disk.limit)
    yield disk
    event.remove(Pool, "checkout", disk.limit)


def is_full(ledger: Ledger, records: list[tuple[DecisionInputs, DecisionResult]]) -> bool:
    try:
        FleetStore(ledger).record(records)
    except LedgerUnavailable as error:
        return "disk is full" in str(error)
    return False


@pytest.mark.emulates("needs_mount")
def test_a_full_disk_is_said_and_recording_goes_on_once_there_is_room(disk: Disk, url: str) -> None:
    Ledger.open(url).close()
    disk.pages = 60
    with Ledger.open(url) as ledger:
        number = 0
        while not is_full(ledger, [made(number), made(number, "api", groups=("workers_2",) if not number else ())]):
            number += 1
        assert number > 3
        with pytest.raises(LedgerUnavailable):
            ledger.check_writable()
        assert len(ledger.journal()) == 2 * number + 1
        assert (
            FleetStore(ledger).loop_state("web").decisions == FleetStore(ledger).loop_state("api").decisions == number
        )
        disk.pages = disk.ROOM
        ledger.check_writable()
        FleetStore(ledger).record([made(number)])
        assert FleetStore(ledger).loop_state("web").decisions == number + 1


def test_a_lock_held_by_another_is_waited_for_then_said_and_recording_goes_on_afterwards(url: str, path: Path) -> None:
    with Ledger.open(url, busy_timeout_s=0.05) as ledger:
        FleetStore(ledger).record([made(0)])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerUnavailable):
            FleetStore(ledger).record([made(1)])
        with pytest.raises(LedgerUnavailable):
            ledger.check_writable()
        assert FleetStore(ledger).loop_state("web").decisions == 1
        other.execute("ROLLBACK")
        other.close()
        FleetStore(ledger).record([made(1)])


def test_a_short_lock_is_waited_out(ledger: Ledger, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.1, other.execute, ("ROLLBACK",))
    release.start()
    FleetStore(ledger).record([made(1)])
    release.join()
    other.close()


@pytest.fixture
def plain_user() -> Iterator[Path]:
    """A directory outside any private one, and a process without root's rights on files."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


@contextmanager
def unprivileged() -> Iterator[None]:
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_read_only_directory_is_said_and_can_still_be_read(plain_user: Path) -> None:
    path = plain_user / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        FleetStore(ledger).record([made(1)])
    path.chmod(0o444)
    plain_user.chmod(0o555)
    with unprivileged():
        with pytest.raises(LedgerUnavailable, match="cannot be used now"):
            Ledger.open(f"sqlite:///{path}")
        with pytest.raises(LedgerUnavailable):
            Ledger.open(f"sqlite:///{plain_user}/deeper/ledger.db")
        with (
            pytest.raises(LedgerUnavailable),
            lock_directory(plain_user),
        ):
            pass
        with Ledger.open(f"sqlite:///{path}", read_only=True) as reader:
            assert FleetStore(reader).loop_state("web").decisions == 2
            assert FleetStore(reader).decision("web-00000001").inputs == made(1)[0]


def test_a_directory_that_may_not_be_entered_for_a_time_is_no_lost_ledger(plain_user: Path) -> None:
    path = plain_user / "deep" / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        FleetStore(ledger).record([made(1)])
        plain_user.chmod(0o000)
        with unprivileged(), pytest.raises(LedgerUnavailable) as refusal:
            ledger.check_writable()
        assert not isinstance(refusal.value, LedgerReplaced)
        plain_user.chmod(0o755)
        ledger.check_writable()


def test_a_reader_follows_a_working_daemon_and_may_not_write(url: str, ledger: Ledger) -> None:
    with Ledger.open(url, read_only=True) as reader:
        for n in range(3):
            FleetStore(ledger).record([made(n)])
            assert FleetStore(reader).loop_state("web").decisions == n + 1
        with pytest.raises(LedgerUnavailable):
            reader.pause("autoscaling", "web", Pause(PauseScope.ALL, "ana", "no", START))
        with pytest.raises(LedgerUnavailable):
            reader.check_writable()


def test_reading_what_was_never_written_creates_nothing(url: str, path: Path) -> None:
    with pytest.raises(LedgerUnavailable):
        Ledger.open(url, read_only=True)
    assert not path.parent.exists()


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(url: str, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is a shopping list\n" * 400)
    with pytest.raises(LedgerUnavailable):
        Ledger.open(url)
    assert path.read_bytes() == b"this is a shopping list\n" * 400


def test_a_damaged_file_is_said_and_a_copy_put_back_is_used_without_a_restart(
    url: str, path: Path, ledger: Ledger
) -> None:
    FleetStore(ledger).record([made(n) for n in range(50)])
    ledger.close()
    copy = path.read_bytes()
    path.write_bytes(copy[:4096] + os.urandom(len(copy) - 4096))
    with pytest.raises(LedgerUnavailable, match="malformed"):
        FleetStore(ledger).record([made(50)])
    with pytest.raises(LedgerUnavailable):
        ledger.check_writable()
    path.unlink()
    path.write_bytes(copy)
    FleetStore(ledger).record([made(50)])
    assert len(ledger.journal()) == 51


def test_a_file_that_vanished_is_noticed_and_never_silently_begun_anew(path: Path, ledger: Ledger) -> None:
    FleetStore(ledger).record([made(0)])
    away = path.with_suffix(".away")
    path.rename(away)
    for _ in range(2):
        with pytest.raises(LedgerReplaced):
            FleetStore(ledger).record([made(1)])
    assert not path.exists()
    away.rename(path)
    FleetStore(ledger).record([made(1)])
    assert FleetStore(ledger).loop_state("web").decisions == 2


@pytest.mark.parametrize(("schema", "why"), [("9001", "newer than the"), ("0009", "older than the")])
def test_another_schema_is_refused_with_what_to_do(url: str, path: Path, schema: str, why: str) -> None:
    Ledger.open(url).close()
    with sqlite3.connect(path) as direct:
        direct.execute("UPDATE alembic_version SET version_num = ?", (schema,))
    direct.close()
    for read_only in (False, True):
        with pytest.raises(LedgerError, match=f"schema {schema}, {why}"):
            Ledger.open(url, read_only=read_only)


def test_the_migrations_lead_to_the_tables_that_the_code_uses(url: str) -> None:
    importlib.import_module("agent.admission.state")  # its tables are its own
    Ledger.open(url).close()
    engine = create_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    revisions = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(revisions)) == REVISIONS


def test_many_may_open_a_new_ledger_at_once(url: str) -> None:
    failures: list[BaseException] = []

    def begin(number: int) -> None:
        try:
            with Ledger.open(url) as ledger:
                FleetStore(ledger).record([made(number, f"fleet-{number}")])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with Ledger.open(url, read_only=True) as ledger:
        assert len(ledger.journal()) == 4


def test_journal_rows_cannot_be_changed(path: Path, ledger: Ledger) -> None:
    FleetStore(ledger).record([made(1)])
    direct = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError):
        direct.execute("UPDATE journal SET reason = 'done'")
    direct.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "not a url", "oracle://host/x"])
def test_an_address_that_cannot_be_a_ledger_says_what_to_give(url: str) -> None:
    with pytest.raises(LedgerUnavailable, match="give sqlite:////path/to/file"):
        Ledger.open(url)


def test_a_password_in_the_address_is_never_shown() -> None:
    with pytest.raises(LedgerUnavailable) as refused:
        Ledger.open("postgresql://trimtab:hunter2@127.0.0.1:1/trimtab")
    assert "hunter2" not in str(refused.value)


def test_a_disk_that_tells_nothing_of_its_size_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = os.statvfs_result((512, 512, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: told)
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        ledger.pause("autoscaling", "web", Pause(PauseScope.ALL, "me", "a test", START, None))
