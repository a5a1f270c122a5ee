"""Compilation of the kernels: without the interpreter's lock, cached on disk, and again when a source has changed.

Also the layout of records in compiled code, and the time that compilation takes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
from numba.core.event import Listener, install_listener
from numba.extending import lower_builtin, type_callable

P = ParamSpec("P")
R = TypeVar("R")

ROOT = Path(__file__).parents[1]
"""The folder of the import packages."""


_COUNTING: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": True}
"""`_nrt`: whether owners of arrays are counted. A function without it takes that of its first caller."""
_BORROWING: dict[str, Any] = {**_COUNTING, "_nrt": False}
_WITHOUT_ARRAYS = frozenset({"None", "bool", "int", "float", "np.uint64", "tuple", "Record", "Any"})
"""Words of the annotations of functions that count no owners; `Any` is a number, of a rule that takes arrays too."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function at its first call; division by zero gives inf or nan, as numpy does."""
    return cast("Callable[P, R]", numba.njit(**_COUNTING)(function))


def borrowing(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that makes and returns no array, and so need not count the owners of those it hands on.

    A count is atomic: for a tuple of forty arrays, handed on four times in each decision, it takes longer than the
    decision. A function that makes an array fails to compile. TypeError for one that returns one, by its
    annotation: the array would be freed while it is in use.
    """
    return cast("Callable[P, R]", numba.njit(**_BORROWING)(_returning_no_array(function)))


def _returning_no_array(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function; TypeError unless its annotation shows that it returns no array."""
    returned = str(function.__annotations__.get("return", "unknown"))
    if not set(re.findall(r"[\w.]+", returned)) <= _WITHOUT_ARRAYS:
        raise TypeError(f"{function.__name__} returns {returned}: `compiled` is for functions that return an array")
    return function


def inlined(function: Callable[P, R], *, fast: bool = False, arrays: bool = False) -> Callable[P, R]:
    """Compile a function into its callers.

    arrays: whether it makes any, and so counts their owners.
    fast: for functions that only compare: several elements at once, in any order, none of them infinite or nan.
    """
    flags = {"nnan", "ninf", "nsz", "reassoc", "contract"} if fast else False
    made = function if arrays else _returning_no_array(function)
    options = _COUNTING if arrays else _BORROWING
    return cast("Callable[P, R]", numba.njit(**options, forceinline=True, fastmath=flags)(made))


def without_nan(lesser: Callable[[float, float], float]) -> None:
    """Compile calls of a function that gives the lesser of two numbers to code that takes many at once.

    A plain comparison keeps the order of elements for the sake of nan.
    """
    number = numba.types.float64
    type_callable(lesser)(lambda context: lambda a, b: number)

    def select(context: Any, builder: Any, signature: Any, pair: Any) -> Any:
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered("<", *pair, flags=flags), *pair, flags=flags)

    lower_builtin(lesser, number, number)(select)  # type: ignore[no-untyped-call]


class _Timer(Listener):
    """Adds up the processor time between the outermost start and end of events."""

    def __init__(self) -> None:
        self.seconds, self._depth, self._began = 0.0, 0, 0.0

    def on_start(self, event: Any) -> None:
        self._began = self._began if self._depth else time.process_time()
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        self.seconds += 0.0 if self._depth else time.process_time() - self._began


@contextmanager
def compilation_timed() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the CPU seconds for which this process has compiled within the block."""
    timer = _Timer()
    with install_listener("numba:compile", timer):
        yield lambda: timer.seconds


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


_SHARED = (
    *("domain/rules/*.py", "domain/observations/*.py", "domain/units.py", "domain/workload.py"),
    "simulator/admission/streams.py",
)
"""Sources of functions and constants that are compiled into the kernels of any room, beside its own rules."""


def _drop_stale_kernels() -> None:
    shared = [path for name in _SHARED for path in ROOT.glob(name)]
    drop_stale([ROOT / "domain/rules", ROOT / "domain/observations"], shared)
    for room in (path.parent for path in (ROOT / "simulator").glob("*/__init__.py")):
        rules = ROOT / "domain/rules" / room.name
        drop_stale([room, rules], [*shared, *room.glob("*/*.py")])


_drop_stale_kernels()


def fields(kind: str, names: str) -> list[tuple[str, str]]:
    """Return record fields of one numpy type, in order; names: separated by blanks."""
    return [(name, kind) for name in names.split()]
