"""Loads settings from environment and credentials: every mistake at once, and the source of each value."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from agent.settings.checks import conflicts
from agent.settings.kinds import KEY_PHRASE, expected
from agent.settings.location import CREDENTIALS, MASK, PREFIX, credentials, masked, without_password
from agent.settings.model import Settings, described
from agent.settings.names import (
    DELIMITER,
    NOT_SETTINGS,
    Node,
    known,
    leaf,
    name_of,
    path_of,
    paths,
    plain,
    step,
    suggestion,
    tree,
)
from agent.settings.plug_ins import own_mistakes
from agent.settings.subjects import SettingPath
from domain.errors import BadInput, ConfigurationError, Mistake

HARMLESS = re.compile(r"-?\d{1,6}(?:\.\d{1,3})?|true|false|yes|no|on|off", re.IGNORECASE)
UNKNOWN = "there is no such setting; see docs/operate/configuration.md"
SAME_WORD, UNLIKE = 0.8, 0.6
"""Likeness, 0..1: from the first on a word is a misspelling of another; below the second two names differ."""
ROUNDS = 3
"""Repairs tried: a wrong section, then the settings in it; after these nothing is wrong."""


class Source(StrEnum):
    """Where a value came from."""

    ENVIRONMENT = "environment"
    CREDENTIALS = "credentials"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Given:
    """One value as it was given: name as spelled, text, source."""

    name: str
    text: str
    source: Source


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and the values given by path; any other path has its default."""

    settings: Settings
    given: Mapping[SettingPath, Given]

    def origin(self, path: SettingPath) -> Given | None:
        """Return the value given for this path, or for a section around it as JSON; None for a default."""
        return next((self.given[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.given), None)


class _GivenSource(EnvSettingsSource):
    """Names and values as nested settings; text where JSON belongs is passed on, to be reported with all mistakes."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        super().__init__(described())

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return dict(self._values)

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings that environment and $CREDENTIALS_DIRECTORY give; ConfigurationError lists every mistake."""
    return read_settings(environ).settings


def read_settings(environ: Mapping[str, str]) -> Loaded:
    """Return the settings and the source of each value.

    The environment takes precedence over a credential. An empty variable counts as not set.
    Raises ConfigurationError with every mistake: unknown names, wrong values, and values that contradict each other.
    """
    mistakes: list[Mistake] = []
    given = _given(environ, mistakes)
    raw = _GivenSource({PREFIX.lower() + DELIMITER.join(path): item.text for path, item in given.items()})()
    settings, bad = _validated(raw, given, mistakes)
    for conflict in conflicts(settings):
        if not any(_overlap(path, wrong) for path in (conflict.path, *conflict.depends_on) for wrong in bad):
            value = _value_at(settings, conflict.path)
            # Of a whole subject its key is wrong.
            shown = conflict.path[-1] if isinstance(value, BaseModel) else _shown(conflict.path, given, value)
            mistakes.append(Mistake(_name(conflict.path, given), shown, conflict.remedy))
    if mistakes:
        raise ConfigurationError(sorted(mistakes, key=lambda mistake: mistake.name.lower()))
    return Loaded(settings, given)


def _given(environ: Mapping[str, str], mistakes: list[Mistake]) -> dict[SettingPath, Given]:
    """Return every known name that has a value; add the unknown ones, and those given twice, to the mistakes."""
    try:
        secrets = credentials(environ)
    except BadInput as error:
        mistakes.append(Mistake(CREDENTIALS, str(error.value), error.remedy))
        secrets = {}
    given: dict[SettingPath, Given] = {}
    plug_ins: dict[str, list[Mistake] | None] = {}
    for source, values in ((Source.CREDENTIALS, secrets), (Source.ENVIRONMENT, environ)):
        spellings: dict[SettingPath, list[str]] = defaultdict(list)
        for name, text in values.items():
            if not name.upper().startswith(PREFIX) or name in NOT_SETTINGS:
                continue
            path = path_of(name)
            if not known(path):
                if path[0] not in plug_ins:
                    plug_ins[path[0]] = own_mistakes(path[0], environ)
                if plug_ins[path[0]] is not None:
                    continue
                close = suggestion(path)
                remedy = f"there is no such setting; did you mean {close}?" if close else UNKNOWN
                shown = _masked_unknown(text, source)
                if source is Source.ENVIRONMENT and close and _surely_means(path, path_of(close)):
                    shown = without_password(_on_one_line(text))
                mistakes.append(Mistake(name, shown, remedy))
            elif text:
                spellings[path].append(name)
                given[path] = Given(name, text, source)
        for path, names in spellings.items():
            if len(names) > 1:
                remedy = (
                    f"keep one of {' and '.join(names)}: names, keys of fleets and groups too, are read in lower case"
                )
                mistakes.append(Mistake(names[-1], _shown(path, given), remedy))
    mistakes += [mistake for of_one in plug_ins.values() for mistake in of_one or ()]
    return given


def _masked_unknown(text: str, source: Source = Source.ENVIRONMENT) -> str:
    """Mask an unknown name's value unless it is a number or a switch: the name may be a misspelled secret's."""
    return text if source is Source.ENVIRONMENT and HARMLESS.fullmatch(text) else MASK


def _surely_means(path: SettingPath, meant: SettingPath) -> bool:
    """Return whether an unknown name is a misspelling of a setting that holds no secret, and of none that does."""
    node = leaf(meant)
    if node is None or _holds_secret(node) or _likeness(path[-1], meant[-1]) < SAME_WORD:
        return False
    secrets = (one for one in paths() if (held := leaf(one)) is not None and _holds_secret(held))
    return all(_likeness("".join(path), "".join(one)) < UNLIKE for one in secrets)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.replace("_", ""), other.replace("_", "")).ratio()


