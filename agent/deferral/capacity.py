"""The cores that a pool may use: read, held for a while where they cannot be, less a margin, and forecast.

Fleets and oversold pools are measured with the jobs on them that this pool started, so that these are added again, up
to all the cores there are: a job that has not begun yet, or uses less than it holds, is measured as free.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from agent.deferral.pool import REPORT_AHEAD_S, reserved_cores
from agent.deferral.records import MOST_CORES, StepRow, margin_cores
from agent.deferral.settings import FLEET, HTTP, DeferralSettings
from agent.deferral.state import PoolState
from agent.deferral.views import HISTORY_DAYS, hour_of_week
from agent.kernel.decision import CapacityOf
from domain.errors import BadInput, Fenced, LedgerError
from domain.rules.deferral import forecast
from domain.units import DAY_S, HOUR_S

log = structlog.get_logger(__name__)

Floats = NDArray[np.float64]

HELD_STEPS: Final = 2
"""A capacity that is not measured any more is held for so many steps."""
LOW, HIGH = 0.1, 0.9
"""Quantiles that each step forecasts of the next, and that coverage is counted of."""
NOMINAL: Final = 0.9
"""Share of the steps that lie above the low quantile, and below the high one."""
COVERAGE_DAYS: Final = 7
COVERAGE_LEAST: Final = 48
"""Steps with a forecast from which on coverage is stated."""
TOLERANCE: Final = 0.05
SPREAD_SHARE: Final = 0.1
"""Of the capacity: its spread while too few steps are known to measure one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Cores that other work leaves over, None where that is not known; problem: why."""

    cores: float | None
    source: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ExpectedCores:
    """What is forecast of a step: cores, and their quantiles 0.1 and 0.9, None before there is a forecast."""

    step: int
    cores: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class EffectiveCapacity:
    """The cores that a step goes by, None where it must start nothing; measured: in this step, else held."""

    cores: int | None
    measured: bool
    detail: str


def read_capacity(
    settings: DeferralSettings, state: PoolState, capacity_of: CapacityOf, now: float, step: int
) -> Reading:
    """Return what the pool's source says now."""
    source = settings.capacity
    if source == HTTP:
        report = state.head.report
        if report is None:
            return Reading(None, source, "no number of cores was posted yet")
        age_s = now - report.at
        if age_s < -REPORT_AHEAD_S:
            return Reading(None, source, f"the last number of cores was posted {-age_s:.0f} s ahead of this clock")
        if age_s >= settings.step_s:
            return Reading(None, source, f"the last number of cores was posted {age_s:.0f} s ago")
        return Reading(report.cores, source)
    kind, _, named = source.partition(":")
    decision = "autoscaling" if kind == FLEET else "oversubscription"
    spare = total = 0.0
    for name in named.split(","):
        why = ""
        try:
            found = capacity_of(decision, name)
        except (LedgerError, Fenced):
            raise
        except Exception as error:
            # Time goes on for the pool's jobs, whatever is wrong with the other part.
            log.exception("capacity_failed", decision=decision, subject=name)
            found, why = None, f": {type(error).__name__}: {error}"
        if found is None or found.spare is None:
            return Reading(None, source, f"the spare cores of {kind} {name} are not known{why}")
        if not 0.0 <= found.spare < math.inf:
            return Reading(None, source, f"{kind} {name} gives {found.spare} spare cores")
        spare += found.spare
        total += math.inf if found.total is None else found.total
    # What was started by advice alone takes nothing there.
    return Reading(min(spare + reserved_cores(state, step, advised=False), total), source)


def believed(reading: Reading, state: PoolState, step: int, spread: float) -> EffectiveCapacity:
    """Return the cores that a step goes by: those measured, else the last ones less a spread for each step since."""
    cores = reading.cores
    if cores is not None and math.isfinite(cores) and 0.0 <= cores <= MOST_CORES:
        return EffectiveCapacity(math.floor(cores), True, f"{math.floor(cores)} cores, {reading.source}")
    why = reading.problem or f"{reading.source} gives {cores}"
    head = state.head
    if head.capacity is None or head.capacity_step is None:
        return EffectiveCapacity(None, False, why)
    since = step - head.capacity_step
    if since > HELD_STEPS:
        return EffectiveCapacity(None, False, f"{why}; the last number is {since} steps old")
    held = max(0, math.floor(head.capacity - max(1, since) * spread))
    return EffectiveCapacity(held, False, f"{why}; {held} of {head.capacity} cores are counted on")


def margin_in_force(settings: DeferralSettings, rows: Sequence[StepRow], step: int, capacity: int) -> tuple[int, float]:
    """Return the cores that are kept free, and the share of the violation budget that is used.

    The margin of the settings, and of the largest violation of the last 24 hours the share of the budget that is used.
    """
    amount, largest = recent_violation(settings, rows, step)
    share = budget_used(settings, amount)
    return margin_cores(settings, capacity) + math.ceil(largest * min(1.0, share)), share


