"""Does a changed policy lose money? Lived cost by hour against the replayed cost of the rule of day 0.

Day 0 is the configuration of the fleet: its rule decides where nothing was ever promoted. Each promotion is compared
with that rule and not with the policy before it, so that small losses cannot add up.

The replay errs. Its cost may differ from the record by `WITHIN` in all, and by `HOURS_WITHIN` in single hours, and
errors of neighbouring hours are correlated (`CORRELATION`). Hours in which the rule itself decided show the error of
the replay: their ratio of cost corrects the bias, and their differences give the noise.

Every span of hours that ends now is looked at. With the bias b, the tolerance m, the mean hourly cost c of the rule,
the excess of an hour x = lived - b (1 + m) rule, and the standard deviation s of the excess of a span, it is a loss
where

    sum of x > BUDGET * 168 * c    and    sum of x > DEVIATIONS * s

for one of the spans.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from domain.errors import BadInput
from trainer.learning.fidelity import WINDOWS_WITHIN, WITHIN

Floats = NDArray[np.float64]

BUDGET: Final = 0.01
"""Share of the cost of a week that may be lost."""
WEEK_HOURS: Final = 168
DEVIATIONS: Final = 4.5
"""Standard deviations by which the excess of a span must be above 0."""
CORRELATION: Final = 0.6
"""Of the errors of the replay in neighbouring hours."""
PRIOR_NOISE: Final = WINDOWS_WITHIN / math.sqrt(2.0 / math.pi)
"""Standard deviation of a normal error whose mean without its sign is the bound of the check of the simulator."""
PRIOR_HOURS: Final = 12.0
"""Weight of that noise against the noise that hours show."""
LIVED_NOISE: Final = 1.5
"""Most noise of the lived hours, as a multiple of that of the others."""
LEAST_TOLERANCE: Final = 0.02
"""Part of the cost by which a rule and its replay may differ, however many hours show the bias."""
MOST_OF_AN_HOUR: Final = 0.9
"""Share of the budget that one hour can take: an outage of an hour takes back no policy."""


class LossVerdict(StrEnum):
    """Whether the policy may continue."""

    CONTINUE = "continue"
    LOSS = "loss"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LossResult:
    """The verdict on the hours of a policy, and its figures.

    reason: a sentence. hours: compared. lost: dollars above the corrected cost of the rule in the last week, the
    tolerance not subtracted. budget: dollars. bias, tolerance, noise: see the module; noise is that of one hour, as a
    share. span_hours, excess, deviations: of the span with the surest excess over the budget, else of the surest span;
    excess is the share of the corrected cost of the rule.
    """

    verdict: LossVerdict
    reason: str
    hours: int = 0
    lost: float = 0.0
    budget: float = 0.0
    bias: float = 1.0
    tolerance: float = WITHIN
    noise: float = PRIOR_NOISE
    span_hours: int = 0
    excess: float = 0.0
    deviations: float = 0.0

    @property
    def is_loss(self) -> bool:
        """Whether the policy is to be taken back."""
        return self.verdict is LossVerdict.LOSS


def loss_watch(
    lived: ArrayLike,
    reference: ArrayLike,
    calibration: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    week_cost: float | None = None,
    within: float = WITHIN,
) -> LossResult:
    """Return whether the policy of the lived hours costs surely more than the reference, beyond the budget.

    lived, reference: shape (hours,), dollars per hour, oldest first: recorded, and replayed under the rule of day 0;
    hours without a replay are left out of both. calibration: the same two for hours in which that rule itself decided.
    week_cost: dollars of the last week; None takes the mean hour of the reference, calibration included. within: by how
    much the replay may differ from the record, which bounds the bias. Raises BadInput for lengths that differ and for
    figures that are not finite or below 0.
    """
    ours, theirs = _pair("lived", lived, reference)
    known = _pair("calibration", *(calibration or ((), ())))
    mean_cost = float(np.concatenate([theirs, known[1]]).mean()) if theirs.size + known[1].size else 0.0
    if week_cost is not None:
        mean_cost = week_cost / WEEK_HOURS
    if not theirs.size or mean_cost <= 0.0:
        why = "no hour of the policy is recorded and replayed" if not theirs.size else "the rule of day 0 costs nothing"
        return LossResult(LossVerdict.UNKNOWN, why, theirs.size)
    noise = _noise((ours, theirs), known, mean_cost)
    bias, tolerance = _bias(*known, noise, within)
    budget = BUDGET * WEEK_HOURS * mean_cost
    rule = bias * theirs
    excess = np.minimum(ours - (1.0 + tolerance) * rule, MOST_OF_AN_HOUR * budget)
    newest_first = np.cumsum(excess[::-1])
    deviations = newest_first / spread_of_sums(noise * np.maximum(theirs, mean_cost)[::-1])
    surest = int(np.argmax(np.where(newest_first > budget, deviations, deviations - 1e9)))
    hours, sure = surest + 1, float(deviations[surest])
    is_loss = newest_first[surest] > budget and sure > DEVIATIONS
    cost = float(rule[-hours:].sum())
    more = float(ours[-hours:].sum()) / cost - 1.0 if cost > 0.0 else math.inf
    lost = float((ours - rule)[-WEEK_HOURS:].sum())
    weeks = min(ours.size, WEEK_HOURS)
    reason = f"it cost {lost:+.2f} $ against the rule of day 0 in {weeks} h, the budget of a week is {budget:.2f} $"
    if is_loss:
        reason = f"in the last {hours} h it cost {more:+.1%} against the rule of day 0, surely a loss: {reason}"
    return LossResult(
        LossVerdict.LOSS if is_loss else LossVerdict.CONTINUE,
        reason,
        ours.size,
        lost,
        budget,
        bias,
        tolerance,
        noise,
        hours,
        more,
        sure,
    )


def _pair(name: str, ours: ArrayLike, theirs: ArrayLike) -> tuple[Floats, Floats]:
    found = tuple(np.atleast_1d(np.asarray(values, dtype=np.float64)) for values in (ours, theirs))
    if found[0].ndim != 1 or found[0].shape != found[1].shape:
        raise BadInput(name, tuple(one.shape for one in found), "give dollars of the same hours, in one dimension")
    if not all(np.isfinite(one).all() and (one >= 0.0).all() for one in found):
        raise BadInput(name, "not finite or below 0", "give dollars per hour, leave hours without a cost out")
    return found[0], found[1]


def _noise(lived: tuple[Floats, Floats], known: tuple[Floats, Floats], mean_cost: float) -> float:
    """Return the standard deviation of the error of one hour, as a share of max(rule, mean hour).

    The hours of each part differ from a multiple of the rule: the lived ones may cost twice as much, and so may their
    errors, but those of a policy without a loss do not. A policy with erratic losses must not hide them as noise:
    the lived hours add LIVED_NOISE times the noise of the other hours at most.
    """
    total, count, most = PRIOR_HOURS * PRIOR_NOISE**2, PRIOR_HOURS, math.inf
    for ours, theirs in (known, lived):
        if theirs.size > 1 and theirs.sum() > 0.0:
            factor = ours.sum() / theirs.sum()
            shares = (ours - factor * theirs) / (max(factor, 1.0) * np.maximum(theirs, mean_cost))
            total += min(float((shares**2).sum()), most * theirs.size)
            count += theirs.size - 1
        most = LIVED_NOISE**2 * total / count
    return math.sqrt(total / count)


def _bias(ours: Floats, theirs: Floats, noise: float, within: float) -> tuple[float, float]:
    """Return recorded over replayed cost of the rule's own hours, as far as the check allows, and its tolerance."""
    cost = float(theirs.sum())
    if cost <= 0.0:
        return 1.0, WITHIN
    bias = min(max(float(ours.sum()) / cost, 1.0 - within), 1.0 + within)
    error = noise * float(spread_of_sums(np.ones(theirs.size))[-1]) / theirs.size
    return bias, min(max(2.0 * error, LEAST_TOLERANCE), WITHIN)


def spread_of_sums(each: Floats) -> Floats:
    """Return the standard deviation of the sums of the first 1, 2, ... errors; each: their standard deviations.

    Errors k hours apart have the correlation CORRELATION ** k: with v the variance of a sum and t the covariance of the
    sum with the next error per unit of that error,  v' = v + e (e + 2 t),  t' = CORRELATION (t + e).
    """
    variance, shared, found = 0.0, 0.0, np.empty(each.size)
    for place, one in enumerate(each.tolist()):
        shared *= CORRELATION
        variance += one * (one + 2.0 * shared)
        shared += one
        found[place] = math.sqrt(variance)
    return found
