"""A directory for sockets, whose paths may have 107 characters; pytest's own `tmp_path` may be too long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def short_directory() -> Iterator[Path]:
    """Make one with a short path, and remove it with the block."""
    with TemporaryDirectory(prefix="tt-") as name:
        yield Path(name)
