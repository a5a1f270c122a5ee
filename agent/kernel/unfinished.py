"""Unfinished files and folders, which replace another one when they are whole.

A writer holds a lock on its unfinished file; a file without a lock is the leftover of a writer that was killed. Each
writer first removes the leftovers in its folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"\..+\.\d+\.part")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def unfinished(path: Path, *, is_folder: bool = False, mode: int = 0o666) -> Iterator[Path]:
    """Yield a new, empty file or folder next to `path`; the caller fills and renames it, else it is removed.

    mode: of a file, less the umask. OSError where it cannot be made.
    """
    remove_unfinished(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}.part")
    handle = _made(fresh, is_folder, mode)
    try:
        yield fresh
    finally:
        _remove(fresh)
        os.close(handle)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files and folders in a folder whose writers are gone; errors are ignored."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if _NAME.fullmatch(name):
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


def _made(fresh: Path, is_folder: bool, mode: int) -> int:
    """Make it, lock it, and return its handle."""
    while True:
        if is_folder:
            fresh.mkdir()
            handle = os.open(fresh, _OPEN)
        else:
            handle = os.open(fresh, _OPEN | os.O_CREAT | os.O_EXCL, mode)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another writer took it for a leftover before it was locked, and removes it.
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            # A file system without locks: no other writer can lock it either, and so none removes it.
            return handle
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)
