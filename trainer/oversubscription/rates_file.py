"""The file of calibrated rates: one rate per subscriber, what guards them, and what they were held to. Plain JSON.

{"kind": "oversubscription-rates", "version": 1, "scenario": "internal_like", "scenario_sha256": "...",
 "start": "cold", "alpha": 0.95, "actions": [...], "subscribers": ["0", ...], "rates": [...],
 "guard": {"kind": "shield", "budget": 0.003} or null, "calibration": {...}, "packages": {...}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from domain.errors import BadInput
from domain.rules.oversubscription.guards import RateGuard, guard_of_file
from domain.rules.oversubscription.rates import check_actions, check_rate
from simulator.oversubscription.guard import guard_of
from simulator.oversubscription.scenario import Scenario
from trainer.oversubscription.policies.base import Plan, Task

KIND, VERSION = "oversubscription-rates", 1
SHIPPED = Path(__file__).parent / "shipped"
"""Rates for the packaged scenarios, SCENARIO-START.json: examples of what `train oversubscription` writes."""


@dataclass(frozen=True, slots=True)
class RatesFile:
    """Rates by subscriber with the guard they need, None for none, and how they came about."""

    name: str
    scenario: str
    scenario_sha256: str
    start: str
    alpha: float
    actions: tuple[float, ...]
    subscribers: tuple[str, ...]
    rates: tuple[float, ...]
    guard: RateGuard | None = None
    calibration: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)

    def plan(self, task: Task) -> Plan:
        """Return the rates for every hour, behind their guard; BadInput for another number of subscribers."""
        scenario = task.scenario
        if len(self.rates) != scenario.subscribers:
            told = f"it is for {len(self.rates)} subscribers, the scenario has {scenario.subscribers}: train it anew"
            raise BadInput("policy", self.name, told)
        schedule = np.broadcast_to(np.array(self.rates), (scenario.hours, scenario.subscribers)).copy()
        guard = None if self.guard is None else guard_of(scenario, self.guard.kind, self.guard.budget)
        return Plan(schedule, guard=guard)

    def as_data(self) -> dict[str, Any]:
        """Return the file's content."""
        return {
            "kind": KIND,
            "version": VERSION,
            "scenario": self.scenario,
            "scenario_sha256": self.scenario_sha256,
            "start": self.start,
            "alpha": self.alpha,
            "actions": list(self.actions),
            "subscribers": list(self.subscribers),
            "rates": list(self.rates),
            "guard": None if self.guard is None else self.guard.as_data(),
            "calibration": dict(self.calibration),
            "packages": dict(self.packages),
        }


def read_rates(path: Path) -> RatesFile:
    """Return the rates in a file; BadInput says what is wrong with it."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput("policy", str(path), f"give a file of rates that can be read: {error}") from None
    if not isinstance(data, dict) or (data.get("kind"), data.get("version")) != (KIND, VERSION):
        raise BadInput("policy", str(path), f'give a file with "kind": "{KIND}" and "version": {VERSION}')
    try:
        guard = guard_of_file(str(path), data["guard"])
        rates = tuple(check_rate(f"{path.name}: rates", float(rate)) for rate in data["rates"])
        found = RatesFile(
            name=str(path),
            scenario=str(data["scenario"]),
            scenario_sha256=str(data["scenario_sha256"]),
            start=str(data["start"]),
            alpha=float(data["alpha"]),
            actions=check_actions(data["actions"]),
            subscribers=tuple(map(str, data["subscribers"])),
            rates=rates,
            guard=guard,
            calibration=dict(data["calibration"]),
            packages=dict(data["packages"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput("policy", str(path), f"it lacks or misstates {error}: train it anew") from None
    if len(found.subscribers) != len(rates) or len(set(found.subscribers)) != len(rates):
        raise BadInput("policy", str(path), "give one rate for each subscriber, each once")
    return found


def shipped_rates(scenario: Scenario, start: str) -> RatesFile | None:
    """Return the rates that ship for a packaged scenario and start, None where the scenario is not that one."""
    path = SHIPPED / f"{scenario.name}-{start}.json"
    if not path.is_file():
        return None
    found = read_rates(path)
    return found if found.scenario_sha256 == scenario_sha256(scenario) else None


def scenario_sha256(scenario: Scenario) -> str:
    """Return the SHA-256 over what makes a scenario apart from its weeks: machines, limits, levels, profiles."""
    facts = (
        *(scenario.subscribers, scenario.machines, scenario.machine_cores, scenario.machine_memory_gb),
        *(scenario.machine_network_gbps, scenario.beta, scenario.violation_hours, scenario.hours, scenario.actions),
        scenario.prefill_rate,
    )
    digest = hashlib.sha256(json.dumps(facts).encode())
    for table in (scenario.mu, scenario.sd):
        digest.update(np.ascontiguousarray(table).tobytes())
    return digest.hexdigest()


def write_rates(rates: RatesFile, path: Path) -> None:
    """Write the file whole or not at all."""
    fresh = path.with_suffix(".part")
    fresh.write_text(json.dumps(rates.as_data(), indent=1, allow_nan=False) + "\n", "utf-8")
    fresh.replace(path)
