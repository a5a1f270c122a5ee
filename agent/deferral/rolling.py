"""The rolling plan: the program of the known jobs, solved by HiGHS within a time budget (specification §10.2).

The extra `deferral` brings HiGHS. The budget is processor time of the calling thread, in which HiGHS works too, so that
a busy machine delays a plan and does not prevent it. Beyond the budget the next policy of the ladder decides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, install_command
from domain.rules.deferral.choosing import View
from domain.rules.deferral.jobs import Ints
from domain.rules.deferral.rolling import FACTOR, STEPS, Program, rolling

Floats = NDArray[np.float64]
Paths = Callable[[View, int], Floats]
"""Returns the capacity expected in so many steps after the step of a view (steps,), or levels of it (levels, steps)."""

BUDGET_S = 0.2
"""Processor time; a plan that takes more is given up."""
LARGEST_PLAN = 1_000
"""Candidates of the largest plan within a budget: with more, HiGHS works for seconds before it can be stopped."""
GAP = 1.0
"""A solution this close to the bound, in core-steps, is taken: finer plans are no better with a forecast's errors."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What the rolling plan decides and expects.

    chosen: positions in `View.cur` that start now, ascending. known: numbers of the jobs that it looked at; start: the
    step in which it starts each of them, -1 where it does not within its horizon.
    """

    chosen: Ints
    known: Ints
    start: Ints


def check_available() -> None:
    """Raise BadInput, with the remedy, where HiGHS is missing."""
    if find_spec("highspy") is None:
        remedy = f"highspy is missing: {install_command('deferral')}, or use knapsack"
        raise BadInput("policy", "rolling", remedy)


def solve(made: Program, *, budget_s: float = math.inf, gap: float = GAP) -> tuple[Floats, float] | None:
    """Return values (columns,) of the program and the proven bound of its worth; None beyond the budget.

    budget_s: processor time of this thread. Raises BadInput where HiGHS is missing.
    """
    check_available()
    import highspy

    until = time.thread_time() + budget_s

    columns = made.worth.size
    if columns == 0:
        return np.empty(0), 0.0
    solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for name, value in (
        ("output_flag", False),
        ("random_seed", 0),
        ("threads", 1),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", gap),
    ):
        solver.setOptionValue(name, value)

    def stop_late(event: Any) -> None:
        if time.thread_time() > until:
            event.interrupt()

    if budget_s < math.inf:
        solver.cbMipInterrupt += stop_late
        solver.cbSimplexInterrupt += stop_late
    model: Any = highspy.HighsLp()
    model.num_col_, model.num_row_ = columns, made.limit.size
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_, model.col_lower_, model.col_upper_ = made.worth, np.zeros(columns), made.upper
    model.row_lower_, model.row_upper_ = np.full(made.limit.size, -np.inf), made.limit
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_ = made.begins.astype(np.int32), made.rows.astype(np.int32)
    model.a_matrix_.value_ = made.factors
    whole, part = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    model.integrality_ = [whole] * made.starts + [part] * (columns - made.starts)
    solver.passModel(model)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    bound = float(solver.getInfo().mip_dual_bound)
    return np.array(solver.getSolution().col_value), bound


@dataclass(frozen=True, slots=True)
class RollingPlan:
    """Plans each step over the jobs known then.

    paths: the capacity that it expects. steps: of its horizon, this one included. factor: of the worth of later starts.
    """

    paths: Paths
    steps: int = STEPS
    factor: float = FACTOR
    budget_s: float = BUDGET_S

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0.0 < self.factor <= 1.0 or not self.budget_s > 0.0:
            wrong = (self.steps, self.factor, self.budget_s)
            raise BadInput(
                "rolling", wrong, "give steps of at least 1, a factor above 0 to 1, a budget above 0 seconds"
            )

    def plan(self, view: View) -> Plan | None:
        """Return the plan of a step; None where the solver had no answer within the budget, or has too many jobs."""
        if self.budget_s < math.inf and view.cur.size > LARGEST_PLAN:
            return None
        until = time.thread_time() + self.budget_s
        path = self.paths(view, self.steps - 1)
        own = rolling(view, path, factor=self.factor)
        solved = solve(own.program, budget_s=until - time.thread_time())
        if solved is None:
            return None
        found = own.program.starts_of(solved[0])
        start = np.where(found >= 0, found + view.step, -1)
        now = own.known[: own.ready][start[: own.ready] == view.step]
        chosen = np.flatnonzero(np.isin(view.cur.job, now))
        if int(view.cur.cores[chosen].sum()) > max(0, view.free):
            # Beyond the tolerances of the solver: no plan is better than one that does not fit.
            return None
        return Plan(chosen, own.known, start)

    def __call__(self, view: View) -> Ints | None:
        """Return the positions in `view.cur` that start now; None as `plan`. Without room nothing is planned."""
        if view.free <= 0 or not (view.cur.cores <= view.free).any():
            return np.empty(0, dtype=np.int64)
        plan = self.plan(view)
        return None if plan is None else plan.chosen
