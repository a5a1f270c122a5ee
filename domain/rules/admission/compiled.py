"""The same functions, compiled: each one calls the compiled ones instead of the plain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import Any

from domain.rules.admission import ab, belief, na, policies

LEAVES: tuple[FunctionType, ...] = tuple(
    function
    for module in (belief, na, ab, policies)
    for function in vars(module).values()
    if isinstance(function, FunctionType) and function.__module__ == module.__name__
)
"""Every function of these modules, those that are called before those that call them."""


def _itself(condition: bool) -> bool:
    """Return whether a condition on a number holds: `numpy.any` of one, which numba takes for arrays alone."""
    return condition


def compile_all(
    compile_one: Callable[[Any], Any], elementary: Mapping[str, Any] = MappingProxyType({})
) -> SimpleNamespace:
    """Return the functions of this package's rules by name, passed through `compile_one` (such as a `numba.njit`).

    elementary: compiled functions in place of numpy's that a module imports by name, such as `exp`.

    A compiler that binds the globals of a function, as numba does, would find the plain functions there and refuse
    them; so each gets globals of its own that hold the compiled ones.
    """
    done: dict[str, Any] = {"anywhere": compile_one(_itself), **elementary}
    for leaf in LEAVES:
        bound = FunctionType(leaf.__code__, {**leaf.__globals__, **done}, leaf.__name__, leaf.__defaults__)
        # numba's cache knows a function by its name and code, not by its globals.
        bound.__qualname__ = leaf.__qualname__ + ("_elementary" if elementary else "")
        bound.__module__ = leaf.__module__
        done[leaf.__name__] = compile_one(bound)
    return SimpleNamespace(**done)
