"""The tree of errors drawn in `domain.errors` is the tree of its classes."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

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


@pytest.mark.parametrize(
    "error",
    [
        errors.TrimtabError("plain"),
        errors.BadInput("--runs", 0, "give one or more"),
        errors.SampleRejected(errors.RejectReason.LATE, "line", "a b c", "send within the minute"),
        errors.ConfigurationError([errors.Mistake("TRIMTAB_X", "1", "leave it out")]),
    ],
)
def test_an_error_keeps_its_attributes_between_processes(error: errors.TrimtabError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
