"""Scores of placement policies: their families, parameters and files (placement specification §2, §2.1, §10.2).

A policy takes the feasible host of the highest score, of equal ones that of the lowest index. A score is a sum of terms
in a fixed order. The functions `*_terms` hold for arrays of hosts and for one host alike: the simulator compiles them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, ConfigurationError, Mistake, UnknownName
from domain.rules.placement.instance import DIMENSIONS, Vector
from domain.rules.placement.lifetimes import WEIGHTS, Fit, lifetime_terms
from domain.rules.placement.mix import Mix, mix_document, parse_mix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

VERSION = 1
"""Of the policy file."""
TIERS = (4, 8, 16, 32)
"""Free cores q whose hosts the headroom counters N_q count."""
KNOTS = np.array([0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 96], dtype=np.float64)
"""Free cores at which `potential17` states its values, for hosts of HOST_SCALE cores."""
HOST_SCALE = 96
"""Cores of the hosts that a vector is stated for, unless its file says otherwise."""
LARGE_REQUEST = 10
"""Containers from which on a request is counted among the large ones; n0 of RESERVE(100, 8, 10)."""
PLACES_WEIGHT = 20.0
"""Of the lost places in `places1` at the upper end of its box."""
OPEN_LEVEL, BREAK_LEVEL = 2.0**32, 2.0**33
"""What `reserve` takes off the score of a closed host, and of one whose use breaks the rule; cores are below both."""


def best_fit_terms(rest: Any, sign: float) -> Any:
    """Return the terms of BF (sign -1) and WF (sign 1): the residual fraction after placement of each dimension."""
    return (sign * rest[0], sign * rest[1], sign * rest[2])


def dot_product_terms(share: Any, before: Any) -> Any:
    """Return the terms of DP: demand fraction times residual fraction before placement, of each dimension."""
    return (share[0] * before[0], share[1] * before[1], share[2] * before[2])


def reserve_terms(theta: Any, free: Any, after: Any, new: Any, hosts: Any, light: Any) -> Any:
    """Return the terms of RESERVE(X, q, n0), given free cores before and after and the number of hosts with q free."""
    broken = (free >= theta[1]) & (after < theta[1]) & (new == 0) & light & (hosts <= theta[0])
    return (-1.0 * after, -OPEN_LEVEL * new, -BREAK_LEVEL * broken)


def linear_terms(
    theta: Any, rest: Any, before: Any, share: Any, after: Any, same: Any, distinct: Any, limit: Any, mean: Any
) -> Any:
    """Return the 13 terms of `linear14`; mean: residual share of cores over open hosts."""
    x, y = rest[0], rest[1]
    return (
        theta[0] * x,
        theta[1] * y,
        theta[2] * (x * x),
        theta[3] * np.abs(x - y),
        theta[4] * (share[0] * before[0] + share[1] * before[1] + share[2] * before[2]),
        theta[5] * (1.0 * (after == 0)),
        theta[6] * (1.0 * (after % 4 != 0)),
        theta[7] * (same / 4.0),
        theta[8] * (distinct / 20.0),
        theta[9] * (x / limit),
        theta[10] * (x * share[0] * 8.0),
        theta[11] * np.abs(x - mean),
        theta[12] * np.maximum(0.25 + 0.25 * theta[13] - x, 0.0),
    )


def potential_terms(
    theta: Any, scaled: Any, scaled_after: Any, rest: Any, new: Any, same: Any, distinct: Any, limit: Any
) -> Any:
    """Return the six terms of `potential17`; scaled: free cores before, in cores of a host of the file's scale."""
    k = np.minimum(np.searchsorted(KNOTS, scaled, side="right"), 11)
    high = theta[k - 1] + (theta[k] - theta[k - 1]) * (scaled - KNOTS[k - 1]) / (KNOTS[k] - KNOTS[k - 1])
    k = np.minimum(np.searchsorted(KNOTS, scaled_after, side="right"), 11)
    low = theta[k - 1] + (theta[k] - theta[k - 1]) * (scaled_after - KNOTS[k - 1]) / (KNOTS[k] - KNOTS[k - 1])
    return (
        low - high,
        -(1.0 + 3.0 * theta[12]) * new,
        theta[13] * (same / 4.0),
        theta[14] * (distinct / 20.0),
        theta[15] * np.abs(rest[0] - rest[1]),
        theta[16] * (rest[0] / limit),
    )


def places_terms(theta: Any, lost: Any) -> Any:
    """Return the term of `places1`; lost: see `View`."""
    return (-PLACES_WEIGHT * theta[0] * lost,)


