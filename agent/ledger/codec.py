"""Canonical JSON for what the ledger keeps: the same value always gives the same bytes, and these give the value back.

Dataclass fields stand in declared order, mapping keys sorted, floats in their shortest exact form; nan and infinities
are refused. A field added later with a default leaves older bytes readable.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import GenericAlias, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationError

from domain.errors import BadInput, LedgerError

T = TypeVar("T")

PACK_FROM_BYTES: Final = 512
"""Shorter bodies are stored as they are: compressing them would save less than a row's overhead."""

WINDOW_BYTES: Final = 32_000
"""Of a longer text and its dictionary zlib sees too little of both: the dictionary would only cost time."""

_PACK_LEVEL: Final = 1
_LEVEL_WITH_DICTIONARY: Final = 6
_MAX_UNPACKED_BYTES: Final = 64 * 2**20
_JSON_OPENING: Final = b"{"

_Sorter = Callable[[Any], Any]


@cache
def _adapter(kind: Any) -> TypeAdapter[list[Any]]:
    # A dataclass takes no configuration from outside, a list around it does.
    listed: Any = GenericAlias(list, (kind,))
    return TypeAdapter(listed, config=ConfigDict(ser_json_inf_nan="constants", allow_inf_nan=False))


def _sorted_mapping(value: Mapping[str, Any]) -> Mapping[str, Any]:
    keys = list(value)
    ordered = sorted(keys)
    return value if keys == ordered else {key: value[key] for key in ordered}


def _sorted_within(value: Mapping[str, Any], inside: _Sorter) -> Mapping[str, Any]:
    after = {key: inside(value[key]) for key in sorted(value)}
    return value if list(value) == list(after) and all(after[key] is value[key] for key in after) else after


@cache
def _sorter(hint: Any) -> _Sorter | None:
    """Return what sorts the mappings inside a value of this type, or None when there can be none."""
    origin = get_origin(hint)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        of_values = _sorter(get_args(hint)[1])
        return _sorted_mapping if of_values is None else (lambda value: _sorted_within(value, of_values))
    if origin in (Union, UnionType):
        inside = [sorter for part in get_args(hint) if (sorter := _sorter(part)) is not None]
        return (lambda value: None if value is None else inside[0](value)) if inside else None
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        named = [(f.name, sorter) for f in fields(hint) if (sorter := _sorter(hints[f.name])) is not None]
        return (lambda value: _with_sorted_fields(value, named)) if named else None
    return None


def _with_sorted_fields(value: Any, named: list[tuple[str, _Sorter]]) -> Any:
    changed = {}
    for name, sorter in named:
        before = getattr(value, name)
        after = sorter(before)
        if after is not before:
            changed[name] = after
    return replace(value, **changed) if changed else value


def encode(value: Any) -> bytes:
    """Return the canonical JSON of a frozen dataclass, in UTF-8.

    Text that is not Unicode, as a plug-in may give, has `?` for each such character. BadInput when it holds nan, an
    infinity, or a value of another type than its field's.
    """
    kind: Any = type(value)
    sorter = _sorter(kind)
    try:
        value = sorter(value) if sorter else value
        try:
            text = _adapter(kind).dump_json([value], warnings="error")[1:-1]
        except (PydanticSerializationError, UnicodeError):
            text = _adapter(kind).dump_json([_in_unicode(value)], warnings="error")[1:-1]
    except (PydanticSerializationError, UnicodeError) as error:
        remedy = f"store only plain values of the declared types ({error})"
        raise BadInput(f"{kind.__name__} for the ledger", value, remedy) from error
    if b"NaN" in text or b"Infinity" in text:
        _refuse_constants(text, kind.__name__)
    return text


def _in_unicode(value: Any) -> Any:
    if isinstance(value, str) and not isinstance(value, Enum):
        return value.encode("utf-8", "replace").decode()
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _in_unicode(getattr(value, field.name)) for field in fields(value)})
    if isinstance(value, Mapping):
        return {_in_unicode(key): _in_unicode(one) for key, one in value.items()}
    return type(value)(map(_in_unicode, value)) if type(value) in (tuple, list, frozenset) else value


def _refuse_constants(text: bytes, what: str) -> None:
    def refuse(constant: str) -> None:
        raise BadInput(
            f"{what} for the ledger", constant, "use None for an absent number; only finite numbers are stored"
        )

    # Only a bare NaN or Infinity reaches parse_constant; the same letters inside a sentence are text.
    json.loads(text, parse_constant=refuse)


def decode(kind: type[T], text: bytes) -> T:
    """Return the value that `encode` was given; LedgerError when the bytes are not one of these."""
    adapter = _adapter(cast("Any", kind))
    try:
        (value,) = adapter.validate_json(b"[" + text + b"]")
    except (ValueError, BadInput) as error:
        raise LedgerError(
            f"a stored {kind.__name__} cannot be read ({error}): it was written by another version or damaged"
        ) from error
    return cast("T", value)


def encode_mapping(body: Mapping[str, Any]) -> bytes:
    """Return the canonical JSON of a plain mapping, keys sorted at every depth.

    Text that is not Unicode has `?` for each such character. BadInput when it holds nan, an infinity or what JSON does
    not know.
    """
    try:
        text = json.dumps(dict(body), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "replace")
    except (TypeError, ValueError) as error:
        raise BadInput(
            "body for the ledger", body, f"store only finite numbers, text, lists and mappings ({error})"
        ) from error


def decode_mapping(text: bytes) -> Mapping[str, Any]:
    """Return a stored JSON object as a dictionary; LedgerError when it is not one."""
    try:
        body = json.loads(text)
    except ValueError as error:
        raise LedgerError(f"a stored body is not JSON ({error}): it is damaged") from error
    if not isinstance(body, dict):
        raise LedgerError("a stored body is not a JSON object: it is damaged")
    return cast("dict[str, Any]", body)


def pack(text: bytes, dictionary: bytes = b"") -> bytes:
    """Return what is stored for canonical JSON: itself when short, else compressed. The first byte tells which.

    dictionary: a text like this one, without which it cannot be unpacked. BadInput for a text that `unpack` would
    refuse.
    """
    if len(text) > _MAX_UNPACKED_BYTES:
        raise BadInput("body for the ledger", f"{len(text)} bytes", f"store at most {_MAX_UNPACKED_BYTES}")
    if len(text) < PACK_FROM_BYTES:
        return text
    if not dictionary:
        return zlib.compress(text, _PACK_LEVEL)
    packer = zlib.compressobj(_LEVEL_WITH_DICTIONARY, zdict=dictionary)
    return packer.compress(text) + packer.flush()


def unpack(stored: bytes, dictionary: bytes = b"") -> bytes:
    """Return the canonical JSON of what `pack` gave; LedgerError when it or its dictionary is damaged."""
    if stored.startswith(_JSON_OPENING):
        return stored
    try:
        inflater = zlib.decompressobj(zdict=dictionary)
        text = inflater.decompress(stored, _MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise LedgerError(f"a stored body cannot be unpacked ({error}): it is damaged") from error
    if not inflater.eof:
        raise LedgerError("a stored body ends too early: it is damaged")
    return text


def plain(value: Any) -> Any:
    """Return a recorded dataclass as plain data, as the ledger's canonical JSON has it."""
    return json.loads(encode(value))
