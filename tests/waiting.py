"""How tests wait for another thread or process: for the state itself, at length, and never by the clock."""

import time
from collections.abc import Callable

import pytest


def until(condition: Callable[[], object], within_s: float = 120.0, every_s: float = 0.005) -> None:
    """Wait until a condition holds; the test fails where it does not within `within_s` seconds."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"it did not come about within {within_s:g} s")
        time.sleep(every_s)
