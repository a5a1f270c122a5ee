"""Renders the page: the whole of it for a request, and the same parts again for the live stream."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from agent.kernel import text
from agent.kernel.page import Alert, PartPage
from agent.ledger import Kind, Ledger
from agent.view.board import ServiceState
from agent.view.view import AgentView, JournalRow, installed_version
from agent.web.moment import Moment, alerts, event_item, moment
from domain.errors import REFUSED_LINES, LedgerError, UnknownName
from domain.subject import Subject

_HERE = Path(__file__).parent
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
FRESH_S = 3.0
"""A moment gathered less than so many seconds ago is shown again, if nothing has happened since."""

_MOST_SCOPES = 64


@dataclass(frozen=True, slots=True)
class Version:
    """What the page is a picture of; as long as it stays the same there is nothing new to show.

    seq: the journal's newest number, None while the ledger cannot be read. turning: whether the loop turns.
    """

    seq: int | None
    turning: bool
    state: ServiceState = field(repr=False)

    def same(self, other: Version | None) -> bool:
        """Return whether nothing has happened in between."""
        return (
            other is not None and (self.seq, self.turning) == (other.seq, other.turning) and self.state is other.state
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
        drawing = ((part.name, part.page()) for part in view.parts.parts)
        self.drawing: Mapping[str, PartPage] = {name: page for name, page in drawing if page is not None}
        directories = (_HERE / "templates", *(page.templates for page in self.drawing.values()))
        self.build = _build(self.assets, directories)
        self._templates = _templates(self.build, directories)
        self._lock = threading.Lock()
        self._version: tuple[float, Version] | None = None
        self._moments: dict[Subject | None, tuple[float, Version, Moment]] = {}

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
                seq = self._ledger.newest_seq()
            except LedgerError:
                seq = None
            version = Version(seq, self.view.health().ok, self.view.parts.board.read())
            self._version = (now, version)
            return version

    def of(self, subject: Subject | None) -> Mapping[str, PartPage]:
        """Return by part what draws a subject, or all; UnknownName lists those there are when nothing does."""
        if subject is None:
            return self.drawing
        if (page := self.drawing.get(subject.decision)) is None:
            raise UnknownName("subject", subject.path, f"choose one of: {', '.join(self.drawing)}, / and a name")
        page.one(subject.name)
        return {subject.decision: page}

    def moment(self, subject: Subject | None) -> Moment:
        """Return what there is to see of one subject or of all; BadInput names those there are."""
        version = self.version()
        with self._lock:
            now = time.monotonic()
            held = self._moments.get(subject)
            if held is not None and now - held[0] < FRESH_S and version.same(held[1]):
                return held[2]
            seen = moment(self.view, self.of(subject), subject)
            if len(self._moments) >= _MOST_SCOPES:
                self._moments.clear()
            self._moments[subject] = (now, version, seen)
            return seen

    def parts(self, seen: Moment) -> dict[str, str]:
        """Return the HTML of each part that changes in place, by name."""
        parts = {"agent": self.draw("part_agent", seen=seen), "alerts": self.draw("part_alerts", alerts=seen.alerts)}
        for name, drawn in seen.drawn.items():
            parts |= self.drawing[name].fragments(drawn, self.draw)
        parts["inputs"] = self.draw("part_inputs", seen=seen)
        for card in seen.cards:
            parts[f"card {card.title}"] = self.draw("part_card", card=card)
        return parts

    def alerts_alone(self) -> dict[str, str]:
        """Return the part that can be shown while the ledger cannot be read."""
        unreadable = Alert("Ledger", "it cannot be read now; this page shows its last state; see the log")
        return {"alerts": self.draw("part_alerts", alerts=(unreadable, *alerts(self.view)))}

    def row(self, row: JournalRow) -> tuple[str, str] | None:
        """Return the list (`decision` or `event`) and the HTML of a journal row; None for one that is not listed."""
        now = self.view.parts.now()
        if row.kind == Kind.DECISION:
            items = (page.listed(row.seq, row.body) for page in self.drawing.values())
            item = next((item for item in items if item is not None), None)
            return None if item is None else ("decision", self.draw("part_decision", item=item, now=now))
        event = event_item(row)
        return None if event is None else ("event", self.draw("part_event", item=event, now=now))

    def draw(self, template: str, **context: Any) -> str:
        """Return the HTML of a template, by its name without `.html`."""
        return self._templates.get_template(f"{template}.html").render(context)


_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
_INSIDE = re.compile(r"(?<=[,:/?&])(?=[A-Za-z])")
"""Where a long name without spaces, a policy with its parameters for example, may go on in the next line."""


def digests(text_with: str) -> Markup:
    """Return text as HTML in which of each SHA-256 the first digits are shown, and the whole of it is the tooltip.

    A name too long for its line breaks behind a punctuation mark.
    """
    parts, at = [], 0
    for found in _DIGEST.finditer(text_with):
        parts += [
            _breakable(text_with[at : found.start()]),
            Markup('<abbr title="{}">{}</abbr>').format(found[0], found[1]),
        ]
        at = found.end()
    return Markup("").join([*parts, _breakable(text_with[at:])])


def _breakable(part: str) -> Markup:
    return Markup("<wbr>").join(map(escape, _INSIDE.split(part)))


def _build(assets: Mapping[str, Asset], directories: Sequence[Path]) -> str:
    """Return what changes whenever templates or static files do: a page from before then loads itself anew."""
    digest = hashlib.sha256(installed_version().encode())
    for directory in directories:
        for template in sorted(directory.iterdir()):
            digest.update(template.read_bytes())
    for asset in assets.values():
        digest.update(asset.body)
    return digest.hexdigest()[:12]


def _templates(build: str, directories: Sequence[Path]) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(directories),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for function in (text.clock_time, text.machine_time, text.money, text.words, text.arrows, text.in_minutes, digests):
        environment.filters[function.__name__] = function
    environment.filters.update(duration=text.duration_text, full_time=text.time_text)
    environment.globals.update(build=build, version=installed_version(), counted=text.counted, remedies=REFUSED_LINES)
    return environment
