"""Names of settings: from a variable to a path and back, suggestions, values as text, and the reference page."""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from agent.settings.file import CONFIG
from agent.settings.kinds import expected
from agent.settings.location import PREFIX, masked
from agent.settings.model import Settings, described
from agent.settings.subjects import SettingPath, described_subjects

DELIMITER = "__"
NOT_SETTINGS = {
    CONFIG: "file of settings, as above; the absolute path of a TOML file",
    "TRIMTAB_REQUIRE_REAL": "under it a skipped test counts as failed (used by .ci/run)",
}
"""Names with the prefix of settings that are not settings."""

KEYS = MappingProxyType(
    {
        "fleets": "<fleet>",
        "groups": "<group>",
        "announcements": "<announcement>",
        "schedule": "<window>",
        "signals": "<signal>",
    }
)
"""The dictionaries among the agent's own settings, each with a placeholder for its key."""


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the tree of settings: a section (`children`), a dictionary by key (`values`) or a setting."""

    name: str
    field: FieldInfo | None = None
    children: Mapping[str, Node] | None = None
    values: Node | None = None
    section: type[BaseModel] | None = None


def keys() -> Mapping[str, str]:
    """Return the dictionaries among all settings, each with a placeholder for its key."""
    return {**KEYS, **{name: key for one in described_subjects() for name, key in one.keys.items()}}


def tree() -> Node:
    """Return the tree of all settings."""
    return _tree(described())


@functools.lru_cache(maxsize=4)
def _tree(settings: type[Settings]) -> Node:
    return _node("", settings, None)


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
    """Return the node below `node` under this name, or None."""
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
    """Return the environment variable with the closest name, None when none is close."""
    node, good = tree(), 0
    for segment in path:
        below = step(node, segment)
        if below is None or not segment:
            break
        node, good = below, good + 1
    for segment in difflib.get_close_matches(
        path[good] if good < len(path) else "", node.children or {}, n=3, cutoff=0.5
    ):
        corrected = (*path[:good], segment, *path[good + 1 :])
        if known(corrected):
            return name_of(corrected)
        if (deeper := suggestion(corrected) if len(corrected) > good + 1 else None) is not None:
            return deeper
    return _without_delimiters(path)


def _without_delimiters(path: SettingPath) -> str | None:
    """Find the setting by its letters alone: the most frequent mistake is one underscore instead of two."""
    if (found := _spelled_by(PREFIX + "_".join(path))) is not None:
        return found
    there = keys()
    given = {**there, **{name: key for name, key in itertools.pairwise(path) if name in there}}
    names = {name_of(item).lower().replace(DELIMITER, "_"): name_of(item) for item in paths(given)}
    close = difflib.get_close_matches((PREFIX + "_".join(path)).lower(), names, n=1, cutoff=0.8)
    return names[close[0]] if close else None


def _spelled_by(letters: str) -> str | None:
    """Return the variable that has these letters when any key stands for its placeholder; of several the longest."""
    found = []
    for item in paths():
        name = name_of(item)
        pattern = re.sub("<[^<>]+>", "([^<>]+?)", name.lower().replace(DELIMITER, "_"))
        match = re.fullmatch(pattern, letters.lower().replace(DELIMITER, "_"))
        if match is not None:
            literal = re.split("<[^<>]+>", name)
            given = (*match.groups(), "")
            found.append((len(pattern), "".join(a + b for a, b in zip(literal, given, strict=True))))
    return max(found)[1] if found else None


def paths(given: Mapping[str, str] | None = None) -> Iterator[SettingPath]:
    """Return the path of every setting; given: the key to use in each dictionary of settings, else its placeholder."""
    names = keys() if given is None else given

    def below(node: Node, path: SettingPath) -> Iterator[SettingPath]:
        if node.values is not None:
            yield from below(node.values, (*path, names[path[-1]]))
        elif node.children is not None:
            for name, child in node.children.items():
                yield from below(child, (*path, name))
        else:
            yield path

    yield from below(tree(), ())


def plain(value: Any) -> str:
    """Return a value as it is written into the environment, with secrets and passwords masked."""
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


def effective(settings: Settings) -> dict[str, str]:
    """Return every effective setting as text by the name of its environment variable; secrets are masked."""
    return {name_of(path): plain(value) for path, value in values(settings)}


def as_toml(given: Iterable[tuple[SettingPath, Any]]) -> str:
    """Return settings by path as a file for TRIMTAB_CONFIG, each with its meaning where it comes first."""
    lines: list[str] = []
    table: SettingPath = ()
    meanings: set[str] = set()
    # Keys without a table come before all tables.
    for path, value in sorted(given, key=lambda item: len(item[0]) > 1):
        if path[:-1] != table:
            table = path[:-1]
            lines += ["", f"[{'.'.join(table)}]"]
        node = leaf(path)
        meaning = "" if node is None or node.field is None else (node.field.description or "").partition(". ")[0]
        if meaning and meaning not in meanings:
            meanings.add(meaning)
            lines += textwrap.wrap(f"{meaning.rstrip('.')}.", 100, initial_indent="# ", subsequent_indent="# ")
        is_bare = isinstance(value, bool | int | float)
        lines.append(f"{path[-1]} = {plain(value) if is_bare else json.dumps(plain(value), ensure_ascii=False)}")
    return "\n".join([*lines, ""])


PREAMBLE = """\
# Configuration

