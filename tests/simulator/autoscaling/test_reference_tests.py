"""The tests of the reference simulator on edge cases, closed forms and closed loops hold for the compiled one too."""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from simulator.autoscaling.batch import FastSimulation
from tests.simulator.autoscaling import (
    baseline_runs,
    test_closed_forms,
    test_coevolution,
    test_compat,
    test_edge_cases,
    test_spot_and_starts,
)

MODULES = (test_edge_cases, test_closed_forms, test_coevolution, test_compat, test_spot_and_starts)


def cases(*modules: ModuleType) -> Iterator[Any]:
    """Yield every test of the modules that runs a simulation, with its marks."""
    for module in modules:
        for name, test in vars(module).items():
            if name.startswith("test_") and callable(test):
                rows = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
                marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name != "parametrize"]
                if rows:
                    for row in rows[0].args[1]:
                        yield pytest.param(test, row if isinstance(row, tuple) else (row,), marks=marks, id=name)
                else:
                    yield pytest.param(test, (), marks=marks, id=name)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("test", "row"), list(cases(*MODULES)))
def test_the_compiled_simulator_passes_the_reference_simulators_test(
    test: Callable[..., None], row: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = inspect.getmodule(test)
    for place in (module, baseline_runs):
        if hasattr(place, "Simulation"):
            monkeypatch.setattr(place, "Simulation", FastSimulation)
    test(*row)
