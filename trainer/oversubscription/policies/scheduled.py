"""Policies whose rates are known beforehand: the same for all, by subscriber, moving average, ridge regression (§5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from domain.errors import BadInput
from domain.rules.oversubscription import ridge
from domain.rules.oversubscription.moving_average import moving_average_rate
from domain.rules.oversubscription.rates import check_rate
from domain.rules.oversubscription.usage import HOURS
from simulator.oversubscription.log import DAY_BEFORE_H, peak_log
from trainer.oversubscription.policies.base import Floats, Plan, Task


@dataclass(frozen=True, slots=True)
class FixedRates:
    """The same rate for everybody, or one for each subscriber; the same all day, or in each block of the day."""

    name: str
    rates: tuple[tuple[float, ...], ...]
    """By block, from midnight on: one block for the whole day, four of six hours each."""

    def __post_init__(self) -> None:
        if len({len(block) for block in self.rates}) != 1 or HOURS % len(self.rates):
            raise BadInput("policy", self.name, "give blocks of equal length that fill a day, with as many rates each")
        for rate in (rate for block in self.rates for rate in block):
            check_rate("policy", rate)

    def plan(self, task: Task) -> Plan:
        """Return the rates for every hour; BadInput when their number is not that of the subscribers."""
        count = task.scenario.subscribers
        if len(self.rates[0]) not in (1, count):
            raise BadInput("policy", self.name, f"give one rate, or one for each of the {count} subscribers")
        return Plan(hourly(np.array(self.rates), task.scenario.hours, count))


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


def hourly(rates: Floats, hours: int, subscribers: int) -> Floats:
    """Return rates (N,) or (blocks of the day, N) for every hour, (hours, N)."""
    blocks = np.atleast_2d(rates)
    day = np.repeat(blocks, HOURS // len(blocks), axis=0)[np.arange(hours) % HOURS]
    return np.broadcast_to(day, (hours, subscribers)).copy()


def as_rates(rates: Floats) -> str:
    """Return the text of a policy with a rate for each subscriber, or for each block of the day and subscriber."""
    return "rates:" + ";".join(",".join(f"{rate:g}" for rate in block) for block in np.atleast_2d(rates).tolist())
