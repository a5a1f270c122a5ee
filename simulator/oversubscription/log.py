"""The log that baselines read: each subscriber's hourly peak usage, one stored realisation, the day before included."""

from __future__ import annotations

import numpy as np

from simulator.oversubscription.compiled import compiled
from simulator.oversubscription.layout import Floats, Ints
from simulator.oversubscription.scenario import Scenario, Week
from simulator.oversubscription.usage import LOG_SEED, Usage, add_usage, keys_of, offset_of, usage_of

DAY_BEFORE_H = 24


@compiled
def _peaks(
    usage: Usage,
    seed: np.uint64,
    subscriber: Ints,
    arrival: Ints,
    departure: Ints,
    shift: int,
    hours: int,
    peaks: Floats,
) -> None:
    keys, drawn = keys_of(usage, seed, hours), np.zeros(hours)
    for row in range(len(subscriber)):
        n, first, end = subscriber[row], max(arrival[row] - shift, 0), min(departure[row] - shift, hours)
        drawn[:] = 0.0
        add_usage(usage, keys, row, n, (first, end), offset_of(usage, keys, row), 1.0, drawn)
        for t in range(first, end):
            if not drawn[t] <= peaks[n, t]:
                peaks[n, t] = drawn[t]


def peak_log(scenario: Scenario, week: Week, seed: int = LOG_SEED) -> Floats:
    """Return the largest usage among each subscriber's VMs by hour, (N, 24 + hours), nan in hours without VMs.

    The first 24 hours are the day before the week. The VMs that a warm start begins with are in the log of a cold start
    too: they ran, elsewhere.
    """
    usage = usage_of("gauss", scenario, week).usage
    parts = []
    for shift, hours, drawn in ((-DAY_BEFORE_H, DAY_BEFORE_H, seed + 1), (0, scenario.hours, seed)):
        peaks = np.full((scenario.subscribers, hours), np.nan)
        columns = (week.subscriber, week.arrival, week.departure)
        _peaks(usage, np.uint64(drawn), *columns, shift, hours, peaks)
        parts.append(peaks)
    return np.concatenate(parts, axis=1)
