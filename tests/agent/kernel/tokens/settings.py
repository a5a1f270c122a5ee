"""Desks in the settings, TRIMTAB_DESKS__<desk>__..."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from agent.settings.kinds import Section
from agent.settings.model import Settings
from agent.settings.subjects import Conflict, Subjects


class DeskSettings(Section, title="A desk"):
    """One desk. `<desk>` is its key."""

    stock: int = Field(100, ge=0, le=1000, description="Tokens that it has.")
    kept: int = Field(0, ge=0, description="Tokens that it does not hand out.")


def _conflicts(name: str, desk: DeskSettings, settings: Settings) -> Iterator[Conflict]:
    if desk.kept > desk.stock:
        yield Conflict(("desks", name, "kept"), (("desks", name, "stock"),), f"give at most STOCK={desk.stock}")


SUBJECTS = Subjects("desks", "desks", DeskSettings, {"desks": "<desk>"}, _conflicts)
