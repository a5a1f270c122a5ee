"""Compiled code that is kept on disk is made anew when a source that it was made from has changed."""

import os
from pathlib import Path
from typing import Any

import numba
import pytest

from domain.observations.autoscaling import Floats
from simulator.compilation import borrowing, compilation_timed, drop_stale, inlined


def at(path: Path, when: int) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.touch()
    os.utime(path, (when, when))
    return path


def test_code_older_than_a_module_beside_it_is_dropped_and_newer_code_stays(tmp_path: Path) -> None:
    at(tmp_path / "engine.py", 100)
    at(tmp_path / "leaf.py", 200)
    old, new = (at(tmp_path / "__pycache__" / f"engine.{k}.nbi", k) for k in (199, 200))
    other = at(tmp_path / "__pycache__" / "engine.cpython-311.pyc", 1)
    drop_stale([tmp_path])
    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_it_is_dropped_in_every_folder_when_a_source_elsewhere_is_newer(tmp_path: Path) -> None:
    folders = [tmp_path / "kernel", tmp_path / "rules"]
    kept = []
    for folder in folders:
        at(folder / "module.py", 100)
        kept.append(at(folder / "__pycache__" / "module.nbi", 300))
    constants = at(tmp_path / "constants.py", 250)
    drop_stale(folders, [constants])
    assert all(index.exists() for index in kept)
    at(constants, 301)
    drop_stale(folders, [constants])
    assert not any(index.exists() for index in kept)


def test_code_that_cannot_be_deleted_stops_nothing(tmp_path: Path) -> None:
    at(tmp_path / "engine.py", 100)
    # A folder represents a file that may not be changed: it cannot be unlinked.
    locked = tmp_path / "__pycache__" / "a.nbi"
    locked.mkdir(parents=True)
    os.utime(locked, (1, 1))
    old = at(tmp_path / "__pycache__" / "b.nbi", 1)
    drop_stale([tmp_path])
    assert (locked.exists(), old.exists()) == (True, False)


@pytest.mark.parametrize("compile_one", [borrowing, inlined])
def test_a_function_that_counts_no_owners_returns_no_array(compile_one: Any) -> None:
    def handed_on(values: Floats) -> Floats:
        return values

    def unknown(values):  # type: ignore[no-untyped-def]
        return values[0]

    handed_on.__annotations__ = {"values": "Floats", "return": "tuple[int, Floats]"}
    for function in (handed_on, unknown):
        with pytest.raises(TypeError, match="return an array"):
            compile_one(function)
    assert inlined(handed_on, arrays=True) is not None


def test_the_time_of_compilation_is_measured_and_that_of_calls_is_not() -> None:
    inner = numba.njit(lambda a: a + 1.0)
    outer = numba.njit(lambda a: inner(a) * 2.0)
    with compilation_timed() as compiled_s:
        assert compiled_s() == 0.0
        outer(1.0)
        first = compiled_s()
        outer(2.0)
        assert (first > 0.0, compiled_s()) == (True, first)
    numba.njit(lambda a: a - 1.0)(1.0)
    assert compiled_s() == first
