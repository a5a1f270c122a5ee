"""How a metric is described, and how its values are named: what parts and telemetry share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "trimtab_"


class Kind(StrEnum):
    """counter: only grows, starts at 0 with the process. gauge: a value now. histogram: counts by upper bound."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `bounds` are a histogram's upper bounds; `unit` is "" for plain numbers."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics that belong together."""

    title: str
    metrics: tuple[Metric, ...]


UNITS = {
    "_seconds": "seconds",
    "_minutes": "minutes",
    "_dollars": "dollars",
    "_dollars_per_hour": "dollars",
    "_ratio": "ratio (0..1)",
    "_bytes": "bytes",
    "_cores": "cores",
    "_jobs": "jobs",
}
"""The unit that the end of a name stands for."""


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "")


def counter(name: str, meaning: str, *labels: str) -> Metric:
    """Return a counter; its name gets prefix and `_total`."""
    return Metric(f"{PREFIX}{name}_total", Kind.COUNTER, _unit(name), meaning, labels)


def gauge(name: str, meaning: str, *labels: str, unit: str | None = None) -> Metric:
    """Return a gauge; its name gets the prefix, and its unit is that of the name's end where none is given."""
    return Metric(PREFIX + name, Kind.GAUGE, _unit(name) if unit is None else unit, meaning, labels)


def histogram(name: str, meaning: str, bounds: tuple[float, ...]) -> Metric:
    """Return a histogram with these upper bounds; its name gets the prefix."""
    return Metric(PREFIX + name, Kind.HISTOGRAM, _unit(name), meaning, bounds=bounds)


LabelValues = tuple[str, ...]

Reading = tuple[str, LabelValues, float]
"""A metric's name without the prefix, the values of its labels, and its value."""
