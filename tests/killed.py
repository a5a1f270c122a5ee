"""Ends a process by SIGKILL at a chosen moment, to see what each death leaves.

Before a system call that changes a file (`changes`, `killed_at`), or around a write to the ledger or another call
(`Points`, `said_before_death`).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from agent.ledger.database import Database

CHANGING = ("write", "fsync", "replace", "rename", "unlink", "mkdir")
"""Calls of `os` that bring something to disk, those behind `pathlib` too."""


def changes(act: Callable[[], object], before: Callable[[int], object] = lambda number: None) -> int:
    """Do something, and return how many calls changed a file; before: called ahead of each, with its number from 1."""
    count = 0

    def watched(real: Any, writes: Callable[..., bool]) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal count
            if writes(*given):
                count += 1
                before(count)
            return real(*given, **named)

        return call

    with pytest.MonkeyPatch.context() as patched:
        for name in CHANGING:
            patched.setattr(os, name, watched(getattr(os, name), lambda *given: True))
        opens = os.O_WRONLY | os.O_RDWR
        patched.setattr(os, "open", watched(os.open, lambda *given: len(given) > 1 and bool(given[1] & opens)))
        act()
    return count


def killed_at(act: Callable[[], object], number: int) -> bool:
    """Do something in a process of its own that ends by SIGKILL ahead of a call; return whether it came so far."""
    child = os.fork()
    if child == 0:
        ended = 1
        try:
            changes(act, lambda at: os.kill(os.getpid(), signal.SIGKILL) if at == number else None)
            ended = 0
        finally:
            os._exit(ended)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), f"it ended with {code}"
    return code != 0


class Points:
    """Counts moments; at the `at`-th one, from 1, the process is killed, None for never."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count = at, 0

    def point(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call with a point before and one after it."""

        def called(*given: Any, **named: Any) -> Any:
            self.point()
            answer = call(*given, **named)
            self.point()
            return answer

        return called

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Have a point before each transaction that writes to a ledger, one before its commit, and one after it."""
        plain, point = Database.write, self.point

        @contextlib.contextmanager
        def write(database: Database) -> Iterator[Connection]:
            point()
            with plain(database) as connection:
                yield connection
                point()
            point()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Database, "write", write)
            yield


def said_before_death(act: Callable[[Callable[[str], object]], object]) -> list[str]:
    """Do something in a process of its own, which must be killed in it; return the lines that it said before."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            act(lambda line: os.write(writing, f"{line}\n".encode()))
            os.write(writing, b"ended\n")
        except BaseException as error:
            os.write(writing, f"failed: {error!r}\n".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        said = lines.read().split("\n")[:-1]
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), said
    return said
