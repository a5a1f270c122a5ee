"""Fields of a training configuration given as text, read as what they are."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from domain.errors import BadInput

TRUTH: Mapping[str, bool] = {"true": True, "yes": True, "false": False, "no": False}


def pairs_of(option: str, texts: list[str]) -> dict[str, str]:
    """Return `FIELD=VALUE` texts as fields to values; BadInput names the option."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BadInput(option, text, "give FIELD=VALUE, such as learning_rate=3e-4")
        found[name.strip()] = value.strip()
    return found


def value_of(field: str, kind: type, text: str) -> Any:
    """Return a text as a value of a kind: str, bool, int, float or a StrEnum; BadInput names the field."""
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in TRUTH:
            raise BadInput(field, text, "give true or false")
        return TRUTH[text.lower()]
    if issubclass(kind, StrEnum):
        try:
            return kind(text)
        except ValueError:
            raise BadInput(field, text, f"choose one of {', '.join(kind)}") from None
    try:
        number = float(text)
    except ValueError:
        raise BadInput(field, text, "give a number") from None
    if kind is float:
        return number
    if not number.is_integer():
        raise BadInput(field, text, "give a whole number")
    return int(number)
