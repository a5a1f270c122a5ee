"""Who may act: the one agent on a SQLite ledger, or the holder of the lease when two share a PostgreSQL ledger."""

from __future__ import annotations

import threading
from typing import Protocol

from agent.ledger import Ledger
from domain.errors import Fenced


class Leadership(Protocol):
    """Says whether this process may act, and under which epoch."""

    def start(self) -> None:
        """Begin to try to become, and to stay, the leader; returns after the first attempt."""
        ...

    def epoch(self) -> int | None:
        """Return the epoch under which this process leads right now, None while it does not."""
        ...

    def fence(self, epoch: int) -> None:
        """Raise Fenced unless this process still leads under `epoch`; LedgerUnavailable when that cannot be known."""
        ...

    def close(self) -> None:
        """Let nothing more be done from here on: `fence` raises, whatever else holds."""
        ...

    def stop(self) -> None:
        """Give up the lead, so that another may take it at once."""
        ...


class SoleLeader:
    """The lead on a SQLite ledger: taken at the start, kept until a newer epoch appears."""

    def __init__(self, ledger: Ledger, owner: str, at: float) -> None:
        self._ledger = ledger
        self._epoch = ledger.take_epoch(owner, at)
        self._closed = threading.Event()

    def start(self) -> None:
        """Do nothing: the lead was taken when this was made."""

    def epoch(self) -> int | None:
        """Return the epoch taken at the start, None once it was closed."""
        return None if self._closed.is_set() else self._epoch

    def fence(self, epoch: int) -> None:
        """Raise Fenced when a newer leader exists or this process is stopping."""
        refuse_if(self._closed)
        self._ledger.check_epoch(epoch)

    def close(self) -> None:
        """Let nothing more be done."""
        self._closed.set()

    def stop(self) -> None:
        """Do nothing more: the next agent takes a newer epoch without asking."""
        self._closed.set()


def refuse_if(closed: threading.Event) -> None:
    """Raise Fenced when the lead was closed."""
    if closed.is_set():
        raise Fenced("this process is stopping: nothing more is begun, the next start follows what is open")
