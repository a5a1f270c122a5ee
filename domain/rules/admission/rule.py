"""The rules of admission and the settings of their evaluation, as a text.

A rule is a text: the kind, a colon, its threshold, and settings by name after commas.

    zeroth:14000        admit while the cores stay below 14,000 now
    first:16000         admit while fewer than 16,000 are expected at every horizon
    second:2.5          admit while the mean and 2.5 standard deviations fit, at every horizon
    second:p=0.1        the same by Cantelli's bound on the risk: kappa = sqrt((1 - p) / p)
    gamma:1e-3          admit while a gamma law of this mean and variance exceeds the capacity with at most this chance
    sgamma:1e-4         the same by a shifted gamma law, which has the third moment too
    budget:3e-4         admit while at most this share of all requests to come is forecast to fail

| setting | of | default | |
|---|---|---|---|
| threshold= or limit= | all | the capacity | cores, in place of the capacity; zeroth and first: the threshold itself |
| kappa=, p= | second | | p for gamma and sgamma too, share= for budget: the threshold, by name |
| a= | second | 1 | kappa is times a for horizons of a month to a year, times a^2 beyond |
| bands= | second | 1/1/1/1/1 | factors of kappa up to a day, a week, a month, a year, three years |
| feedback= | budget | no | yes: the share shrinks as the failures permitted so far are used up |
| marginal= | all but zeroth | 0 | horizons at which the newcomer is expected to hold fewer cores do not count |
| moments= | all but zeroth | ab_fast | ab_fast, ab, na or paper |
| belief= | all but zeroth | exact | exact or conjugate; moments=paper are conjugate always |
| fresh= | all but zeroth | as moments | ab: full moments for arrivals without prior observations |
| grid= | all but zeroth | log | log: 32 horizons; paper: some 2,700 as published |
| tol=, dead_band=, reuse= | all but zeroth | 0.1, 1, 6 | when curves are renewed: see Rule; simulator 0.3, 6, 6 |

sgamma and budget take a third moment, which na and paper do not give. This module does not import numpy, so that
settings can be read without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from domain.errors import BadInput

METHODS = ("ab_fast", "ab", "na", "paper")
"""The methods of forecasts: see `domain.rules.admission.moments`."""
KINDS = ("zeroth", "first", "second", "gamma", "sgamma", "budget")
BANDS = ("day", "week", "month", "year", "three_years")
"""Names of the bands of horizons, whose ends are `policies.BANDS_H`."""
_FIRST_NAME = {"zeroth": "limit", "first": "limit", "second": "kappa", "gamma": "p", "sgamma": "p", "budget": "share"}
_WORDS = {"grid": ("log", "paper"), "moments": METHODS, "belief": ("exact", "conjugate"), "fresh": METHODS}
_NUMBERS = ("limit", "marginal", "tol", "dead_band", "reuse")
_OWN = {"second": ("kappa", "p", "a", "bands"), "gamma": ("p",), "sgamma": ("p",), "budget": ("share", "feedback")}


def kappa_of(p: float) -> float:
    """Return the standard deviations that Cantelli's bound asks for a risk p; BadInput unless 0 < p <= 1."""
    if not 0.0 < p <= 1.0:
        raise BadInput("p", p, "give a risk above 0 and up to 1")
    return math.sqrt((1.0 - p) / p)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule with its threshold (admission specification §5, §5.1). Raises BadInput.

    zeroth: total + size < limit. first: expected cores < limit at every horizon. second: expected cores + kappa
    standard deviations <= limit at every horizon, where a limit of None is the capacity. gamma, sgamma: the chance of
    more cores than the limit <= risk at every horizon. budget: failures forecast <= risk x requests forecast.
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
    """Curves are renewed when size or age has changed by more than this share; 0 at every arrival. Curves that a
    decision depends on are renewed in any case."""
    dead_band_cores: float = 1.0
    """Cores by which a size may change in any case, unless the tolerance is 0."""
    reuse_h: float = 6.0
    """Hours for which out-of-date sums may turn arrivals away, at the horizon that failed last; 0 for never."""
    risk: float = 0.0
    """Of gamma and sgamma the chance, of budget the share of requests."""
    moments: str = "ab_fast"
    belief: str = "exact"
    fresh: str = ""
    """Moments of arrivals without prior observations; empty for the same."""
    feedback: bool = False
    """Whether a budget shrinks with the failures so far: times the unused part of sla x requests so far."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput("policy", self.kind, f"give one of {', '.join(KINDS)}")
        if self.limit is None and self.kind in ("zeroth", "first"):
            raise BadInput("limit", None, f"give the threshold of {self.kind} in cores")
        if self.limit is not None and not math.isfinite(self.limit):
            raise BadInput("limit", self.limit, "give a finite number of cores")
        numbers = (self.kappa, *self.bands, self.marginal_cores, self.tolerance, self.dead_band_cores, self.reuse_h)
        if not all(math.isfinite(number) and number >= 0.0 for number in numbers):
            raise BadInput("policy", numbers, "give finite numbers, 0 or more")
        if not 0.0 <= self.risk <= 1.0:
            raise BadInput("risk", self.risk, "give a number from 0 to 1")
        for name, words in _WORDS.items():
            word = getattr(self, name)
            if word not in words and not (name == "fresh" and word == ""):
                raise BadInput(name, word, f"give one of {', '.join(words)}")
        if self.wants_third and not {self.moments, self.fresh or self.moments} <= {"ab", "ab_fast"}:
            raise BadInput("moments", self.moments, f"give ab or ab_fast: {self.kind} needs a third moment")

    @property
    def looks_ahead(self) -> bool:
        """Whether the rule forecasts sizes."""
        return self.kind != "zeroth"

    @property
    def wants_third(self) -> bool:
        """Whether the rule needs third moments."""
        return self.kind in ("sgamma", "budget")


def rule_of(text: str, *, tolerance: float = 0.1, dead_band_cores: float = 1.0) -> Rule:
    """Return the rule of a text such as zeroth:14000, second:2.5 or sgamma:1e-4,marginal=1 ; raises BadInput.

    tolerance, dead_band_cores: those of a text that does not give its own.
    The grammar is at the top of this module and in `trimtab simulate admission --help`.
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise BadInput("policy", text, f"begin with one of {', '.join(KINDS)}, such as second:2.5")
    given: dict[str, str] = {}
    for i, part in enumerate(filter(None, rest.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            if i > 0:
                raise BadInput("policy", text, "put the threshold first and name every other setting")
            name, value = _FIRST_NAME[kind], part
        name = "limit" if name == "threshold" else name
        if name not in (*_NUMBERS, *_WORDS, *_OWN.get(kind, ())):
            raise BadInput(
                "policy", text, f"{name} is not a setting of {kind}; see `trimtab simulate admission --help`"
            )
        if name in given:
            raise BadInput("policy", text, f"give {name} once")
        given[name] = value
    numbers = {name: _number(text, given[name]) for name in (*_NUMBERS, "kappa", "p", "share", "a") if name in given}
    kappa, bands = numbers.get("kappa", 0.0), _bands(text, given, numbers)
    if kind == "second" and "p" in numbers:
        if "kappa" in numbers:
            raise BadInput("policy", text, "give kappa or p, not both")
        kappa = kappa_of(numbers["p"])
    elif _FIRST_NAME[kind] not in numbers:
        raise BadInput("policy", text, f"give {_FIRST_NAME[kind]}, such as {_example(kind)}")
    if given.get("feedback", "no") not in ("yes", "no", "1", "0"):
        raise BadInput("policy", text, "give feedback=yes or feedback=no")
    return Rule(
        kind,
        numbers.get("limit"),
        kappa,
        bands,
        numbers.get("marginal", 0.0),
        given.get("grid", "log"),
        numbers.get("tol", tolerance),
        numbers.get("dead_band", dead_band_cores),
        numbers.get("reuse", 6.0),
        0.0 if kind == "second" else numbers.get("p", numbers.get("share", 0.0)),
        given.get("moments", "ab_fast"),
        given.get("belief", "exact"),
        given.get("fresh", ""),
        given.get("feedback", "no") in ("yes", "1"),
    )


def _example(kind: str) -> str:
    examples = {"zeroth": "14000", "first": "16000", "second": "2.5 or second:p=0.1", "budget": "3e-4"}
    return f"{kind}:{examples.get(kind, '1e-4')}"


def _bands(text: str, given: dict[str, str], numbers: dict[str, float]) -> tuple[float, float, float, float, float]:
    if "bands" in given and "a" in given:
        raise BadInput("policy", text, "give bands or a, not both")
    if "bands" not in given:
        a = numbers.get("a", 1.0)
        return 1.0, 1.0, 1.0, a, a * a
    factors = [_number(text, part) for part in given["bands"].split("/")]
    if len(factors) != len(BANDS):
        raise BadInput("policy", text, "give five factors for bands=, divided by slashes")
    first, second, third, fourth, fifth = factors
    return first, second, third, fourth, fifth


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise BadInput("policy", text, f"{value!r} is not a number") from None
