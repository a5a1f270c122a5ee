"""Which arrivals the simulated cluster admits: the rules of the ladder and the settings of their evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from domain.errors import BadInput
from domain.rules.admission.policies import BANDS_H, log_grid, paper_grid
from domain.rules.admission.tails import kappa_of
from simulator.admission.moments import Floats

KINDS = ("zeroth", "first", "second")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its threshold (admission specification §5). Raises BadInput.

    zeroth: total + size < limit. first: expected cores < limit at every horizon. second: expected cores + kappa
    standard deviations <= limit at every horizon, where a limit of None is the capacity.
    """

    kind: str
    limit: float | None = None
    kappa: float = 0.0
    bands: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)
    """Factors of kappa for horizons up to a day, week, month, year and three years."""
    marginal_cores: float = 0.0
    """A horizon at which the new deployment is expected to be smaller than this counts as kept; 0 turns it off."""
    grid: str = "log"
    """log: 32 horizons from 0.04 h to three years; paper: 600 steps to the end of each band."""
    tolerance: float = 0.1
    """Curves are computed anew when size or age has changed by more than this share; 0 at every arrival."""
    dead_band_cores: float = 1.0
    """Cores by which a size may change in any case, unless the tolerance is 0."""
    reuse_h: float = 6.0
    """Hours for which out-of-date sums may turn arrivals away, at the horizon that failed last; 0 for never."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput("policy", self.kind, f"give one of {', '.join(KINDS)}")
        if self.limit is None and self.kind != "second":
            raise BadInput("limit", None, f"give the threshold of {self.kind} in cores")
        if self.limit is not None and not math.isfinite(self.limit):
            raise BadInput("limit", self.limit, "give a finite number of cores")
        numbers = (self.kappa, *self.bands, self.marginal_cores, self.tolerance, self.dead_band_cores, self.reuse_h)
        if not all(math.isfinite(number) and number >= 0.0 for number in numbers):
            raise BadInput("policy", numbers, "give finite numbers, 0 or more")
        if self.grid not in ("log", "paper"):
            raise BadInput("grid", self.grid, "give log or paper")


def rule_of(text: str) -> Rule:
    """Return the rule of a text such as zeroth:14000, first:16000, second:2.5 or second:p=0.1 ; raises BadInput.

    second takes kappa, or p, the Cantelli bound: kappa = sqrt((1 - p) / p). More settings follow after commas:
    limit=, marginal=, tol=, dead_band=, reuse=, grid=log|paper, bands=1/1/1/0.7/0.49.
    """
    kind, _, rest = text.partition(":")
    given: dict[str, float] = {}
    bands, grid = (1.0, 1.0, 1.0, 1.0, 1.0), "log"
    for i, part in enumerate(filter(None, rest.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            if i > 0:
                raise BadInput("policy", text, "put the threshold first and name every other setting")
            name, value = "kappa" if kind == "second" else "limit", part
        if name == "grid":
            grid = value
        elif name == "bands":
            first, second, third, fourth, fifth = _numbers(text, value)
            bands = (first, second, third, fourth, fifth)
        elif name in ("kappa", "p", "limit", "marginal", "tol", "dead_band", "reuse"):
            given[name] = _number(text, value)
        else:
            raise BadInput("policy", text, f"{name} is no setting; see the help for those there are")
    kappa = given.get("kappa", 0.0)
    if "p" in given:
        kappa = kappa_of(given["p"])
    elif kind == "second" and "kappa" not in given:
        raise BadInput("policy", text, "give kappa, such as second:2.5, or second:p=0.1")
    return Rule(
        kind,
        given.get("limit"),
        kappa,
        bands,
        given.get("marginal", 0.0),
        grid,
        given.get("tol", 0.1),
        given.get("dead_band", 1.0),
        given.get("reuse", 6.0),
    )


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadInput("policy", text, f"{value!r} is no number") from None


def _numbers(text: str, value: str) -> list[float]:
    numbers = [_number(text, part) for part in value.split("/")]
    if len(numbers) != len(BANDS_H):
        raise BadInput("policy", text, "give five factors for bands=, divided by slashes")
    return numbers


def horizons_of(grid: str) -> Floats:
    """Return the horizons in hours, rising (admission specification §5)."""
    return log_grid() if grid == "log" else paper_grid()


def kappas_of(rule: Rule, horizons: Floats) -> Floats:
    """Return kappa by horizon."""
    band = np.searchsorted(np.asarray(BANDS_H) * (1.0 + 1e-9), horizons)
    return rule.kappa * np.asarray(rule.bands)[np.minimum(band, len(BANDS_H) - 1)]
