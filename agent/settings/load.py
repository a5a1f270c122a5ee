"""Loads settings from environment, credentials and file: every mistake at once, and the source of each value."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from agent.settings.checks import conflicts
from agent.settings.file import CONFIG, SettingsFile, on_one_line, read_settings_file, text_of
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
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SettingSource:
    """One value as it was given: name as spelled, text, source; place: FILE:LINE, which begins the name too."""

    name: str
    text: str
    source: Source
    place: str = ""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The settings, the values given by path, and the file of settings; any other path has its default."""

    settings: Settings
    given: Mapping[SettingPath, SettingSource]
    file: SettingsFile

    def origin(self, path: SettingPath) -> SettingSource | None:
        """Return the value given for this path, or for a section around it as JSON; None for a default."""
        return next((self.given[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.given), None)

    def placed(self, mistake: Mistake) -> Mistake:
        """Return a mistake that names a variable with the place in the file in its stead, where the value is there."""
        return replace(mistake, name=_name(path_of(mistake.name), self.given, self.file))


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
    """Return the settings that environment, credentials and file give; ConfigurationError lists every mistake."""
    return read_settings(environ).settings


def read_settings(environ: Mapping[str, str]) -> LoadResult:
    """Return the settings and the source of each value.

    The environment takes precedence over a credential, and both over the file. An empty value counts as not set.
    Raises ConfigurationError with every mistake: unknown names, wrong values, and values that contradict each other;
    BadInput when the file cannot be read.
    """
    mistakes: list[Mistake] = []
    file = read_settings_file(environ)
    given, of_plug_ins = _given(environ, mistakes)
    raw = _GivenSource({PREFIX.lower() + DELIMITER.join(path): item.text for path, item in given.items()})()
    _add_file(file, raw, given, of_plug_ins, mistakes)
    mistakes += of_plug_ins.mistakes()
    settings, bad = _validated(raw, given, mistakes, file)
    for conflict in conflicts(settings):
        if not any(_overlap(path, wrong) for path in (conflict.path, *conflict.depends_on) for wrong in bad):
            value = _value_at(settings, conflict.path)
            # Of a whole subject its key is wrong.
            shown = conflict.path[-1] if isinstance(value, BaseModel) else _shown(conflict.path, given, value)
            mistakes.append(Mistake(_name(conflict.path, given, file), shown, conflict.remedy))
    if mistakes:
        raise ConfigurationError(sorted(mistakes, key=_order))
    return LoadResult(settings, given, file)


def _order(mistake: Mistake) -> str:
    """Return the key that sorts mistakes by name, those of a file by line."""
    return re.sub(r":(\d+): ", lambda line: f":{line[1]:0>9}: ", mistake.name.lower())


class _PlugIns:
    """The mistakes in the own settings of plug-ins, each checked at the first name of its section."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._found: dict[str, list[Mistake] | None] = {}

    def have(self, section: str) -> bool:
        if section not in self._found:
            self._found[section] = own_mistakes(section, self._environ)
        return self._found[section] is not None

    def mistakes(self) -> list[Mistake]:
        return [mistake for of_one in self._found.values() for mistake in of_one or ()]


def _given(environ: Mapping[str, str], mistakes: list[Mistake]) -> tuple[dict[SettingPath, SettingSource], _PlugIns]:
    """Return every known name of a variable or credential that has a value; add unknown and double ones to mistakes."""
    try:
        secrets = credentials(environ)
    except BadInput as error:
        mistakes.append(Mistake(CREDENTIALS, str(error.value), error.remedy))
        secrets = {}
    given: dict[SettingPath, SettingSource] = {}
    of_plug_ins = _PlugIns(environ)
    for source, values in ((Source.CREDENTIALS, secrets), (Source.ENVIRONMENT, environ)):
        spellings: dict[SettingPath, list[str]] = defaultdict(list)
        for name, text in values.items():
            if not name.upper().startswith(PREFIX) or name.upper() in NOT_SETTINGS:
                continue
            path = path_of(name)
            if known(path):
                if text:
                    spellings[path].append(name)
                    given[path] = SettingSource(name, text, source)
            elif not of_plug_ins.have(path[0]):
                mistakes.append(_unknown(path, SettingSource(name, text, source)))
        for path, names in spellings.items():
            if len(names) > 1:
                mistakes.append(Mistake(names[-1], _shown(path, given), _one_of(names)))
    return given, of_plug_ins


def _one_of(names: Sequence[str]) -> str:
    return f"keep one of {' and '.join(names)}: names, keys of fleets and groups too, are read in lower case"


def _add_file(
    file: SettingsFile,
    raw: dict[str, Any],
    given: dict[SettingPath, SettingSource],
    of_plug_ins: _PlugIns,
    mistakes: list[Mistake],
) -> None:
    """Add the values of the file, below variables and credentials; its wrong names become mistakes."""
    names: dict[SettingPath, str] = {}
    for keys, value in file.values.items():
        path = tuple(key.lower() for key in keys)
        item = SettingSource(file.spelled(keys), text_of(value), Source.FILE, file.place(file.lines[keys]))
        node = leaf(path) if all(path) else None
        if node is None:
            if not of_plug_ins.have(path[0]):
                mistakes.append(_unknown(path, item))
        elif node.children is not None or node.values is not None:
            if value == {}:
                _insert(raw, path, {})
            else:
                mistakes.append(Mistake(item.name, MASK, f"write it as a table, [{'.'.join(path)}]"))
        elif _holds_secret(node):
            name = name_of(path)
            remedy = f"no secret belongs into this file: give it as the credential {name.lower()}, or as {name}"
            mistakes.append(Mistake(item.name, MASK, remedy))
        elif path in names:
            mistakes.append(Mistake(item.name, _masked(node, item.text), _one_of([names[path], item.name])))
        elif item.text:
            names[path] = item.name
            is_list = node.field is not None and get_origin(node.field.annotation) is tuple
            if _insert(raw, path, value if is_list else item.text):
                given[path] = item


def _insert(raw: dict[str, Any], path: SettingPath, value: Any) -> bool:
    """Put a value into nested settings unless there is one; return whether it was."""
    place: Any = raw
    for segment in path[:-1]:
        place = place.setdefault(segment, {}) if isinstance(place, dict) else None
    if not isinstance(place, dict) or path[-1] in place:
        return False
    place[path[-1]] = value
    return True


def _unknown(path: SettingPath, item: SettingSource) -> Mistake:
    of_file = item.source is Source.FILE
    close = CONFIG if not of_file and _likeness(item.name.upper(), CONFIG) >= SAME_WORD else suggestion(path)
    shown = _masked_unknown(item.text, item.source)
    if item.source is not Source.CREDENTIALS and close and _surely_means(path, path_of(close)):
        shown = without_password(on_one_line(item.text))
    if close and of_file:
        close = ".".join(path_of(close))
    return Mistake(item.name, shown, f"there is no such setting; did you mean {close}?" if close else UNKNOWN)


def _masked_unknown(text: str, source: Source = Source.ENVIRONMENT) -> str:
    """Mask an unknown name's value unless it is a number or a switch: the name may be a misspelled secret's."""
    return text if source is not Source.CREDENTIALS and HARMLESS.fullmatch(text) else MASK


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
    raw: dict[str, Any], given: Mapping[SettingPath, SettingSource], mistakes: list[Mistake], file: SettingsFile
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
                    mistakes.append(_mistake(path, item["type"], given, is_key, item["input"], file))
                _repair(raw, path, is_key)
    raise ConfigurationError(mistakes)


def _location(loc: tuple[int | str, ...]) -> tuple[SettingPath, bool]:
    """Return the setting's path and whether it is a key that is wrong; pydantic marks that by a last step `[key]`."""
    steps = tuple(str(step) for step in loc)
    return (steps[:-1], True) if steps[-1] == "[key]" else (steps, False)


def _mistake(
    path: SettingPath,
    kind: str,
    given: Mapping[SettingPath, SettingSource],
    is_key: bool,
    value: Any,
    file: SettingsFile,
) -> Mistake:
    node = leaf(path)
    name = _name(path, given, file)
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


def _name(path: SettingPath, given: Mapping[SettingPath, SettingSource], file: SettingsFile) -> str:
    """Return the name given for this path, else its place in its table of the file, else its proper name."""
    if path in given:
        return given[path].name
    for keys in (path, path[:-1]):
        if keys in file.lines:
            return file.spelled(path, file.lines[keys])
    return name_of(path)


def _shown(path: SettingPath, given: Mapping[SettingPath, SettingSource], value: Any = None) -> str:
    """Return the value as given, with secrets and passwords masked.

    A section given as JSON is masked when it can hold a secret: in text that cannot be parsed, it may be anywhere.
    """
    return _masked(leaf(path), given[path].text if path in given else plain(value))


def _masked(node: Node | None, text: str) -> str:
    text = on_one_line(text)
    if node is None:
        return _masked_unknown(text)
    if node.children is not None:
        return MASK if any(_holds_secret(child) for child in node.children.values()) else without_password(text)
    return masked(text) if _holds_secret(node) else without_password(text)


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