def _validated(
    raw: dict[str, Any], given: Mapping[SettingPath, Given], mistakes: list[Mistake]
) -> tuple[Settings, set[SettingPath]]:
    """Return the settings with each wrong value replaced by its default or example, and the paths of those."""
    bad: set[SettingPath] = set()
    raw = copy.deepcopy(raw)
    for _ in range(ROUNDS):
        try:
            return Settings(**raw), bad
        except ValidationError as error:
            for item in error.errors(include_url=False, include_context=False):
                path, is_key = _location(item["loc"])
                if path not in bad:
                    bad.add(path)
                    mistakes.append(_mistake(path, item["type"], given, is_key, item["input"]))
                _repair(raw, path, is_key)
    raise ConfigurationError(mistakes)


def _location(loc: tuple[int | str, ...]) -> tuple[SettingPath, bool]:
    """Return the setting's path and whether it is a key that is wrong; pydantic marks that by a last step `[key]`."""
    steps = tuple(str(step) for step in loc)
    return (steps[:-1], True) if steps[-1] == "[key]" else (steps, False)


def _mistake(path: SettingPath, kind: str, given: Mapping[SettingPath, Given], is_key: bool, value: Any) -> Mistake:
    node = leaf(path)
    name = _name(path, given)
    if is_key:
        return Mistake(name, path[-1], f"choose {KEY_PHRASE}")
    if node is None:
        return Mistake(name, _shown(path, given, value), UNKNOWN)
    if kind == "missing":
        return Mistake(name, "(not set)", f"required: give {_expected(path, node)}")
    return Mistake(name, _shown(path, given, value), f"give {_expected(path, node)}")


def _expected(path: SettingPath, node: Node) -> str:
    if node.field is not None and node.children is None and node.values is None:
        return expected(path[-1], node.field)
    below = "<key>" if node.values is not None else "<name>"
    return f"its parts one by one, as {name_of(path)}{DELIMITER}{below}..., or one JSON object"


def _repair(raw: dict[str, Any], path: SettingPath, is_key: bool) -> None:
    """Replace a wrong or missing value by its default, else by the example."""
    *sections, last = path
    place: Any = raw
    node: Node | None = tree()
    for segment in sections:
        node = step(node, segment) if node is not None else None
        place = place.setdefault(segment, {})
    place.pop(last, None)
    field = leaf(path)
    if not is_key and field is not None and field.field is not None and field.field.is_required():
        place[last] = field.field.examples[0] if field.field.examples else {}


def _name(path: SettingPath, given: Mapping[SettingPath, Given]) -> str:
    """Return the name given for this path, else its proper name."""
    return given[path].name if path in given else name_of(path)


def _shown(path: SettingPath, given: Mapping[SettingPath, Given], value: Any = None) -> str:
    """Return the value as given, with secrets and passwords masked.

    A section given as JSON is masked when it can hold a secret: in text that cannot be parsed, it may be anywhere.
    """
    node = leaf(path)
    text = _on_one_line(given[path].text if path in given else plain(value))
    if node is None:
        return _masked_unknown(text)
    if node.children is not None:
        return MASK if any(_holds_secret(child) for child in node.children.values()) else without_password(text)
    return masked(text) if _holds_secret(node) else without_password(text)


def _on_one_line(text: str) -> str:
    """Return the text with its line breaks and control characters spelled out, so that a message stays one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _holds_secret(node: Node) -> bool:
    if node.children is not None:
        return any(_holds_secret(child) for child in node.children.values())
    return node.field is not None and "SecretStr" in str(node.field.annotation)


def _overlap(path: SettingPath, other: SettingPath) -> bool:
    shorter = min(len(path), len(other))
    return path[:shorter] == other[:shorter]


def _value_at(settings: Settings, path: SettingPath) -> Any:
    value: Any = settings
    for segment in path:
        value = value[segment] if isinstance(value, dict) else getattr(value, segment)
    return value
