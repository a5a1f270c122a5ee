"""What tells a ledger's files apart: identity and mark, the log beside a file, and what an agent remembers of it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ledger.identity import INCARNATION, NUMBERS, Identity, KnownLedger, Mark
from agent.ledger.sqlite_file import damage, foreign_log, index_of, log_of, mark
from agent.ledger.witness import NAME, Record, Witness
from domain.errors import LedgerUnavailable
from tests.golden import figures


@given(st.text(min_size=1, max_size=32), st.integers(0, 5), st.integers(0, INCARNATION - 1))
def test_an_identity_is_marked_by_its_id_its_restores_and_its_generation(
    name: str, restored: int, written: int
) -> None:
    identity = Identity(name, restored * INCARNATION + written)
    assert identity.incarnation == restored
    assert identity.first_number == restored * NUMBERS
    # SQLite keeps both as signed 32 bits; 0 is what a file has that no ledger marked.
    assert 0 < identity.mark.application < 2**31
    assert 0 <= identity.mark.version < 2**31
    assert identity.mark.version == written % 2**31
    assert identity.mark.application == Identity(name, restored * INCARNATION).mark.application


def test_another_ledger_and_a_restored_one_are_marked_otherwise() -> None:
    marks = {Identity(name, restored * INCARNATION).mark.application for name in "ab" for restored in (0, 1)}
    assert len(marks) == 4


class Files:
    """A database in write-ahead mode whose generation is counted as a ledger counts its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA wal_autocheckpoint=0")
        self.connection.execute("CREATE TABLE t (x)")
        self.mark(7, 0)

    def mark(self, application: int, version: int) -> None:
        self.connection.execute("BEGIN")
        self.connection.execute(f"PRAGMA application_id={application}")
        self.connection.execute(f"PRAGMA user_version={version}")
        self.connection.execute("INSERT INTO t VALUES (1)")
        self.connection.execute("COMMIT")

    def fold(self) -> None:
        self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self.connection.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    with closing(Files(tmp_path / "one.db")) as made:
        yield made


def placed(directory: Path, main: Path, log: Path | None) -> Path:
    """Copy a file and a log, of whatever file, beside one another."""
    directory.mkdir()
    shutil.copy(main, directory / "ledger.db")
    if log is not None:
        shutil.copy(log, log_of(directory / "ledger.db"))
    return directory / "ledger.db"


def test_the_mark_is_that_of_the_file_without_its_log(files: Files, tmp_path: Path) -> None:
    files.mark(7, 3)
    files.fold()
    files.mark(7, 4)
    assert mark(files.path) == Mark(7, 3)
    files.fold()
    assert mark(files.path) == Mark(7, 4)
    (tmp_path / "text").write_text("no database at all, and long enough for a header " * 20)
    assert mark(tmp_path / "text") is None


def test_a_file_with_its_own_log_or_none_is_its_own(files: Files, tmp_path: Path) -> None:
    files.mark(7, 1)
    files.fold()
    alone = placed(tmp_path / "alone", files.path, None)
    assert foreign_log(alone) == ""
    files.mark(7, 2)
    files.mark(7, 3)
    assert foreign_log(placed(tmp_path / "both", files.path, log_of(files.path))) == ""


def test_an_older_copy_beside_a_newer_log_is_found_out(files: Files, tmp_path: Path) -> None:
    files.mark(7, 1)
    files.fold()
    older = placed(tmp_path / "older", files.path, None)
    files.mark(7, 2)
    files.fold()
    files.mark(7, 3)
    files.mark(7, 4)
    mixed = placed(tmp_path / "mixed", older, log_of(files.path))
    assert figures(foreign_log(mixed)) == [1, 3]


def test_a_newer_copy_beside_an_older_log_is_found_out(files: Files, tmp_path: Path) -> None:
    files.mark(7, 1)
    log = tmp_path / "log"
    shutil.copy(log_of(files.path), log)
    for generation in (2, 3):
        files.mark(7, generation)
    files.fold()
    mixed = placed(tmp_path / "mixed", files.path, log)
    assert figures(foreign_log(mixed)) == [3, 1]


def test_the_log_of_another_ledger_is_found_out(files: Files, tmp_path: Path) -> None:
    files.mark(7, 1)
    files.fold()
    with closing(Files(tmp_path / "two.db")) as other:
        other.mark(9, 1)
        other.fold()
        other.mark(9, 2)
        mixed = placed(tmp_path / "mixed", files.path, log_of(other.path))
    assert figures(foreign_log(mixed)) == [7, 9]


def test_a_file_that_was_never_marked_takes_any_log(files: Files, tmp_path: Path) -> None:
    with closing(Files(tmp_path / "plain.db")) as plain:
        plain.mark(0, 0)
        plain.fold()
        files.mark(7, 1)
        assert foreign_log(placed(tmp_path / "mixed", plain.path, log_of(files.path))) == ""


def test_a_log_beside_what_is_no_database_is_found_out(files: Files, tmp_path: Path) -> None:
    files.mark(7, 1)
    text = tmp_path / "text"
    text.write_text("no database at all, and long enough for a header " * 20)
    mixed = placed(tmp_path / "mixed", text, log_of(files.path))
    assert "not a SQLite database" in foreign_log(mixed)


