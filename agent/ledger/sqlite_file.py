"""A SQLite ledger as files: the mark in its header, whether the log beside it is its own, and whether it is sound.

The file itself is only opened through SQLite: closing another descriptor of it would release the locks that SQLite
holds on it for this process.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import time
from pathlib import Path
from typing import Final

from agent.ledger.identity import Mark

_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_VERSION_AT: Final = 60
_APPLICATION_AT: Final = 68
_LOOKS: Final = 4
_BETWEEN_LOOKS_S: Final = 0.02


def log_of(path: Path) -> Path:
    """Return where SQLite keeps the write-ahead log of a file."""
    return _beside(path, "-wal")


def index_of(path: Path) -> Path:
    """Return where SQLite keeps the index of that log."""
    return _beside(path, "-shm")


def _beside(path: Path, suffix: str) -> Path:
    # SQLite follows links to the file and keeps the others beside that.
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + suffix)


def mark(path: Path) -> Mark | None:
    """Return the mark in the file itself, without what its log adds; None when no SQLite file can be read there."""
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)
    except sqlite3.Error:
        return None
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        return None
    finally:
        connection.close()
    return Mark(application, version)


def foreign_log(path: Path) -> str:
    """Return why the write-ahead log beside a file is not that file's own, "" when it is or there is none.

    Each transaction of a ledger counts up the mark in the file's first page. The log begins with the transaction after
    the one that the file itself shows: an older copy shows an earlier one, another ledger another application id.
    """
    found = ""
    for look in range(_LOOKS):
        if look:
            # A writer may have folded the log between two reads.
            time.sleep(_BETWEEN_LOOKS_S)
        before = mark(path)
        in_log = _marks_in(log_of(path))
        after = mark(path)
        found = _mismatch(before, in_log, after)
        if not found:
            return ""
    return found


def _mismatch(before: Mark | None, in_log: tuple[Mark, Mark] | None, after: Mark | None) -> str:
    if in_log is None:
        return ""
    if before is None or after is None:
        return "the file is no SQLite database, the log is of one"
    first, last = in_log
    if after.application not in (0, first.application, last.application):
        return f"the file carries the mark {after.application:08x}, the log {last.application:08x}"
    if after.version < first.version - 1:
        return f"the file is of generation {after.version}, the log begins at {first.version}"
    if before.version > last.version and before.application == last.application:
        return f"the file is of generation {before.version}, the log ends at {last.version}"
    return ""


def _marks_in(log: Path) -> tuple[Mark, Mark] | None:
    """Return the marks in the first and the last frame of the log that hold the first page; None without such."""
    first = last = None
    with contextlib.suppress(OSError), log.open("rb") as file:
        header = file.read(_LOG_HEADER)
        if len(header) < _LOG_HEADER:
            return None
        (page_size,) = struct.unpack(">I", header[8:12])
        salts, position, size = header[16:24], _LOG_HEADER, os.fstat(file.fileno()).st_size
        while position + _FRAME_HEADER + page_size <= size:
            frame = os.pread(file.fileno(), _FRAME_HEADER, position)
            # Frames of an earlier round, which SQLite overwrites as it comes to them, have other salts.
            if len(frame) < _FRAME_HEADER or frame[8:16] != salts:
                break
            if struct.unpack(">I", frame[:4]) == (1,):
                page = os.pread(file.fileno(), 100, position + _FRAME_HEADER)
                version, _, application = struct.unpack(">iii", page[_VERSION_AT : _APPLICATION_AT + 4])
                last = Mark(application, version)
                first = first or last
            position += _FRAME_HEADER + page_size
    return None if first is None or last is None else (first, last)


def damage(connection: sqlite3.Connection) -> str:
    """Return what SQLite's quick check finds wrong with the file behind a connection, "" for nothing."""
    try:
        rows = connection.execute("PRAGMA quick_check(3)").fetchall()
    except sqlite3.DatabaseError as error:
        return str(error)
    found = [str(row[0]) for row in rows]
    return "" if found == ["ok"] else "; ".join(" ".join(line.split()) for line in found)
