"""Fields of a dataclass given as text, read as what they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

from domain.errors import BadInput

TRUTH: Mapping[str, bool] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def pairs_of(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Return `FIELD=VALUE` texts as fields to values; BadInput names the option."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BadInput(option, text, "give FIELD=VALUE, such as learning_rate=3e-4")
        found[name.strip()] = value.strip()
    return found


def value_of(field: str, kind: Any, text: str, between: str = "+") -> Any:
    """Return a text as a value of a kind: str, bool, int, float, a StrEnum, or a tuple of one of them.

    between: what stands between the parts of a tuple. A whole number may be written as `4e6`. BadInput names the field.
    """
    if get_origin(kind) is tuple:
        try:
            return tuple(value_of(field, get_args(kind)[0], part.strip()) for part in text.split(between) if text)
        except BadInput as error:
            raise BadInput(field, text, f"{error.remedy}, or several with {between} between them") from None
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in TRUTH:
            raise BadInput(field, text, "give true or false")
        return TRUTH[text.lower()]
    if not (isinstance(kind, type) and issubclass(kind, int | float | StrEnum)):
        raise BadInput(field, text, "this field cannot be given as text")
    if issubclass(kind, StrEnum):
        if text not in list(kind):
            raise BadInput(field, text, f"choose one of {', '.join(kind)}")
        return kind(text)
    try:
        number = float(text)
    except ValueError:
        raise BadInput(field, text, "give a number" + (" (a whole number)" if kind is int else "")) from None
    if kind is int and not number.is_integer():
        raise BadInput(field, text, "give a whole number")
    return int(number) if kind is int else number


def changes_of(option: str, configuration: type, texts: Mapping[str, str], between: str = "+") -> dict[str, Any]:
    """Return the values of fields of a configuration given as text; BadInput says what there is, or what a field takes.

    between: as for `value_of`.
    """
    kinds = get_type_hints(configuration)
    names = [field.name for field in fields(configuration)]
    for name, text in texts.items():
        if name not in names:
            raise BadInput(option, f"{name}={text}", f"choose a field among {', '.join(names)}")
    return {name: value_of(f"{option} {name}", kinds[name], text, between) for name, text in texts.items()}
