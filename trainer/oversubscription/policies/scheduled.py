"""Policies whose rates are known beforehand: the same for all, by subscriber, moving average, ridge regression (§5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from domain.errors import BadInput
from domain.rules.oversubscription import ridge
from domain.rules.oversubscription.moving_average import moving_average_rate
from domain.rules.oversubscription.rates import check_rate
from simulator.oversubscription.log import DAY_BEFORE_H, peak_log
from trainer.oversubscription.policies.base import Floats, Plan, Task


@dataclass(frozen=True, slots=True)
class FixedRates:
    """The same rate for everybody, or one for each subscriber."""

    name: str
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        for rate in self.rates:
            check_rate("policy", rate)

    def plan(self, task: Task) -> Plan:
        """Return the rates for every hour; BadInput when their number is not that of the subscribers."""
        count = task.scenario.subscribers
        if len(self.rates) not in (1, count):
            raise BadInput("policy", self.name, f"give one rate, or one for each of the {count} subscribers")
        return Plan(np.broadcast_to(np.array(self.rates), (task.scenario.hours, count)).copy())


@dataclass(frozen=True, slots=True)
class MovingAverage:
    """MA: the mean of the last day's hourly peaks."""

    name: str = "ma"

    def plan(self, task: Task) -> Plan:
        """Return the rates that the week's log gives, hour by hour."""
        log = peak_log(task.scenario, task.week)
        return Plan(
            np.array(
                [
                    [moving_average_rate(peaks, DAY_BEFORE_H + hour) for peaks in log]
                    for hour in range(task.scenario.hours)
                ]
            )
        )


@dataclass(frozen=True, slots=True)
class SupervisedRates:
    """SL: ridge regression of the next hour's peak, learnt from the logs of the scenario's other weeks."""

    name: str = "sl"

    def plan(self, task: Task) -> Plan:
        """Return the rates that the regression gives on the week's log; with one week alone it learns from that log."""
        scenario = task.scenario
        others = [name for name in scenario.weeks if name != task.week.name] or [task.week.name]
        fitted = ridge.fit([peak_log(scenario, scenario.week(name)) for name in others], DAY_BEFORE_H)
        log = peak_log(scenario, task.week)
        return Plan(
            np.array(
                [
                    [fitted.rate(peaks, DAY_BEFORE_H + hour, n, hour % 24) for n, peaks in enumerate(log)]
                    for hour in range(scenario.hours)
                ]
            )
        )


def as_rates(rates: Floats) -> str:
    """Return the text of a policy with a rate for each subscriber."""
    return "rates:" + ",".join(f"{rate:g}" for rate in rates.tolist())
