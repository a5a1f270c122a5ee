"""How this package's functions are compiled: without the interpreter's lock, cached on disk, checked for staleness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")

_FROZEN = ("simulator/admission/streams.py", "domain/observations/oversubscribe.py")
"""Where functions and constants come from that are compiled in, beside the rules."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call; division by zero gives inf or nan, as numpy does."""
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function into those that call it: for what is called per VM, where handing the arrays on costs more."""
    made = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function)
    return cast("Callable[P, R]", made)


def _drop_stale() -> None:
    """Delete the cached code of this package when one of the sources that it was made from is newer.

    The cache looks at the file of a function only, and would keep the old code of whatever that function calls.
    """
    here, root = Path(__file__).parent, Path(__file__).parents[2]
    rules = (root / "domain/rules/oversubscription").glob("*.py")
    sources = [*here.glob("*.py"), *rules, *(root / name for name in _FROZEN)]
    newest = max(path.stat().st_mtime for path in sources if path.exists())
    for index in (here / "__pycache__").glob("*.nbi"):
        try:
            if index.stat().st_mtime < newest:
                index.unlink()
        except OSError:
            # Another process was faster, or the folder is not ours to change.
            continue


_drop_stale()
