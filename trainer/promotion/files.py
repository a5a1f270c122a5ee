"""Appends lines to a file in whose place there may be a link or a device."""

from __future__ import annotations

import os
from pathlib import Path

from agent.models.regular_files import check

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def append_line(path: Path, line: str) -> None:
    """Append a line to a regular file; one that was cut before it, as by a full disk, stays a line of its own."""
    handle = os.open(path, _FLAGS, 0o666)
    try:
        found = os.fstat(handle)
        check(path, found, found.st_size)
        cut = found.st_size > 0 and os.pread(handle, 1, found.st_size - 1) != b"\n"
        content = (("\n" if cut else "") + line + "\n").encode("utf-8")
        while content:
            content = content[os.write(handle, content) :]
        os.fsync(handle)
    finally:
        os.close(handle)
