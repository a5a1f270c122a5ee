"""Yards, closed when the test is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.admission.gate.yard import MakeYard, Plan, Yard


@pytest.fixture
def make_yard(tmp_path: Path) -> Iterator[MakeYard]:
    """Return a maker of yards: fields of `Plan` by name."""
    made: list[Yard] = []

    def make(**plan: Any) -> Yard:
        made.append(Yard(tmp_path, Plan(**plan)))
        return made[-1]

    yield make
    for yard in made:
        yard.close()


@pytest.fixture
def yard(make_yard: MakeYard) -> Yard:
    """A cluster of 32 cores whose rule is what fits."""
    return make_yard()
