"""Policies as text, `name:parameter=value,...`: writing one down and reading its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from domain.errors import BadInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def spelled(name: str, policy: DataclassInstance) -> str:
    """Return `name:parameter=value,...` with every parameter of a policy dataclass."""
    shown = ((f.name, getattr(policy, f.name)) for f in fields(policy) if f.init)
    return f"{name}:" + ",".join(f"{key}={_written(value)}" for key, value in shown)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def parameters_of(name: str, text: str) -> dict[str, str]:
    """Return the pairs of `parameter=value,...`; BadInput for what is no pair."""
    pairs: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        parameter, equals, value = pair.partition("=")
        if not equals or not value:
            raise BadInput(f"policy {name}", pair, "give parameter=value")
        pairs[parameter.strip()] = value.strip()
    return pairs


def read_parameters(name: str, defaults: DataclassInstance, pairs: Mapping[str, str]) -> dict[str, Any]:
    """Return the values for a policy dataclass, each read as its default's kind; BadInput names what there is."""
    known = {f.name: getattr(defaults, f.name) for f in fields(defaults) if f.init}
    values: dict[str, Any] = {}
    for parameter, text in pairs.items():
        if parameter not in known:
            raise BadInput(f"policy {name}: parameter", parameter, f"choose from: {', '.join(known) or 'none'}")
        values[parameter] = _read(f"policy {name}: {parameter}", text, known[parameter])
    return values


def _read(field: str, text: str, like: object) -> bool | int | float | str:
    if isinstance(like, str):
        return text
    if isinstance(like, bool):
        if text.lower() not in WORDS:
            raise BadInput(field, text, "give true or false")
        return WORDS[text.lower()]
    try:
        value = int(text) if isinstance(like, int) else float(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e12:
        raise BadInput(field, text, f"give a {'whole ' if isinstance(like, int) else ''}number of 0 or more")
    return value
