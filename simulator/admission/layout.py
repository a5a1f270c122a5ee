"""What the compiled simulator keeps: an arrival, a deployment inside, the cluster's books, one month, one event."""

from __future__ import annotations

from typing import Any

import numpy as np

Record = Any
"""A row of one of these layouts inside compiled code, its fields as attributes."""

ARRIVAL = np.dtype(
    [
        ("time", np.float64),
        ("mu", np.float64),
        ("lam", np.float64),
        ("sig", np.float64),
        ("theta", np.float64),
        ("size", np.int64),
        ("stream", np.uint64),
        ("seen_deaths", np.int64),
        ("seen_core_hours", np.float64),
        ("seen_requests", np.int64),
        ("seen_gap_hours", np.float64),
        ("seen_extra", np.int64),
        ("seen_sizes", np.int64),
        # What was seen of the other kind that it may be of, if it is not known which (admission specification §8).
        ("kinds", np.int64),
        ("other_deaths", np.int64),
        ("other_core_hours", np.float64),
        ("other_requests", np.int64),
        ("other_gap_hours", np.float64),
        ("other_extra", np.int64),
        ("other_sizes", np.int64),
    ]
)
ONE_KIND, WEIGHED, HALVES = range(3)
"""`kinds`: known; one of two, by what was seen since; one of two, half and half for ever."""

DEPLOYMENT = np.dtype(
    [
        ("number", np.int64),
        ("size", np.int64),
        ("mu", np.float64),
        ("theta", np.float64),
        ("sig", np.float64),
        ("stop_rate", np.float64),
        ("key", np.uint64),
        ("draws", np.uint64),
        # What the cluster knows of it (admission specification §3); core_hours up to the time `at`.
        ("at", np.float64),
        ("admitted_at", np.float64),
        ("deaths", np.int64),
        ("core_hours", np.float64),
        ("requests", np.int64),
        ("gap_hours", np.float64),
        ("extra", np.int64),
        ("sizes", np.int64),
    ]
)

BOOKS = np.dtype(
    [
        ("now", np.float64),
        ("capacity", np.int64),
        ("absorb", np.bool_),
        ("total", np.int64),
        ("live", np.int64),
        ("waiting", np.int64),
        ("free", np.int64),
        ("month", np.int64),
        ("month_end", np.float64),
        ("area", np.float64),
        ("above_h", np.float64),
        ("peak", np.int64),
        ("events", np.int64),
        ("deaths", np.int64),
        ("shutdowns", np.int64),
        ("admits", np.int64),
        ("unfit", np.int64),
        ("logged", np.int64),
    ]
)
"""`waiting`: entries of the heap; `free`: entries of the list of free slots; `unfit`: arrivals larger than the room."""

MONTH = np.dtype([("core_hours", np.float64), ("requests", np.int64), ("failures", np.int64)])

EVENT = np.dtype(
    [("time", np.float64), ("deployment", np.int64), ("kind", np.int64), ("cores", np.int64), ("total", np.int64)]
)

DECISION = np.dtype([("deployment", np.int64), ("rule", np.int64), ("other", np.int64), ("slack", np.float64)])
"""An arrival that two rules were asked about: the horizons that refuse it, -1 for none, and what `slack` says of it."""

REFUSED, ADMITTED, CORE_ENDED, SCALED, SCALE_REFUSED, SHUT_DOWN = range(6)
"""Kinds of events; CORE_ENDED with a total that leaves the deployment without cores is its end."""

CLASSES = 12
"""Arrivals and admissions are counted by size: 1, 2-3, 4-7 and so on, the last class open."""
