"""What the daemon does besides turning the loop: keeps ledger and memory small, and looks after itself."""

from __future__ import annotations

import ctypes
import gc
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import structlog

from agent.kernel.parts import kept
from agent.ledger import Ledger
from agent.ledger.kept import LEARNING
from agent.service.assembly import Agent
from agent.service.schedule import Schedule
from agent.settings import Settings
from agent.view.board import ServiceBoard
from domain.errors import TrimtabError
from domain.units import DAY_S

log = structlog.get_logger(__name__)

RETENTION_EVERY_S: Final = 3600.0
RETENTION_AFTER_S: Final = 300.0
RETENTION_BATCHES: Final = 50
"""At most so many transactions at a time, so that decisions are recorded in between; the rest waits an hour."""
SELF_CHECK_EVERY_S: Final = 60.0
LEAST_FREE_SHARE: Final = 0.05


def add(schedule: Schedule, settings: Settings, agent: Agent, board: ServiceBoard) -> None:
    """Put the chores on the schedule."""
    now = time.time()
    keep_s, learning_s = settings.ledger.retention_days * DAY_S, settings.ledger.learning_days * DAY_S
    schedule.add(
        "retention",
        lambda: forget(agent.ledger, agent.clock.now(), keep_s, learning_s),
        RETENTION_EVERY_S,
        now + RETENTION_AFTER_S,
    )
    schedule.add("self-check", lambda: check_itself(settings, agent, board), SELF_CHECK_EVERY_S, now)
    for part in agent.parts:
        for chore in part.chores():
            schedule.add(chore.name, chore.call, chore.every_s, now)


def forget(ledger: Ledger, now: float, keep_s: float, learning_s: float | None = None) -> None:
    """Remove what is older than the ledger keeps; a ledger that cannot be used now is left for the next time.

    learning_s: for how long what learning needs is kept, else `keep_s`.
    """
    longer_s = {} if learning_s is None else {LEARNING: learning_s}
    try:
        compacted = ledger.compact(now, keep_s, kept(), longer_s=longer_s, batches=RETENTION_BATCHES)
    except TrimtabError as error:
        log.warning("retention_failed", detail=str(error))
        return
    if compacted.rows:
        log.info("retention", rows=compacted.rows, bytes=compacted.bytes, finished=compacted.finished)


def check_itself(settings: Settings, agent: Agent, board: ServiceBoard) -> None:
    """Look at what the loop stands on, and put on the board what a person should look into."""
    board.problem("listener", "" if agent.listener.running else "the listener has stopped: no measurements come in")
    board.problem("disk", room_problem(settings.state_directory, agent.ledger.database.path))
    none = "no group is tagged trimtab:fleet" if settings.discovery.enabled else "no fleet is configured"
    something = any(part.managed() for part in agent.parts)
    board.problem("fleets", "" if something else f"{none}: there is nothing to decide")
    for part in agent.parts:
        for name, sentence in part.problems().items():
            board.problem(name, sentence)
    differences = agent.leadership.differences().values()
    board.problem("leases", agent.leadership.trouble() or _joined(differences))
    board.problem("clock", agent.session.clock_check.difference)
    board.problem("learning", _joined(part.rounds.problem for part in agent.parts if part.rounds is not None))
    failing = {name: health.last_error for name, health in agent.poller.health.items() if health.last_error}
    board.problem("collectors", _joined(f"{name}: {error}" for name, error in sorted(failing.items())))


def _joined(sentences: Iterable[str]) -> str:
    """Return the sentences that there are as one; "" where none is."""
    return "; ".join(filter(None, sentences))


def room_problem(state_directory: Path, ledger: Path | None) -> str:
    """Return which directory has little room left on its disk, and what is lost without; "" where there is room.

    ledger: the file of a SQLite ledger, which may lie on another disk.
    """
    lost = {state_directory.resolve(): "without room learned models and the memory of the ledger cannot be written"}
    if ledger is not None:
        lost[ledger.resolve().parent] = "without room nothing can be decided"
    return _joined(_room(directory, sentence) for directory, sentence in lost.items())


def _room(directory: Path, lost: str) -> str:
    try:
        usage = shutil.disk_usage(directory)
    except OSError as error:
        return f"{directory} cannot be looked at: {error}"
    free = usage.free / max(1, usage.total)
    return "" if free >= LEAST_FREE_SHARE else f"{directory} has {free:.0%} of its disk free: {lost}"


def freeze_live_objects() -> None:
    """Exempt all live objects from collection; called once, when all parts are up.

    With 10,000 VMs there are a quarter of a million objects, and a full pass takes longer than the rest of a turn.
    """
    gc.collect()
    gc.freeze()
    _return_memory()


def collect_between_turns() -> None:
    """Collect now, while the loop is idle; the next turn then allocates too little to begin a full pass."""
    gc.collect()
    _return_memory()


def _return_memory() -> None:
    """Return freed memory to the system, where the C library can: glibc keeps it per thread otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
