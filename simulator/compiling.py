"""How the kernels are compiled: without the interpreter's lock, cached on disk, and anew when a source has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")

ROOT = Path(__file__).parents[1]
"""The folder of the import packages."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call; division by zero gives inf or nan, as numpy does."""
    return cast("Callable[P, R]", numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function into those that call it: for what is called per VM, where handing the arrays on costs more."""
    made = numba.njit(cache=True, nogil=True, error_model="numpy", forceinline=True)(function)
    return cast("Callable[P, R]", made)


def drop_stale(folders: Iterable[Path], sources: Iterable[Path] = ()) -> None:
    """Delete the cached code of the modules in `folders` when one of them, or of `sources`, is newer.

    The cache looks at the file of a function only, and would keep the old code of whatever that function calls. Called
    before anything in the folders is compiled.
    """
    kept = list(folders)
    files = [*sources, *(path for folder in kept for path in folder.glob("*.py"))]
    newest = max(path.stat().st_mtime for path in files)
    for index in (path for folder in kept for path in folder.glob("__pycache__/*.nbi")):
        try:
            if index.stat().st_mtime < newest:
                index.unlink()
        except OSError:
            # Another process was faster, or the folder is not ours to change.
            continue
