"""Files that are written whole or not at all, and files that grow by lines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agent.kernel.unfinished import remove_unfinished, unfinished

ROOT = Path(__file__).parents[2]


def replace_file(path: Path, content: bytes | str, before: Callable[[], object] = lambda: None) -> None:
    """Write a file so that a reader sees the old content or the new one; it is on disk when this returns.

    before: called when the new content is on disk, and only a rename is left.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    with unfinished(path) as fresh:
        write_synced(fresh, data)
        before()
        fresh.replace(path)
    sync_directory(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files that a crash left in a folder and in the folders in it."""
    remove_unfinished(folder)
    for path in folder.glob("*/"):
        remove_unfinished(path)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that is on disk when this returns."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON, whole or not at all."""
    replace_file(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


class GrowingFile:
    """A text file that grows by whole lines; a last line that was cut by a crash is dropped."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str:
        """Return the text up to the last line feed, and drop the rest from the file; empty without a file."""
        if not self._path.exists():
            return ""
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self._path.open("r+b") as stream:
                stream.truncate(whole)
        return content[:whole].decode("utf-8")

    def append(self, lines: str) -> None:
        """Append text that ends with a line feed; it is on disk when this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8", newline="\n") as stream:
            stream.write(lines)
            stream.flush()
            os.fsync(stream.fileno())


@cache
def code_version(sources: Sequence[str]) -> str:
    """Return 12 hex digits over the text of the folders and files of the program that decide results.

    Results that were kept under another version are stale. sources: a tuple of paths from the program's root.
    """
    digest = hashlib.sha256()
    for source in sources:
        for path in sorted((ROOT / source).rglob("*.py")) or [ROOT / source]:
            if path.is_file():
                digest.update(path.relative_to(ROOT).as_posix().encode("utf-8"))
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
