"""False promotions a year: simulated years of challengers that are no better, judged each night at the gate of fleets.

A year has a window a day. Each night a round holds 28 days; it is split as a fleet's round splits it (`parts_of`): it
learns on the first windows, chooses the cheaper of CANDIDATES challengers on the next, and judges that one on the last
(`judge`, with the short suite as a veto), where it was cheaper than the champion on those that choose, and where the
account of alpha allows a test (`trainer.promotion.alpha`). A challenger's cost of a window is the champion's, times one
plus an effect of the window, plus one of the boot seed. Effects have the mean 0 for a challenger that is no better.

normal          effects of windows are independent, with a standard deviation of 5 to 10 % by year; of boots 2 to 3 %
heavy           Student's t of 3 degrees of freedom in place of the normal distribution
autocorrelated  neighbouring windows are correlated by 0.2, the greatest value that four policies and settings show
                against the default rule on 105 days of NASA and HPC2N at two loads (-0.20 to 0.19)

Challengers of successive nights are nearly the same model: SHARED of the variance of an effect lasts over the year.
A window costs exp(0.5 z) with a normal z: days of HPC2N vary by 0.6 to 0.7 of their mean, those of NASA by 0.3.

false_promotions_per_year: of the draw with most of them, with its 95 % interval over years. The old rule, in the same
nights: the challenger is chosen and judged on the same windows, each boot seed is a case, families of the suite count
as half, 95 % of bootstrap resamples pass, and each night is a test.

nights_to_promote_5, _10: mean nights until a challenger that is 5 or 10 % cheaper is promoted (normal draw; a year
where it never is), and the shares promoted in the first night and in 60 nights.

How the test was chosen (rule written before the runs): of the tests below, on null challengers with 4, 6, 8 and 12
windows and all draws but the autocorrelated one, the smallest excess of the error over the nominal level of 5 and 1 %;
then power against 5 %. `--tests` prints them; `trainer.kit.intervals.compare` is the paired t.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from benchmarks.report import Target, arguments, progress, report
from domain.units import DAY_S
from trainer.kit.intervals import Interval, compare, mean_interval
from trainer.learning.windows import parts_of
from trainer.promotion.alpha import Spent, left, next_s
from trainer.promotion.gate import Limits, Trial, judge

Floats = NDArray[np.float64]
DRAWS = ("normal", "heavy", "autocorrelated")
NIGHTS, RECORD, BOOTS, CANDIDATES, SHARED = 365, 28, 3, 2, 0.8
CORRELATED = 0.2
SUITE_CASES, SUITE_SD = 3, 0.05
RESAMPLES = 4_000
SHORTEST, LONGEST = 0.05, 0.10
"""Standard deviations of the effect of a window."""


def effects(draw: str, shape: Sequence[int], rng: np.random.Generator) -> Floats:
    """Return standardised effects; windows are along the last axis."""
    if draw == "heavy":
        return np.asarray(rng.standard_t(3, shape) / np.sqrt(3.0))
    found = rng.standard_normal(shape)
    if draw == "autocorrelated":
        for k in range(1, shape[-1]):
            found[..., k] = CORRELATED * found[..., k - 1] + np.sqrt(1.0 - CORRELATED**2) * found[..., k]
    return found


@dataclass(frozen=True, slots=True)
class Year:
    """Costs of the champion by window, and how challengers differ.

    gain: the mean by which they are cheaper. lasting: effects that last, by candidate and window.
    """

    draw: str
    gain: float
    sd: float
    boot_sd: float
    champion: Floats
    lasting: Floats

    @classmethod
    def drawn(cls, draw: str, gain: float, rng: np.random.Generator) -> Year:
        """Draw a year."""
        days = NIGHTS + RECORD
        champion = np.exp(0.5 * rng.standard_normal(days))
        lasting = effects(draw, (CANDIDATES, days), rng)
        return cls(draw, gain, rng.uniform(SHORTEST, LONGEST), rng.uniform(0.02, 0.03), champion, lasting)

    def night(self, night: int, rng: np.random.Generator) -> Floats:
        """Return the costs of the candidates of a night, by candidate, window and boot seed."""
        here = slice(night, night + RECORD)
        own = effects(self.draw, (CANDIDATES, RECORD), rng)
        effect = self.sd * (np.sqrt(SHARED) * self.lasting[:, here] + np.sqrt(1.0 - SHARED) * own)
        boots = self.boot_sd * rng.standard_normal((CANDIDATES, RECORD, BOOTS))
        factor = np.maximum(1.0 - self.gain + effect[..., None] + boots, 0.05)
        return np.asarray(self.champion[here][None, :, None] * factor)


@dataclass(frozen=True, slots=True)
class Lived:
    """Nights with a promotion in a year, and tests made."""

    promoted: tuple[int, ...]
    tests: int


def lived(year: Year, rng: np.random.Generator, *, until_first: bool = False) -> Lived:
    """Play the nights of a year at the gate as it is. until_first: end with the first promotion."""
    learn, choose, last = parts_of(RECORD)
    choosing, judging = slice(learn, learn + choose), slice(RECORD - last, RECORD)
    account: dict[str, Spent] = {}
    promoted: list[int] = []
    for night in range(NIGHTS):
        if next_s(account, night * DAY_S) > night * DAY_S:
            continue
        costs, champion = year.night(night, rng), year.champion[night : night + RECORD]
        chosen = costs[:, choosing].mean(axis=2).sum(axis=1)
        best = int(chosen.argmin())
        if chosen[best] >= champion[choosing].sum():
            continue
        alpha = left(account, night * DAY_S)
        account[str(night)] = Spent(night * DAY_S, alpha)
        if judge(trials_of(costs[best][judging], champion[judging], rng), Limits(1.0 - alpha), vetoes={"T3"}).passed:
            promoted.append(night)
            if until_first:
                break
    return Lived(tuple(promoted), len(account))


def trials_of(costs: Floats, champion: Floats, rng: np.random.Generator) -> list[Trial]:
    """Return the runs of the windows that judge and of the short suite."""
    rows = zip(costs.tolist(), champion.tolist(), strict=True)
    own = [Trial("", "recent", f"{k}", 0, theirs, ours) for k, (row, theirs) in enumerate(rows) for ours in row]
    suite = 1.0 + SUITE_SD * rng.standard_normal(SUITE_CASES)
    return own + [Trial("", "T3", f"T3 {k}", 0, 1.0, ours) for k, ours in enumerate(suite.tolist())]


@cache
def _shares(cases: int) -> Floats:
    """Return how large a share of each resample every case makes up."""
    return np.random.default_rng(cases).multinomial(cases, np.full(cases, 1.0 / cases), size=RESAMPLES) / cases


def resampled_lower(costs: Floats, champion: Floats) -> Floats:
    """Return the relative cost of each bootstrap resample of cases."""
    shares = _shares(costs.size)
    return np.asarray((shares @ costs) / (shares @ champion) - 1.0)


def lived_before(year: Year, rng: np.random.Generator) -> int:
    """Return the promotions of a year by the old rule."""
    judging, found = slice(RECORD - parts_of(RECORD)[2], RECORD), 0
    for night in range(NIGHTS):
        costs, champion = year.night(night, rng)[:, judging], year.champion[night : night + RECORD][judging]
        best = int(costs.mean(axis=2).sum(axis=1).argmin())
        if costs[best].mean(axis=1).sum() >= champion.sum():
            continue
        own = resampled_lower(costs[best].ravel(), np.repeat(champion, BOOTS))
        suite = resampled_lower(1.0 + SUITE_SD * rng.standard_normal(SUITE_CASES), np.ones(SUITE_CASES))
        found += bool((own + rng.permutation(suite) < 0.0).mean() >= 0.95)
    return found


def per_year(counts: Sequence[float]) -> Interval:
    """Return the mean number a year with its interval."""
    return mean_interval(counts, resamples=2_000)


def by_draw(years: int, seed: int) -> dict[str, Interval]:
    """Return false promotions a year by draw."""
    found = {}
    for place, draw in enumerate(DRAWS):
        rng = np.random.default_rng([seed, place])
        found[draw] = per_year([float(len(lived(Year.drawn(draw, 0.0, rng), rng).promoted)) for _ in range(years)])
        progress(f"{draw}: {found[draw].mean:.2f} false promotions a year")
    return found


def false_promotions_per_year(years: int, seed: int) -> Interval:
    """Return the false promotions a year of the draw that has most of them."""
    return max(by_draw(years, seed).values(), key=lambda one: one.mean)


def nights_until(gain: float, years: int, seed: int) -> Floats:
    """Return the nights until a challenger that is so much cheaper is promoted, NIGHTS where none is in a year."""
    rng = np.random.default_rng([seed, round(1000 * gain)])
    found = (lived(Year.drawn("normal", gain, rng), rng, until_first=True).promoted for _ in range(years))
    return np.array([one[0] if one else NIGHTS for one in found])


# The tests that were compared: each returns the confidence that a challenger is cheaper, by window and boot seed.


def flipped(costs: Floats, champion: Floats) -> float:
    """Return it by all flips of the signs of the windows' differences."""
    differences = costs.mean(axis=1) - champion
    signs = 2.0 * ((np.arange(2**champion.size)[:, None] >> np.arange(champion.size)) & 1) - 1.0
    return float((signs @ differences > differences.sum() + 1e-12).mean())


