"""Seals a report: a digest over its canonical text, and a keyed signature where there is a key."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from domain.errors import BadInput

KEY_VARIABLE = "PROMOTION_KEY"
"""Environment variable with the key; not one of the agent's settings, which never needs it."""
SHORTEST_KEY_BYTES = 16
ALGORITHM = "hmac-sha256"
_SEAL = ("sha256", "signature")


class Seal(StrEnum):
    """What a report's seal says: signed with this key, whole but unsigned or not checked for want of a key, or not."""

    SIGNED = "signed"
    UNSIGNED = "unsigned"
    KEY_NEEDED = "key needed"
    CHANGED = "changed"


def read_key(path: Path | None, environ: Mapping[str, str] | None = None) -> bytes | None:
    """Return the key of a file, else of the environment variable, else None; BadInput shows nothing of a key."""
    if path is not None:
        try:
            key = path.read_bytes().strip()
        except OSError as fault:
            raise BadInput("--key-file", str(path), f"{fault.strerror}: name a readable file") from None
        source = str(path)
    else:
        given = (os.environ if environ is None else environ).get(KEY_VARIABLE)
        if given is None:
            return None
        key, source = given.strip().encode("utf-8"), f"${KEY_VARIABLE}"
    if len(key) < SHORTEST_KEY_BYTES:
        raise BadInput("promotion key", source, f"give at least {SHORTEST_KEY_BYTES} bytes")
    return key


def canonical(body: Mapping[str, Any]) -> bytes:
    """Return the text that is sealed: JSON with sorted keys and no spaces, without the seal itself."""
    plain = {name: value for name, value in body.items() if name not in _SEAL}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii")


def sealed(body: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
    """Return the body with `sha256`, and `signature` (None without a key)."""
    text = canonical(body)
    signature = None
    if key is not None:
        signature = {"algorithm": ALGORITHM, "value": hmac.new(key, text, hashlib.sha256).hexdigest()}
    return {**body, "sha256": hashlib.sha256(text).hexdigest(), "signature": signature}


def check(report: Mapping[str, Any], key: bytes | None) -> Seal:
    """Return what the seal of a report says."""
    text = canonical(report)
    if report.get("sha256") != hashlib.sha256(text).hexdigest():
        return Seal.CHANGED
    signature = report.get("signature")
    if signature is None:
        return Seal.UNSIGNED
    if key is None:
        return Seal.KEY_NEEDED
    value = signature.get("value") if isinstance(signature, Mapping) else None
    expected = hmac.new(key, text, hashlib.sha256).hexdigest()
    return Seal.SIGNED if isinstance(value, str) and hmac.compare_digest(value, expected) else Seal.CHANGED
