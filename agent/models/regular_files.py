"""Reads files whose content or kind is not ours to choose, and replaces files whole.

Only regular files are read, below a size, without waiting: a device behind a model's name would fill the memory, and a
named pipe would stop the thread that opens it. No link is followed where a file is written.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_CREATE = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
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
    _check(path, path.stat() if follow_links else path.lstat(), largest_bytes)
    handle = os.open(path, _READ | (0 if follow_links else os.O_NOFOLLOW))
    with os.fdopen(handle, "rb") as file:
        # And by what was opened: another file may have the name by now.
        _check(path, os.fstat(handle), largest_bytes)
        content = file.read(largest_bytes + 1)
    if len(content) > largest_bytes:
        raise _refused(path, errno.EFBIG, f"it has more than {largest_bytes} bytes")
    return content


def _check(path: Path, found: os.stat_result, largest_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(found.st_mode)), "no regular file")
        raise _refused(path, errno.EINVAL, f"it is {kind}, a regular file is needed")
    if found.st_size > largest_bytes:
        raise _refused(path, errno.EFBIG, f"it has {found.st_size} bytes, more than {largest_bytes}")


def _refused(path: Path, number: int, why: str) -> OSError:
    return OSError(number, why, str(path))


def replace_file(path: Path, content: bytes | None, before: Callable[[], object] = lambda: None) -> None:
    """Write a file so that a reader sees the old one or the new one, whatever happens; None removes it.

    before: is called when the new content lies on the disk, and only a rename is left to do. OSError, with the old file
    in place, when the disk is full.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if content is not None:
            # A link that somebody left under this name must not be written through.
            part.unlink(missing_ok=True)
            handle = os.open(part, os.O_WRONLY | os.O_EXCL | _CREATE, 0o666)
            try:
                _put(handle, content)
            finally:
                os.close(handle)
        before()
        if content is None:
            path.unlink()
        else:
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_line(path: Path, line: str) -> None:
    """Append a line to a regular file; one that was cut before it, as by a full disk, stays a line of its own."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | _CREATE, 0o666)
    try:
        found = os.fstat(handle)
        _check(path, found, found.st_size)
        cut = found.st_size > 0 and os.pread(handle, 1, found.st_size - 1) != b"\n"
        _put(handle, (("\n" if cut else "") + line + "\n").encode("utf-8"))
    finally:
        os.close(handle)


def _put(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]
    os.fsync(handle)
