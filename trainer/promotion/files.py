"""Replaces files whole and appends lines to them, where others may have put a link or a device under their names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agent.models.regular_files import check

_CREATE = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


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
        check(path, found, found.st_size)
        cut = found.st_size > 0 and os.pread(handle, 1, found.st_size - 1) != b"\n"
        _put(handle, (("\n" if cut else "") + line + "\n").encode("utf-8"))
    finally:
        os.close(handle)


def _put(handle: int, content: bytes) -> None:
    while content:
        content = content[os.write(handle, content) :]
    os.fsync(handle)
