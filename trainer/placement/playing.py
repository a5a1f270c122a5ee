"""One policy on one instance: what it opens, what is left, how far that depends on the order, and every decision."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.placement.choosing import read_policy
from domain.errors import BadInput
from domain.rules.placement.bounds import Bound
from domain.rules.placement.cluster import DIGEST_EVERY, choose, cluster_of
from domain.rules.placement.instance import DIMENSIONS, Instance
from domain.rules.placement.policies import NAMED, TIERS, Policy, reserve
from domain.units import DAY_S, HOUR_S
from simulator.placement import engine
from simulator.placement.instances import shuffle_order
from trainer.kit.files import replace_file
from trainer.placement.bounds import lower_bound
from trainer.placement.checker import Packing, violations
from trainer.placement.evaluation import FigureWrong, packing_of, rates_of


def policy_of(text: str) -> Policy:
    """Return a policy by name (`bf`), as `reserve:HOSTS,CORES,COUNT`, or from a FILE.json; BadInput.

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
    path = Path(text)
    if not path.is_file():
        raise BadInput(
            "policy", text, f"give one of {', '.join(NAMED)}, reserve:HOSTS,CORES,COUNT, or a policy's .json"
        )
    return read_policy(path)


@dataclass(frozen=True, slots=True)
class Played:
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
            found["mean_hosts"] = outcome.host_hours / self.measured_h if self.measured_h else None
        if len(hosts):
            low, high = np.percentile(hosts, (5, 95)).tolist()
            found["shuffles"] = {
                "number": len(hosts),
                "mean": float(hosts.mean()),
                "p5": low,
                "p95": high,
                "min": int(hosts.min()),
                "max": int(hosts.max()),
                "range": int(np.ptp(hosts)),
                "rejected": int(self.orders[:, 1].sum()),
            }
        return found


def play(instance: Instance, policy: Policy, *, shuffles: int = 0, warm_up_days: float = 0.0) -> Played:
    """Play the given order, and shuffles 0 to `shuffles` - 1; days before `warm_up_days` do not count to host-hours.

    Raises BadInput for shuffles of an instance with releases, FigureWrong where the packing breaks a rule.
    """
    if shuffles and instance.releases:
        raise BadInput("shuffles", shuffles, f"{instance.name} has releases, whose order is part of it: leave it out")
    _, times = engine.events_of(instance)
    end_s = float(times[-1]) if times.size else 0.0
    begin_s = warm_up_days * DAY_S
    if begin_s > end_s:
        raise BadInput("warm-up", warm_up_days, f"give fewer days: {instance.name} ends after {end_s / DAY_S:.3g}")
    arrays = engine.arrays_of(instance)
    outcome = engine.play(instance, policy, arrays=arrays, measured_from_s=begin_s)
    packing = None
    if not instance.releases:
        packing = packing_of(instance, outcome.host)
        wrong = violations(instance, packing, may_reject=True)
        if wrong:
            raise FigureWrong(f"{policy.name} on {instance.name}: {'; '.join(wrong[:3])}")
    requests = len(instance.requests)
    orders = np.array([shuffle_order(requests, k) for k in range(shuffles)], dtype=np.int64).reshape(shuffles, requests)
    found = engine.play_orders(instance, policy, orders, arrays)
    return Played(instance, policy, outcome, packing, lower_bound(instance), (end_s - begin_s) / HOUR_S, found)


def decisions(instance: Instance, policy: Policy) -> Iterator[dict[str, Any]]:
    """Yield every decision on an instance in its given order, one by one, as the log of §10.2 has them.

    A container without a host has `host` None and, in `obstacles`, the hosts by what kept it from them.
    """
    cluster = cluster_of(instance)
    where: dict[tuple[str, int], tuple[int, int]] = {}
    by_name = {request.name: request for request in instance.requests}
    number = 0
    for _, kind, name, index in events(instance):
        if kind == "release":
            if (name, index) in where:
                cluster.release(*where.pop((name, index)))
            continue
        request = by_name[name]
        app = cluster.application(request.application)
        cluster.saw(request.count)
        for index in range(request.count):
            choice = choose(cluster, policy, app, request.count)
            entry: dict[str, Any] = {"time": request.at_s, "request": name, "container": index, "policy": policy.digest}
            if choice is None:
                obstacles = {str(why): hosts for why, hosts in cluster.reasons(app).items()}
                entry |= {"host": None, "feasible": 0, "obstacles": obstacles}
            else:
                cluster.place(choice.host, app)
                where[name, index] = choice.host, app
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
