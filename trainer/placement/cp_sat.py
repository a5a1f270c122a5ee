"""Whether the containers of an instance fit on so many hosts, asked of CP-SAT (placement specification §5).

It is asked in a process of its own, and this module imports nothing that loads HiGHS: ortools and highspy each bring a
library of that name, and a process can hold one of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEAST_S = 0.1


@dataclass(frozen=True, slots=True)
class Containers:
    """What is to be placed on equal hosts.

    counts, limits: containers of each application, and most of them on one host. demand: of one, by application and
    dimension. pairs: applications that exclude each other.
    """

    counts: Sequence[int]
    limits: Sequence[int]
    demand: Sequence[Sequence[int]]
    capacity: Sequence[int]
    pairs: Sequence[tuple[int, int]]


def fewest(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return patterns (instances of each application, by host) on the fewest hosts found, and the bound proven.

    data: `containers`, the fields of Containers; `least` and `most`, hosts of the known bound and one more than asked
    for; `limit_s`; `workers`. Each number of hosts is asked for in turn. One that is neither refuted nor filled in time
    is passed over, and the bound stays there. patterns is None where nothing below `most` was found.
    """
    wanted, bound, proven = Containers(**data["containers"]), int(data["least"]), True
    stop = time.perf_counter() + data["limit_s"]
    for hosts in range(bound, data["most"]):
        found, refuted = _filled(wanted, hosts, max(LEAST_S, stop - time.perf_counter()), data["workers"])
        if found is not None:
            return {"patterns": found, "bound": bound}
        proven = proven and refuted
        bound = hosts + 1 if proven else bound
        if time.perf_counter() > stop:
            break
    return {"patterns": None, "bound": bound}


def _filled(wanted: Containers, hosts: int, limit_s: float, workers: int) -> tuple[list[list[int]] | None, bool]:
    """Return a packing into so many hosts, None without one; and whether it is proven that there is none."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    most = [min(limit, count) for limit, count in zip(wanted.limits, wanted.counts, strict=True)]
    apps = range(len(most))
    y = [[model.new_int_var(0, most[a], f"y{a}_{h}") for h in range(hosts)] for a in apps]
    for a in apps:
        model.add(sum(y[a]) == wanted.counts[a])
    excluding = sorted({a for pair in wanted.pairs for a in pair})
    presence = {(a, h): model.new_bool_var(f"on{a}_{h}") for a in excluding for h in range(hosts)}
    for (a, h), on in presence.items():
        model.add(y[a][h] <= most[a] * on)
    for a, b in wanted.pairs:
        for h in range(hosts):
            model.add_at_most_one(presence[a, h], presence[b, h])
    for k, capacity in enumerate(wanted.capacity):
        for h in range(hosts):
            model.add(sum(wanted.demand[a][k] * y[a][h] for a in apps) <= capacity)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 0
    status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return [[int(solver.value(y[a][h])) for a in apps] for h in range(hosts)], False
    return None, bool(status == cp_model.INFEASIBLE)
