"""Every section of a specification that the code cites is there to be read, in docs/spec."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.product import MODULES, ROOT

CITED = re.compile(r"§+ ?(\d+(?:\.\d+)?[a-z]?)")
ROOMS = ("admission", "oversubscription", "placement", "deferral")
PAGES = {"deferral": "deferrable"}
"""Specifications that do not have the name of their decision."""
NAMED = re.compile(rf"(autoscaler|autoscaling|{'|'.join(ROOMS)}) (?:spec\w*|§)", re.IGNORECASE)
TESTS = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name)


@cache
def sections(decision: str) -> frozenset[str]:
    """The numbers of a specification's sections, and of the numbered items within them."""
    found: set[str] = set()
    chapter = ""
    for line in (ROOT / "docs" / "spec" / f"{PAGES.get(decision, decision)}.md").read_text("utf-8").splitlines():
        if heading := re.match(r"#+ (\d+)(\.\d+)?", line):
            chapter = heading[1]
            found.add(heading[1] + (heading[2] or ""))
        elif item := re.match(r"\s*(?:- )?(\d+)\. ", line):
            found.add(f"{chapter}.{item[1]}")
        elif (part := re.match(r"(\d+\.\d+[a-z]?)[ .]", line)) and part[1].startswith(f"{chapter}."):
            found.add(part[1])
        # Several short items may share a line.
        found |= {f"{chapter}.{number}" for number in re.findall(r"[.;] (\d+)\. ", line)}
    return frozenset(found)


def decision_of(module: Path, before: str) -> str:
    """The decision whose specification a citation means: the one named last before it, else that of the room."""
    if named := NAMED.findall(before):
        return "autoscaling" if named[-1].lower().startswith("autoscal") else named[-1].lower()
    rooms = [name for part in module.with_suffix("").parts for name in ROOMS if name in part]
    return rooms[0] if rooms else "autoscaling"


def citations() -> Iterator[tuple[Path, str, str]]:
    """Each citation: the module, the decision and the section."""
    for module in [*MODULES, *TESTS]:
        text = (ROOT / module).read_text("utf-8")
        for found in CITED.finditer(text):
            yield module, decision_of(module, text[max(0, found.start() - 60) : found.start()]), found[1]


CITATIONS = sorted(set(citations()))


@pytest.mark.parametrize(("decision", "section"), sorted({(decision, section) for _, decision, section in CITATIONS}))
def test_a_cited_section_is_there(decision: str, section: str) -> None:
    where = [str(module) for module, *cited in CITATIONS if cited == [decision, section]]
    assert section in sections(decision), (
        f"the specification of {decision} has no §{section}, which {', '.join(where)} cite"
    )


def test_there_are_citations() -> None:
    assert {decision for _, decision, _ in CITATIONS} == {"autoscaling", *ROOMS}
    assert "99.9" not in sections("admission")