def tier_threshold(theta: Any) -> Any:
    """Return n0 of `tiers17`: requests of fewer containers are light."""
    return 4.0 + 8.0 * (theta[16] + 1.0)


def tier_price(theta: Any, tier: int, light: Any, hosts: Any, scale: Any) -> Any:
    """Return what taking a host below a tier costs while `hosts` have that many free cores.

    scale: share of the reserve that is needed, 1 for `tiers17`.
    """
    weight = theta[6 + tier] if light else theta[12 + tier]
    target = max(1.0, (1.0 + 75.0 * (theta[tier] + 1.0)) * scale)
    return 4.0 * (1.0 + weight) * max(0.0, 1.0 - hosts / target)


def reserve_share(largest: Any) -> Any:
    """Return the share of the reserve that `tiers17a` holds, given the largest count of a request so far."""
    return min(1.0, (largest - 1.0) / 40.0)


def reserve_left(theta: Any, large: Any) -> Any:
    """Return the share of the reserve that `tiers18a` holds after so many large requests.

    It is whole until the last of those that the vector expects has come, then none.
    """
    return min(1.0, max(0.0, 20.0 * (theta[17] + 1.0) - large))


def tier_terms(theta: Any, light: Any, x: Any, free: Any, after: Any, new: Any, prices: Any) -> Any:
    """Return the six terms of `tiers17`: slope, new host, and each tier that is crossed downward."""
    slope = theta[4] if light else theta[10]
    bias = theta[5] if light else theta[11]
    return (
        slope * x,
        -(1.0 + bias) * new,
        -prices[0] * ((free >= 4) & (after < 4)),
        -prices[1] * ((free >= 8) & (after < 8)),
        -prices[2] * ((free >= 16) & (after < 16)),
        -prices[3] * ((free >= 32) & (after < 32)),
    )


@dataclass(frozen=True, slots=True)
class Family:
    """Policies of one form. parameters: their names. low, high: the box. open_first: closed hosts come last."""

    parameters: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    open_first: bool = False
    learned: bool = False
    terms: tuple[str, ...] = ()


def _learned(parameters: Sequence[str], terms: Sequence[str], *, open_first: bool = False) -> Family:
    n = len(parameters)
    return Family(tuple(parameters), (-1.0,) * n, (1.0,) * n, open_first, True, tuple(terms))


_TIER_PARAMETERS = (
    *(f"target_{q}" for q in TIERS),
    *(f"{kind}_{one}" for kind in ("light", "heavy") for one in ("slope", "new", *(f"break_{q}" for q in TIERS))),
    "threshold",
)
_TIER_TERMS = ("slope", "new host", *(f"tier {q}" for q in TIERS))
_TIERS = _learned(_TIER_PARAMETERS, _TIER_TERMS)
ONE_FILLING = "tiers18a"
"""The family that counts the large requests since the cluster was empty, and so decides for one filling alone."""
PLACES = "places1"
"""The family that counts the places of applications of which no container runs: it looks at every open host."""
_RESIDUALS = tuple(f"residual {name}" for name in DIMENSIONS)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "ff": Family(open_first=True, terms=("index",)),
        "bf": Family(terms=_RESIDUALS),
        "bf-cpu": Family(open_first=True, terms=("residual cores",)),
        "dp": Family(open_first=True, terms=tuple(f"alignment {name}" for name in DIMENSIONS)),
        "wf": Family(open_first=True, terms=_RESIDUALS),
        "reserve": Family(
            ("hosts", "free_cores", "count"),
            (0.0, 1.0, 1.0),
            (1e6, 1e6, 1e6),
            terms=("residual cores", "new host", "reserve broken"),
        ),
        "linear14": _learned(
            (linear := ("x", "y", "x2", "imbalance", "alignment", "exact", "odd", "same", "distinct", "x_limit",
             "x_share", "off_mean", "hinge")) + ("hinge_at",), linear, open_first=True,
        ),
        "potential17": _learned(
            (
                *(f"value_{knot:g}" for knot in KNOTS),
                *(others := ("new", "same", "distinct", "imbalance", "x_limit")),
            ),
            ("potential", *others),
        ),
        "tiers17": _TIERS,
        "tiers17a": _TIERS,
        ONE_FILLING: _learned((*_TIER_PARAMETERS, "expected"), _TIER_TERMS),
        "oldest": Family(open_first=True, terms=("opening",)),
        "lifetime": Family(
            (own := ("floor", "gap", "residual", "cores", "age")), (-1.0,) * 5, (1.0,) * 5, open_first=True,
            terms=("extension", *own[1:], "opening"),
        ),
        PLACES: _learned(("lost",), ("places lost",), open_first=True),
    }
)  # fmt: skip
"""By name. Two learned families may be summed: `tiers17+potential17`."""


