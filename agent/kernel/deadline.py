"""Policies that may hang: each is asked in a thread, within a deadline, and not again while an earlier call runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from agent.models.background import Background
from domain.errors import PolicyFailure

T = TypeVar("T")


class StillRunning(Exception):
    """An earlier call has not ended."""


class Late(Exception):
    """A call gave no answer within its deadline; it runs on."""


class Deadlines:
    """Calls by key; used by one thread at a time."""

    def __init__(self) -> None:
        self._running: dict[Hashable, Background[Any]] = {}

    def call(self, key: Hashable, name: str, call: Callable[[], T], within_s: float) -> T:
        """Return the answer of a call, or raise its error; StillRunning, Late. name: of the policy.

        A BaseException that ends the thread is a PolicyFailure. RuntimeError where no thread can be started.
        """
        running = self._running.get(key)
        if running is not None and not running.over():
            raise StillRunning
        begun: Background[T] = Background(f"policy {name}", call)
        self._running[key] = begun
        if not begun.over(within_s):
            raise Late
        try:
            return begun.answer()
        except Exception:
            raise
        except BaseException as error:
            raise PolicyFailure(f"{name} ended its thread with {type(error).__name__}: {error}") from error
