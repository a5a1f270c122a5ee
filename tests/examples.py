"""A pytest plugin: how many examples a property gets.

`make test` tries at most 20 of each property. `make test-exhaustive`, which `.ci/run` runs too, sets
TRIMTAB_EXAMPLES=thorough and tries what the property declares, at least 50, or hypothesis' 100 where it declares none.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings

QUICK, THOROUGH = 20, 50


def thorough() -> bool:
    """Return whether properties get the larger number of examples."""
    return os.environ.get("TRIMTAB_EXAMPLES") == "thorough"


def examples(declared: int) -> int:
    """Return how many examples a property gets that declares this many."""
    return max(declared, THOROUGH) if thorough() else min(declared, QUICK)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        test: Any = getattr(item, "obj", None)
        if is_hypothesis_test(test):
            function = getattr(test, "__func__", test)
            declared = function._hypothesis_internal_use_settings
            function._hypothesis_internal_use_settings = settings(
                declared, max_examples=examples(declared.max_examples)
            )