def parts_of(family: str) -> tuple[tuple[str, Family], ...]:
    """Return the families that a family sums; UnknownName, or BadInput where they may not be summed."""
    names = family.split("+")
    for name in names:
        if name not in FAMILIES:
            raise UnknownName("family", name, f"give one of {', '.join(FAMILIES)}, or two learned ones joined by +")
    bases = ["tiers" if name.startswith("tiers") else name for name in names]
    if (
        len(names) > 2
        or len(set(bases)) < len(bases)
        or (len(names) > 1 and not all(FAMILIES[n].learned for n in names))
    ):
        raise BadInput("family", family, "join two different learned families by +, such as tiers17+potential17")
    return tuple((name, FAMILIES[name]) for name in names)


def box(family: str) -> tuple[Floats, Floats]:
    """Return the lowest and the highest value of each parameter of a family, float64 [D] both."""
    parts = parts_of(family)
    low, high = ([value for _, part in parts for value in getattr(part, side)] for side in ("low", "high"))
    return np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Training:
    """Where a vector comes from. instances: digests. shuffles: seeds of the orders. created: ISO 8601, UTC.

    mix: the requests and hosts of these instances, None where that was not recorded.
    """

    instances: tuple[str, ...] = ()
    shuffles: tuple[int, ...] = ()
    objective: float | None = None
    standard_error: float | None = None
    simulator: str = ""
    created: str = ""
    mix: Mix | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """A family and its parameters; ConfigurationError lists what is wrong with them."""

    name: str
    family: str
    theta: tuple[float, ...] = ()
    host_scale: int = HOST_SCALE
    training: Training | None = None

    def __post_init__(self) -> None:
        mistakes = _mistakes(self.family, list(self.theta), self.host_scale, "policy")
        if mistakes:
            raise ConfigurationError(mistakes)

    @property
    def parts(self) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """The families it sums, each with its own parameters."""
        found, start = [], 0
        for name, family in parts_of(self.family):
            found.append((name, self.theta[start : start + len(family.parameters)]))
            start += len(family.parameters)
        return tuple(found)

    @property
    def open_first(self) -> bool:
        """Whether a closed host is taken only where no open one is feasible."""
        return any(family.open_first for _, family in parts_of(self.family))

    @property
    def for_one_filling(self) -> bool:
        """Whether it decides by how many large requests have come since the cluster was empty."""
        return any(name == ONE_FILLING for name, _ in parts_of(self.family))

    @property
    def counts_places(self) -> bool:
        """Whether a decision takes time in proportion to applications times hosts."""
        return any(name == PLACES for name, _ in self.parts)

    @property
    def reserve_cores(self) -> int:
        """Free cores of the hosts that RESERVE counts; the second tier for others, which do not ask."""
        return int(self.theta[1]) if self.family == "reserve" else TIERS[1]

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that any change of family, parameters or scale changes."""
        text = json.dumps([VERSION, self.family, self.theta, self.host_scale])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _mistakes(family: object, theta: object, host_scale: object, name: str) -> list[Mistake]:
    found = []
    if type(host_scale) is not int or not 1 <= host_scale <= 2**31 - 1:
        found.append(Mistake(f"{name}.host_scale", repr(host_scale), "write the cores of the hosts it is stated for"))
    try:
        low, high = box(family if isinstance(family, str) else "")
    except BadInput as error:
        return [Mistake(f"{name}.family", repr(family)[:80], error.remedy), *found]
    if not isinstance(theta, list) or len(theta) != low.size:
        length = f"{len(theta)} numbers" if isinstance(theta, list) else repr(theta)[:80]
        return [*found, Mistake(f"{name}.theta", length, f"write a list of {low.size} numbers for {family}")]
    names = [parameter for _, part in parts_of(str(family)) for parameter in part.parameters]
    for k, value in enumerate(theta):
        if type(value) not in (int, float) or not math.isfinite(value) or not low[k] <= value <= high[k]:
            where = f"{name}.theta[{k}] ({names[k]})"
            found.append(Mistake(where, repr(value)[:80], f"write a number from {low[k]:g} to {high[k]:g}"))
    return found


def reserve(hosts: float, free_cores: int, count: int) -> Policy:
    """Return RESERVE(X, q, n0)."""
    theta = (float(hosts), float(free_cores), float(count))
    return Policy(f"RESERVE({hosts:g}, {free_cores}, {count})", "reserve", theta)


FF = Policy("FF", "ff")
LIFETIME = Policy("lifetime", "lifetime", WEIGHTS)
"""The open host with the smallest sum of expected extension, gap, residual and cores, less age."""
OLDEST = Policy("oldest", "oldest")
"""The open host that was opened first (placement with lifetimes, §3)."""
BF = Policy("BF", "bf")
BF_CPU = Policy("BF-cpu", "bf-cpu")
DP = Policy("DP", "dp")
WF = Policy("WF", "wf")
RESERVE = reserve(100, 8, 10)
HAND = Policy("HAND v1", "linear14", (-1.0, 0.0, 0.0, -0.25, 0.0, 0.5, -0.25, 0.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.0))
"""An operator's own weights."""
NAMED: Mapping[str, Policy] = MappingProxyType(
    {
        "ff": FF,
        "oldest": OLDEST,
        "lifetime": LIFETIME,
        "bf": BF,
        "bf-cpu": BF_CPU,
        "dp": DP,
        "wf": WF,
        "reserve": RESERVE,
        "hand": HAND,
    }
)
"""The policies that need no file."""


