"""Policies on instances: one policy with its decisions, and several on the same orders, held to best fit (§10).

Every packing behind a figure passes the independent checker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.placement.choosing import SHIPPED_SMALL, read_policy
from agent.placement.settings import SMALL_POOLS
from domain.errors import BadInput, TrimtabError
from domain.rules.placement.bounds import Bound, least_hosts, needs_of
from domain.rules.placement.cluster import DIGEST_EVERY, Choice, Cluster, choose, cluster_of, hosts_of
from domain.rules.placement.instance import DIMENSIONS, Instance, Request
from domain.rules.placement.policies import (
    BF,
    BF_CPU,
    DP,
    FF,
    LIFETIME,
    NAMED,
    OLDEST,
    RESERVE,
    TIERS,
    WF,
    Policy,
    box,
    reserve,
)
from domain.units import DAY_S, HOUR_S
from simulator.placement import engine
from simulator.placement.choosing import Arrays
from simulator.placement.instances import looked_ahead, shuffle_order, shuffled
from trainer.kit.files import code_version, replace_file
from trainer.kit.intervals import mean_interval
from trainer.kit.jobs import HERE, Pool, Workers
from trainer.placement.exact import REJECTED, Packing, Solution, largest_host, lower_bound, solve, violations
from trainer.placement.swarm import PRICE_OF_REJECTION

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STANDARD: tuple[Policy, ...] = (FF, BF, BF_CPU, DP, WF, RESERVE)
"""Always compared; HAND is tuned on each instance."""
REFERENCE = BF.name
TEST_SHUFFLES = 100
"""Shuffles 0 to 99 are of tests alone."""
BLOCK = 20
"""Shuffles that `play` takes as one case."""
HAND_EVALUATIONS = 200
HAND_STEPS = (0.5, 0.25, 0.125, 0.0625)
SOURCES = ("domain/rules/placement", "simulator/placement", "trainer/placement")


class FigureWrong(TrimtabError):
    """The simulator returned a packing that breaks a rule: no figure of it is reported."""


# One policy.


def policy_of(text: str) -> Policy:
    """Return a policy by name (`bf`, `small-pools`), as `reserve:HOSTS,CORES,COUNT`, or from a FILE.json; BadInput.

    Raises ConfigurationError with every mistake of a file.
    """
    if text.lower() in NAMED:
        return NAMED[text.lower()]
    kind, colon, numbers = text.partition(":")
    if kind == "reserve" and colon:
        try:
            hosts, cores, count = (int(word) for word in numbers.split(","))
        except ValueError:
            raise BadInput("policy", text, "give three whole numbers, as in reserve:100,8,10") from None
        return reserve(hosts, cores, count)
    path = SHIPPED_SMALL if text == SMALL_POOLS else Path(text)
    if not path.is_file():
        words = f"give one of {', '.join(NAMED)}, {SMALL_POOLS}, reserve:HOSTS,CORES,COUNT, or a policy's .json"
        raise BadInput("policy", text, f"no such file: {words}" if path.suffix == ".json" else words)
    return read_policy(path)


@dataclass(frozen=True, slots=True)
class Play:
    """A policy on an instance. packing: of the given order, None with releases. orders: hosts and rejected, [K, 2]."""

    instance: Instance
    policy: Policy
    outcome: engine.Outcome
    packing: Packing | None
    bound: Bound
    measured_h: float
    orders: NDArray[np.int64]

    def as_data(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        outcome, hosts = self.outcome, self.orders[:, 0]
        found: dict[str, Any] = {
            "instance": self.instance.name,
            "policy": self.policy.name,
            "policy_digest": self.policy.digest,
            "simulator": engine.VERSION,
            "requests": len(self.instance.requests),
            "containers": self.instance.containers,
            "hosts": outcome.hosts,
            "peak": outcome.peak,
            "lower_bound": self.bound.hosts,
            "bound_by": self.bound.by,
            "rejected": outcome.rejected,
            "obstacles": {str(name): count for name, count in outcome.obstacles.items()},
            "headroom": {str(q): hosts for q, hosts in zip(TIERS, outcome.headroom, strict=True)},
        }
        if self.packing is not None:
            rates = rates_of(self.instance, self.packing)
            found["allocated"] = dict(zip(DIMENSIONS, rates, strict=True))
        else:
            found |= {"host_hours": outcome.host_hours, "measured_hours": self.measured_h, "opened": outcome.opened}
            found["migrated"] = outcome.migrated
            found["mean_hosts"] = outcome.host_hours / self.measured_h if self.measured_h else None
        if len(hosts):
            found["shuffles"] = {"number": len(hosts), **_spread(hosts), "rejected": int(self.orders[:, 1].sum())}
        return found


def _spread(hosts: NDArray[Any]) -> dict[str, Any]:
    low, high = np.percentile(hosts, (5, 95)).tolist()
    least, most = hosts.min().item(), hosts.max().item()
    return {"mean": float(hosts.mean()), "p5": low, "p95": high, "min": least, "max": most, "range": most - least}


def play(
    instance: Instance,
    policy: Policy,
    *,
    shuffles: int = 0,
    warm_up_days: float = 0.0,
    ahead: int = 0,
    migrate_every: int = 0,
    workers: Workers = HERE,
) -> Play:
    """Play the given order, and shuffles 0 to `shuffles` - 1; days before `warm_up_days` do not count to host-hours.

    ahead: requests that are known beyond the next one, of which the largest is placed first. migrate_every: placements
    between two moves of a container, 0 for none. workers: of blocks of shuffles. Raises BadInput for shuffles or a
    look-ahead of an instance with releases, and for moves in one without, FigureWrong where the packing breaks a rule.
    """
    if migrate_every and not instance.releases:
        raise BadInput("migrate_every", migrate_every, f"leave it out: no container of {instance.name} ends")
    for name, value in (("shuffles", shuffles), ("ahead", ahead)):
        if value and instance.releases:
            raise BadInput(name, value, f"{instance.name} has releases, whose order is part of it: leave it out")
    requests = len(instance.requests)
    # Shuffles are of the given order, which itself is looked ahead in last.
    given = instance
    if ahead:
        first = looked_ahead(instance, range(requests), ahead)
        instance = replace(instance, requests=tuple(instance.requests[k] for k in first))
    _, times = engine.events_of(instance)
    end_s = float(times[-1]) if times.size else 0.0
    begin_s = warm_up_days * DAY_S
    if begin_s > end_s:
        raise BadInput("warm-up", warm_up_days, f"give fewer days: {instance.name} ends after {end_s / DAY_S:.3g}")
    arrays = engine.arrays_of(instance)
    outcome = engine.play(instance, policy, arrays=arrays, measured_from_s=begin_s, between=migrate_every)
    packing = None if instance.releases else checked_packing(instance, policy, outcome.host, outcome.hosts)
    of_given = arrays if instance is given else engine.arrays_of(given)
    found = _Shuffles(given, policy, ahead, of_given).played(shuffles, workers)
    return Play(instance, policy, outcome, packing, lower_bound(instance), (end_s - begin_s) / HOUR_S, found)


@dataclass(frozen=True, slots=True)
class _Shuffles:
    """The shuffles of an instance, which a policy plays in blocks."""

    instance: Instance
    policy: Policy
    ahead: int
    arrays: Arrays = field(compare=False)

    def played(self, count: int, workers: Workers) -> Ints:
        """Return open hosts and rejected containers of shuffles 0 to count - 1, int64 [count, 2]."""
        if not count:
            return np.zeros((0, 2), dtype=np.int64)
        blocks = [range(first, min(first + BLOCK, count)) for first in range(0, count, BLOCK)]
        name = self.instance.name
        with Pool(self.block, workers, name=lambda one: f"{name}, shuffles {one[0]} to {one[-1]}", weight=len) as pool:
            return np.concatenate(list(pool.run(blocks)))

    def block(self, shuffles: range) -> Ints:
        """Return the same of some shuffles."""
        requests = len(self.instance.requests)
        orders = [looked_ahead(self.instance, shuffle_order(requests, k).tolist(), self.ahead) for k in shuffles]
        return engine.play_orders(self.instance, self.policy, np.array(orders, dtype=np.int64), self.arrays)


def packing_of(instance: Instance, host: NDArray[np.integer[Any]]) -> Packing:
    """Return the host of each container, numbered without closed hosts, those of a snapshot first."""
    held = len(instance.snapshot)
    pool = hosts_of(instance, int(host.max(initial=-1)) + 1)
    opened = np.union1d(np.arange(held), host[host >= 0])
    number = np.full(len(pool) + 1, -1)
    number[opened] = np.arange(len(opened))
    return Packing(tuple(pool[k].kind for k in opened.tolist()), tuple(number[host].tolist()))


def checked_packing(instance: Instance, policy: Policy, host: NDArray[np.integer[Any]], hosts: int) -> Packing:
    """Return the packing of a policy in the order of the instance; FigureWrong where it breaks a rule or a count."""
    packing = packing_of(instance, host)
    wrong = violations(instance, packing, may_reject=True)
    if wrong or packing.opened != hosts:
        raise FigureWrong(f"{policy.name} on {instance.name}: {'; '.join(wrong[:3]) or 'hosts are counted wrongly'}")
    return packing


def rates_of(instance: Instance, packing: Packing) -> tuple[float, ...]:
    """Return the placed demand over the capacity of the open hosts, by dimension; 1 without hosts."""
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


def replay(
    cluster: Cluster, instance: Instance, policy: Policy
) -> Iterator[tuple[float, Request | None, int, Choice | None]]:
    """Play an instance on its cluster by the plain rules; yield seconds, request, number of the container, choice.

    The cluster has each event when it is yielded. A release is a request of None.
    """
    where: dict[tuple[str, int], tuple[int, int]] = {}
    by_name = {request.name: request for request in instance.requests}
    for at_s, kind, name, index in events(instance):
        cluster.lives.predict(at_s)
        if kind == "release":
            if (name, index) in where:
                cluster.release(*where.pop((name, index)))
                cluster.lives.end((name, index), at_s)
            yield at_s, None, index, None
            continue
        request = by_name[name]
        app = cluster.application(request.application)
        cluster.saw(request.count)
        cluster.declare(request.lifetime_s, at_s)
        for number in range(request.count):
            choice = choose(cluster, policy, app, request.count)
            if choice is not None:
                cluster.place(choice.host, app, (name, number))
                where[name, number] = choice.host, app
            yield at_s, request, number, choice


def decisions(instance: Instance, policy: Policy) -> Iterator[dict[str, Any]]:
    """Yield every decision on an instance in its given order, one by one, as in the log of §10.2.

    A container without a host has `host` None and, in `obstacles`, the hosts by the obstacle.
    """
    cluster, number = cluster_of(instance), 0
    for _, request, index, choice in replay(cluster, instance, policy):
        if request is None:
            continue
        entry: dict[str, Any] = {
            "time": request.at_s,
            "request": request.name,
            "container": index,
            "policy": policy.digest,
        }
        if choice is None:
            reasons = cluster.reasons(cluster.application(request.application))
            entry |= {"host": None, "feasible": 0, "obstacles": {str(why): hosts for why, hosts in reasons.items()}}
        else:
            second = choice.runner_up
            entry |= {
                "host": cluster.hosts[choice.host].name,
                "score": choice.score,
                "runner_up": None if second < 0 else cluster.hosts[second].name,
                "runner_up_score": None if second < 0 else choice.runner_up_score,
                "feasible": choice.feasible,
                "is_new": choice.is_new,
            }
        number += 1
        if number % DIGEST_EVERY == 0:
            entry["state"] = cluster.digest()
        yield entry


def events(instance: Instance) -> Iterator[tuple[float, str, str, int]]:
    """Yield requests and releases in the order in which the simulator plays them: seconds, kind, request, index."""
    ends = [(end.at_s, 0, "release", end.request, end.index) for end in instance.releases]
    begins = [(request.at_s, 1, "place", request.name, 0) for request in instance.requests]
    ordered = sorted([*ends, *begins], key=lambda one: one[:2]) if ends else begins
    for at_s, _, kind, name, index in ordered:
        yield at_s, kind, name, index


def write_log(instance: Instance, policy: Policy, path: Path) -> int:
    """Write every decision as a line of JSON; return how many there are."""
    lines = [json.dumps(entry, allow_nan=False) for entry in decisions(instance, policy)]
    replace_file(path, "\n".join([*lines, ""]))
    return len(lines)


# Several policies on the same orders.


@dataclass(frozen=True, slots=True)
class OrderFigures:
    """One order: open hosts at its end (with releases: at most), rejected containers, and placed over offered.

    rates: by dimension; none with releases. host_hours: to the last arrival, None without releases.
    """

    hosts: int
    rejected: int
    rates: tuple[float, ...]
    host_hours: float | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """A policy on an instance: its nominal order, and its shuffles.

    gap: mean hosts over the bound, minus 1. to_reference: mean of the paired differences in hosts to best fit, with a
    bootstrap interval of 95 %; without shuffles, the difference on the nominal order. packing: of the nominal order.
    """

    policy: str
    nominal: OrderFigures
    shuffles: tuple[OrderFigures, ...]
    to_reference: tuple[float, float, float]
    gap: float
    packing: Packing

    @property
    def orders(self) -> tuple[OrderFigures, ...]:
        """The shuffles, or the nominal order alone."""
        return self.shuffles or (self.nominal,)

    @property
    def hosts(self) -> Floats:
        """Hosts of each of the orders."""
        return np.array([one.hosts for one in self.orders], dtype=np.float64)

    def as_data(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        hosts = self.hosts
        rates = np.array([one.rates for one in self.orders]).mean(axis=0).tolist()
        return {
            "policy": self.policy,
            "nominal": self.nominal.hosts,
            "shuffles": len(self.shuffles),
            **_spread(hosts),
            "standard_error": float(hosts.std(ddof=1) / np.sqrt(len(hosts))) if len(hosts) > 1 else None,
            "rates": dict(zip(DIMENSIONS if rates else (), rates, strict=True)),
            "rejected": int(sum(one.rejected for one in self.orders)),
            "to_best_fit": dict(zip(("mean", "low", "high"), self.to_reference, strict=True)),
            "gap": self.gap,
            "host_hours": self.nominal.host_hours,
            "by_shuffle": [one.hosts for one in self.shuffles],
        }


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All policies on one instance. bound_hours: host-hours that no policy can be below, None without releases."""

    instance: Instance
    bound: Bound
    bound_hours: float | None
    optimum: Solution | None
    shuffles: tuple[int, ...]
    figures: tuple[Figures, ...]

    def of(self, policy: str) -> Figures:
        """Return the figures of a policy by name."""
        return next(one for one in self.figures if one.policy == policy)

    def as_data(self) -> dict[str, Any]:
        """Return it as JSON data, with the version of the code."""
        best = self.optimum
        return {
            "instance": self.instance.name,
            "containers": self.instance.containers,
            "code": code_version(SOURCES),
            "shuffles": list(self.shuffles),
            "bound": asdict(self.bound),
            "bound_hours": self.bound_hours,
            "known": None if best is None else {"hosts": best.hosts, "optimal": best.optimal, "method": best.method},
            "policies": [one.as_data() for one in self.figures],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """An instance with the policies that are compared on it: the standard ones, HAND, and learned ones by label.

    shuffles: orders beyond the given one. Raises BadInput for shuffles of an instance with releases, whose order is
    part of it, or a label of a learned policy that a standard one has.
    """

    instance: Instance
    learned: Mapping[str, Policy]
    shuffles: tuple[int, ...] = tuple(range(50))
    hand: bool = True

    def __post_init__(self) -> None:
        if self.instance.releases and self.shuffles:
            remedy = f"{self.instance.name} has releases: give 0, and its own order is played"
            raise BadInput("shuffles", len(self.shuffles), remedy)
        known = self._known()
        for label in self.learned:
            if label in known:
                raise BadInput("label", label, f"choose another one: these are taken: {', '.join(known)}")

    @property
    def contenders(self) -> dict[str, Policy | None]:
        """Every policy by label; None for HAND, which is tuned where it is played."""
        return {**self._known(), **self.learned}

    def _known(self) -> dict[str, Policy | None]:
        releases = self.instance.releases
        standard = (*STANDARD, OLDEST, LIFETIME) if releases else STANDARD
        known: dict[str, Policy | None] = {policy.name: policy for policy in standard}
        return known | ({"HAND": None} if self.hand and not releases else {})

    def played(self, label: str) -> tuple[OrderFigures, tuple[OrderFigures, ...], Packing]:
        """Return the figures of a policy in the given order and in each shuffle, and its packing in the given order."""
        arrays = engine.arrays_of(self.instance)
        policy = self.contenders[label] or tuned_by_hand(self.instance, arrays)
        nominal, packing = _order(self.instance, policy, None, arrays)
        return nominal, tuple(_order(self.instance, policy, k, arrays)[0] for k in self.shuffles), packing

    def bounds(self) -> tuple[Bound, float | None, Solution | None]:
        """Return the least number of hosts, of host-hours (None without releases), and the best known packing.

        That is the packing of a method with full knowledge, None where no method takes the instance.
        """
        hours, solved = None, None
        if self.instance.releases:
            last_s = self.instance.requests[-1].at_s
            hours = Case.of(self.instance, last_s).bound() * last_s / HOUR_S
        with suppress(BadInput):
            solved = solve(self.instance)
        return lower_bound(self.instance), hours, solved


@dataclass(frozen=True, slots=True)
class _Comparisons:
    """Comparisons whose parts are computed one by one."""

    all: tuple[Comparison, ...]

    def part(self, case: tuple[int, str | None]) -> Any:
        """Return the figures of a policy in a comparison, by index and label; for None, the bounds of its instance."""
        at, label = case
        return self.all[at].bounds() if label is None else self.all[at].played(label)

    def name(self, case: tuple[int, str | None]) -> str:
        """Return the name of a part for messages."""
        return f"{self.all[case[0]].instance.name}: {case[1] or 'bounds'}"

    def weight(self, case: tuple[int, str | None]) -> float:
        """Return about how many orders a part plays."""
        at, label = case
        orders = 1 + len(self.all[at].shuffles)
        return float(self.all[at].instance.containers * (orders + HAND_EVALUATIONS * (label == "HAND")))


def evaluate(
    comparisons: Sequence[Comparison], workers: Workers = HERE, on_progress: Callable[[str], None] = lambda _: None
) -> list[Evaluation]:
    """Return figures of all policies of each comparison, on the same sequences.

    workers: of the policies, one by one. Every packing passes the independent checker, else FigureWrong.
    """
    work = _Comparisons(tuple(comparisons))
    cases: list[tuple[int, str | None]] = []
    for at, one in enumerate(comparisons):
        cases += [(at, None), *((at, label) for label in one.contenders)]
    parts: dict[tuple[int, str | None], Any] = {}
    with Pool(work.part, workers, name=work.name, weight=work.weight) as pool:
        for case, part in zip(cases, pool.run(cases), strict=True):
            parts[case] = part
            on_progress(f"{len(parts)} of {len(cases)} cases")
    return [
        _evaluation(one, {label: parts[at, label] for label in one.contenders}, *parts[at, None])
        for at, one in enumerate(comparisons)
    ]


def _evaluation(
    comparison: Comparison,
    by_label: Mapping[str, tuple[OrderFigures, tuple[OrderFigures, ...], Packing]],
    bound: Bound,
    hours: float | None,
    solved: Solution | None,
) -> Evaluation:
    reference = [one.hosts for one in by_label[REFERENCE][1] or (by_label[REFERENCE][0],)]
    figures = []
    for label, (nominal, others, packing) in by_label.items():
        hosts = np.array([one.hosts for one in others or (nominal,)], dtype=np.float64)
        paired = mean_interval(hosts - reference)
        gap = float(hosts.mean()) / bound.hosts - 1.0 if bound.hosts else 0.0
        figures.append(Figures(label, nominal, others, (paired.mean, paired.low, paired.high), gap, packing))
    best = None if solved is None else _best_known(solved, figures)
    return Evaluation(comparison.instance, bound, hours, best, comparison.shuffles, tuple(figures))


def _best_known(solved: Solution, figures: Sequence[Figures]) -> Solution:
    """Return the packing with the fewest hosts: of the method with full knowledge, or of a policy, checked above."""
    complete = [one for one in figures if not one.nominal.rejected]
    best = min(complete, key=lambda one: one.nominal.hosts, default=None)
    if best is None or best.nominal.hosts >= solved.hosts:
        return solved
    return replace(solved, packing=best.packing, hosts=best.nominal.hosts, method=best.policy)


def _order(instance: Instance, policy: Policy, shuffle: int | None, arrays: Arrays) -> tuple[OrderFigures, Packing]:
    """Return the figures of the nominal order (None) or of a shuffle, and its packing.

    With releases the hosts are those of the peak, and there is no packing: the host of an ended container is not known.
    """
    order = None if shuffle is None else shuffle_order(len(instance.requests), shuffle)
    until_s = instance.requests[-1].at_s if instance.releases else None
    outcome = engine.play(instance, policy, order, arrays=arrays, until_s=until_s)
    if instance.releases:
        return OrderFigures(outcome.peak, outcome.rejected, (), outcome.host_hours), Packing((), ())
    ordered = instance if shuffle is None else shuffled(instance, shuffle)
    begin = np.concatenate(([0], np.cumsum([one.count for one in instance.requests])))
    places = range(len(instance.requests)) if order is None else order.tolist()
    host = np.concatenate([outcome.host[begin[k] : begin[k + 1]] for k in places] or [np.empty(0, dtype=np.int64)])
    packing = checked_packing(ordered, policy, host, outcome.hosts)
    return OrderFigures(outcome.hosts, outcome.rejected, rates_of(ordered, packing)), packing


def tuned_by_hand(instance: Instance, arrays: Arrays | None = None) -> Policy:
    """Return weights of `linear14` found on the nominal order alone, coordinate by coordinate, in 200 evaluations.

    An example of tuning by hand: the nominal order decides little of others (§10.1).
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
                    moved = theta.copy()
                    moved[k] = np.clip(moved[k] + sign * step, low[k], high[k])
                    found, spent = cost(moved), spent + 1
                    if found < best:
                        theta, best = moved, found
        if best == before:
            break
    return Policy("HAND", "linear14", tuple(theta.tolist()))


# Instances with releases, by the mean of the open hosts.


@dataclass(frozen=True, slots=True)
class Case:
    """An instance that is played often. length_s: of its time, 0 where nothing ends in it.

    The cost of a policy is the mean number of open hosts over the time, without releases the number at the end. A
    container without a host counts as PRICE_OF_REJECTION hosts.
    """

    instance: Instance
    length_s: float
    arrays: Arrays

    @classmethod
    def of(cls, instance: Instance, length_s: float) -> Case:
        """Return an instance as a case; without releases the time does not matter."""
        return cls(instance, length_s if instance.releases else 0.0, engine.arrays_of(instance))

    def cost(self, policy: Policy) -> float:
        """Return the cost of a policy."""
        found = engine.play(self.instance, policy, arrays=self.arrays, until_s=self.length_s or None)
        hosts = found.host_hours * HOUR_S / self.length_s if self.length_s else float(found.hosts)
        return hosts + PRICE_OF_REJECTION * found.rejected

    def checked_cost(self, policy: Policy) -> float:
        """Return the cost of a policy, with every placement held to the rules by the independent checker.

        The plain rules place the containers once more for it. FigureWrong where a rule is broken, or where the compiled
        simulator has another cost.
        """
        cost, (packing, hosts) = self.cost(policy), _by_plain_rules(self.instance, policy, self.length_s)
        wrong = violations(self.instance, packing, may_reject=True)
        plain = hosts + PRICE_OF_REJECTION * packing.rejected
        if wrong or abs(plain - cost) > 1e-6 * max(cost, 1.0):
            why = "; ".join(wrong[:3]) or f"it costs {cost:g}, and {plain:g} by the plain rules"
            raise FigureWrong(f"{policy.name} on {self.instance.name}: {why}")
        return cost

    def bound(self) -> float:
        """Return a cost that no policy can be below, by the totals over capacity and the limits at every moment."""
        instance = self.instance
        if not self.length_s:
            return float(lower_bound(instance).hosts)
        apps = {app.name: k for k, app in enumerate(instance.applications)}
        needs, most = needs_of(instance.applications), largest_host(instance)
        owner = {request.name: (apps[request.application], request.count) for request in instance.requests}
        running = np.zeros(len(apps), dtype=np.int64)
        total, last, hosts = 0.0, 0.0, 0
        for at_s, kind, name, _ in events(instance):
            if (now_s := min(at_s, self.length_s)) > last:
                total, last = total + hosts * (now_s - last), now_s
            app, count = owner[name]
            running[app] += count if kind == "place" else -1
            hosts = least_hosts(running, needs, most).hosts
        return (total + hosts * (self.length_s - last)) / self.length_s


def _by_plain_rules(instance: Instance, policy: Policy, length_s: float) -> tuple[Packing, float]:
    """Return where the plain rules place every container, and the mean of the open hosts (at the end for no length)."""
    cluster = cluster_of(instance)
    placed: dict[tuple[str, int], int] = {}
    total, last, open_hosts = 0.0, 0.0, cluster.open_hosts
    for at_s, request, index, choice in replay(cluster, instance, policy):
        if (now_s := min(at_s, length_s)) > last:
            total, last = total + open_hosts * (now_s - last), now_s
        open_hosts = cluster.open_hosts
        if request is not None and choice is not None:
            placed[request.name, index] = choice.host
    used = {host: k for k, host in enumerate(sorted(set(placed.values())))}
    keys = [(request.name, index) for request in instance.requests for index in range(request.count)]
    hosts = tuple(used[placed[key]] if key in placed else REJECTED for key in keys)
    packing = Packing(tuple(cluster.hosts[host].kind for host in used), hosts)
    mean = (total + open_hosts * (length_s - last)) / length_s if length_s else float(open_hosts)
    return packing, mean
