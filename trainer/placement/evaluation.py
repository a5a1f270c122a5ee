"""Policies on the same orders of the same instances, held to the bound and to best fit (§10.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput, TrimtabError
from domain.rules.placement.bounds import Bound
from domain.rules.placement.cluster import hosts_of
from domain.rules.placement.instance import DIMENSIONS, Instance
from domain.rules.placement.policies import BF, BF_CPU, DP, FF, RESERVE, WF, Policy, box
from simulator.placement import engine
from simulator.placement.choosing import Arrays
from simulator.placement.instances import shuffle_order, shuffled
from trainer.kit.files import code_version
from trainer.kit.intervals import mean_interval
from trainer.placement.bounds import lower_bound
from trainer.placement.checker import REJECTED, Packing, violations
from trainer.placement.exact import Solution, solve

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STANDARD: tuple[Policy, ...] = (FF, BF, BF_CPU, DP, WF, RESERVE)
"""Always compared; HAND is tuned on each instance."""
REFERENCE = BF.name
TEST_SHUFFLES = 100
"""Shuffles 0 to 99 are of tests alone."""
HAND_EVALUATIONS = 200
HAND_STEPS = (0.5, 0.25, 0.125, 0.0625)
SOURCES = ("domain/rules/placement", "simulator/placement", "trainer/placement")


class FigureWrong(TrimtabError):
    """The simulator returned a packing that breaks a rule: no figure of it is reported."""


@dataclass(frozen=True, slots=True)
class Played:
    """One sequence: open hosts at its end (with releases: at most), rejected containers, and placed over offered.

    rates: by dimension; none with releases.
    """

    hosts: int
    rejected: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """A policy on an instance: its nominal order, and its shuffles.

    gap: mean hosts over the bound, minus 1. to_reference: mean of the paired differences in hosts to best fit, with a
    bootstrap interval of 95 %; without shuffles, the difference on the nominal order. packing: of the nominal order.
    """

    policy: str
    nominal: Played
    shuffles: tuple[Played, ...]
    to_reference: tuple[float, float, float]
    gap: float
    packing: Packing

    @property
    def hosts(self) -> Floats:
        """Hosts of each shuffle, or of the nominal order alone."""
        return np.array([one.hosts for one in self.shuffles or (self.nominal,)], dtype=np.float64)

    def as_data(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        hosts = self.hosts
        low, high = np.percentile(hosts, (5, 95)).tolist()
        rates = np.array([one.rates for one in self.shuffles or (self.nominal,)]).mean(axis=0).tolist()
        names = DIMENSIONS if rates else ()
        return {
            "policy": self.policy,
            "nominal": self.nominal.hosts,
            "shuffles": len(self.shuffles),
            "mean": float(hosts.mean()),
            "standard_error": float(hosts.std(ddof=1) / np.sqrt(len(hosts))) if len(hosts) > 1 else None,
            "p5": low,
            "p95": high,
            "min": float(hosts.min()),
            "max": float(hosts.max()),
            "range": float(np.ptp(hosts)),
            "rates": dict(zip(names, rates, strict=True)),
            "rejected": int(sum(one.rejected for one in self.shuffles or (self.nominal,))),
            "to_best_fit": dict(zip(("mean", "low", "high"), self.to_reference, strict=True)),
            "gap": self.gap,
            "by_shuffle": [one.hosts for one in self.shuffles],
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All policies on one instance."""

    instance: Instance
    bound: Bound
    optimum: Solution | None
    shuffles: tuple[int, ...]
    figures: tuple[Figures, ...]

    def of(self, policy: str) -> Figures:
        """Return the figures of a policy by name."""
        return next(one for one in self.figures if one.policy == policy)

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data, with what it was made by."""
        best = self.optimum
        return {
            "instance": self.instance.name,
            "containers": self.instance.containers,
            "code": code_version(SOURCES),
            "shuffles": list(self.shuffles),
            "bound": asdict(self.bound),
            "known": None if best is None else {"hosts": best.hosts, "optimal": best.optimal, "method": best.method},
            "policies": [one.as_data() for one in self.figures],
        }


def evaluate(
    instance: Instance,
    learned: Mapping[str, Policy],
    *,
    shuffles: Sequence[int] = tuple(range(50)),
    hand: bool = True,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Evaluation:
    """Return figures of the standard policies, HAND and the learned ones by label on the same sequences.

    Every packing passes the independent checker, else FigureWrong. Raises BadInput for an instance with releases (its
    orders cannot be shuffled), or a label that is taken.
    """
    if instance.releases and shuffles:
        raise BadInput("shuffles", len(shuffles), f"{instance.name} has releases: give 0, and its own order is played")
    contenders: dict[str, Policy] = {policy.name: policy for policy in STANDARD}
    arrays = engine.arrays_of(instance)
    if hand and not instance.releases:
        on_progress(f"{instance.name}: HAND")
        contenders["HAND"] = tuned_by_hand(instance, arrays)
    for label, policy in learned.items():
        if label in contenders:
            raise BadInput("label", label, f"choose another one: these are taken: {', '.join(contenders)}")
        contenders[label] = policy
    bound = lower_bound(instance)
    sequences: dict[str, tuple[Played, tuple[Played, ...], Packing]] = {}
    for label, policy in contenders.items():
        on_progress(f"{instance.name}: {label}")
        nominal, packing = _played(instance, policy, None, arrays)
        others = tuple(_played(instance, policy, k, arrays)[0] for k in shuffles)
        sequences[label] = nominal, others, packing
    reference = [one.hosts for one in sequences[REFERENCE][1] or (sequences[REFERENCE][0],)]
    figures = []
    for label, (nominal, others, packing) in sequences.items():
        hosts = np.array([one.hosts for one in others or (nominal,)], dtype=np.float64)
        paired = mean_interval(hosts - reference)
        gap = float(hosts.mean()) / bound.hosts - 1.0 if bound.hosts else 0.0
        figures.append(Figures(label, nominal, others, (paired.mean, paired.low, paired.high), gap, packing))
    return Evaluation(instance, bound, _best_known(instance, figures), tuple(shuffles), tuple(figures))


def _best_known(instance: Instance, figures: Sequence[Figures]) -> Solution | None:
    """Return the packing with the fewest hosts of a method with full knowledge and of the policies, as checked above.

    None where no method takes the instance.
    """
    try:
        solved = solve(instance)
    except BadInput:
        return None
    complete = [one for one in figures if not one.nominal.rejected]
    best = min(complete, key=lambda one: one.nominal.hosts, default=None)
    if best is None or best.nominal.hosts >= solved.hosts:
        return solved
    return replace(solved, packing=best.packing, hosts=best.nominal.hosts, method=best.policy)


def _played(instance: Instance, policy: Policy, shuffle: int | None, arrays: Arrays) -> tuple[Played, Packing]:
    """Return what a policy makes of the nominal order (None) or of a shuffle, once its packing was checked.

    With releases the hosts are those of the peak, and there is no packing: where a container was is not known any more
    once it ended.
    """
    order = None if shuffle is None else shuffle_order(len(instance.requests), shuffle)
    outcome = engine.play(instance, policy, order, arrays=arrays)
    if instance.releases:
        return Played(outcome.peak, outcome.rejected, ()), Packing((), ())
    ordered = instance if shuffle is None else shuffled(instance, shuffle)
    begin = np.concatenate(([0], np.cumsum([one.count for one in instance.requests])))
    places = range(len(instance.requests)) if order is None else order.tolist()
    host = np.concatenate([outcome.host[begin[k] : begin[k + 1]] for k in places] or [np.empty(0, dtype=np.int64)])
    packing = packing_of(instance, host)
    wrong = violations(ordered, packing, may_reject=True)
    if wrong or packing.opened != outcome.hosts:
        raise FigureWrong(f"{policy.name} on {ordered.name}: {'; '.join(wrong[:3]) or 'hosts are counted wrongly'}")
    return Played(outcome.hosts, outcome.rejected, rates_of(ordered, packing)), packing


def packing_of(instance: Instance, host: NDArray[np.integer[Any]]) -> Packing:
    """Return where containers are, hosts numbered anew without those that stayed closed; those of a snapshot first."""
    held = len(instance.snapshot)
    pool = hosts_of(instance, int(host.max(initial=-1)) + 1)
    opened = np.union1d(np.arange(held), host[host >= 0])
    number = np.full(len(pool) + 1, -1)
    number[opened] = np.arange(len(opened))
    return Packing(tuple(pool[k].kind for k in opened.tolist()), tuple(number[host].tolist()))


def rates_of(instance: Instance, packing: Packing) -> tuple[float, ...]:
    """Return what is placed over what the open hosts offer, by dimension; nothing is 1 of nothing."""
    demand = {app.name: np.array(app.demand) for app in instance.applications}
    size = {kind.name: np.array(kind.capacity) for kind in instance.hosts}
    owners = [one.application for one in instance.requests for _ in range(one.count)]
    placed = Counter(owner for owner, host in zip(owners, packing.hosts, strict=True) if host != REJECTED)
    for _, running in instance.snapshot:
        placed.update(running)
    if not packing.kinds:
        return (1.0,) * len(DIMENSIONS)
    offered = np.sum([size[kind] for kind in packing.kinds], axis=0)
    taken = np.sum([demand[name] * number for name, number in placed.items()], axis=0)
    return tuple((taken / offered).tolist())


def tuned_by_hand(instance: Instance, arrays: Arrays | None = None) -> Policy:
    """Return weights of `linear14` found on the nominal order alone, coordinate by coordinate, in 200 evaluations.

    It stands for tuning by hand, and shows how little the nominal order says of others (§10.1).
    """
    known = engine.arrays_of(instance) if arrays is None else arrays
    low, high = box("linear14")
    nominal = np.arange(len(instance.requests))[None, :]

    def cost(theta: Floats) -> float:
        found = engine.play_orders(instance, Policy("HAND", "linear14", tuple(theta.tolist())), nominal, known)
        return float(found[0, 0] + 1000 * found[0, 1])

    theta = np.zeros(low.size)
    theta[0] = -1.0
    best, spent = cost(theta), 1
    while spent < HAND_EVALUATIONS:
        before = best
        for step in HAND_STEPS:
            for k in range(low.size):
                for sign in (1.0, -1.0):
                    if spent >= HAND_EVALUATIONS:
                        return Policy("HAND", "linear14", tuple(theta.tolist()))
                    tried = theta.copy()
                    tried[k] = np.clip(tried[k] + sign * step, low[k], high[k])
                    found, spent = cost(tried), spent + 1
                    if found < best:
                        theta, best = tried, found
        if best == before:
            break
    return Policy("HAND", "linear14", tuple(theta.tolist()))
