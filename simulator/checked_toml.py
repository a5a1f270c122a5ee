"""TOML files that people write, checked by a model: every wrong field is named at once, with its value and a remedy."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from domain.errors import BadInput, ConfigurationError, Mistake, TrimtabError

NOTHING = "(nothing)"
_LONGEST_VALUE = 80

Place = tuple[int | str, ...]
"""Where a field is: names of tables and fields, and positions in lists, from 0."""


class Table(BaseModel):
    """A table of a file: values of the right kind, no unknown field, no infinity. A field's description is its remedy.

    It is read as "give " and the description.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


Checked = TypeVar("Checked", bound=Table)
Conflicts = Callable[[Mapping[str, Any]], Iterable[tuple[Place, str]]]
"""Finds values that contradict each other in what a file holds, which may be of any kind: where, and the remedy."""


class FileRefused(ConfigurationError):
    """One or more fields of a file are wrong; the message lists all of them."""

    def __init__(self, source: str, mistakes: Iterable[Mistake]) -> None:
        self.source, self.mistakes = source, tuple(mistakes)
        lines = "\n".join(f"  {m.name} = {m.value}: {m.remedy}" for m in self.mistakes)
        fields = "1 field is" if len(self.mistakes) == 1 else f"{len(self.mistakes)} fields are"
        TrimtabError.__init__(self, f"{source}: {fields} wrong:\n{lines}")


def read_table(path: Path, model: type[Checked], conflicts: Conflicts = lambda data: ()) -> Checked:
    """Read a file as `table_of` does; BadInput for one that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        raise BadInput("file", str(path), f"{fault}: give a readable TOML file in UTF-8") from None
    return table_of(text, str(path), model, conflicts)


def table_of(text: str, source: str, model: type[Checked], conflicts: Conflicts = lambda data: ()) -> Checked:
    """Return the table that a TOML text holds.

    source: what messages call the text. Raises BadInput for what is no TOML, FileRefused with every mistake.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise BadInput(source, str(fault), "give TOML: NAME = VALUE, [TABLE] and [[LIST]]") from None
    found: dict[Place, Mistake] = {}
    made = None
    try:
        made = model.model_validate(data)
    except ValidationError as error:
        for item in error.errors(include_url=False, include_context=False):
            place, remedy = _explained(model, item["loc"], item["type"], item["msg"])
            value = NOTHING if item["type"] == "missing" else _shown(item["input"])
            found.setdefault(place, Mistake(written(place), value, remedy))
    for place, remedy in conflicts(data):
        found.setdefault(place, Mistake(written(place), _shown(_at(data, place)), remedy))
    if found or made is None:
        raise FileRefused(source, found.values())
    return made


def written(place: Place) -> str:
    """Return a place as people write it, list positions counted from 1: `vm_types[2].cores`."""
    text = ""
    for step in place:
        text += f"[{step + 1}]" if isinstance(step, int) else f".{step}" if text else step
    return text or "file"


def _at(data: Any, place: Place) -> Any:
    for step in place:
        try:
            data = data[step]
        except (LookupError, TypeError):
            return NOTHING
    return data


def _shown(value: Any) -> str:
    text = value if value == NOTHING else value_text(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _explained(model: type[BaseModel], loc: Place, kind: str, message: str) -> tuple[Place, str]:
    """Return where a mistake is and its remedy; of a value inside a field it is the field's."""
    place: list[int | str] = []
    here: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for step in loc:
        if here is not None and isinstance(step, str):
            if step not in here.model_fields:
                place.append(step)
                break
            field = here.model_fields[step]
            here = _model_in(field.annotation)
            place.append(step)
        elif here is not None:
            place.append(step)
        else:
            break
    if kind == "extra_forbidden" and here is not None:
        return tuple(place), unknown_name(str(loc[-1]), here.model_fields)
    description = field.description if field is not None else None
    return tuple(place), f"give {description}" if description else message


def unknown_name(name: str, names: Iterable[str]) -> str:
    """Return the remedy for a name that there is not: the nearest one, or all there are."""
    known = list(names)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"there is no such field; did you mean {close[0]}?"
    return f"there is no such field; choose from {', '.join(known)}"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the table that a field is, or that its list is of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


def value_text(value: Any) -> str:
    """Return a value as TOML; numbers read back bit for bit."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)} = {value_text(inner)}" for name, inner in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(value) if isinstance(value, int | float) else str(value)


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else value_text(name)


def toml_text(data: Mapping[str, Any], comment: str = "") -> str:
    """Return TOML: the values, then a section for each table and each entry of a list of tables; None is left out.

    comment: lines for the head of the file.
    """
    given = {name: value for name, value in data.items() if value is not None}
    tables = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    lists = {name: value for name, value in given.items() if _is_list_of_tables(value)}
    blocks = ["\n".join(f"# {line}".rstrip() for line in comment.splitlines())] if comment else []
    blocks.append(_lines({name: value for name, value in given.items() if name not in tables and name not in lists}))
    blocks += [f"[{_key(name)}]\n{_lines(table)}" for name, table in tables.items()]
    blocks += [f"[[{_key(name)}]]\n{_lines(table)}" for name, entries in lists.items() for table in entries]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _is_list_of_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(entry, Mapping) for entry in value)


def _lines(values: Mapping[str, Any]) -> str:
    return "\n".join(f"{_key(name)} = {value_text(value)}" for name, value in values.items() if value is not None)
