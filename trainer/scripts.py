"""Scripts of actions from a file: act-7 indices or changes per type, one to a line or as a JSON list."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from domain.errors import BadInput, TraceError
from simulator.reference import Order
from simulator.reference.actions import orders_of_index, orders_of_vector


def read_script(path: Path, cores: Sequence[int]) -> list[list[Order]]:
    """Return the orders of each step that a file of actions describes.

    A line holds one number, an act-7 index, or as many as there are VM types, the change of each; numbers are parted by
    commas or blanks; empty lines and what follows `#` are skipped. A file that begins with `[` is a JSON list of the
    same. cores: cores per VM type; removals go first, then larger types. Raises TraceError, which names the file and
    the line or item.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as fault:
        raise TraceError(f"script {path.name}", str(fault), "give a readable file of actions") from fault
    if text.lstrip().startswith(("[", "{")):
        return [_orders(f"script {path.name} item {at}", item, cores) for at, item in _json_items(path, text)]
    lines = ((at, line.partition("#")[0].strip()) for at, line in enumerate(text.splitlines(), start=1))
    return [
        _orders(f"script {path.name} line {at}", _numbers(f"script {path.name} line {at}", line), cores)
        for at, line in lines
        if line
    ]


def _json_items(path: Path, text: str) -> list[tuple[int, Any]]:
    try:
        items = json.loads(text)
    except ValueError as fault:
        raise TraceError(f"script {path.name}", str(fault), "mend the JSON") from fault
    if isinstance(items, dict):
        items = items.get("actions")
    if not isinstance(items, list):
        raise TraceError(f"script {path.name}", type(items).__name__, "give a JSON list of actions")
    return list(enumerate(items, start=1))


def _numbers(where: str, line: str) -> int | list[int]:
    parts = re.split(r"\s*,\s*|\s+", line)
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        raise TraceError(where, line, "give an act-7 index, or a change per VM type such as 1,0,-2") from None
    return numbers[0] if len(numbers) == 1 else numbers


def _orders(where: str, action: Any, cores: Sequence[int]) -> list[Order]:
    single = _is_whole(action)
    if not single and not (isinstance(action, list) and all(map(_is_whole, action))):
        raise TraceError(where, action, "give an act-7 index, or a list with a change per VM type")
    try:
        return orders_of_index(action, len(cores)) if single else orders_of_vector(action, cores)
    except BadInput as error:
        raise TraceError(where, action, error.remedy) from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
