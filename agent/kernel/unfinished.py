"""Unfinished files and folders, which replace another one when they are whole.

A writer holds a lock on its unfinished file; a file without a lock is the leftover of a writer that was killed. Each
writer first removes the leftovers for its own path: the folder may be a person's, with other programs' files. On a file
system without locks leftovers stay.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

_NUMBERS = r"\.\d+(-\d+)?\.part"
_NAME = re.compile(rf"\..+{_NUMBERS}")
_COUNT = count()
"""Two threads of a process may write the same path."""
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def unfinished(path: Path, *, is_folder: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """Yield a new, empty file or folder next to `path`; the caller fills and renames it, else it is removed.

    mode: of a file, less the umask. OSError where it cannot be made.
    """
    _remove_leftovers(path.parent, re.compile(rf"\.{re.escape(path.name)}{_NUMBERS}"))
    fresh, handle = _made(path, is_folder, mode)
    try:
        yield fresh
    finally:
        _remove(fresh)
        os.close(handle)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files and folders in a folder whose writers are gone; errors are ignored.

    folder: one that this program alone writes, since other programs may use such names.
    """
    _remove_leftovers(folder, _NAME)


def _remove_leftovers(folder: Path, pattern: re.Pattern[str]) -> None:
    with suppress(OSError):
        for name in os.listdir(folder):
            if pattern.fullmatch(name):
                _remove_leftover(folder / name)


def _remove_leftover(path: Path) -> None:
    if path.is_symlink():
        with suppress(OSError):
            path.unlink()
        return
    with suppress(OSError):
        handle = os.open(path, _OPEN)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _made(path: Path, is_folder: bool, mode: int) -> tuple[Path, int]:
    """Make one under a name that is free, lock it, and return it with its handle."""
    while True:
        fresh = path.with_name(f".{path.name}.{os.getpid()}-{next(_COUNT)}.part")
        try:
            if is_folder:
                fresh.mkdir()
                handle = os.open(fresh, _OPEN)
            else:
                handle = os.open(fresh, _OPEN | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError:
            # Of a process with the same number, as in containers: it lives, or it cannot be locked.
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another writer took it for a leftover before it was locked, and removes it.
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            # A file system without locks: no other writer can lock it either, and so none removes it.
            return fresh, handle
        if os.fstat(handle).st_nlink:
            return fresh, handle
        os.close(handle)