def jackknifed(costs: Floats, champion: Floats) -> float:
    """Return it by t on the jackknife of the ratio of sums."""
    x, y = costs.mean(axis=1), champion
    without = (x.sum() - x) / (y.sum() - y)
    error = np.sqrt((x.size - 1) / x.size * ((without - without.mean()) ** 2).sum())
    return float(stdtr(x.size - 1, (1.0 - x.sum() / y.sum()) / error))


TESTS: Mapping[str, Callable[[Floats, Floats], float]] = {
    "bootstrap by boot seed": lambda c, b: float((resampled_lower(c.ravel(), np.repeat(b, BOOTS)) < 0.0).mean()),
    "bootstrap by window": lambda c, b: float((resampled_lower(c.mean(axis=1), b) < 0.0).mean()),
    "sign flips": flipped,
    "jackknife t": jackknifed,
    "paired t": lambda c, b: compare(c.mean(axis=1), b).probability_lower,
}


def tests_compared(draws: int, seed: int) -> dict[str, dict[str, float]]:
    """Return by test the greatest error at nominal 5 and 1 %, and the power against 5 %, means over windows."""
    errors: dict[str, list[list[float]]] = {name: [] for name in TESTS}
    powers: dict[str, list[float]] = {name: [] for name in TESTS}
    for windows in (4, 6, 8, 12):
        for place, draw in enumerate(("normal", "heavy")):
            rng = np.random.default_rng([seed, windows, place])
            found: dict[float, dict[str, list[float]]] = {g: {name: [] for name in TESTS} for g in (0.0, 0.05)}
            for gain, own in found.items():
                for _ in range(draws):
                    year = Year.drawn(draw, gain, rng)
                    costs, champion = year.night(0, rng)[0, :windows], year.champion[:windows]
                    for name, test in TESTS.items():
                        own[name].append(test(costs, champion))
            for name in TESTS:
                null, better = np.array(found[0.0][name]), np.array(found[0.05][name])
                errors[name].append([float((null >= level).mean()) for level in (0.95, 0.99)])
                powers[name].append(float((better >= 0.95).mean()))
    return {
        name: {
            "error at 5 %, worst": max(row[0] for row in errors[name]),
            "error at 1 %, worst": max(row[1] for row in errors[name]),
            "power at 5 %, mean": float(np.mean(powers[name])),
        }
        for name in TESTS
    }


