"""Rows of a sparse system of linear inequalities, collected one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint
from scipy.sparse import csr_array

Term = tuple[NDArray[np.int64] | int, float]
"""Variables, and the factor that each of them has."""


class Rows:
    """low <= sum of factor * variable <= high, row after row."""

    def __init__(self) -> None:
        self._rows: list[NDArray[np.int64]] = []
        self._columns: list[NDArray[np.int64]] = []
        self._factors: list[NDArray[np.float64]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, low: float, high: float, *terms: Term) -> None:
        """Add one row."""
        for variables, factor in terms:
            columns = np.atleast_1d(np.asarray(variables, dtype=np.int64))
            self._rows.append(np.full(columns.size, len(self._low)))
            self._columns.append(columns)
            self._factors.append(np.full(columns.size, factor))
        self._low.append(low)
        self._high.append(high)

    def constraint(self, variables: int) -> LinearConstraint:
        """Return the rows as a constraint over so many variables."""
        places = (np.concatenate(self._rows), np.concatenate(self._columns))
        matrix = csr_array((np.concatenate(self._factors), places), shape=(len(self._low), variables))
        return LinearConstraint(matrix, self._low, self._high)
