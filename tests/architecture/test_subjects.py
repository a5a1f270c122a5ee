"""The rooms that serve every decision key by subject: no name in them is of a fleet, but where a reason is given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.product import MODULES, syntax_tree

SHARED = ("kernel", "alarms", "telemetry", "view", "web", "api")
BODY = "a field of a body or query that clients send or read"
EXCEPTIONS = {
    "agent/kernel/http.py": {"fleet": BODY, "OneFleet": BODY},
    "agent/api/control.py": {"fleet": BODY},
    "agent/api/reading.py": {"fleet": BODY, "fleet_subject": BODY},
    "agent/view/view.py": {"fleet": BODY},
}


def names(tree: ast.Module) -> Iterator[str]:
    """Return every name that a module reads, binds, imports or gives an argument."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name", "asname"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name


def of_fleets(tree: ast.Module) -> set[str]:
    """Return the names in which `fleet` or `fleets` is a word."""
    words = re.compile(r"(?:^|_)fleets?(?:_|$)", re.IGNORECASE)
    return {name for name in names(tree) if words.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name))}


@pytest.mark.parametrize("room", SHARED)
def test_what_every_decision_uses_knows_no_fleet(room: str) -> None:
    found = {str(path): of_fleets(syntax_tree(path)) for path in MODULES if path.parts[:2] == ("agent", room)}
    assert found
    assert {path: names for path, names in found.items() if names} == {
        path: set(allowed) for path, allowed in EXCEPTIONS.items() if Path(path).parts[1] == room
    }


@pytest.mark.parametrize("source", ["of_fleets = 1", "def f(fleet): ...", "x.last_fleet", "f(fleet=1)", "OneFleet"])
def test_a_name_of_a_fleet_is_found(source: str) -> None:
    assert len(of_fleets(ast.parse(source))) == 1
    assert of_fleets(ast.parse('labels = "fleet"; fleeting = 1')) == set()
