"""What the decisions say of their paths: which an allocator may post to and read, and which list many in one body."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from agent.kernel.decision import Part
from agent.kernel.parts import kinds

ROOT = "/api/v1/"
ALWAYS_READ = re.compile(r"/api/v1/openapi\.json")
"""What an allocator reads beside what it asks about: how to ask."""


class _Paths(NamedTuple):
    asks: re.Pattern[str]
    read: re.Pattern[str]
    lists: re.Pattern[str]


def _of_parts() -> _Paths:
    return _paths(kinds())


@lru_cache(maxsize=4)
def _paths(parts: tuple[type[Part], ...]) -> _Paths:
    return _Paths(
        _pattern(f"{part.name}/{path}" for part in parts for path in part.asks),
        _pattern(path for part in parts if part.asks for path in (part.name, f"{part.name}/**")),
        _pattern(f"{part.name}/{path}" for part in parts for path in part.lists),
    )


def _pattern(paths: Iterable[str]) -> re.Pattern[str]:
    """Return what matches these paths: `*` stands for one segment, `**` for any number of them."""
    found = (re.escape(path).replace(r"\*\*", ".*").replace(r"\*", "[^/]+") for path in paths)
    return re.compile(f"{ROOT}(?:{'|'.join(found)})")


def is_asked(path: str) -> bool:
    """Return whether an allocator posts to this path."""
    return _of_parts().asks.fullmatch(path) is not None


def is_asked_about(path: str) -> bool:
    """Return whether an allocator reads this path."""
    return (_of_parts().read.fullmatch(path) or ALWAYS_READ.fullmatch(path)) is not None


def is_list(path: str) -> bool:
    """Return whether the body of a request to this path may list many."""
    return _of_parts().lists.fullmatch(path) is not None
