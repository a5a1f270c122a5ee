"""Instances of placement: the fixed and generated ones of §6, shuffled orders, VM tables, and files of yours.

Every generator draws from `numpy.random.default_rng(seed)` in the order that the specification gives.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from domain.rules.placement.cluster import hosts_of
from domain.rules.placement.instance import (
    Application,
    HostType,
    Instance,
    Release,
    Request,
    Vector,
    as_document,
    parse_instance,
)
from domain.rules.placement.policies import BF, Policy
from domain.units import DAY_S, HOUR_S
from simulator.oversubscription.scenario import PACKAGED, scenario_of
from simulator.placement import engine
from simulator.placement.traces import FORM, trace_of

Ints = NDArray[np.int64]
Pair = tuple[int, int]

REFERENCE: Vector = (96, 512, 3000)
"""The host of the publication: cores, memory in GiB, disk in GB."""
HALF: Vector = (64, 256, 3000)
"""The smaller host of `hetero`."""

SMALL_SPECS: tuple[Vector, ...] = ((4, 8, 60), (8, 16, 60), (4, 16, 60), (16, 32, 120))
SMALL_WEIGHTS = (0.50, 0.36, 0.06, 0.08)
SMALL_CORES = 1360
SMALL_HOSTS = 15
"""Of the packing that the small generator aims at."""

LARGE_SPECS: tuple[Vector, ...] = (
    *((1, 2, 20), (2, 4, 40), (4, 8, 60), (8, 16, 60)),
    *((4, 16, 60), (8, 32, 100), (16, 32, 120), (16, 64, 200)),
)
LARGE_WEIGHTS = (0.10, 0.16, 0.38, 0.22, 0.06, 0.03, 0.035, 0.015)
REQUESTS, CONTAINERS = 3000, 5000
STREAM_HOSTS = 230
"""No application of `stream` needs more hosts than this."""
CHURN_DAYS, WARM_UP_DAYS = 30, 7
LIFETIME_MEDIAN_DAYS, LIFETIME_SIGMA = 2.0, 1.5
TIGHT_HOSTS = 270
DISK_PER_CORE_GB = 15
"""Stated default where a table of VMs has no disk: that of a 4c8g container of §6.3."""


def small(seed: int) -> Instance:
    """Return 30 applications in one request each, 1360 cores; seed 1 is S1 (§6.1, §6.2)."""
    draws = np.random.default_rng(seed)
    cores = np.array([spec[0] for spec in SMALL_SPECS])
    while True:
        which = draws.choice(len(SMALL_SPECS), 30, p=SMALL_WEIGHTS)
        limits = draws.choice([1, 1, 1, 2, 3], 30)
        counts = np.minimum(np.minimum(draws.geometric(0.11, 30) + 1, SMALL_HOSTS * limits), SMALL_HOSTS)
        for _ in range(400):
            missing = SMALL_CORES - int(cores[which] @ counts)
            if missing == 0:
                break
            a, sign = int(draws.integers(30)), int(np.sign(missing))
            if abs(missing) >= cores[which[a]] and 1 <= counts[a] + sign <= SMALL_HOSTS:
                counts[a] += sign
        if int(cores[which] @ counts) == SMALL_CORES:
            break
    needs = -(-counts // limits)
    pairs = _pairs(draws, 30, 12, lambda a, b: bool(needs[a] + needs[b] <= SMALL_HOSTS))
    order = draws.permutation(30)
    applications = _applications([SMALL_SPECS[k] for k in which.tolist()], limits, pairs)
    requests = _requests(order, counts[order])
    return Instance(f"small-{seed}", (HostType("host", REFERENCE),), applications, requests)


def s1() -> Instance:
    """Return the small instance of the publication's size: optimum 15 hosts, best fit 20."""
    return replace(small(1), name="S1")


