"""Tables with a side file that describes them, each written whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from agent.kernel.unfinished import unfinished
from domain.errors import BadInput

ENDINGS: Final = (".csv", ".csv.gz")
_LEVEL: Final = 1


def write_table(path: Path, lines: Iterable[str], side: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Write the lines of a table, and `<path>.json` with the data of `side`; return that data.

    path: ends in .csv or .csv.gz. side: called with the SHA-256 of the table when it is written. The same lines give
    the same file. BadInput for another ending; any error leaves both files unchanged.
    """
    if not path.name.endswith(ENDINGS):
        raise BadInput("--out", str(path), f"give a file that ends in {' or '.join(ENDINGS)}")
    side_path = path.with_name(path.name + ".json")
    with unfinished(path) as partial, unfinished(side_path) as side_partial:
        with ExitStack() as stack:
            raw: Any = stack.enter_context(partial.open("wb"))
            if path.name.endswith(".gz"):
                # Without name and time in its head the file depends on the lines alone.
                raw = stack.enter_context(gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0))
            stack.enter_context(io.TextIOWrapper(raw, encoding="ascii", newline="\n")).writelines(lines)
        with partial.open("rb") as stream:
            data = side(hashlib.file_digest(stream, "sha256").hexdigest())
        side_partial.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8", newline="\n")
        # The table last: where it is, its side is, also after a kill in between.
        os.replace(side_partial, side_path)
        os.replace(partial, path)
    return data