@dataclass(frozen=True, slots=True)
class View:
    """Hosts among which to choose for one container, in order of their index, and what a score may look at.

    hosts: index, int64 [K]. capacity, free: before placement, int64 [3, K]. new: closed hosts, [K]. same: instances of
    the application. distinct: applications. opening: number of the present opening of each host, 0 for a closed one,
    [K]. openings: number of the last one. count: containers of the request. headroom: N_q by q. mean: residual share of
    the cores of the open hosts.
    largest: the largest count of a request so far, with this one. large: requests of LARGE_REQUEST containers or more
    so far, with this one. left_s: seconds until the last container of each host ends, as predicted, float64 [K].
    life_s: of the container, 0 without a hint. fit: the calibration of hints. lost: returns the share of the places of
    other applications that the container takes on each host, see `Cluster.places_lost`, float64 [K].
    """

    hosts: Ints
    capacity: Ints
    free: Ints
    new: Bools
    same: Ints
    distinct: Ints
    opening: Ints
    openings: int
    demand: Vector
    limit: int
    count: int
    headroom: Mapping[int, int]
    mean: float
    largest: float
    large: int
    left_s: Floats
    life_s: float
    fit: Fit
    lost: Callable[[], Floats]


def _terms_of_parts(policy: Policy, view: View) -> list[tuple[str, tuple[Floats, ...]]]:
    """Return the terms of each family that the policy sums."""
    ordering: dict[str, Callable[[], tuple[Any, ...]]] = {
        "ff": lambda: (-1.0 * view.hosts,),
        "oldest": lambda: (-1.0 * view.opening,),
    }
    # They look at no sizes.
    if policy.family in ordering:
        return [(policy.family, ordering[policy.family]())]
    demand = np.array(view.demand, dtype=np.int64)[:, None]
    left = view.free - demand
    # Division of whole numbers takes ten times longer, and gives the same.
    size = view.capacity.astype(np.float64)
    rest, free, after, new = left.astype(np.float64) / size, view.free[0], left[0], view.new
    found = []
    for name, theta in policy.parts:
        terms: tuple[Any, ...]
        if name == "lifetime":
            known = view.left_s, view.life_s, view.fit.residual, view.fit.r2
            terms = lifetime_terms(theta, *known, rest, view.opening, view.openings)
        elif name in ("bf", "wf"):
            terms = best_fit_terms(rest, -1.0 if name == "bf" else 1.0)
        elif name == "bf-cpu":
            terms = (-1.0 * after,)
        elif name == "dp":
            terms = dot_product_terms(demand / size, view.free / size)
        elif name == "reserve":
            light = view.count < theta[2]
            terms = reserve_terms(theta, free, after, new, view.headroom[policy.reserve_cores], light)
        elif name == "linear14":
            wide = view.free / size, demand / size
            terms = linear_terms(theta, rest, *wide, after, view.same, view.distinct, view.limit, view.mean)
        elif name == PLACES:
            terms = places_terms(theta, view.lost())
        elif name == "potential17":
            values = np.array(theta)
            scaled, scaled_after = (cores * float(policy.host_scale) / view.capacity[0] for cores in (free, after))
            terms = potential_terms(values, scaled, scaled_after, rest, new, view.same, view.distinct, view.limit)
        else:
            light = view.count < tier_threshold(theta)
            scale = 1.0 if name == "tiers17" else reserve_share(view.largest)
            if name == ONE_FILLING:
                scale *= reserve_left(theta, view.large)
            prices = [tier_price(theta, k, light, view.headroom[q], scale) for k, q in enumerate(TIERS)]
            terms = tier_terms(theta, light, rest[0], free, after, new, prices)
        found.append((name, terms))
    return found


