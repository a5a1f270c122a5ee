"""What an agent remembers of its ledger across a restart, in a file of its own in the state directory.

One block is overwritten after each transaction, without waiting for the disk: a killed process loses nothing of it, a
machine without power the last half minute. It can then only remember too little, never more than the ledger holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from agent.ledger.identity import Identity, KnownLedger
from domain.errors import LedgerUnavailable

log = structlog.get_logger(__name__)

NAME: Final = "ledger.witness"
_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Record:
    """What the file says: of the ledger at which place, what is remembered, and how that was seen overwritten, if so.

    is_in_doubt: a version before wrote that it was overwritten, without saying how; it did so of half-folded files too.
    """

    place: str
    remembered: KnownLedger
    overwritten: str = ""
    is_in_doubt: bool = False


class Witness:
    """The file, for the ledger at `place`; LedgerUnavailable when it cannot be opened for writing."""

    def __init__(self, directory: Path, place: str) -> None:
        self.path = directory / NAME
        self._place = _digest(place)
        self._lock = threading.Lock()
        self._is_failing = False
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(self.path, flags, 0o640)
        except OSError as error:
            raise LedgerUnavailable(
                f"{self.path}, where this agent remembers its ledger, cannot be opened ({error.strerror}): make it a "
                "plain file that this user may write"
            ) from error
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise LedgerUnavailable(f"{self.path}, the agent's record of its ledger, is not a regular file: remove it")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def read(self) -> Record | None:
        """Return what is remembered of the ledger at this place, None when nothing is."""
        block = os.pread(self._descriptor, 2 * _BLOCK, 0)
        if not block.strip():
            return None
        try:
            body = json.loads(block)
            identity = Identity(str(body["ledger_id"]), int(body["generation"]))
            remembered = KnownLedger(identity, int(body["epoch"]), str(body["owner"]))
            verdict = body["overwritten"]
            is_in_doubt = verdict is True
            found = Record(str(body["place"]), remembered, "" if is_in_doubt else str(verdict or ""), is_in_doubt)
        except (ValueError, KeyError, TypeError):
            # As a machine that lost its power may leave it; refusing to start would cost more than it saves.
            log.warning("witness_unreadable", path=str(self.path), detail="it is written again from the ledger")
            return None
        return found if found.place == self._place else None

    def write(self, remembered: KnownLedger, overwritten: str = "") -> None:
        """Remember this, and how the ledger was seen overwritten, if so.

        A file that cannot be written is logged, for the ledger itself is written.
        """
        identity = remembered.identity
        body = {
            "ledger_id": identity.ledger_id,
            "generation": identity.generation,
            "epoch": remembered.epoch,
            "owner": remembered.owner[:120],
            "overwritten": overwritten[:120],
            "place": self._place,
        }
        block = json.dumps(body).encode().ljust(_BLOCK - 1) + b"\n"
        with self._lock:
            try:
                os.pwrite(self._descriptor, block, 0)
                self._is_failing = False
            except OSError as error:
                if not self._is_failing:
                    log.warning("witness_not_written", path=str(self.path), detail=str(error))
                self._is_failing = True

    def forget(self) -> None:
        """Remember nothing any more."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)


def _digest(place: str) -> str:
    return hashlib.sha256(place.encode()).hexdigest()[:32]