def main(given: Sequence[str] | None = None) -> int:
    """Play and print; exit status 1 when a target is missed."""
    parser = arguments(__doc__ or "", runs=1)
    parser.add_argument("--years", type=int, default=200, help="years of each draw (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default 0)")
    parser.add_argument("--tests", type=int, default=0, help="compare the tests too, with this number of draws each")
    asked = parser.parse_args(given)
    each = by_draw(asked.years, asked.seed)
    worst = max(each.values(), key=lambda one: one.mean)
    rng = np.random.default_rng([asked.seed, 9])
    before = per_year([float(lived_before(Year.drawn("normal", 0.0, rng), rng)) for _ in range(-(-asked.years // 4))])
    figures: dict[str, float] = {}
    for name, one in {"": worst, "old_rule_": before, **{f"{draw}_": each[draw] for draw in DRAWS}}.items():
        figures |= {f"{name}false_promotions_per_year": one.mean}
        figures |= {f"{name}low": one.low, f"{name}high": one.high} if name else {"low": one.low, "high": one.high}
    for gain in (0.05, 0.10):
        nights = nights_until(gain, asked.years, asked.seed)
        key = f"{100 * gain:.0f}"
        figures[f"nights_to_promote_{key}"] = float(nights.mean())
        figures[f"promoted_{key}_first_night"] = float((nights == 0.0).mean())
        figures[f"promoted_{key}_in_60_nights"] = float((nights < 60.0).mean())
    notes: dict[str, Any] = {"years": asked.years, "years_of_the_old_rule": before.cases, "seed": asked.seed}
    notes |= tests_compared(asked.tests, asked.seed) if asked.tests else {}
    return report(
        "promotions",
        figures,
        as_json=asked.json,
        packages=("numpy", "scipy"),
        targets=(Target("false_promotions_per_year", 1.0),),
        notes=notes,
    )


if __name__ == "__main__":
    sys.exit(main())
