"""Ends a process by SIGKILL right before a chosen system call that changes a file, to see what each death leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

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
