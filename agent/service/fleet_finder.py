"""Looks for tagged fleets in the background, and hands a changed set to the loop between two turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from agent.settings import Settings
from agent.settings.discovery import discover
from agent.settings.fleet import FleetSettings
from agent.view.board import StandingBoard
from collectors.aws import AwsSession
from collectors.tagged_groups import TaggedGroups
from domain.errors import TrimtabError

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 30.0
"""How often it is seen whether to look: after a failure, and before the first success, every time."""
PROBLEM: Final = "discovery"


class FleetFinder:
    """Finds fleets by the tags of their groups.

    A fleet that is not found any more is kept until it is missing for the second time in a row: forgetting it gives up
    what is under way. One of which a group came to count in other units than VMs is kept as it was known for as long as
    that lasts: the loop holds it and says why, where a forgotten one would raise no alarm. What cannot be read changes
    nothing. refused: why fleets were refused at the last look, by name.
    """

    def __init__(
        self,
        settings: Settings,
        session: AwsSession,
        board: StandingBoard,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._session, self._board = settings, session, board
        self._groups = TaggedGroups(session)
        self._monotonic = monotonic
        self._fleets: dict[str, FleetSettings] | None = None
        self._missing: frozenset[str] = frozenset()
        self._due_at = float("-inf")
        self._changed: Settings | None = None
        self.refused: Mapping[str, str] = {}
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether a look has ever succeeded: before, there may be fleets that nobody knows of yet."""
        return self._fleets is not None

    def look(self) -> None:
        """Look if it is time to; never raises."""
        if self._monotonic() < self._due_at:
            return
        try:
            found = discover(self._groups, self._settings, self._session.region or "")
        except TrimtabError as error:
            known = "" if self.known else "fleets are not known yet: "
            self._board.problem(PROBLEM, f"{known}tagged groups cannot be read: {error}")
            log.warning("discovery_failed", detail=str(error))
            return
        self._due_at = self._monotonic() + self._settings.discovery.interval_s - LOOK_EVERY_S / 2
        self._board.problem(PROBLEM, "; ".join(found.refused.values()))
        for name, why in found.refused.items():
            log.warning("fleet_refused", fleet=name, detail=why)
        self.refused = found.refused
        self._settle(found.settings.fleets, found.unsupported)

    @property
    def changed(self) -> Settings | None:
        """The settings with the fleets as they are now, None when the loop manages these already."""
        return self._changed

    def taken(self, settings: Settings) -> None:
        """Note that the loop manages these fleets now."""
        with self._lock:
            if self._changed is settings:
                self._changed = None

    def _settle(self, found: dict[str, FleetSettings], unsupported: frozenset[str]) -> None:
        before = self._fleets or {}
        missing = frozenset(before.keys() - found.keys())
        kept = {name: before[name] for name in missing - (self._missing - unsupported)}
        self._missing = missing
        fleets = dict(sorted({**found, **kept}.items()))
        if fleets != self._fleets:
            with self._lock:
                self._changed = self._settings.model_copy(update={"fleets": fleets})
        self._fleets = fleets
