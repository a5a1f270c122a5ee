"""Runs what may hang in a thread of its own: whoever asked waits so long and no longer."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class Background(Generic[T]):
    """A call in a daemon thread, begun when this is made; it cannot be ended from outside."""

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        self.name = name
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(call,), name=name, daemon=True)
        _started.add(self._thread)
        self._thread.start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._answer.append(call())
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    @property
    def age_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def over(self, within_s: float | None = 0.0) -> bool:
        """Return whether it has ended, waited for until it is `within_s` seconds old; None waits for its end."""
        return self._over.wait(None if within_s is None else max(0.0, within_s - self.age_s))

    def answer(self) -> T:
        """Return what the call returned, or raise what it raised; only once it is over."""
        if self._error is not None:
            raise self._error
        return self._answer[0]


def left_behind() -> tuple[str, ...]:
    """Return the names of the calls that still run: an interpreter that ends around native code in them aborts."""
    return tuple(sorted(thread.name for thread in _started if thread.is_alive()))
