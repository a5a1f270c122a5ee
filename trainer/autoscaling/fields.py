"""Fields of a training configuration given as text, read as what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, get_type_hints

from domain.errors import BadInput
from trainer.autoscaling.configuration import PPOConfig

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


def changes_of(option: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of fields given as text; BadInput lists the fields there are, or says what a field takes.

    A whole number may be written as `4e6`.
    """
    kinds = get_type_hints(PPOConfig)
    names = [field.name for field in fields(PPOConfig)]
    for name in texts:
        if name not in names:
            raise BadInput(option, f"{name}={texts[name]}", f"choose a field among {', '.join(names)}")
    return {name: value_of(f"{option} {name}", kinds[name], text) for name, text in texts.items()}


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
