"""A SQLite ledger as files: the mark in its header, its log and index, whether it is sound, and its errors in words.

The file itself is only opened through SQLite: closing another descriptor of it would release the locks that SQLite
holds on it for this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sqlite3
import struct
import tempfile
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
_INDEX_PAGE: Final = 4096
_INDEX_ROOM: Final = 64 * 1024
_DESCRIPTORS: Final = "/proc/self/fd"

_NO_ROOM: Final = "the disk (or the file's size limit) is full: free some space, or keep less history"
_REMEDIES: Final = {
    "SQLITE_FULL": _NO_ROOM,
    "SQLITE_READONLY": "it may not be written: check its owner and mode, its directory's, and the disk's",
    "SQLITE_CANTOPEN": "it cannot be opened: check that its directory exists and that this user may write there",
    "SQLITE_PERM": "it cannot be opened: check that its directory exists and that this user may write there",
    "SQLITE_BUSY": (
        "another process keeps it locked: list the processes that have the file open (fuser) and stop the wrong one"
    ),
    "SQLITE_LOCKED": (
        "another process keeps it locked: list the processes that have the file open (fuser) and stop the wrong one"
    ),
    "SQLITE_CORRUPT": "the file is damaged: stop the agent and run `trimtab ledger restore FILE` with a copy",
    "SQLITE_NOTADB": "the file is not a ledger: move it aside and start again, or name another path",
    # Of the index of the log, which each process that opens the ledger may have to make anew.
    "SQLITE_IOERR_SHM": _NO_ROOM,
    "SQLITE_IOERR": "the disk does not answer reads or writes: look at the system log",
}
"""By the beginning of SQLite's own error name."""
_OF_THE_DISK: Final = ("SQLITE_FULL", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")
_DISK_REMEDIES: Final = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: "the disk quota of this user is used up: free some space, or raise the quota",
    errno.EROFS: "its file system is read-only, as the kernel makes one after an error: look at the system log, check "
    "the file system and mount it for writing again",
}


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


def check_index_room(path: Path) -> None:
    """Raise sqlite3.OperationalError where the index of the log might find no room: to be asked before each connection.

    SQLite maps the index into memory, and has room for the last byte of each 4096. Where blocks are smaller, as mkfs
    makes those of ext4 below 512 MB, the kernel ends a process by SIGBUS that writes to another block on a full disk.
    """
    disk = _small_blocks(path)
    if disk is not None and disk.f_bavail * disk.f_frsize < _INDEX_ROOM:
        raise _full()


def allocate_index(connection: sqlite3.Connection, path: Path) -> None:
    """Take room for every block of the index of the log behind a connection, which keeps it until the last is closed.

    sqlite3.OperationalError where there is none.
    """
    if _small_blocks(path) is None:
        return
    # SQLite makes the index for the first transaction.
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    index = os.stat(index_of(path))
    for name in os.listdir(_DESCRIPTORS) if os.path.isdir(_DESCRIPTORS) else ():
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(int(name)), index):
                # SQLite's descriptor, which the connection keeps open: to close another would release SQLite's locks.
                # Not posix_fallocate, which may write to the file instead.
                libc = ctypes.CDLL(None, use_errno=True)
                size = ctypes.c_int64(index.st_size)
                if libc.fallocate(int(name), 0, ctypes.c_int64(0), size) and ctypes.get_errno() == errno.ENOSPC:
                    raise _full()
                return


def _small_blocks(path: Path) -> os.statvfs_result | None:
    """Return the state of a file's disk where its blocks are smaller than a page of the log's index."""
    try:
        disk = os.statvfs(os.path.dirname(os.path.realpath(path)))
    except OSError:
        return None
    # A file system that tells nothing of its size, as some in user space, tells nothing of its room either.
    return disk if disk.f_blocks and disk.f_frsize < _INDEX_PAGE else None


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("there is no room for the index of the log")
    error.sqlite_errorname = "SQLITE_FULL"
    return error


def mark(path: Path) -> Mark | None:
    """Return the mark in the file itself, without what its log adds; None when it is no SQLite file.

    sqlite3.Error when it cannot be read now, which says nothing about what the file is.
    """
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?immutable=1&mode=ro", uri=True)) as connection:
        # A fold of the log writes the header first. While it goes on, and after one that a full disk, a signal or a
        # power cut ended, the header counts pages that are in the log only. SQLite calls such a file malformed, as it
        # reads it without the log here, unless it is to open malformed ones as well.
        connection.execute("PRAGMA writable_schema=ON")
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                return None
            raise
    return Mark(application, version)


def foreign_log(path: Path) -> str:
    """Return why the write-ahead log beside a file is not that file's own, "" when it is or there is none.

    sqlite3.Error when the file cannot be read now.

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
        return "the file is not a SQLite database, the log belongs to one"
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


def damage(connection: sqlite3.Connection, *, check: str = "quick_check") -> str:
    """Return what SQLite finds wrong with the file behind a connection, "" for nothing.

    check: `quick_check`, or `integrity_check`, which compares tables with their indexes too. sqlite3.Error when the
    file cannot be read now.
    """
    try:
        rows = connection.execute(f"PRAGMA {check}(3)").fetchall()
    except sqlite3.DatabaseError as error:
        if is_damage(error):
            return str(error)
        raise
    found = [str(row[0]) for row in rows]
    return "" if found == ["ok"] else "; ".join(" ".join(line.split()) for line in found)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error is about the content of a file, and not about the disk or a lock."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def in_words(error: BaseException, path: Path) -> str:
    """Return an error that SQLite met with the file at `path`, and the remedy."""
    name = getattr(error, "sqlite_errorname", "")
    words = str(error).strip() or type(error).__name__
    remedy = _DISK_REMEDIES.get(_disk_error(path)) if name.startswith(_OF_THE_DISK) else None
    remedy = remedy or next((each for start, each in _REMEDIES.items() if name.startswith(start)), None)
    return f"{words} — {remedy or 'look at the system log'}"


def _disk_error(path: Path) -> int:
    """Return the errno of a small write beside a file, 0 for none: SQLite names no quota and no read-only disk."""
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path)), buffering=0) as file:
            file.write(bytes(4096))
    except OSError as error:
        return error.errno or 0
    return 0