@pytest.mark.parametrize("length", [0, 10, 31, 32, 40])
def test_a_log_cut_off_before_its_first_frame_says_nothing(files: Files, tmp_path: Path, length: int) -> None:
    files.mark(7, 1)
    cut = tmp_path / "cut"
    cut.write_bytes(log_of(files.path).read_bytes()[:length])
    files.fold()
    assert foreign_log(placed(tmp_path / "mixed", files.path, cut)) == ""


def test_frames_of_an_earlier_round_do_not_count(files: Files, tmp_path: Path) -> None:
    for generation in range(1, 6):
        files.mark(7, generation)
    # Folded without cutting the log: the next transaction overwrites its first frames, the others are of before.
    files.connection.execute("PRAGMA wal_checkpoint(FULL)")
    files.mark(7, 6)
    assert foreign_log(placed(tmp_path / "both", files.path, log_of(files.path))) == ""


def test_log_and_index_stand_beside_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real = tmp_path / "real" / "ledger.db"
    real.touch()
    link = tmp_path / "link.db"
    link.symlink_to(real)
    assert log_of(link) == tmp_path / "real" / "ledger.db-wal"
    assert index_of(link) == tmp_path / "real" / "ledger.db-shm"


def test_damage_is_said_in_one_line_and_a_sound_file_says_nothing(files: Files, tmp_path: Path) -> None:
    for number in range(2000):
        files.connection.execute("INSERT INTO t VALUES (?)", (f"{number}" * 20,))
    files.fold()
    assert damage(files.connection) == ""
    broken = placed(tmp_path / "broken", files.path, None)
    content = bytearray(broken.read_bytes())
    content[3 * 4096 : 4 * 4096] = bytes(4096)
    broken.write_bytes(content)
    with closing(sqlite3.connect(broken)) as connection:
        found = damage(connection)
    assert found
    assert "\n" not in found
    text = tmp_path / "text"
    text.write_text("no database at all, and long enough for a header " * 20)
    with closing(sqlite3.connect(text)) as connection:
        assert damage(connection) == "file is not a database"


REMEMBERED = KnownLedger(Identity("abc", 42), 3, "host:1:a")


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    with closing(Witness(tmp_path, "sqlite:///here")) as made:
        yield made


def test_what_was_remembered_is_read_again_of_the_same_place_alone(witness: Witness, tmp_path: Path) -> None:
    assert witness.read() is None
    witness.write(REMEMBERED)
    found = witness.read()
    assert found is not None
    assert found == Record(found.place, REMEMBERED)
    with closing(Witness(tmp_path, "sqlite:///here")) as again, closing(Witness(tmp_path, "elsewhere")) as other:
        assert again.read() == found
        assert other.read() is None


def test_the_newest_takes_the_place_of_the_one_before(witness: Witness) -> None:
    witness.write(KnownLedger(Identity("a" * 40, 10**15), 10**9, "host" * 20), "why" * 99)
    witness.write(REMEMBERED, "it shows generation 3")
    found = witness.read()
    assert found == Record(found.place, REMEMBERED, "it shows generation 3")
    assert witness.path.stat().st_size == 512
    assert witness.path.read_bytes().endswith(b"\n")


def test_a_version_before_said_without_a_reason_that_the_ledger_was_overwritten(witness: Witness) -> None:
    witness.write(REMEMBERED, "why")
    witness.path.write_bytes(witness.path.read_bytes().replace(b'"why"', b" true"))
    found = witness.read()
    assert found == Record(found.place, REMEMBERED, is_in_doubt=True)


def test_a_long_owner_is_cut_and_fits_the_block(witness: Witness) -> None:
    witness.write(KnownLedger(Identity("abc", 1), 2, "x" * 500))
    found = witness.read()
    assert found is not None
    assert found.remembered.owner == "x" * 120


def test_what_is_forgotten_or_damaged_is_not_remembered(witness: Witness) -> None:
    witness.write(REMEMBERED)
    witness.forget()
    assert witness.read() is None
    for content in (b"{", b"[]", b'{"ledger_id": 1}', b'{"ledger_id":"a","generation":"x"}', b"\xff" * 20):
        witness.path.write_bytes(content)
        assert witness.read() is None
    witness.write(REMEMBERED)
    assert witness.read() is not None


def test_a_file_of_blanks_says_nothing(witness: Witness) -> None:
    witness.path.write_bytes(b" " * 512)
    assert witness.read() is None


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(LedgerUnavailable, match=r"make it a plain file"):
        Witness(tmp_path, "here")
    (tmp_path / NAME).rmdir()
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(LedgerUnavailable, match="is not a regular file: remove it"):
        Witness(tmp_path, "here")
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).symlink_to(tmp_path / "other")
    with pytest.raises(LedgerUnavailable, match="cannot be opened"):
        Witness(tmp_path, "here")
    with pytest.raises(LedgerUnavailable, match="cannot be opened"):
        Witness(tmp_path / "nowhere", "here")


def test_the_file_is_closed_to_others_and_made_once(tmp_path: Path) -> None:
    with closing(Witness(tmp_path, "here")) as made:
        assert made.path == tmp_path / "ledger.witness"
        assert made.path.stat().st_mode & 0o007 == 0
