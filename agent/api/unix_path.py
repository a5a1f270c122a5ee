"""A unix socket's path as the kernel takes it: at most 107 bytes, so that a longer one goes through its directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST_BYTES = 100
"""The kernel's limit is 107; below it a path goes as it is."""


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Give a name to bind or connect to instead of `path`, valid inside the block; OSError without its directory."""
    if len(os.fsencode(path)) <= LONGEST_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
