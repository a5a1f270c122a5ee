"""One daemon per state directory: a lock that ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from domain.errors import LedgerUnavailable

LOCK_NAME = "agent.lock"


@contextlib.contextmanager
def lock_directory(path: Path) -> Iterator[None]:
    """Hold the state directory for this process while the block runs.

    LedgerUnavailable names the process that holds it already, or says why the directory cannot be used. Readers and
    control verbs need no lock.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        # The file stays when the lock ends: removing it would let two processes lock two different files of one name.
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LedgerUnavailable(
            f"state directory {path} cannot be used ({error}): make it writable for this user, or name another"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise LedgerUnavailable(
                f"state directory {path} is in use by process {holder}: "
                "stop that agent, or give this one its own directory"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