def large(seed: int) -> Instance:
    """Return 900 applications, 3000 requests and 5000 containers, ten requests of them heavy (§6.3)."""
    draws = np.random.default_rng(seed)
    which = draws.choice(len(LARGE_SPECS), 900, p=LARGE_WEIGHTS)
    limits = draws.choice([1, 2, 4, 1000], 900, p=[0.5, 0.2, 0.1, 0.2])
    app = draws.choice(900, REQUESTS, p=_popularity(900, 0.5))
    counts = np.ones(REQUESTS, dtype=np.int64)
    heavy = draws.choice(REQUESTS, 10, replace=False)
    for request, owner in zip(heavy.tolist(), draws.choice(900, 10, replace=False).tolist(), strict=True):
        limits[owner] = 1
        app[request] = owner
        counts[request] = draws.integers(20, 61)
        which[owner] = draws.choice([2, 3], p=[0.5, 0.5])
    light = np.setdiff1d(np.arange(REQUESTS), heavy)
    np.add.at(counts, draws.choice(light, CONTAINERS - int(counts.sum())), 1)
    pairs = _pairs(draws, 900, 300, lambda a, b: True)
    applications = _applications([LARGE_SPECS[k] for k in which.tolist()], limits, pairs)
    return Instance(f"L{seed}", (HostType("host", REFERENCE),), applications, _requests(app, counts))


