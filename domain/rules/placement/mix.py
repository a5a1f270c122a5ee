"""What kinds of requests and hosts a policy was trained on, and how far what it meets lies from them (§13, drift)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, TypeVar

from domain.rules.placement.instance import UNLIMITED, Application, Instance, Vector

Shares = Mapping[str, float]
"""Shares by class, which sum to 1; empty where nothing is known."""
_SUM: Final = 1e-6
"""How far the shares of a file may sum from 1."""

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Mix:
    """Kinds of requests and hosts, each as shares.

    demands: of containers, by cores and memory per core, both rounded down to powers of two. sizes: of requests, by
    their number of containers. limits: of containers, by the limit of their application. hosts: of hosts, as demands.
    """

    demands: Shares
    sizes: Shares
    limits: Shares
    hosts: Shares


PARTS: Final = tuple(field.name for field in fields(Mix))


def total_variation(one: Mapping[K, float], other: Mapping[K, float]) -> float:
    """Return half the summed differences of two distributions over classes, from 0 to 1."""
    return 0.5 * sum(abs(one.get(key, 0.0) - other.get(key, 0.0)) for key in {**one, **other})


def shares_of(counts: Mapping[K, float]) -> dict[K, float]:
    """Return counts as shares; empty where they sum to 0."""
    whole = sum(counts.values())
    return {key: number / whole for key, number in counts.items()} if whole else {}


def size_class(count: int) -> str:
    """Return the class of a request of so many containers."""
    return "1" if count == 1 else "2-9" if count < 10 else "10+"


def shape_class(size: Vector) -> str:
    """Return the class of what a container needs, or a host has."""
    cores, memory, _ = size
    return f"{2 ** int(math.log2(cores))}c {2.0 ** math.floor(math.log2(memory / cores)):g}g"


def limit_class(limit: int) -> str:
    """Return the class of an application's limit."""
    return "1" if limit == 1 else "none" if limit >= UNLIMITED else "2+"


def mix_of(requests: Iterable[tuple[Application, int]], hosts: Iterable[tuple[Vector, float]]) -> Mix:
    """Return the mix of requests (application, containers), and of hosts (capacity, how many there are of it)."""
    demands, sizes, limits, shapes = Counter[str](), Counter[str](), Counter[str](), dict[str, float]()
    for app, count in requests:
        demands[shape_class(app.demand)] += count
        limits[limit_class(app.limit)] += count
        sizes[size_class(count)] += 1
    for capacity, number in hosts:
        shape = shape_class(capacity)
        shapes[shape] = shapes.get(shape, 0.0) + number
    return Mix(shares_of(demands), shares_of(sizes), shares_of(limits), shares_of(shapes))


def mix_of_instances(instances: Sequence[Instance]) -> Mix:
    """Return the mix of instances together; a type of hosts without bound counts as one host beside others like it."""
    requests, hosts = [], []
    for instance in instances:
        apps = {app.name: app for app in instance.applications}
        requests += [(apps[one.application], one.count) for one in instance.requests]
        bounded = all(kind.count is not None for kind in instance.hosts)
        hosts += [(kind.capacity, float(kind.count or 0) if bounded else 1.0) for kind in instance.hosts]
    return mix_of(requests, hosts)


def distances(seen: Mix, trained: Mix) -> dict[str, float]:
    """Return the total variation between both, by part of the mix; a part of which either knows nothing is left out."""
    both = [(name, getattr(seen, name), getattr(trained, name)) for name in PARTS]
    return {name: total_variation(one, other) for name, one, other in both if one and other}


def outside(app: Application, count: int, trained: Mix) -> tuple[str, ...]:
    """Return what of a request training saw none of, in words."""
    asked = (
        ("containers of", shape_class(app.demand), trained.demands),
        ("requests of containers:", size_class(count), trained.sizes),
        ("containers with limit", limit_class(app.limit), trained.limits),
    )
    return tuple(f"{words} {name}" for words, name, shares in asked if shares and not shares.get(name))


def mix_document(mix: Mix) -> dict[str, dict[str, float]]:
    """Return a mix as plain data, a part of a policy's file."""
    return {name: dict(sorted(shares.items())) for name, shares in asdict(mix).items()}


def parse_mix(value: Any) -> Mix | None:
    """Return the mix in a part of a file, None for what is none."""
    if not isinstance(value, dict) or set(value) != set(PARTS):
        return None
    for shares in value.values():
        if not isinstance(shares, dict) or not all(_is_share(one) for one in shares.values()):
            return None
        if shares and abs(sum(shares.values()) - 1.0) > _SUM:
            return None
    return Mix(**{name: {str(key): float(one) for key, one in value[name].items()} for name in PARTS})


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0
