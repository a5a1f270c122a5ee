"""Renders the page: the whole of it for a request, and the same parts again for the live stream."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from agent.ledger import Ledger
from agent.view.board import Standing
from agent.view.records import JournalRow
from agent.view.view import AgentView, installed_version
from agent.web import text
from agent.web.history import QueueHistory
from agent.web.moment import Alert, Moment, alerts, moment
from agent.web.rows import item_of
from domain.errors import LedgerError

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
FRESH_S = 3.0
"""A moment gathered less than so many seconds ago is shown again, if nothing has happened since."""

MOST_CARDS = 4
"""With more fleets than these each has a row instead of a card; its card is on its own page."""

_MOST_SCOPES = 64


@dataclass(frozen=True, slots=True)
class Version:
    """What the page is a picture of; as long as it stays the same there is nothing new to show.

    seq: the journal's newest number, None while the ledger cannot be read. turning: whether the loop turns.
    """

    seq: int | None
    turning: bool
    standing: Standing = field(repr=False)

    def same(self, other: Version | None) -> bool:
        """Return whether nothing has happened in between."""
        return (
            other is not None
            and (self.seq, self.turning) == (other.seq, other.turning)
            and self.standing is other.standing
        )


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file: its type, its bytes."""

    media_type: str
    body: bytes


class Pages:
    """Renders pages from the view; safe for any thread. What it reads from the ledger may raise LedgerUnavailable."""

    def __init__(self, view: AgentView) -> None:
        self.view = view
        self.assets: Mapping[str, Asset] = {
            path.name: Asset(_TYPES[path.suffix], path.read_bytes()) for path in sorted((_HERE / "static").iterdir())
        }
        self.build = _build(self.assets)
        self._history = QueueHistory(self._ledger)
        self._templates = _templates(self.build)
        self._lock = threading.Lock()
        self._version: tuple[float, Version] | None = None
        self._moments: dict[str | None, tuple[float, Version, Moment]] = {}

    @property
    def _ledger(self) -> Ledger:
        return self.view.parts.ledger

    def version(self, within_s: float = 0.5) -> Version:
        """Return the present version, at most `within_s` old; a ledger that cannot be read is a version too."""
        with self._lock:
            now = time.monotonic()
            if self._version is not None and now - self._version[0] < within_s:
                return self._version[1]
            try:
                seq = self.view.newest_seq()
            except LedgerError:
                seq = None
            version = Version(seq, self.view.health().ok, self.view.parts.board.read())
            self._version = (now, version)
            return version

    def moment(self, fleet: str | None) -> Moment:
        """Return what there is to see of one fleet or of all; BadInput names the fleets there are."""
        version = self.version()
        with self._lock:
            now = time.monotonic()
            held = self._moments.get(fleet)
            if held is not None and now - held[0] < FRESH_S and version.same(held[1]):
                return held[2]
            seen = moment(self.view, self._history, fleet)
            if len(self._moments) >= _MOST_SCOPES:
                self._moments.clear()
            self._moments[fleet] = (now, version, seen)
            return seen

    def parts(self, seen: Moment, fleet: str | None) -> dict[str, str]:
        """Return the HTML of each part that changes in place, by name."""
        parts = {"agent": self._part("agent", seen=seen), "alerts": self._part("alerts", alerts=seen.alerts)}
        looks = "fleet" if len(seen.fleets) <= MOST_CARDS else "fleet_row"
        for shown in seen.fleets:
            parts[f"badges {shown.status.fleet}"] = self._part("badges", fleet=shown)
            parts[f"fleet {shown.status.fleet}"] = self._part(looks, fleet=shown, seen=seen)
        parts["vms"] = self._part("vms", seen=seen, fleet=fleet)
        parts["inputs"] = self._part("inputs", seen=seen)
        for pool in seen.pools:
            parts[f"pool {pool.pool}"] = self._part("pool", pool=pool, seen=seen)
        return parts

    def alerts_alone(self) -> dict[str, str]:
        """Return the part that can be shown while the ledger cannot be read."""
        unreadable = Alert("Ledger", "it cannot be read now, so this page shows what was last known; see the log")
        return {"alerts": self._part("alerts", alerts=(unreadable, *alerts(self.view)))}

    def row(self, row: JournalRow) -> tuple[str, str] | None:
        """Return the list (`decision` or `event`) and the HTML of a journal row; None for one that is not listed."""
        item = item_of(row)
        if item is None:
            return None
        kind = "decision" if hasattr(item, "rails") else "event"
        return kind, self._part(kind, item=item, now=self.view.parts.now())

    def page(self, name: str, **context: Any) -> str:
        """Return a whole page."""
        return self._templates.get_template(f"{name}.html").render(context)

    def _part(self, name: str, **context: Any) -> str:
        return self._templates.get_template(f"part_{name}.html").render(context)


def _build(assets: Mapping[str, Asset]) -> str:
    """Return what changes whenever templates or static files do: a page from before then loads itself anew."""
    digest = hashlib.sha256(installed_version().encode())
    for template in sorted((_HERE / "templates").iterdir()):
        digest.update(template.read_bytes())
    for asset in assets.values():
        digest.update(asset.body)
    return digest.hexdigest()[:12]


def _templates(build: str) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for function in (
        text.clock_time,
        text.full_time,
        text.machine_time,
        text.duration,
        text.money,
        text.words,
        text.arrows,
    ):
        environment.filters[function.__name__] = function
    environment.globals.update(build=build, version=installed_version(), counted=text.counted, most_cards=MOST_CARDS)
    return environment
