"""How a part draws its subjects on the page itself, in place of a card each; the page lends it the frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fastapi import APIRouter
    from fastapi.responses import Response

    from agent.kernel.store import Record
    from domain.errors import BadInput, LedgerError
    from domain.subject import Subject

Draw = Callable[..., str]
"""Returns the HTML of a template, by its name without `.html`, with the values given by name."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What is to be drawn: the journal up to `seq` at time `at`, the agent's mode, one subject's name or (None) all.

    leaders: of several agents, by the path of each subject.
    """

    seq: int
    at: float
    mode: str
    subject: str | None
    leaders: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a person should look into: a heading and a sentence."""

    what: str
    sentence: str


@dataclass(frozen=True, slots=True)
class DecisionItem:
    """A decision in a list, by its number in the journal.

    change, why: its sentence, before and after the colon. changed: whether there is anything to do. repeats: what it
    has in common with decisions that say the same, "" where none does. count: how many stand in its row, since: the
    time of the oldest of them, None where it is the only one.
    """

    seq: int
    id: str
    subject: str
    at: float
    reason: str
    change: str
    why: str
    changed: bool
    repeats: str = ""
    count: int = 1
    since: float | None = None


def collapsed(items: Iterable[DecisionItem]) -> list[DecisionItem]:
    """Return the items, newest first; those of a subject that say the same one after the other become one, counted."""
    rows: list[DecisionItem] = []
    newest_row: dict[str, int] = {}
    for item in items:
        place = newest_row.get(item.subject)
        if place is not None and item.repeats and rows[place].repeats == item.repeats:
            rows[place] = replace(rows[place], count=rows[place].count + item.count, since=item.since or item.at)
        else:
            newest_row[item.subject] = len(rows)
            rows.append(item)
    return rows


class PageSection(Protocol):
    """A part's subjects at one moment; its own templates know more of it.

    main, side: the templates of its sections, with `.html`, which see this as `drawn`. decisions: the newest first.
    alerts: what a person should look into.
    """

    @property
    def main(self) -> str:
        """The template of the section that shows its subjects."""

    @property
    def side(self) -> str:
        """The template of what stands beside its decisions."""

    @property
    def decisions(self) -> Sequence[DecisionItem]:
        """Its newest decisions."""

    @property
    def alerts(self) -> Sequence[Alert]:
        """What stands in the banner on top of the page."""


class Frame(Protocol):
    """What the page lends to the routes of a part."""

    def live(self, subject: Subject | None) -> Response:
        """Return the live page of a subject, or of all."""

    def shown(self, template: str, **context: Any) -> Response:
        """Return a whole page from a template."""

    def sorry(self, error: BadInput | LedgerError) -> Response:
        """Return the page that says why there is nothing to show."""


class PartPage(Protocol):
    """Draws the subjects of one part; safe for any thread. What it reads may raise LedgerUnavailable.

    templates: the directory of its templates, whose names no other part and not the page itself may use.
    """

    @property
    def templates(self) -> Path:
        """The directory of its templates."""

    def one(self, name: str) -> str:
        """Return the name of a subject that it draws; UnknownName lists those there are."""

    def gather(self, scene: Scene) -> PageSection:
        """Return what there is to see; UnknownName when there is no such subject."""

    def fragments(self, drawn: Any, draw: Draw) -> Mapping[str, str]:
        """Return the HTML of what changes in place, by name; `drawn` is what `gather` returned."""

    def listed(self, seq: int, body: Mapping[str, Any]) -> DecisionItem | None:
        """Return a decision by its number and body in the journal, None where its decisions are not kept there."""

    def explained(self, record: Record) -> tuple[str, Mapping[str, Any]]:
        """Return the template that explains a decision, and its values."""

    def router(self, frame: Frame) -> APIRouter:
        """Return its pages: those of its subjects, and the list of its decisions."""
