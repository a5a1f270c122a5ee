"""Lengths of time, and the name of the agent in events, are defined once in all packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("domain", "simulator", "collectors", "actuators", "agent", "trainer")
OWNERS = {"domain/units.py", "domain/subject.py"}
UNIT = re.compile(r"_?(MINUTE_S|HOUR_S|HOUR_MS|DAY_S|DAY_H|WEEK_H|HOURS_(PER|OF|IN)_(DAY|WEEK|MONTH|YEAR)|AGENT)")
SUSPECT = re.compile(UNIT.pattern + "|" + "|".join(("3_?600", "86_?400", "604_?800", "168", "8_?760")))
LENGTHS = {3_600, 86_400, 604_800, 168, 8_760}


def _second_definitions(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    assigned = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    for name in (part for node in assigned for part in ast.walk(node) if isinstance(part, ast.Name)):
        if isinstance(name.ctx, ast.Store) and UNIT.fullmatch(name.id):
            yield f"{name.lineno}: {name.id}"
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv | ast.Mod):
            for side in (node.left, node.right):
                if isinstance(side, ast.Constant) and side.value in LENGTHS:
                    yield f"{node.lineno}: {side.value}"


def test_no_module_defines_a_length_of_time_again() -> None:
    again = [
        f"{path.relative_to(ROOT)}:{found}"
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in OWNERS
        for source in [path.read_text(encoding="utf-8")]
        # Parsed is only what may hold one: most modules do not.
        if SUSPECT.search(source)
        for found in _second_definitions(source)
    ]
    assert again == [], "import these from domain.units, AGENT from domain.subject"


@pytest.mark.parametrize(
    "source", ["HOUR_S = 3600.0", "AGENT: str = ''", "rent = price * held_s / 3600.0", "x = t % 86400"]
)
def test_a_second_definition_is_found(source: str) -> None:
    assert list(_second_definitions(source))
