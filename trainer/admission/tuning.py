"""The most permissive threshold that keeps a promise, by bisection over runs that all candidates share (§6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from domain.errors import BadInput
from simulator.admission import cluster_of
from trainer.admission.fronts import CellResult, Metric, result_of
from trainer.admission.table import PIECE, Cell, Runs, tuning_seeds

RUNS, FINAL_RUNS = 40, 500
ONE_SIDED_90 = 0.8
"""The upper end of a two-sided 80 % interval is that of a one-sided 90 % one."""
LAST_HALVINGS = 3
TEMPLATES = {"zeroth": "zeroth:{}", "first": "first:{}", "second": "second:{}"}
TAILS = ("gamma", "sgamma", "budget")

Play = Callable[[Cell, Sequence[int]], Runs]
"""Returns the runs of a cell on exactly these seeds."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The thresholds that are tried, from strict to permissive: place 0 to `last`."""

    template: str
    """Text of the policy with {} for the threshold."""
    start: float
    step: float
    last: int
    logarithmic: bool = False

    def text(self, place: int) -> str:
        """Return the policy at a place."""
        value = self.start + self.step * place
        return self.template.format(f"{10.0**value:.3g}" if self.logarithmic else f"{round(value, 4):g}")


def scale_of(policy: str, preset: str, bracket: tuple[float, float] | None = None) -> Scale:
    """Return the thresholds of zeroth, first, second, or a text with {} such as second:{},marginal=1 (§6).

    Cores: 0.3 c to c by 0.25 % of c. kappa: 40 down to 0 by 0.02. Risks of tails and budgets: 1e-8 to 0.5 by a
    twentieth of a decade. bracket: other ends. Raises BadInput.
    """
    template = TEMPLATES.get(policy, policy)
    if template.count("{}") != 1:
        raise BadInput(
            "policy", policy, "give zeroth, first, second, or a text with one {}, such as second:{},grid=log"
        )
    kind = template.partition(":")[0]
    if bracket is not None and not bracket[0] < bracket[1]:
        raise BadInput("bracket", bracket, "give the lower end first, such as 1,4")
    if kind in TAILS:
        low, high = bracket or (1e-8, 0.5)
        if not 0.0 < low < high < 1.0:
            raise BadInput("bracket", bracket, "give two risks between 0 and 1")
        return Scale(template, math.log10(low), 0.05, _steps(math.log10(high) - math.log10(low), 0.05), True)
    capacity = cluster_of(preset).capacity
    if kind == "second" and "limit={}" not in template and "threshold={}" not in template:
        low, high = bracket or (0.0, 40.0)
        return Scale(template, high, -0.02, _steps(high - low, 0.02))
    low, high = bracket or (round(0.3 * capacity), capacity)
    step = 0.0025 * capacity
    return Scale(template, low, step, _steps(high - low, step))


def _steps(length: float, step: float) -> int:
    return max(1, round(length / step))


@dataclass(frozen=True, slots=True)
class Choice:
    """The threshold that one way of keeping the promise leads to; None where not even the strictest keeps it."""

    wanted: str
    """`safe`: the upper end of the one-sided 90 % interval keeps it. `average`: the mean does."""
    policy: str | None
    result: CellResult | None
    """Figures on the final seeds."""
    upper: float
    """Upper end of the one-sided 90 % interval there, nan without a threshold."""
    tried: tuple[tuple[str, int, bool], ...]
    """(policy, runs, kept) in the order tried."""


def tune(
    cell: Cell,
    scale: Scale,
    sla: float,
    play: Play,
    *,
    wanted: str = "safe",
    metric: Metric = Metric.PRIMARY,
    runs: int = RUNS,
    final_runs: int = FINAL_RUNS,
) -> Choice:
    """Find the most permissive threshold whose failures stay within `sla` (admission specification §6).

    cell: preset and observations; its policy is replaced. Begins with `runs` seeds, doubles them before the last three
    halvings after a second look at both ends, and ends with `final_runs`, on which the threshold is made stricter step
    by step until it keeps the promise there too. Raises BadInput for a level outside (0, 1).
    """
    if not 0.0 < sla < 1.0:
        raise BadInput("sla", sla, "give a share between 0 and 1, such as 1e-3")
    tried: list[tuple[str, int, bool]] = []

    def keeps(place: int, count: int) -> bool:
        policy = scale.text(place)
        found = result_of(cell_at(policy), play(cell_at(policy), tuning_seeds(count)), level=ONE_SIDED_90)
        estimate = found.primary if metric is Metric.PRIMARY else found.pooled
        kept = (estimate.high if wanted == "safe" else estimate.value) <= sla
        tried.append((policy, count, kept))
        return kept

    def cell_at(policy: str) -> Cell:
        return replace(cell, policy=policy)

    place, count = bisect(keeps, scale.last, runs)
    if place is not None:
        while not keeps(place, max(count, final_runs)):
            place -= 1
            if place < 0:
                place = None
                break
    if place is None:
        return Choice(wanted, None, None, math.nan, tuple(tried))
    chosen = cell_at(scale.text(place))
    last = play(chosen, tuning_seeds(max(count, final_runs)))
    one_sided = result_of(chosen, last, level=ONE_SIDED_90)
    upper = (one_sided.primary if metric is Metric.PRIMARY else one_sided.pooled).high
    return Choice(wanted, chosen.policy, result_of(chosen, last), upper, tuple(tried))


def pieces_expected(scale: Scale, runs: int, final_runs: int) -> int:
    """Return about how many pieces of runs a search plays, where no end changes its mind and the first choice holds."""
    halvings = math.ceil(math.log2(max(2, scale.last)))
    first = max(0, halvings - LAST_HALVINGS)
    played = (2 + first) * runs + (2 + halvings - first) * 2 * runs + final_runs
    return math.ceil(played / PIECE)


def bisect(keeps: Callable[[int, int], bool], last: int, runs: int) -> tuple[int | None, int]:
    """Return the highest place in 0..last that keeps the promise, None for none, and the runs of the last look.

    keeps(place, runs). Both ends are looked at again with doubled runs before the last three halvings; an end that
    changes its mind moves outward by the width of the bracket.
    """
    if not keeps(0, runs):
        return None, runs
    if keeps(last, runs):
        return last, runs
    low, high, doubled = 0, last, False
    while high - low > 1:
        if not doubled and high - low <= 2**LAST_HALVINGS:
            doubled, runs, width = True, 2 * runs, high - low
            while not keeps(low, runs):
                if low == 0:
                    return None, runs
                high, low = low, max(0, low - width)
            while keeps(high, runs):
                if high == last:
                    return last, runs
                low, high = high, min(last, high + width)
            continue
        middle = (low + high) // 2
        if keeps(middle, runs):
            low = middle
        else:
            high = middle
    return low, runs
