"""Small clusters that train in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulator.oversubscription.scenario import Scenario, Week, week_of

LEVELS = (0.2, 0.3, 0.4, 0.5, 0.6, 1.0)


def staggered_pair(hours: int = 120, sd: float = 0.03) -> Scenario:
    """Return two subscribers at 0.40 by day and 0.05 by night, in opposite phase, whose VMs never leave (A6)."""
    day = np.where(np.arange(24) < 12, 0.40, 0.05)
    return _scenario("staggered", np.stack([day, np.roll(day, 12)]), sd, 24, week_of_pairs(hours), hours)


def week_of_pairs(hours: int) -> Week:
    """Return a week with one 4-core VM of each of two subscribers an hour, in turn."""
    count = 2 * hours
    arrival = np.repeat(np.arange(hours), 2)
    return week_of(
        "s0",
        ids=np.arange(count),
        subscriber=np.tile([0, 1], hours),
        cores=np.full(count, 4.0),
        memory_gb=np.full(count, 8.0),
        network_gbps=np.zeros(count),
        arrival=arrival,
        departure=np.full(count, hours + 1),
        warm_only=np.zeros(count, np.bool_),
    )


def _scenario(name: str, mu: np.ndarray, sd: float, machines: int, week: Week, hours: int) -> Scenario:
    return Scenario(
        name=name,
        folder=Path(),
        subscribers=len(mu),
        machines=machines,
        machine_cores=96.0,
        machine_memory_gb=1536.0,
        machine_network_gbps=100.0,
        beta=0.6,
        violation_hours=3,
        hours=hours,
        actions=LEVELS,
        prefill_rate=1.0,
        mu=mu,
        sd=np.full_like(mu, sd),
        weeks=("s0",),
        _weeks={"s0": week},
    )
