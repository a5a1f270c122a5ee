"""The file of a rule that sets the rate of each request: `trimtab train oversubscription --preset machine` writes it.

JSON: the rule's parameters by `domain.rules.oversubscription.request_rule`, the levels, subscribers, machines and
promise that it was trained for, the saving that it was trained for, and constant rates, with their guard, for the hours
and requests that the rule cannot decide. Fields that a reader ignores: the scenario with its SHA-256 and start, the
settings of the training, and the figures of validation and release.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from agent.models.regular_files import read_file
from domain.errors import BadInput
from domain.rules.oversubscription.pool import PoolRules
from domain.rules.oversubscription.rates import RateGuard, check_actions, check_rate, guard_of_file
from domain.rules.oversubscription.request_rule import RequestRule, Weights

KIND: Final = "oversubscription-rule"
VERSION: Final = 1
LARGEST_BYTES: Final = 4 * 2**20

CORES, CORE_HOURS, MACHINES = OBJECTIVES = ("cores", "core-hours", "machines")
"""Saved: requested cores, the same by the hours that VMs stay, or machines in use: their peak plus their mean, as a
peak alone changes by whole machines, and a warm start has most of it from its first hour on."""


@dataclass(frozen=True, slots=True, eq=False)
class RuleFile:
    """A rule, the subscribers in the order of its `base`, and the rates (N,) that take its place."""

    rule: RequestRule
    subscribers: tuple[str, ...]
    actions: tuple[float, ...]
    rates: tuple[float, ...]
    guard: RateGuard | None
    """Of the rates; its budget is the largest that the settings may permit after the rule."""
    alpha: float
    """The promise that it was trained for: the share of horizons with few enough hot hours."""
    objective: str
    """One of OBJECTIVES."""
    cluster: Mapping[str, float]
    """The facts of `cluster_of`; empty in files of an earlier version."""
    digest: str = ""
    """SHA-256 of the file."""

    @property
    def weekly(self) -> bool:
        """Whether the hour of the week counts: then the rule is for weeks that end, and not for a pool."""
        return self.rule.week.size > 0

    def as_data(self) -> dict[str, Any]:
        """Return the part of the file that decides."""
        return {
            "kind": KIND,
            "version": VERSION,
            "subscribers": list(self.subscribers),
            "actions": list(self.actions),
            "base": self.rule.base.tolist(),
            "week": self.rule.week.tolist(),
            "day": self.rule.day.tolist(),
            "weights": self.rule.weights._asdict(),
            "rates": list(self.rates),
            "guard": None if self.guard is None else asdict(self.guard),
            "alpha": self.alpha,
            "objective": self.objective,
            "weekly": self.weekly,
            "cluster": dict(self.cluster),
        }

    def check(self, rules: PoolRules, where: str) -> None:
        """Raise BadInput, which names the file by `where`, if the rule was trained for something else than the pool."""
        if self.weekly:
            remedy = "a pool's time has no first week: train the rule with --set weekly=false"
            raise BadInput(where, "weekly", f"it depends on the hour of a week, {remedy}")
        if self.actions != rules.actions:
            why = f"its levels are {list(self.actions)}, the pool's {list(rules.actions)}"
            raise BadInput(where, "actions", f"{why}: train it again, or set ACTIONS")
        if self.alpha < rules.alpha:
            why = f"it was trained for an ALPHA of {self.alpha:g}, the pool promises {rules.alpha:g}"
            raise BadInput(where, "alpha", f"{why}: train it with --alpha {rules.alpha:g}")
        if unknown := sorted(set(self.subscribers) - set(rules.subscribers)):
            remedy = "train it on the pool's record, or add them under SUBSCRIBERS"
            raise BadInput(where, "subscribers", f"the pool has no {', '.join(unknown)}: {remedy}")
        given = cluster_of(rules.machine_cores, rules.beta, rules.horizon_h, rules.violation)
        other = [
            f"{name} {self.cluster.get(name)}, not {given[name]:g}"
            for name in given
            if self.cluster.get(name) != given[name]
        ]
        if other:
            raise BadInput(where, "cluster", f"it was trained for {'; '.join(other)}: train it on the pool's record")


def cluster_of(machine_cores: float, beta: float, horizon_h: int, hot_hours: int) -> dict[str, float]:
    """Return the facts that a rule depends on: a machine's cores and threshold, the promise's horizon and hot hours."""
    return {"machine_cores": machine_cores, "beta": beta, "horizon_h": horizon_h, "hot_hours": hot_hours}


def read_rule(path: Path) -> RuleFile:
    """Return the rule in a file; BadInput names the fault."""
    try:
        content = read_file(path, LARGEST_BYTES)
    except OSError as error:
        remedy = f"give a JSON file of a rule that can be read, such as rule.json: {error.strerror}"
        raise BadInput("rule file", str(path), remedy) from None
    return rule_in(content, path)


def is_rule(content: bytes) -> bool:
    """Return whether the content of a file is meant as a rule's; other faults of it are of the reader."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.get("kind") == KIND


def rule_in(content: bytes, path: Path) -> RuleFile:
    """Return the rule in the content of a file; BadInput names the fault."""
    where = f"rule file {path}"
    try:
        # A whole number too large for a float is inf, which the checks refuse.
        data: Any = json.loads(content, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise BadInput("rule file", str(path), f"give a JSON file of a rule that can be read: {error}") from None
    if not isinstance(data, dict) or (data.get("kind"), data.get("version")) != (KIND, VERSION):
        raise BadInput("rule file", str(path), f'give a JSON object with "kind": "{KIND}" and "version": {VERSION}')
    try:
        base, week, day = (np.array(data[name], dtype=np.float64) for name in ("base", "week", "day"))
        found = RuleFile(
            RequestRule(base, week, day, Weights(**{name: float(value) for name, value in data["weights"].items()})),
            tuple(map(str, data["subscribers"])),
            check_actions(data["actions"]),
            tuple(check_rate(f"{where}, rates", float(rate)) for rate in data["rates"]),
            guard_of_file(where, data["guard"]),
            float(data["alpha"]),
            str(data["objective"]),
            {str(name): float(value) for name, value in data.get("cluster", {}).items()},
            hashlib.sha256(content).hexdigest(),
        )
    except BadInput as error:
        field = error.field if error.field.startswith(where) else f"{where}, {error.field}"
        raise BadInput(field, error.value, error.remedy) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput("rule file", str(path), f"it lacks or misstates {error}: train it again") from None
    if found.objective not in OBJECTIVES or not 0.0 < found.alpha < 1.0:
        raise BadInput("rule file", str(path), f"give one of {', '.join(OBJECTIVES)} and an alpha between 0 and 1")
    count = len(found.subscribers)
    if count != len(set(found.subscribers)) or (len(base), len(found.rates)) != (count, count):
        raise BadInput("rule file", str(path), "give a base and a rate for each subscriber, each subscriber once")
    return found
