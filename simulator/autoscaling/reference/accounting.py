"""Rent and waiting penalty in whole numbers, so that totals do not depend on the order of summation (§5).

The unit is a millionth of a dollar per hour, held for a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.autoscaling.reference.compat import RENT_FACTOR
from simulator.autoscaling.reference.configuration import Billing, SimulationConfig
from simulator.autoscaling.reference.machine import Machine

UNITS_PER_DOLLAR = 1_000_000 * 3_600 * 1_000
_HOUR_MS = 3_600_000
_MINIMUM_CHARGE_MS = 60_000


def dollars(units: int) -> float:
    """Return an amount in dollars."""
    return units / UNITS_PER_DOLLAR


def _millis(seconds: float) -> int:
    return round(seconds * 1000)


@dataclass(slots=True)
class Account:
    """Rent and penalty of an episode so far, and of its last step, in units of this module."""

    rent: int = 0
    penalty: int = 0
    step_rent: int = 0
    step_penalty: int = 0

    def charge_step_start(self, config: SimulationConfig, machines: Iterable[Machine]) -> None:
        """Charge a whole step for every VM that exists after the step's action (booting, ready or draining)."""
        self.step_rent = 0
        if config.billing is Billing.STEP:
            held_ms = _millis(config.step_s)
            self.step_rent = sum(_price_micro(config, machine) * held_ms for machine in machines)

    def forgive_step(self) -> None:
        """Take back what the last step cost (compat row 7)."""
        self.rent -= self.step_rent
        self.penalty -= self.step_penalty
        self.step_rent = self.step_penalty = 0

    def charge_step_end(
        self,
        config: SimulationConfig,
        machines: Iterable[Machine],
        departed: Iterable[tuple[Machine, float]],
        now: float,
        waiting: int,
        waiting_job_s: float,
    ) -> None:
        """Charge what billing by time added in the step, and the penalty for `waiting` jobs or `waiting_job_s`."""
        if config.billing is not Billing.STEP:
            for machine in machines:
                self.step_rent += _charge_time(config, machine, now)
            for machine, left_at in departed:
                self.step_rent += _charge_time(config, machine, left_at)
        waited_ms = _millis(waiting_job_s) if config.integral_penalty else waiting * _millis(config.step_s)
        self.step_penalty = round(config.waiting_price_per_hour * 1_000_000) * waited_ms
        self.rent += self.step_rent
        self.penalty += self.step_penalty


def _price_micro(config: SimulationConfig, machine: Machine) -> int:
    factor = RENT_FACTOR if config.compat.rounded_price else 1.0
    return round(config.types[machine.kind].price_per_hour * 1_000_000 * factor)


def _charge_time(config: SimulationConfig, machine: Machine, until: float) -> int:
    """Bring a VM's bill up to `until` and return what that adds."""
    since = machine.ready_at if config.bill_from_ready else machine.requested_at
    if until < since:
        return 0
    owed_ms = _millis(until - since)
    if config.billing is Billing.EXACT:
        owed_ms = max(owed_ms, _MINIMUM_CHARGE_MS)
    else:
        owed_ms = max(-(-owed_ms // _HOUR_MS), 1) * _HOUR_MS
    added_ms = max(owed_ms - machine.billed_ms, 0)
    machine.billed_ms += added_ms
    return _price_micro(config, machine) * added_ms