def score_terms(policy: Policy, view: View) -> dict[str, Floats]:
    """Return the terms of the score of each host, float64 [K] each, in the order in which they are summed."""
    parts = _terms_of_parts(policy, view)
    return {
        label if len(parts) == 1 else f"{name} {label}": term
        for name, terms in parts
        for label, term in zip(FAMILIES[name].terms, terms, strict=True)
    }


def scores(policy: Policy, view: View) -> Floats:
    """Return the score of each host, float64 [K]; a closed one is -inf while an open-first policy has an open one.

    The terms of each family are summed in their order, then the families.
    """
    total = np.zeros(view.hosts.size)
    for _, terms in _terms_of_parts(policy, view):
        part = terms[0]
        for term in terms[1:]:
            part = part + term
        total = total + part
    if policy.open_first and not view.new.all():
        total[view.new] = -np.inf
    return total


def policy_document(policy: Policy) -> dict[str, Any]:
    """Return a policy as plain data, the content of its file (§10.2)."""
    low, high = box(policy.family)
    training = policy.training or Training()
    return {
        "version": VERSION,
        "name": policy.name,
        "family": policy.family,
        "theta": list(policy.theta),
        "host_scale": policy.host_scale,
        "box": [low.tolist(), high.tolist()],
        "trained_on": {
            "instances": list(training.instances),
            "shuffles": list(training.shuffles),
            **({} if training.mix is None else {"mix": mix_document(training.mix)}),
        },
        "objective": training.objective,
        "standard_error": training.standard_error,
        "simulator": training.simulator,
        "created": training.created,
    }


FIELDS = (
    *("version", "name", "family", "theta", "host_scale", "box", "trained_on", "objective", "standard_error"),
    *("simulator", "created", "comment"),
)
"""Of a policy file."""


LONGEST_NAME = 128
"""Of a policy, in characters: it stands in every decision, once for each container."""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()


def parse_policy(document: object, name: str = "policy") -> Policy:
    """Return the policy in the content of a file; ConfigurationError with every wrong field."""
    if not isinstance(document, dict):
        raise ConfigurationError([Mistake(name, repr(document)[:80], "write an object with family and theta")])
    if document.get("version") != VERSION:
        remedy = f"this release reads version {VERSION}"
        raise ConfigurationError([Mistake(f"{name}.version", repr(document.get("version"))[:80], remedy)])
    found = [
        Mistake(f"{name}.{key}", repr(document[key])[:80], f"unknown field: use one of {', '.join(FIELDS)}")
        for key in document
        if key not in FIELDS
    ]
    family, theta, scale = document.get("family"), document.get("theta"), document.get("host_scale", HOST_SCALE)
    found += _mistakes(family, theta, scale, name)

    def check(key: str, good: Callable[[Any], bool], remedy: str, usual: Any) -> Any:
        value = document.get(key, usual)
        if not good(value):
            found.append(Mistake(f"{name}.{key}", repr(value)[:80], remedy))
            return usual
        return value

    def number(value: Any) -> bool:
        return value is None or (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )

    def text(value: Any) -> bool:
        return isinstance(value, str)

    def texts(value: Any) -> bool:
        return isinstance(value, list) and all(text(one) for one in value)

    def seeds(value: Any) -> bool:
        return isinstance(value, list) and all(type(one) is int for one in value)

    label = check("name", _is_name, f"write a name of up to {LONGEST_NAME} printable characters", "learned")
    origin = check(
        "trained_on",
        lambda value: (
            isinstance(value, dict)
            and set(value) <= {"instances", "shuffles", "mix"}
            and ("mix" not in value or parse_mix(value["mix"]) is not None)
            and texts(value.get("instances", []))
            and seeds(value.get("shuffles", []))
        ),
        "write an object with instances (digests), shuffles (seeds) and, if any, mix (shares that sum to 1)",
        {},
    )
    objective, error = (check(key, number, "write a number", None) for key in ("objective", "standard_error"))
    simulator, created = (
        check(key, lambda v: isinstance(v, str), "write text", "") for key in ("simulator", "created")
    )
    if not found and "box" in document:
        low, high = box(str(family))
        check("box", lambda value: value == [low.tolist(), high.tolist()], f"write that of {family}", None)
    if found:
        raise ConfigurationError(found)
    training = Training(
        tuple(origin.get("instances", [])),
        tuple(origin.get("shuffles", [])),
        objective,
        error,
        simulator,
        created,
        parse_mix(origin.get("mix")),
    )
    vector = tuple(float(value) for value in theta or ())
    return Policy(label, str(family), vector, scale, None if training == Training() else training)
