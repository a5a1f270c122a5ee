"""Cases of a parametrised test that `make test` leaves to the exhaustive stage."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def exhaustive(*cases: Any) -> list[ParameterSet]:
    """Return the cases, a tuple being one of several values, with the mark of the exhaustive stage."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.exhaustive) for case in cases
    ]
