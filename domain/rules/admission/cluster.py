"""A cluster's capacity, population and rule of admission, as its service works with them (admission specification §5).

The rules themselves are `domain.rules.admission.policies`; this module holds the numbers given to them. It needs no
numpy, so that processes without a cluster can read settings: `trimtab collect` on every VM.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from domain.errors import BadInput
from domain.rules.admission.names import HALF_LIFE_DAYS
from domain.rules.admission.population import Population
from domain.rules.admission.rule import BANDS, Rule, kappa_of


class PolicyKind(StrEnum):
    """The rule's input: zeroth: cores now; first: expected cores; second: their spread too; the others: chances."""

    ZEROTH = "zeroth"
    FIRST = "first"
    SECOND = "second"
    SGAMMA = "sgamma"
    GAMMA = "gamma"
    BUDGET = "budget"

    @property
    def by_risk(self) -> bool:
        """Whether the rule asks for a chance, or for a share of requests."""
        return self in (PolicyKind.SGAMMA, PolicyKind.GAMMA, PolicyKind.BUDGET)

    @property
    def wants_third(self) -> bool:
        """Whether the rule needs third moments."""
        return self in (PolicyKind.SGAMMA, PolicyKind.BUDGET)


class Moments(StrEnum):
    """The method of the forecast: see `domain.rules.admission.moments`."""

    AB = "ab"
    AB_FAST = "ab_fast"
    NA = "na"
    PAPER = "paper"

    @property
    def has_third(self) -> bool:
        """Whether third moments and requests come with them."""
        return self in (Moments.AB, Moments.AB_FAST)