def recent_violation(settings: DeferralSettings, rows: Sequence[StepRow], step: int) -> tuple[int, int]:
    """Return core-steps beyond the capacity in the 24 hours before a step, and the most of one step."""
    since = step - round(DAY_S / settings.step_s)
    found = [row.violation for row in rows if since <= row.step < step]
    return sum(found), max(found, default=0)


def budget_used(settings: DeferralSettings, amount: int) -> float:
    """Return the share of the violation budget that core-steps use; a budget of 0 is used up by the first."""
    if settings.violation_budget > 0.0:
        return amount / settings.violation_budget
    return 1.0 if amount else 0.0


def coverage(rows: Sequence[StepRow], step: int, step_s: int) -> dict[str, float]:
    """Return the share of the last 7 days' steps above the low quantile and below the high one; {} where too few."""
    since = step - round(COVERAGE_DAYS * DAY_S / step_s)
    known = [
        (row.capacity, row.low, row.high)
        for row in rows
        if row.step >= since and row.capacity is not None and row.low is not None and row.high is not None
    ]
    if len(known) < COVERAGE_LEAST:
        return {}
    return {
        "0.1": sum(cores >= low for cores, low, _ in known) / len(known),
        "0.9": sum(cores <= high for cores, _, high in known) / len(known),
    }


class Outlook:
    """What is forecast of a pool's capacity: by the calendar once two days of hours are known, before as it is now.

    The forecast is fitted again each day.
    """

    def __init__(self, step_s: int) -> None:
        self._step_s = step_s
        self._fitted: forecast.Forecast | None = None
        self._fitted_in: int | None = None
        self._changes = 0.0
        self._known: Floats = np.empty(0)
        self._step = 0

    def follow(self, rows: Sequence[StepRow], step: int, capacity: int | None = None) -> None:
        """Take in the steps before `step`, and its own capacity where it is known."""
        table = [(row.step, math.nan if row.capacity is None else float(row.capacity)) for row in rows]
        if capacity is not None:
            table.append((step, float(capacity)))
        # What is older than the history has no place in it: a clock that leaps by years would make a table of years.
        oldest = step - round(HISTORY_DAYS * DAY_S / self._step_s)
        first = max(oldest, table[0][0]) if table else step
        known = np.full(max(0, step - first) + (capacity is not None), np.nan)
        for at, cores in table:
            if 0 <= at - first < known.size:
                known[at - first] = cores
        self._known, self._step = known, first + known.size - 1
        changes = np.diff(known[np.isfinite(known)])
        self._changes = float(changes.std()) if changes.size > 1 else 0.0
        day = step // max(1, round(DAY_S / self._step_s))
        if self._step_s == HOUR_S and (self._fitted is None or day != self._fitted_in):
            self._fitted, self._fitted_in = self._fit(first), day

    def _fit(self, first: int) -> forecast.Forecast | None:
        history = forecast.History(hour_of_week(first, self._step_s), self._known)
        try:
            return forecast.fit([history], calibration_h=forecast.CALIBRATION_H)
        except BadInput:
            return None
        except (ArithmeticError, ValueError, IndexError) as error:
            log.warning("forecast_not_fitted", detail=f"{type(error).__name__}: {error}")
            return None

    @property
    def forecast(self) -> forecast.Forecast | None:
        """The forecast by the calendar, None before it can be fitted."""
        return self._fitted

    @property
    def spread(self) -> float:
        """One spread of the next step, in cores."""
        if self._fitted is not None:
            return max(self._fitted.sigma, 0.0)
        last = self._last()
        return self._changes or SPREAD_SHARE * last

    def _last(self) -> float:
        there = self._known[np.isfinite(self._known)]
        return float(there[-1]) if there.size else 0.0

    def path(self, steps: int, margin: float = 0.0) -> Floats:
        """Return one course of the capacity, (steps,): the mean less `margin` spreads."""
        if self._fitted is not None:
            return self._fitted.path(self._known, hour_of_week(self._step, self._step_s), steps, margin=margin)
        return np.full(steps, max(0.0, self._last() - margin * self.spread))

    def expected(self, steps: int) -> list[ExpectedCores]:
        """Return what to expect of the steps after the newest known one."""
        mean = self.path(steps).round(6).tolist()
        numbered = range(self._step + 1, self._step + 1 + steps)
        if self._fitted is None or not self._known.size:
            return [ExpectedCores(step, cores) for step, cores in zip(numbered, mean, strict=True)]
        at = hour_of_week(self._step, self._step_s)
        low, high = self._fitted.quantiles(self._known, at, steps, [LOW, HIGH]).round(6).tolist()
        return [ExpectedCores(*one) for one in zip(numbered, mean, low, high, strict=True)]
