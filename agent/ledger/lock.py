"""One daemon per state directory and per SQLite ledger: locks that end with their process, however that ends."""

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
    except OSError as error:
        raise _unusable(path, error) from error
    with _locked(path / LOCK_NAME, path, f"state directory {path}", "give this one its own directory"):
        yield


@contextlib.contextmanager
def lock_ledger(path: Path) -> Iterator[None]:
    """Hold a SQLite ledger for this process while the block runs, whatever its state directory is.

    LedgerUnavailable names the process that holds it already: two agents on one file would depose one another.
    """
    # Links to one file lead to one lock.
    real = Path(os.path.realpath(path))
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerUnavailable(
            f"ledger {path}: its directory cannot be made ({error}): make it, or name another path"
        ) from error
    remedy = "give this one a separate ledger; two agents can share one on PostgreSQL"
    with _locked(real.with_name(f"{real.name}.lock"), real.parent, f"ledger {path}", remedy):
        yield


@contextlib.contextmanager
def _locked(file: Path, directory: Path, what: str, remedy: str) -> Iterator[None]:
    try:
        # The file stays when the lock ends: removing it would let two processes lock two different files of one name.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            raise LedgerUnavailable(f"{what} is in use by process {holder}: stop that agent, or {remedy}") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _unusable(directory: Path, error: OSError) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"state directory {directory} cannot be used ({error}): make it writable for this user, or name another"
    )
