"""What the daemon does besides turning the loop: keeps the ledger small, looks after itself, journals its settings."""

from __future__ import annotations

import shutil
import time
from typing import Final

import structlog

from agent.ledger import Ledger
from agent.service.assembly import Agent
from agent.service.schedule import Schedule
from agent.settings import Settings
from agent.settings.effective import plain, values
from agent.settings.names import name_of
from agent.view.board import StandingBoard
from domain.errors import TrimtabError

log = structlog.get_logger(__name__)

RETENTION_EVERY_S: Final = 3600.0
RETENTION_AFTER_S: Final = 300.0
RETENTION_BATCHES: Final = 50
"""At most so many transactions at a time, so that decisions are recorded in between; the rest waits an hour."""
SELF_CHECK_EVERY_S: Final = 60.0
FUTURES_EVERY_S: Final = 30.0
LEAST_FREE_SHARE: Final = 0.05
DAY_S: Final = 86_400.0


def add(schedule: Schedule, settings: Settings, agent: Agent, board: StandingBoard) -> None:
    """Put the chores on the schedule."""
    now = time.time()
    keep_s = settings.ledger.retention_days * DAY_S
    schedule.add(
        "retention", lambda: forget(agent.ledger, agent.clock.now(), keep_s), RETENTION_EVERY_S, now + RETENTION_AFTER_S
    )
    schedule.add("self-check", lambda: check_itself(settings, agent, board), SELF_CHECK_EVERY_S, now)
    if agent.clusters:
        schedule.add("futures", lambda: renew_futures(agent, keep_s), FUTURES_EVERY_S, now)


def forget(ledger: Ledger, now: float, keep_s: float) -> None:
    """Remove what is older than the ledger keeps; a ledger that cannot be used now is left for the next time."""
    try:
        compacted = ledger.compact(now, keep_s, batches=RETENTION_BATCHES)
    except TrimtabError as error:
        log.warning("retention_failed", detail=str(error))
        return
    if compacted.rows:
        log.info("retention", rows=compacted.rows, bytes=compacted.bytes, finished=compacted.finished)


def renew_futures(agent: Agent, keep_s: float) -> None:
    """Compute what admissions will ask for before they ask; without a ledger it is left for the next time."""
    try:
        agent.clusters.forget(agent.clock.now() - keep_s)
        agent.clusters.refresh()
    except TrimtabError as error:
        log.warning("futures_not_renewed", detail=str(error))


def check_itself(settings: Settings, agent: Agent, board: StandingBoard) -> None:
    """Look at what the loop stands on, and put on the board what a person should look into."""
    board.problem("listener", "" if agent.listener.running else "the listener has stopped: no measurements come in")
    board.problem("disk", _disk(settings))
    none = "no group is tagged trimtab:fleet" if settings.discovery.enabled else "no fleet is configured"
    something = agent.ports.fleets or agent.clusters or agent.pools
    board.problem("fleets", "" if something else f"{none}: there is nothing to decide")
    failing = {name: health.last_error for name, health in agent.poller.health.items() if health.last_error}
    board.problem("collectors", "; ".join(f"{name}: {error}" for name, error in sorted(failing.items())))


def _disk(settings: Settings) -> str:
    try:
        usage = shutil.disk_usage(settings.state_directory)
    except OSError as error:
        return f"the state directory {settings.state_directory} cannot be looked at: {error}"
    free = usage.free / max(1, usage.total)
    if free >= LEAST_FREE_SHARE:
        return ""
    return f"{settings.state_directory} has {free:.0%} of its disk free: without room nothing can be decided"


def record_settings(agent: Agent) -> None:
    """Write the settings in force to the journal, without secrets, unless they are the last ones written."""
    body = {name_of(path): plain(value) for path, value in values(agent.settings)}
    try:
        agent.ledger.record_settings(agent.clock.now(), body)
    except TrimtabError as error:
        log.warning("settings_not_recorded", detail=str(error))
