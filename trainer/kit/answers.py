"""Answers of finished cases on disk: a command that was stopped continues with `--resume` and repeats none of them.

An answer is found by the SHA-256 of its case: of the function, of all data that it is called with, of the content of
the files that the data name, and of the program's code. So a stored answer is always that of the case in hand.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from trainer.kit.files import code_version
from trainer.kit.progress import write_line

SOURCES = ("agent", "domain", "simulator", "trainer")
SYNC_S = 1.0
"""How often answers are brought to disk; each one outlives the process at once, and at most these the machine."""
_DIGEST = 32
_NUMPY = {"ndarray", "dtype", "_reconstruct", "_frombuffer", "scalar"}
_BUILTINS = {"set", "frozenset", "complex", "slice", "range", "bytearray"}


class AnswerFile:
    """A file that grows by answers. A record that was cut, or that is damaged, is dropped with all later ones."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Name the file; without `resume` the answers of an earlier command are removed."""
        self.path = path
        self._answers: dict[bytes, bytes] = {}
        self._synced = 0.0
        if resume and path.exists():
            content = path.read_bytes()
            whole = self._take(content)
            if whole < len(content):
                os.truncate(path, whole)
        else:
            self.remove()

    def find(self, key: bytes) -> tuple[Any] | None:
        """Return the answer of a case; None where the file has none that can be read."""
        if key not in self._answers:
            return None
        try:
            return (_Reader(io.BytesIO(self._answers[key])).load(),)
        except pickle.UnpicklingError:
            return None

    def add(self, key: bytes, answer: object) -> None:
        """Append an answer; where the folder takes no file, write a warning once."""
        content = pickle.dumps(answer)
        self._answers[key] = content
        record = key + len(content).to_bytes(8, "big") + hashlib.sha256(key + content).digest() + content
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab") as stream:
                stream.write(record)
                stream.flush()
                if time.monotonic() >= self._synced + SYNC_S:
                    os.fsync(stream.fileno())
                    self._synced = time.monotonic()
        except OSError as error:
            if self._synced < float("inf"):
                write_line(f"finished cases are not stored, so --resume would repeat them: {error}")
                self._synced = float("inf")

    def remove(self) -> None:
        """Remove the file: its command has ended."""
        self._answers.clear()
        # Where the file cannot be removed, its answers are those of the same cases all the same.
        with suppress(OSError):
            self.path.unlink()

    def _take(self, content: bytes) -> int:
        """Read the records, and return the length of the whole ones."""
        at, head = 0, _DIGEST + 8 + _DIGEST
        while at + head <= len(content):
            key, check = content[at : at + _DIGEST], content[at + _DIGEST + 8 : at + head]
            end = at + head + int.from_bytes(content[at + _DIGEST : at + _DIGEST + 8], "big")
            answer = content[at + head : end]
            if hashlib.sha256(key + answer).digest() != check:
                break
            self._answers[key] = answer
            at = end
        return at


class _Reader(pickle.Unpickler):
    """Reads plain data, arrays and classes of the program: a file from elsewhere calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that answers may have."""
        package = module.partition(".")[0]
        if package == "numpy" and name in _NUMPY:
            return super().find_class(module, name)
        if (package in SOURCES and name.isidentifier()) or (module == "builtins" and name in _BUILTINS):
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__.partition(".")[0] == package:
                return found
        raise pickle.UnpicklingError(f"{module}.{name} cannot be in an answer")


def keys_of(work: Callable[..., Any], items: Iterable[object]) -> list[bytes]:
    """Return the SHA-256 of each case, the work with an item: equal in every process for equal data."""
    head = hashlib.sha256(code_version(SOURCES).encode())
    _feed(head.update, work)
    keys = []
    for item in items:
        digest = head.copy()
        _feed(digest.update, item)
        keys.append(digest.digest())
    return keys


def _feed(update: Callable[[bytes], None], value: Any) -> None:
    """Feed a value to a digest, with its kind and length in front so that no two values give the same bytes."""
    if isinstance(value, str | Path):
        content = _content_of(str(value))
        _head(update, "text" if content is None else "file", content or str(value).encode())
    elif is_dataclass(value) and not isinstance(value, type):
        _feed(update, type(value))
        # A field that is not compared is a cache.
        for field in fields(value):
            if field.compare:
                _feed(update, getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        _head(update, f"array {value.dtype.str} {value.shape}", np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        _head(update, "mapping", b"%d" % len(value))
        for name, one in value.items():
            _feed(update, name)
            _feed(update, one)
    elif isinstance(value, list | tuple):
        _head(update, "sequence", b"%d" % len(value))
        for one in value:
            _feed(update, one)
    elif isinstance(value, partial):
        _feed(update, (value.func, value.args, value.keywords))
    elif callable(value) and hasattr(value, "__qualname__"):
        _head(update, "name", f"{value.__module__}.{value.__qualname__}".encode())
        _feed(update, getattr(value, "__self__", None))
    else:
        _head(update, "value", pickle.dumps(value))


def _head(update: Callable[[bytes], None], kind: str, content: bytes) -> None:
    update(f"{kind} {len(content)}\n".encode())
    update(content)


def _content_of(text: str) -> bytes | None:
    """Return the digest of the file that a text names, also after a colon such as in `script:FILE`; else None."""
    for name in (text, text.partition(":")[2]):
        try:
            about = os.stat(name)
        except (OSError, ValueError):
            continue
        if name and os.path.isfile(name):
            return _digest_of(name, about.st_size, about.st_mtime_ns)
    return None


@cache
def _digest_of(name: str, size: int, changed_ns: int) -> bytes:
    return hashlib.sha256(Path(name).read_bytes()).digest()
