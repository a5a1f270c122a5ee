"""The file of settings that TRIMTAB_CONFIG names: its values, and the line of each."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from agent.models.regular_files import read_file
from domain.errors import BadInput

CONFIG = "TRIMTAB_CONFIG"
LARGEST_BYTES = 1_000_000
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\'|#[^\n]*|[\[{]|[\]}]|\n', re.DOTALL
)
"""Strings, comments, brackets and line ends: a line end outside of strings and brackets ends a statement."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """values: by the keys that lead to each, as spelled; an empty table is a value. lines: also of tables."""

    name: str
    values: Mapping[tuple[str, ...], Any]
    lines: Mapping[tuple[str, ...], int]

    def place(self, line: int) -> str:
        """Return a place in the file, FILE:LINE."""
        return f"{self.name}:{line}"

    def spelled(self, keys: tuple[str, ...], line: int | None = None) -> str:
        """Return a setting with its place: `FILE:LINE: fleets.web.policy`."""
        return f"{self.place(line or self.lines[keys])}: {on_one_line('.'.join(keys))}"


NO_FILE = SettingsFile("", {}, {})


def read_settings_file(environ: Mapping[str, str]) -> SettingsFile:
    """Return the file that TRIMTAB_CONFIG names, an empty one where it names none.

    Raises BadInput, without any of the values, for one that cannot be read, that every user may write, or with
    invalid TOML.
    """
    given = next((text for name, text in environ.items() if name.upper() == CONFIG and text), None)
    if given is None:
        return NO_FILE
    path = Path(given)
    if not path.is_absolute():
        raise BadInput(CONFIG, given, "give the absolute path of a file")
    try:
        if path.stat().st_mode & stat.S_IWOTH and path.is_file():
            raise BadInput(CONFIG, given, f"every user may write it: chmod o-w {path}")
        # Some containers' files are links into a directory that is replaced whole.
        content = read_file(path, LARGEST_BYTES, follow_links=True)
    except OSError as error:
        raise BadInput(CONFIG, given, f"give a file that this user can read ({error.strerror})") from None
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        return SettingsFile(given, dict(_values(tomllib.loads(text))), _lines(text))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(CONFIG, given, f"write it as UTF-8 text: line {line} is not") from None
    except RecursionError:
        raise BadInput(CONFIG, given, "nest its arrays and tables less deeply") from None
    except ValueError as error:
        raise BadInput(CONFIG, given, f"write it as TOML: {error}") from None


def _values(found: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(found, dict) and (found or not keys):
        for key, below in found.items():
            yield from _values(below, (*keys, key))
    else:
        yield keys, found


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each key and table of a valid file, which tomllib does not give."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, statement in _statements(text):
        of_statement = [keys for keys, _ in _values(tomllib.loads(statement))]
        if statement.lstrip().startswith("["):
            table, of_statement = of_statement[0], [()]
        for keys in ((*table, *below) for below in of_statement):
            for length in range(1, len(keys) + 1):
                lines.setdefault(keys[:length], number)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each statement of a valid file with the number of its first line."""
    text, number, begin, depth = f"{text}\n", 1, 0, 0
    for found in _TOKEN.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if found[0] == "\n" and depth == 0:
            statement = text[begin : found.end()]
            yield number, statement
            number, begin = number + statement.count("\n"), found.end()


def text_of(value: Any) -> str:
    """Return a value of the file as a variable has it: a list of texts with commas, other lists as JSON."""
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() if abs(value) >= 10**30:
            # Python refuses to write the longest ones in decimal; no setting takes any of these.
            return hex(value)
        case datetime(tzinfo=None) | time():
            return value.isoformat().removesuffix(":00")
        case date():
            return value.isoformat()
        case list() if value and all(isinstance(one, str) for one in value):
            return ",".join(value)
        case list() | dict():
            return json.dumps(value, default=text_of)
    return str(value)


def variables_of_file(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the file by the names of variables, in lower case."""
    return {
        f"trimtab_{'__'.join(keys)}".lower(): text_of(value)
        for keys, value in read_settings_file(environ).values.items()
    }


def on_one_line(text: str) -> str:
    """Return the text with its line breaks and control characters spelled out, so that a message stays one line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
