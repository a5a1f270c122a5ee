"""The values that are in effect, as text and in the order of the reference page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import SecretStr

from agent.settings.location import masked
from agent.settings.model import Settings
from agent.settings.names import Node, SettingPath, tree


def plain(value: Any) -> str:
    """Return a value as one would write it into the environment; secrets masked, a URL's password left out."""
    match value:
        case None:
            return "(not set)"
        case SecretStr():
            return masked(value.get_secret_value())
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}" if float(f"{value:g}") == value else repr(value)
        case _:
            return str(value)


def values(settings: Settings) -> Iterator[tuple[SettingPath, Any]]:
    """Return every effective setting with its path, in the order of the reference page."""

    def below(node: Node, value: Any, path: SettingPath) -> Iterator[tuple[SettingPath, Any]]:
        if node.values is not None:
            for key in sorted(value):
                yield from below(node.values, value[key], (*path, key))
        elif node.children is not None:
            for name, child in node.children.items():
                yield from below(child, getattr(value, name), (*path, name))
        else:
            yield path, value

    yield from below(tree(), settings, ())
