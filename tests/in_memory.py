"""Directories in memory: each write of a ledger waits for its disk, and one that others keep busy may stall it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY = "/dev/shm"


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose path is short enough for a socket, in memory where files may be there."""
    there = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="tt-", dir=there) as name:
        yield Path(name)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In place of pytest's own, where a conftest.py names it."""
    with short_directory() as directory:
        yield directory