@dataclass(frozen=True, slots=True)
class ClusterRules:
    """A cluster and its rule; BadInput names a wrong field.

    zeroth and first need `threshold_cores`, second `kappa` or `risk` (Cantelli's bound), the others `risk`: gamma and
    sgamma as the chance to exceed, budget as the share of all requests to come that may fail. Without a threshold,
    all but zeroth and first keep to the capacity.
    """

    name: str
    capacity_cores: int
    population: Population
    policy: PolicyKind
    threshold_cores: float | None = None
    kappa: float | None = None
    risk: float | None = None
    band_factor: float = 1.0
    """Of kappa for horizons beyond a month; its square beyond a year."""
    bands: tuple[float, float, float, float, float] | None = None
    """Factors of kappa for horizons up to a day, week, month, year and three years, in place of `band_factor`."""
    feedback: bool = False
    """Whether a budget's share shrinks with the failures so far: times the unused part of sla x requests so far."""
    moments: Moments = Moments.AB
    fresh: Moments | None = None
    """Those of newcomers of which nothing was seen; None for the same."""
    conjugate: bool = False
    """Whether rates are believed to be independent, in place of the exact belief."""
    marginal_cores: float = 1.0
    """A horizon at which a newcomer with prior observations is expected to be smaller than this does not count."""
    sla: float = 1e-3
    """Share of requests for more cores that may be refused."""
    tolerance: float = 0.1
    dead_band_cores: float = 1.0
    """When a future is computed anew: its size changed by more than both, or so much of its age has passed."""
    start_within_s: float = 3600.0
    """An admitted deployment that has not started after this time gives its cores back."""
    horizons: int = 32
    paper_grid: bool = False
    """Whether the published horizons, some 2,700, replace `horizons`."""
    labels: bool = False
    """Whether a newcomer without prior observations is judged by what its label and owner were like before."""
    label_half_life_days: float = HALF_LIFE_DAYS
    """A deployment that ended so long ago counts half in what is known of its label and owner."""

    def __post_init__(self) -> None:
        whole = math.isfinite(self.capacity_cores) and int(self.capacity_cores) == self.capacity_cores
        if isinstance(self.capacity_cores, bool) or not whole or self.capacity_cores < 1:
            raise BadInput("capacity_cores", self.capacity_cores, "give whole cores, 1 or more")
        if not 0.0 < self.sla < 1.0:
            raise BadInput("sla", self.sla, "give a share between 0 and 1, such as 1e-3")
        self._check_rule()
        bands = [value for value in self.bands or () if not (math.isfinite(value) and value >= 0.0)]
        if bands or (self.bands is not None and len(self.bands) != len(BANDS)):
            raise BadInput("bands", self.bands, f"give {len(BANDS)} finite factors, 0 or more")
        for name in ("band_factor", "marginal_cores", "tolerance", "dead_band_cores"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise BadInput(name, value, "give a finite number, 0 or more")
        if not (math.isfinite(self.start_within_s) and self.start_within_s > 0.0):
            raise BadInput("start_within_s", self.start_within_s, "give seconds, more than 0")
        if not (math.isfinite(self.label_half_life_days) and self.label_half_life_days > 0.0):
            raise BadInput("label_half_life_days", self.label_half_life_days, "give days, more than 0")

    def _check_rule(self) -> None:
        if self.policy in (PolicyKind.ZEROTH, PolicyKind.FIRST) and self.threshold_cores is None:
            raise BadInput("threshold_cores", None, f"give the threshold of {self.policy} in cores")
        if self.threshold_cores is not None and not math.isfinite(self.threshold_cores):
            raise BadInput("threshold_cores", self.threshold_cores, "give a finite number of cores")
        if self.kappa is not None and not (math.isfinite(self.kappa) and self.kappa >= 0.0):
            raise BadInput("kappa", self.kappa, "give standard deviations, 0 or more")
        if self.risk is not None and not 0.0 < self.risk < 1.0:
            raise BadInput("risk", self.risk, "give a chance between 0 and 1, such as 1e-3")
        if self.policy is PolicyKind.SECOND and (self.kappa is None) == (self.risk is None):
            raise BadInput("kappa", self.kappa, "give either kappa or risk with the policy second")
        if self.policy.by_risk and self.risk is None:
            raise BadInput("risk", None, f"give the chance that {self.policy} may leave, such as 1e-3")
        for moments in (self.moments, self.fresh or self.moments):
            if self.policy.wants_third and not moments.has_third:
                raise BadInput("moments", moments.value, f"give ab or ab_fast: {self.policy} needs a third moment")

    @property
    def kappa_factors(self) -> tuple[float, float, float, float, float]:
        """Factors of kappa by band."""
        return self.bands or (1.0, 1.0, 1.0, self.band_factor, self.band_factor**2)

    @property
    def limit_cores(self) -> float:
        """The limit on the cores: the threshold, else the capacity."""
        return float(self.capacity_cores) if self.threshold_cores is None else self.threshold_cores

    @property
    def standard_deviations(self) -> float | None:
        """Kappa, given or by Cantelli's bound; None for a rule without."""
        if self.policy is not PolicyKind.SECOND:
            return None
        return self.kappa if self.kappa is not None else kappa_of(self.risk or 1.0)

    @property
    def config_hash(self) -> str:
        """Sixteen hexadecimal digits that any change of the rules changes."""
        given = asdict(self)
        if not self.labels:
            # Rules of a cluster that does not go by labels keep the hash that they had before there were any.
            del given["labels"], given["label_half_life_days"]
        text = json.dumps(given, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """The rule in a word and its number, such as second:2.5."""
        if self.policy.by_risk:
            return f"{self.policy}:{self.risk:g}"
        number = self.standard_deviations if self.policy is PolicyKind.SECOND else self.threshold_cores
        return f"{self.policy}:{number:g}"


def containers_without_room(room: int, container_cores: int, waiting: Iterable[int], cores: int) -> int:
    """Return how many containers of a deployment of `cores` find no room, 0 where all do.

    room: containers that fit. container_cores: of each; a deployment takes whole containers. waiting: cores of each
    deployment that was admitted and has not started, whose containers come first.
    """
    taken = sum(-(-held // container_cores) for held in waiting)
    asked = -(-cores // container_cores)
    return min(asked, max(0, taken + asked - room))


def terms_of(rule: Rule) -> dict[str, Any]:
    """Return the fields of `ClusterRules` that a rule fills, each of them, with the rule's own defaults.

    Its `reuse_h` has no part here: an agent never decides on sums of before.
    """
    return {
        "policy": PolicyKind(rule.kind),
        "threshold_cores": rule.limit,
        "kappa": rule.kappa if rule.kind == PolicyKind.SECOND else None,
        "risk": rule.risk if PolicyKind(rule.kind).by_risk else None,
        "bands": rule.bands,
        "feedback": rule.feedback,
        "moments": Moments(rule.moments),
        "fresh": Moments(rule.fresh) if rule.fresh else None,
        "conjugate": rule.belief == "conjugate",
        "marginal_cores": rule.marginal_cores,
        "tolerance": rule.tolerance,
        "dead_band_cores": rule.dead_band_cores,
        "paper_grid": rule.grid == "paper",
    }
