"""A pool of machines whose CPU is oversold, and the settings of its service (oversubscription §1, §13)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from domain.errors import BadInput
from domain.rules.oversubscription.rates import (
    ACTIONS,
    FILTER,
    SHIELD,
    USUAL_BUDGET,
    USUAL_SPREAD,
    Margin,
    RateGuard,
    check_actions,
    check_budget,
    check_rate,
    violation_hours,
)

WARNING_BELOW = 0.05
"""A machine warns so far, as a share of its cores, below the threshold at which it is hot (§13)."""


@dataclass(frozen=True, slots=True)
class SubscriberRules:
    """An operator's settings of a subscriber. External customers are opted out unless `opt_out` is false (§13)."""

    internal: bool = False
    opt_out: bool | None = None
    minimum_rate: float = 0.05
    fixed_rate: float | None = None
    model_place: int | None = None

    @property
    def opted_out(self) -> bool:
        """Whether every VM of it is reserved in full."""
        return not self.internal if self.opt_out is None else self.opt_out


@dataclass(frozen=True, slots=True)
class PoolRules:
    """A pool and its limits; BadInput names a wrong field.

    alpha: chance, over the horizon, to stay below the tolerated hot hours. beta: share of a machine's cores in use from
    which it is hot. shield_budget: expected hot hours of a machine in a day that a request may leave; None: those of
    the policy's file, or the usual ones. rho, persistence: shares of a
    usage's variance that an owner's VMs have in common, and that is each VM's own level, None: learnt.
    drift_level, drift_hours, drift_spread: the drift of usage that shield and filter leave room for, see
    `rates.Margin`.
    policy: see `agent.oversubscription.rate_policies`. objective: the saving that its rules are trained for.
    risk_filter: a request gets another machine, not another rate.
    """

    name: str
    machines: int
    machine_cores: float
    machine_memory_gb: float
    machine_network_gbit: float = 100.0
    subscribers: Mapping[str, SubscriberRules] = field(default_factory=lambda: MappingProxyType({}))
    policy: str = "moving-average"
    objective: str = "core-hours"
    actions: tuple[float, ...] = ACTIONS
    alpha: float = 0.95
    beta: float = 0.6
    horizon_h: int = 120
    hot_hours: int | None = None
    shield_budget: float | None = None
    drift_level: float = 0.0
    drift_hours: int = 0
    drift_spread: float = USUAL_SPREAD
    rho: float | None = None
    persistence: float | None = None
    cooldown_s: float = 7200.0
    stale_s: float = 7200.0
    start_within_s: float = 3600.0
    timezone: str = "UTC"
    parameter: str | None = None
    risk_filter: bool = False
    config_hash: str = field(init=False, default="")
    """Sixteen hexadecimal digits that any change of the rules changes."""

    def __post_init__(self) -> None:
        check_actions(self.actions)
        if isinstance(self.machines, bool) or int(self.machines) != self.machines or self.machines < 1:
            raise BadInput("machines", self.machines, "give how many machines the pool has, 1 or more")
        for name in ("machine_cores", "machine_memory_gb", "machine_network_gbit", "cooldown_s", "stale_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0.0):
                raise BadInput(name, value, "give a finite number above 0")
        shared = self.rho or 0.0
        limits = (("alpha", self.alpha, 0.5, 0.999), ("beta", self.beta, 0.3, 0.95), ("rho", shared, 0.0, 0.99))
        for name, value, low, high in limits:
            if not low <= value <= high:
                raise BadInput(name, value, f"give a number from {low:g} to {high:g}")
        if self.persistence is not None and not 0.0 <= self.persistence <= 0.99 - shared:
            raise BadInput("persistence", self.persistence, "give 0 to 0.99, rho and persistence together at most 0.99")
        if not 1 <= self.horizon_h <= 8760:
            raise BadInput("horizon_h", self.horizon_h, "give whole hours, 1 to 8760")
        if self.hot_hours is not None and not 2 <= self.hot_hours <= self.horizon_h:
            raise BadInput("hot_hours", self.hot_hours, "give at least 2 hours and no more than the horizon has")
        _ = self.margin
        if self.shield_budget is not None:
            check_budget("shield_budget", self.shield_budget)
        for subscriber, rules in self.subscribers.items():
            check_rate(f"minimum_rate of {subscriber}", rules.minimum_rate)
            if rules.fixed_rate is not None:
                check_rate(f"fixed_rate of {subscriber}", rules.fixed_rate)
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError):
            raise BadInput("timezone", self.timezone, "give a zone such as UTC or Europe/Berlin") from None
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        plain["subscribers"] = {name: asdict(one) for name, one in self.subscribers.items()}
        digest = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
        object.__setattr__(self, "config_hash", digest[:16])

    @property
    def threshold_cores(self) -> float:
        """Cores in use from which a machine is hot; equality is hot."""
        return self.beta * self.machine_cores

    @property
    def warning_cores(self) -> float:
        """Cores in use from which a machine is watched."""
        return max(self.beta - WARNING_BELOW, 0.0) * self.machine_cores

    @property
    def violation(self) -> int:
        """Hot hours in the horizon that break the promise."""
        return max(2, violation_hours(self.horizon_h)) if self.hot_hours is None else self.hot_hours

    @property
    def margin(self) -> Margin:
        """The drift of usage that shield and filter leave room for."""
        return Margin(self.drift_level, self.drift_hours, self.drift_spread)

    def budget(self, guard: RateGuard | None) -> float:
        """Return the expected hot hours a day that a request may leave, given the guard of the policy's file.

        The settings may be stricter than the file; where there is room for usual drifts they are, as that was chosen
        with the usual budget. BadInput names the setting that permits more than its rates allow,
        or asks for the other kind of guard.
        """
        if guard is None:
            return USUAL_BUDGET if self.shield_budget is None else self.shield_budget
        if self.risk_filter != (guard.kind == FILTER):
            wanted = "false" if guard.kind == SHIELD else "true"
            remedy = f"set it to {wanted}: the rates of the policy's file were found behind a {guard.kind}"
            raise BadInput("risk_filter", self.risk_filter, remedy)
        if self.shield_budget is None:
            return self.margin.budget(guard.budget)
        if self.shield_budget > guard.budget:
            remedy = f"give at most {guard.budget:g}, which the policy's rates were found with, or leave it out"
            raise BadInput("shield_budget", self.shield_budget, remedy)
        return self.shield_budget

    @property
    def zone(self) -> ZoneInfo:
        """Where the pool's days begin at midnight."""
        return ZoneInfo(self.timezone)
