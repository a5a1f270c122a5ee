"""How often the watch over losses takes back a policy that costs nothing more, and how soon one that does.

Simulated years of hours: the cost of the rule of day 0 has a daily course and noise; the replay errs by a bias and by
a normal error of each hour, correlated with that of the hour before. A null policy costs as much as the rule. A policy
that was taken back rests for a week.

    stated           the largest errors that the check of the simulator allows: bias +5 %, 15 % apart; no hour of the
                     rule is recorded
    bias known       bias drawn within 5 %, 15 % apart, a week of the rule recorded
    bias of a day    the same with one day recorded
    usual            bias within 5 %, hours 6 % apart, heavy tails, a day recorded
    quiet            jobs come by a Poisson process of 5 an hour, hours 40 % apart, a day recorded
    bias by week     a new bias within 5 % each week, unlike that of the recorded week, 15 % apart
    heavy            the stated errors with heavy tails (Student, 5 degrees of freedom)

Rule for choosing `DEVIATIONS`: the smallest of 3.5, 4, 4.5, 5, 5.5 with at most one false alarm a year in each of the
first five cases; the last two are stated. Delays are hours, over policies that cost a factor more from the first on.
Recorded fleets (four days of the NASA log in live-like, three of HPC2N in a fleet of five types, true worlds) have
hours 6 to 7 % apart, a correlation of 0.35 and 0.8, and a kurtosis of 6.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import Target, arguments, progress, report
from trainer.learning.loss_watch import WEEK_HOURS, loss_watch

Floats = NDArray[np.float64]
YEAR_HOURS: Final = 52 * WEEK_HOURS
SEEN_HOURS: Final = 4 * WEEK_HOURS
"""The ledger keeps the minutes of four weeks."""
CORRELATION, FREEDOM = 0.6, 5
FACTORS = (2.0, 1.3, 1.1)


@dataclass(frozen=True, slots=True)
class Errors:
    """How the replay errs. bias: the least and the greatest. apart: mean of the hours' errors without their sign.

    known: hours of the rule itself in the record. jobs: an hour; None for a cost with a daily course. each_week:
    whether the bias is drawn each week. heavy: whether errors have heavy tails.
    """

    bias: tuple[float, float]
    apart: float
    known: int
    jobs: float | None = None
    each_week: bool = False
    heavy: bool = False


WITHIN = (-0.05, 0.05)
CASES = {
    "stated": Errors((0.05, 0.05), 0.15, 0),
    "bias_known": Errors(WITHIN, 0.15, WEEK_HOURS),
    "bias_of_a_day": Errors(WITHIN, 0.15, 24),
    "usual": Errors(WITHIN, 0.06, 24, heavy=True),
    "quiet": Errors(WITHIN, 0.40, 24, jobs=5.0),
    "bias_by_week": Errors(WITHIN, 0.15, WEEK_HOURS, each_week=True),
    "heavy": Errors((0.05, 0.05), 0.15, 0, heavy=True),
}
BOUNDED = tuple(CASES)[:5]


def hours_of(errors: Errors, hours: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return dollars of the rule by hour, as recorded and as replayed."""
    clock = np.arange(hours)
    if errors.jobs is None:
        replayed = (1.0 + 0.5 * np.sin(2.0 * np.pi * clock / 24.0)) * rng.lognormal(-0.02, 0.2, hours)
    else:
        replayed = rng.poisson(errors.jobs, hours) / errors.jobs
    bias = np.repeat(rng.uniform(*errors.bias, hours // WEEK_HOURS + 2), WEEK_HOURS)
    # The hours that calibrate are the first ones, with a bias of their own where each week has one.
    bias = np.full(hours, bias[0]) if not errors.each_week else bias[:hours]
    fresh = rng.standard_t(FREEDOM, hours) if errors.heavy else rng.standard_normal(hours)
    error = np.empty(hours)
    error[0] = fresh[0]
    for place in range(1, hours):
        error[place] = CORRELATION * error[place - 1] + math.sqrt(1.0 - CORRELATION**2) * fresh[place]
    error *= errors.apart / float(np.abs(error).mean())
    return np.maximum(replayed * (1.0 + bias) + np.maximum(replayed, 1.0) * error, 0.0), replayed


def alarms(errors: Errors, years: int, seed: int) -> float:
    """Return false alarms a year."""
    found = 0
    for year in range(years):
        lived, replayed = hours_of(errors, errors.known + YEAR_HOURS, np.random.default_rng((seed, year)))
        known = (lived[: errors.known], replayed[: errors.known])
        begin = errors.known
        for now in range(errors.known + 1, lived.size + 1):
            if now <= begin:
                continue
            seen = slice(max(begin, now - SEEN_HOURS), now)
            if loss_watch(lived[seen], replayed[seen], known).is_loss:
                found += 1
                begin = now + WEEK_HOURS
    return found / years


def delay_h(errors: Errors, factor: float, draws: int, seed: int) -> tuple[float, float]:
    """Return the median and the 90 % quantile of the hours until a dearer policy is found, inf beyond four weeks."""
    found = []
    for draw in range(draws):
        rng = np.random.default_rng((seed, draw))
        lived, replayed = hours_of(replace(errors, each_week=False), errors.known + SEEN_HOURS, rng)
        known = (lived[: errors.known], replayed[: errors.known])
        ours, theirs = lived[errors.known :] * factor, replayed[errors.known :]
        late = (n for n in range(1, SEEN_HOURS + 1) if loss_watch(ours[:n], theirs[:n], known).is_loss)
        found.append(float(next(late, math.inf)))
    return float(np.median(found)), float(np.quantile(found, 0.9, method="higher"))


def main() -> int:
    """Simulate, print, and return the exit status."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--years", type=int, default=30, help="of each null policy (default 30)")
    parser.add_argument("--draws", type=int, default=40, help="dearer policies of each factor (default 40)")
    given = parser.parse_args()
    figures: dict[str, float] = {}
    for seed, (name, errors) in enumerate(CASES.items()):
        figures[f"alarms_{name}"] = alarms(errors, given.years, seed)
        for factor in FACTORS:
            delays = delay_h(errors, factor, given.draws, 100 + seed)
            for part, value in zip(("median", "90"), delays, strict=True):
                figures[f"delay_{name}_{factor:g}_{part}"] = value if math.isfinite(value) else float(SEEN_HOURS)
        progress(f"{name}: {figures[f'alarms_{name}']:.2f} false alarms a year")
    targets = [Target(f"alarms_{name}", 1.0) for name in BOUNDED]
    targets += [Target("delay_stated_2_median", 3.0), Target("delay_quiet_2_median", 24.0)]
    notes = {"delays": f"hours; {SEEN_HOURS} where it is not found in four weeks", "years": given.years}
    return report("loss_watch", figures, as_json=given.json, packages=("numpy",), targets=targets, notes=notes)


if __name__ == "__main__":
    sys.exit(main())
