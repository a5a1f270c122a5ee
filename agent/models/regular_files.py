"""Reads files whose content or kind is not ours to choose.

Only regular files are read, below a size, without waiting: a device behind a model's name would fill the memory, and a
named pipe would stop the thread that opens it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def read_file(path: Path, largest_bytes: int, *, follow_links: bool = False) -> bytes:
    """Return the content of a regular file of at most `largest_bytes` bytes.

    OSError, whose `strerror` names the kind or the size, for anything else: a directory, a device, a named pipe, and a
    symbolic link unless `follow_links`. The directories that lead to the file may be links.
    """
    # Judged by its name first: opening a device can do something.
    check(path, path.stat() if follow_links else path.lstat(), largest_bytes)
    handle = os.open(path, _READ | (0 if follow_links else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb") as file:
        # And by what was opened: another file may have the name by now.
        check(path, os.fstat(handle), largest_bytes)
        content = file.read(largest_bytes + 1)
    if len(content) > largest_bytes:
        raise _refused(path, errno.EFBIG, f"it has more than {largest_bytes} bytes")
    return content


def check(path: Path, found: os.stat_result, largest_bytes: int) -> None:
    """Raise OSError, whose `strerror` names the kind or the size, unless it is a regular file of at most this size."""
    if not stat.S_ISREG(found.st_mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(found.st_mode)), "no regular file")
        raise _refused(path, errno.EINVAL, f"it is {kind}, a regular file is needed")
    if found.st_size > largest_bytes:
        raise _refused(path, errno.EFBIG, f"it has {found.st_size} bytes, more than {largest_bytes}")


def _refused(path: Path, number: int, why: str) -> OSError:
    return OSError(number, why, str(path))
