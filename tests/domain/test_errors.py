"""The tree of errors drawn in `domain.errors` is the tree of its classes."""

from __future__ import annotations

import inspect
import re

from domain import errors

BRANCH = re.compile(r"(?P<indent>(?:[│ ] {3})*)(?:[├└]── )?(?P<name>[A-Z]\w+)(?: {2}|$)")


def drawn() -> dict[str, str]:
    """Return the parent of every class by the drawing, the root's being empty."""
    text = inspect.getdoc(errors) or ""
    tree = next(part for part in text.split("\n\n") if part.startswith("TrimtabError"))
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in tree.splitlines():
        found = BRANCH.match(line)
        assert found, line
        depth = len(found["indent"]) // 4 + (1 if "── " in line else 0)
        above[depth:] = [found["name"]]
        parents[found["name"]] = above[depth - 1] if depth else ""
    return parents


def defined() -> dict[str, str]:
    """Return the parent of every class of the module."""
    classes = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.TrimtabError) and kind.__module__ == errors.__name__
    ]
    return {kind.__name__: kind.__base__.__name__ if kind is not errors.TrimtabError else "" for kind in classes}


def test_the_drawn_tree_is_the_tree_of_the_classes() -> None:
    assert drawn() == defined()
