"""Names of settings: from an environment variable to a setting's path and back, and what a misspelled one meant."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agent.settings.location import PREFIX
from agent.settings.model import Settings

SettingPath = tuple[str, ...]

DELIMITER = "__"
NOT_SETTINGS = {
    "TRIMTAB_REQUIRE_REAL": "under it a skipped test counts as failed (used by .ci/run)",
}
"""Names that begin as settings do and are none."""


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the tree of settings: a section (`children`), a dictionary by key (`values`) or a setting."""

    name: str
    field: FieldInfo | None = None
    children: Mapping[str, Node] | None = None
    values: Node | None = None
    section: type[BaseModel] | None = None


@functools.cache
def tree() -> Node:
    """Return the tree of all settings."""
    return _node("", Settings, None)


def _node(name: str, kind: Any, field: FieldInfo | None) -> Node:
    if get_origin(kind) is dict:
        return Node(name, field, values=_node("", get_args(kind)[1], None))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        children = {key: _node(key, child.annotation, child) for key, child in kind.model_fields.items()}
        return Node(name, field, children=children, section=kind)
    return Node(name, field)


def path_of(name: str) -> SettingPath:
    """Return the path that an environment variable's (or credential's) name spells, in lower case."""
    return tuple(name[len(PREFIX) :].lower().split(DELIMITER))


def name_of(path: SettingPath) -> str:
    """Return the environment variable of a path: settings in capitals, keys of fleets and groups as they are."""
    return PREFIX + DELIMITER.join(_spelled(path))


def _spelled(path: SettingPath) -> Iterator[str]:
    node: Node | None = tree()
    for segment in path:
        is_key = node is not None and node.values is not None
        yield segment if is_key else segment.upper()
        node = step(node, segment) if node is not None else None


def step(node: Node, segment: str) -> Node | None:
    """Return what stands below `node` under this name, None when nothing does."""
    if node.values is not None:
        return node.values
    return (node.children or {}).get(segment)


def leaf(path: SettingPath) -> Node | None:
    """Return the node of a path, None when there is no such setting."""
    node: Node | None = tree()
    for segment in path:
        node = step(node, segment) if node is not None else None
    return node


def known(path: SettingPath) -> bool:
    """Return whether the path names a setting, or a section or dictionary that may be given as JSON."""
    return all(path) and leaf(path) is not None


def suggestion(path: SettingPath) -> str | None:
    """Return the environment variable that was probably meant, None when nothing is close."""
    node, good = tree(), 0
    for segment in path:
        below = step(node, segment)
        if below is None or not segment:
            break
        node, good = below, good + 1
    for segment in difflib.get_close_matches(
        path[good] if good < len(path) else "", node.children or {}, n=3, cutoff=0.5
    ):
        mended = (*path[:good], segment, *path[good + 1 :])
        if known(mended):
            return name_of(mended)
        if (deeper := suggestion(mended) if len(mended) > good + 1 else None) is not None:
            return deeper
    return _without_delimiters(path)


def _without_delimiters(path: SettingPath) -> str | None:
    """Find the setting by its letters alone: one underscore instead of two is the commonest slip."""
    keys = {"fleets": path[1]} if len(path) > 1 and path[0] == "fleets" else {}
    group = path[3] if len(path) > 3 and path[2] == "groups" else "<group>"
    cluster = path[1] if len(path) > 1 and path[0] == "clusters" else "<cluster>"
    pool = path[1] if len(path) > 1 and path[0] == "pools" else "<pool>"
    subscriber = path[3] if len(path) > 3 and path[2] == "subscribers" else "<subscriber>"
    names = [name_of(item) for item in paths(keys.get("fleets", "<fleet>"), group, cluster, pool, subscriber)]
    plain = {name.lower().replace(DELIMITER, "_"): name for name in names}
    close = difflib.get_close_matches((PREFIX + "_".join(path)).lower(), plain, n=1, cutoff=0.8)
    return plain[close[0]] if close else None


def paths(
    fleet: str, group: str, cluster: str = "<cluster>", pool: str = "<pool>", subscriber: str = "<subscriber>"
) -> Iterator[SettingPath]:
    """Return the path of every setting, with these keys for a fleet, a group, a cluster, a pool and a subscriber."""
    top: dict[SettingPath, str] = {
        ("fleets",): fleet,
        ("clusters",): cluster,
        ("pools",): pool,
        ("pools", pool, "subscribers"): subscriber,
    }

    def below(node: Node, path: SettingPath) -> Iterator[SettingPath]:
        if node.values is not None:
            yield from below(node.values, (*path, top.get(path, group)))
        elif node.children is not None:
            for name, child in node.children.items():
                yield from below(child, (*path, name))
        else:
            yield path

    yield from below(tree(), ())