def stream(seed: int) -> Instance:
    """Return 160 applications that many small requests scale out: here a reserve is of little use (§6.4)."""
    draws = np.random.default_rng(seed)
    which = draws.choice(len(LARGE_SPECS), 160, p=LARGE_WEIGHTS)
    single = draws.random(160) < 0.6
    limits = np.where(single, 1, draws.choice([2, 4, 1000], 160, p=[0.5, 0.3, 0.2]))
    share = np.minimum(_popularity(160, 0.8), STREAM_HOSTS / CONTAINERS)
    app = draws.choice(160, REQUESTS, p=share / share.sum())
    counts = 1 + draws.multinomial(CONTAINERS - REQUESTS, np.full(REQUESTS, 1.0 / REQUESTS))
    total = np.bincount(app, weights=counts, minlength=160).astype(np.int64)
    limits[(limits == 1) & (total > STREAM_HOSTS)] = 2
    needs = -(-total // limits)
    pairs = _pairs(draws, 160, 60, lambda a, b: bool(needs[a] + needs[b] <= STREAM_HOSTS))
    applications = _applications([LARGE_SPECS[k] for k in which.tolist()], limits, pairs)
    return Instance(f"stream-{seed}", (HostType("host", REFERENCE),), applications, _requests(app, counts))


def balanced2d(seed: int) -> Instance:
    """Return a large instance in which every application of odd index has 8 GiB a core, so that memory binds too."""
    base = large(seed)
    applications = tuple(
        replace(app, demand=(app.demand[0], 8 * app.demand[0], app.demand[2])) if k % 2 else app
        for k, app in enumerate(base.applications)
    )
    return replace(base, name=f"balanced2d-{seed}", applications=applications)


def hetero(seed: int) -> Instance:
    """Return a large instance on a pool of two sizes of hosts, of which a policy may open either."""
    hosts = (HostType("large", REFERENCE), HostType("small", HALF))
    return replace(large(seed), name=f"hetero-{seed}", hosts=hosts)


def tight(seed: int = 219, hosts: int = TIGHT_HOSTS) -> Instance:
    """Return a large instance on a fixed number of hosts: what counts is how many containers are rejected."""
    return replace(large(seed), name=f"tight-{seed}", hosts=(HostType("host", REFERENCE, count=hosts),))


def snapshot(seed: int) -> Instance:
    """Return a large instance of which best fit has placed the first 70 %: the policy takes over."""
    return replace(taken_over(large(seed), 0.7), name=f"snapshot-{seed}")


def churn(seed: int) -> Instance:
    """Return the large instance as a stream of 30 days in which every container ends (§6.4).

    After the draws of `large`, of a generator of its own seeded (seed, 1): moments of the requests, uniform and sorted;
    then lifetimes, container by container. The first seven days warm the pool up.
    """
    base = large(seed)
    draws = np.random.default_rng((seed, 1))
    moments = np.sort(draws.random(len(base.requests))) * CHURN_DAYS * DAY_S
    lives = draws.lognormal(math.log(LIFETIME_MEDIAN_DAYS), LIFETIME_SIGMA, base.containers) * DAY_S
    requests = tuple(replace(one, at_s=float(at)) for one, at in zip(base.requests, moments.tolist(), strict=True))
    places = [(one, index) for one in requests for index in range(one.count)]
    ends = (Release(one.name, k, one.at_s + float(life)) for (one, k), life in zip(places, lives.tolist(), strict=True))
    releases = sorted((end for end in ends if end.at_s < CHURN_DAYS * DAY_S), key=lambda end: end.at_s)
    return replace(base, name=f"churn-{seed}", requests=requests, releases=tuple(releases))


def shuffled(instance: Instance, k: int) -> Instance:
    """Return an instance with its requests in the order of shuffle k (§6.3); moments stay with the places.

    Raises BadInput for one with releases: a container must not end before it came.
    """
    if instance.releases:
        raise BadInput("shuffle", k, f"{instance.name} has releases, whose order is part of it: use another seed")
    order = shuffle_order(len(instance.requests), k)
    moments = [one.at_s for one in instance.requests]
    requests = tuple(replace(instance.requests[i], at_s=at) for i, at in zip(order.tolist(), moments, strict=True))
    return replace(instance, name=f"{instance.name}/{k}", requests=requests)


def shuffle_order(requests: int, k: int) -> Ints:
    """Return shuffle k of so many requests, as positions in the nominal order."""
    return np.random.default_rng(k).permutation(requests)


def looked_ahead(instance: Instance, order: Iterable[int], ahead: int) -> list[int]:
    """Return the requests of an order as a pool places them that knows `ahead` more than the next one.

    Of the requests that are known, the one of most containers comes first, of equal ones the earliest.
    """
    known: list[tuple[int, int, int]] = []
    found: list[int] = []
    for place, number in enumerate(order):
        heappush(known, (-instance.requests[number].count, place, number))
        if len(known) > ahead:
            found.append(heappop(known)[2])
    return [*found, *(number for _, _, number in sorted(known))]


def taken_over(instance: Instance, share: float, policy: Policy = BF) -> Instance:
    """Return an instance as it stands once a policy has placed this share of its requests: the rest is to be placed.

    Containers that the policy rejects are left out. Raises BadInput for one with releases.
    """
    if instance.releases or not 0.0 <= share <= 1.0:
        raise BadInput(
            "share", share, f"give a share from 0 to 1, of an instance without releases; it is {instance.name}"
        )
    placed = round(share * len(instance.requests))
    first = replace(instance, requests=instance.requests[:placed])
    outcome = engine.play(first, policy)
    hosts = hosts_of(first, int(outcome.host.max(initial=-1)) + 1)
    owners = [request.application for request in first.requests for _ in range(request.count)]
    held: dict[int, Counter[str]] = {at: Counter(running) for at, (_, running) in enumerate(instance.snapshot)}
    for owner, host in zip(owners, outcome.host.tolist(), strict=True):
        if host >= 0:
            held.setdefault(host, Counter())[owner] += 1
    snapshot = tuple((hosts[host].kind, dict(running)) for host, running in sorted(held.items()))
    name = f"{instance.name} after {share:.0%} by {policy.name}"
    return replace(instance, name=name, requests=instance.requests[placed:], snapshot=snapshot)


def of_vms(scenario: str, week: str | None = None) -> Instance:
    """Return a week of VM requests of an oversubscription scenario, packaged or of yours, as an instance.

    An application is a subscriber's size of VM; a request is one VM, which ends where the week does not end first. What
    the tables do not say is taken as: 15 GB of disk a core, no limit, no exclusion, and as many hosts as needed. VMs of
    the warm start come at second 0. Cores and memory are rounded up to whole ones. Raises BadInput.
    """
    found = scenario_of(scenario)
    table = found.week(week or found.weeks[0])
    capacity = (int(found.machine_cores), int(found.machine_memory_gb), REFERENCE[2])
    sizes: dict[str, Application] = {}
    requests, releases = [], []
    columns = (table.ids, table.subscriber, table.cores, table.memory_gb, table.arrival, table.departure)
    for vm, owner, wanted, memory, arrival, departure in zip(*(column.tolist() for column in columns), strict=True):
        cores, gib = max(1, math.ceil(wanted)), max(1, math.ceil(memory))
        name = f"s{owner}-{cores}c{gib}g"
        sizes.setdefault(name, Application(name, (cores, gib, cores * DISK_PER_CORE_GB)))
        request = Request(f"v{vm}", name, 1, max(0.0, arrival * HOUR_S))
        requests.append(request)
        if departure < found.hours:
            releases.append(Release(request.name, 0, departure * HOUR_S))
    requests.sort(key=lambda one: one.at_s)
    releases.sort(key=lambda one: one.at_s)
    name = f"{found.name}-{table.name}"
    return Instance(name, (HostType("host", capacity),), tuple(sizes.values()), tuple(requests), tuple(releases))


GENERATORS: Mapping[str, Callable[[int], Instance]] = {
    "small": small,
    "large": large,
    "stream": stream,
    "balanced2d": balanced2d,
    "hetero": hetero,
    "tight": tight,
    "churn": churn,
    "snapshot": snapshot,
}
"""Generators by the name before the seed; L219 is large-219 and S1 small-1."""


def instance_of(text: str, hints: str = "") -> Instance:
    """Return an instance by name: S1, L219, `stream-0` and the like, a VM scenario such as `azure_like-s21`, or a file.

    hints: declared lifetimes of an extract of a public trace, see `simulator.placement.traces`. Raises BadInput or
    ConfigurationError.
    """
    trace = trace_of(text, hints)
    if trace is not None:
        return trace
    if hints:
        raise BadInput("hints", hints, f"they are drawn for public traces: give --instance {FORM}")
    if text == "S1":
        return s1()
    name, dash, seed = text.rpartition("-")
    if text[:1] == "L" and text[1:].isdecimal():
        name, dash, seed = "large", "-", text[1:]
    if dash and name in GENERATORS and seed.isdecimal():
        return GENERATORS[name](int(seed))
    if text in PACKAGED or (dash and name in PACKAGED):
        return of_vms(*((text,) if text in PACKAGED else (name, seed)))
    path = Path(text)
    if path.name.endswith((".json", ".json.gz")) or path.is_file():
        return read_instance(path)[0]
    seeded = ", ".join(f"{name}-SEED" for name in GENERATORS)
    remedy = f"give S1, L219, {seeded}, {', '.join(PACKAGED)}, {FORM} or a .json file"
    raise BadInput("instance", text, remedy)


def read_instance(path: Path) -> tuple[Instance, tuple[str, ...]]:
    """Return the instance in a JSON file, gzipped or not, and warnings; raises BadInput or ConfigurationError."""
    try:
        content = path.read_bytes()
        document = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (OSError, EOFError, ValueError, RecursionError) as error:
        raise BadInput("instance", str(path), f"give a JSON file that can be read: {error}") from None
    return parse_instance(document, path.name)


def write_instance(instance: Instance, path: Path) -> None:
    """Write an instance as JSON, gzipped where the name ends in .gz."""
    content = json.dumps(as_document(instance), indent=1, allow_nan=False).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def digest_of(instance: Instance) -> str:
    """Return sixteen hexadecimal digits that any change of an instance changes, but for its name."""
    document = {key: value for key, value in as_document(instance).items() if key != "name"}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _popularity(applications: int, power: float) -> NDArray[np.float64]:
    rank = np.arange(1, applications + 1, dtype=np.float64)
    share: NDArray[np.float64] = rank**-power / (rank**-power).sum()
    return share


def _pairs(draws: np.random.Generator, applications: int, wanted: int, fits: Callable[[int, int], bool]) -> set[Pair]:
    """Return so many different pairs of applications that exclude each other."""
    found: set[Pair] = set()
    while len(found) < wanted:
        a, b = sorted(draws.integers(0, applications, 2).tolist())
        if a != b and (a, b) not in found and fits(a, b):
            found.add((a, b))
    return found


def _applications(specs: Sequence[Vector], limits: Ints, pairs: Iterable[Pair]) -> tuple[Application, ...]:
    excludes: list[set[str]] = [set() for _ in specs]
    for a, b in pairs:
        excludes[a].add(f"a{b}")
        excludes[b].add(f"a{a}")
    return tuple(
        Application(f"a{k}", spec, limit, frozenset(others))
        for k, (spec, limit, others) in enumerate(zip(specs, limits.tolist(), excludes, strict=True))
    )


def _requests(app: Ints, counts: Ints) -> tuple[Request, ...]:
    pairs = zip(app.tolist(), counts.tolist(), strict=True)
    return tuple(Request(f"r{k}", f"a{owner}", count) for k, (owner, count) in enumerate(pairs))
