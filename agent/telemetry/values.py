"""The values of the metrics: counted from any thread, read all at once, and only under names of the catalogue."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.telemetry.catalogue import Kind, Metric, own_metrics

LabelValues = tuple[str, ...]

MOST_LABEL_SETS = 2000
"""Of one metric; what would come beyond is counted under `other`, so that nobody can fill the memory."""

OTHER = "other"


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram now: observations up to each bound (cumulative, the last bound being infinity), and their sum."""

    buckets: tuple[tuple[float, int], ...]
    total: float

    @property
    def count(self) -> int:
        """All observations."""
        return self.buckets[-1][1]


class Values:
    """Counters and histograms of the catalogue, by name; a name that is not in it is a KeyError."""

    def __init__(self, metrics: Iterable[Metric] = own_metrics()) -> None:
        self._lock = threading.Lock()
        self._labels = {metric.name: len(metric.labels) for metric in metrics}
        self._counts: dict[str, dict[LabelValues, float]] = defaultdict(dict)
        self._bounds = {metric.name: metric.bounds for metric in metrics if metric.kind is Kind.HISTOGRAM}
        self._buckets = {name: [0] * (len(bounds) + 1) for name, bounds in self._bounds.items()}
        self._sums = dict.fromkeys(self._bounds, 0.0)
        for metric in metrics:
            if metric.kind is Kind.COUNTER and not metric.labels:
                self._counts[metric.name][()] = 0.0

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Add to a counter."""
        if len(labels) != self._labels[name]:
            raise ValueError(f"{name} has {self._labels[name]} labels, not {len(labels)}")
        with self._lock:
            counts = self._counts[name]
            if labels not in counts and len(counts) >= MOST_LABEL_SETS:
                labels = (OTHER,) * len(labels)
            counts[labels] = counts.get(labels, 0.0) + by

    def observe(self, name: str, value: float) -> None:
        """Put an observation into a histogram."""
        with self._lock:
            self._buckets[name][bisect_left(self._bounds[name], value)] += 1
            self._sums[name] += value

    def counts(self) -> Mapping[str, Mapping[LabelValues, float]]:
        """Return a copy of every counter."""
        with self._lock:
            return {name: dict(counts) for name, counts in self._counts.items()}

    def distributions(self) -> Mapping[str, Distribution]:
        """Return every histogram."""
        with self._lock:
            return {name: self._distribution(name) for name in self._bounds}

    def _distribution(self, name: str) -> Distribution:
        reached, buckets = 0, []
        for bound, count in zip((*self._bounds[name], math.inf), self._buckets[name], strict=True):
            reached += count
            buckets.append((bound, reached))
        return Distribution(tuple(buckets), self._sums[name])