<!-- Written by `trimtab config docs` from the definitions in agent/settings/; a test fails when it is stale. -->

Every setting is a key of the TOML file that `TRIMTAB_CONFIG` names, and an environment variable. `trimtab init` writes
such a file. A variable goes before the file, key by key; an empty value counts as not set. `trimtab config check` lists
every mistake at once, unknown names included, with file and line or the variable; with `--all` it prints the effective
values and where each came from.

A fleet and each of its groups has a key of your choice, which is the name of a table, and part of a variable's name.
Keys are read in lower case: `TRIMTAB_FLEETS__Web__...`, `TRIMTAB_FLEETS__web__...` and `[fleets.web]` are the same
fleet, which is `web` in metric paths (`trimtab.web.workers_s.<vm>.cpu_percent`).

```toml
mode = "observe"

[fleets.web]
policy = "queue-rule"

[fleets.web.groups.workers_s]
name = "web-workers-small"
vm_type = "m5a.large"
cores = 2
memory_gb = 8
price_per_hour = 0.086
max = 10
```

The name of a variable is `TRIMTAB_`, the tables and the key, with `__` between them and the settings' names in
capitals: `TRIMTAB_FLEETS__web__GROUPS__workers_s__CORES=2`. The tables below have these names. A list of texts may be a
list in the file and is separated by commas in a variable.

The file is read once, at the start; after a change restart the agent. It must be a regular file of UTF-8 text, named by
its absolute path, readable for the agent's user, and not writable for every user. Otherwise each command ends with
status 2.

Secrets are refused in the file. Any setting can be a file in `$CREDENTIALS_DIRECTORY`, as systemd's `LoadCredential=`
creates it, named like the variable in lower case, for example `trimtab_ledger__url`. A variable goes before a
credential, and both before the file. Passwords and credentials are never printed.
"""


def page() -> str:
    """Return the reference page of all settings, docs/operate/configuration.md, as Markdown."""
    lines = [PREAMBLE, *_section("The agent", "", tree(), ()), *_others()]
    return "\n".join(lines) + "\n"


def _section(title: str, text: str, node: Node, path: SettingPath) -> Iterator[str]:
    """Write the settings of a section as a table, then each section below it."""
    yield f"## {title}\n"
    if path:
        yield f"{text} Table `[{'.'.join(path)}]`.\n"
    yield "| name | default | give | meaning |"
    yield "|---|---|---|---|"
    sections = []
    for name, child in (node.children or {}).items():
        if child.children is None and child.values is None:
            yield _row(name, child, (*path, name))
        else:
            sections.append((name, child))
    yield ""
    for name, child in sections:
        below, place = child, (*path, name)
        if child.values is not None:
            below, place = child.values, (*place, keys()[name])
        if below.section is not None:
            title = str(below.section.model_config["title"])
            yield from _section(title, (below.section.__doc__ or "").splitlines()[0], below, place)


def _row(name: str, node: Node, path: SettingPath) -> str:
    field = node.field
    if field is None:
        raise AssertionError(f"{name_of(path)} is not a setting")
    default = "required" if field.is_required() else "" if field.default is None else f"`{plain(field.default)}`"
    cells = (f"`{name_of(path)}`", default, expected(name, field), field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _others() -> Iterator[str]:
    yield "## Names that are not settings\n"
    yield "| name | meaning |"
    yield "|---|---|"
    for name, meaning in NOT_SETTINGS.items():
        yield f"| `{name}` | {meaning} |"
