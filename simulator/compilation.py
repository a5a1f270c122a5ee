"""Compilation of the kernels: without the interpreter's lock, cached on disk, and again when a source has changed.

Also the layout of records in compiled code.
"""

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


_KERNELS = (
    (("simulator/admission", "domain/rules/admission"), ("domain/units.py",)),
    (
        ("simulator/autoscaling", "domain/rules", "domain/observations"),
        ("simulator/autoscaling/reference/*.py", "domain/units.py", "domain/workload.py"),
    ),
    (
        ("simulator/oversubscription",),
        (
            *("domain/rules/oversubscription/*.py", "simulator/admission/streams.py"),
            *("domain/observations/oversubscription.py", "domain/units.py"),
        ),
    ),
    (("simulator/placement",), ("domain/rules/placement/*.py", "domain/units.py")),
    (("simulator/deferral",), ("domain/rules/deferral/*.py",)),
)
"""Folders of compiled functions, and the sources elsewhere of functions and constants that are compiled in."""

for _folders, _sources in _KERNELS:
    drop_stale([ROOT / folder for folder in _folders], [path for name in _sources for path in ROOT.glob(name)])


def fields(kind: str, names: str) -> list[tuple[str, str]]:
    """Return record fields of one numpy type, in order; names: separated by blanks."""
    return [(name, kind) for name in names.split()]
