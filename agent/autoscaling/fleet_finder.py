"""Discovers tagged fleets in the background, and passes a changed set to the loop between two turns."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from agent.settings import Settings
from agent.settings.discovery import discover
from agent.settings.fleet import FleetSettings
from collectors.aws import AwsSession
from collectors.tagged_groups import TaggedGroups
from domain.errors import TrimtabError

log = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 30.0
"""Interval at which `look` is called; after a failure, and before the first success, each call reads."""
PROBLEM: Final = "discovery"


class FleetFinder:
    """Discovers fleets by the tags of their groups.

    A fleet that is no longer tagged is kept until it is missing for the second time in a row, as its removal abandons
    open intents. A fleet with a group whose capacity units no longer tell its VMs is kept for as long as that lasts:
    the loop holds it with a reason, where a removed fleet would raise no alarm. A read that fails changes nothing.
    refused: why fleets were refused at the last read, by name.
    """

    def __init__(
        self,
        settings: Settings,
        session: AwsSession,
        problem: Callable[[str, str], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._session, self._problem = settings, session, problem
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
        """Whether a read has succeeded; before that, the fleets are unknown."""
        return self._fleets is not None

    def look(self) -> None:
        """Read the tags if it is due; never raises."""
        if self._monotonic() < self._due_at:
            return
        try:
            found = discover(self._groups, self._settings, self._session.region or "")
        except TrimtabError as error:
            known = "" if self.known else "fleets are not known yet: "
            self._problem(PROBLEM, f"{known}tagged groups cannot be read: {error}")
            log.warning("discovery_failed", detail=str(error))
            return
        self._due_at = self._monotonic() + self._settings.discovery.interval_s - LOOK_EVERY_S / 2
        self._problem(PROBLEM, "; ".join(found.refused.values()))
        for name, why in found.refused.items():
            log.warning("fleet_refused", fleet=name, detail=why)
        self.refused = found.refused
        self._update(found.settings.fleets, found.unsupported)

    @property
    def changed(self) -> Settings | None:
        """The settings with the fleets as they are now, None when the loop manages these already."""
        return self._changed

    def taken(self, settings: Settings) -> None:
        """Record that the loop manages these fleets now."""
        with self._lock:
            if self._changed is settings:
                self._changed = None

    def _update(self, found: dict[str, FleetSettings], unsupported: frozenset[str]) -> None:
        before = self._fleets or {}
        missing = frozenset(before.keys() - found.keys())
        kept = {name: before[name] for name in missing - (self._missing - unsupported)}
        self._missing = missing
        fleets = dict(sorted({**found, **kept}.items()))
        if fleets != self._fleets:
            with self._lock:
                self._changed = self._settings.model_copy(update={"fleets": fleets})
        self._fleets = fleets
