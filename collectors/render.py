"""Reads a fleet's series from graphite-web's render API, for VMs that report to a Graphite of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from collectors.base import Refusal
from collectors.json_source import JsonSource
from collectors.mapping import Hosts, InputMap, MappedSink
from domain.errors import SampleRejected
from domain.fleet import Fleet
from domain.samples import PREFIX, QUEUE_SEGMENT, SIGNAL_SEGMENT, QueueMetric, Sample, Series, VmMetric, parse_path

LONGEST_REACH_S = 600.0
"""After an outage no question reaches further back: older readings are refused by the store anyway."""


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """The address of graphite-web and the settings of its queries.

    tagged: query tagged series instead of dotted paths. lag_s: nothing younger is queried, since Graphite may not
    have it complete. window_s: how far back a question reaches, so that what Graphite took late is found.
    timeout_s: bounds request and response as a whole. authorization: value of that header.
    """

    url: str
    tagged: bool = False
    interval_s: float = 15.0
    timeout_s: float = 10.0
    lag_s: float = 5.0
    window_s: float = 120.0
    max_response_bytes: int = 16 * 2**20
    authorization: str | None = field(default=None, repr=False)


class RenderCollector:
    """The series of one fleet, as graphite-web has them; each reading is returned once.

    With a map, the paths of its rules are queried too, and become readings as lines to the listener do.

    Queries raw readings between explicit times: never with `maxDataPoints`, which would average them. Raises
    CollectionFailed when no usable response came within the timeout; the next request then reaches back to where the
    last response ended.
    """

    def __init__(
        self, fleet: Fleet, options: RenderOptions, rules: InputMap | None = None, hosts: Hosts | None = None
    ) -> None:
        self._fleet = fleet
        self._options = options
        self._targets = _tagged_targets(fleet) if options.tagged else _dotted_targets(fleet)
        self._mapped: _PathMap | None = None
        if rules is not None:
            groups = [group.key for group in fleet.groups]
            found = dict.fromkeys(rule.target(fleet.name, groups) for rule in rules.rules)
            self._targets += [target for target in found if target is not None]
            self._mapped = _PathMap(fleet.name, rules, hosts or Hosts(rules.hosts))
        self._source = JsonSource(
            "graphite-web", options.url, options.timeout_s, options.max_response_bytes, options.authorization
        )
        self._read_until: float | None = None
        self._newest: dict[Series | str, float] = {}
        self.name = f"render:{self._fleet.name}"
        self.interval_s = self._options.interval_s
        self.timeout_s = self._options.timeout_s

    def collect(self, now: float) -> list[Sample]:
        """Return the readings of the watched series that were not returned before, up to `now` less the lag."""
        until = math.floor(now - self._options.lag_s)
        since = until - self._options.window_s
        if self._read_until is not None and self._read_until <= until:
            since = min(since, self._read_until)
        since = max(since, until - LONGEST_REACH_S)
        newest: dict[Series | str, float] = {}
        samples: list[Sample] = []
        foreign: list[tuple[float, str, float]] = []
        for series, points in self._parse(self._query(math.floor(since), until)):
            seen = self._newest.get(series, -math.inf)
            fresh = [(at, value) for at, value in points if seen < at <= until]
            if isinstance(series, str):
                foreign += [(at, series, value) for at, value in fresh]
            else:
                samples += [Sample(series, value, at) for at, value in fresh]
            newest[series] = max((at for at, _ in fresh), default=seen)
        if self._mapped is not None and foreign:
            samples += self._mapped.readings(foreign, now)
        # A clock set back would hide what is measured from now on behind times that lie ahead.
        self._newest = {series: at for series, at in newest.items() if at <= until}
        self._read_until = until
        return samples

    def close(self) -> None:
        """Close the connection; the collector may still be used and opens a new one."""
        self._source.close()

    def _query(self, since: int, until: int) -> Any:
        form: dict[str, Any] = {
            "target": self._targets,
            "format": "json",
            "from": since,
            "until": until,
            "noNullPoints": "true",
            "noCache": "true",
        }
        return self._source.post("render", form)[1]

    def _parse(self, response: Any) -> Iterator[tuple[Series | str, list[tuple[float, float]]]]:
        """Yield each series of Trimtab's with its (time, value) pairs; gaps are skipped.

        Another series is named by its path, and skipped without a map.
        """
        if not isinstance(response, list):
            raise self._source.failed("the response is not a list of series")
        for item in response:
            target, points = (item.get("target"), item.get("datapoints")) if isinstance(item, dict) else (None, None)
            if not isinstance(target, str) or not isinstance(points, list):
                raise self._source.failed("a series has no target or no datapoints")
            series: Series | str = target
            try:
                series = parse_path(target)
            except SampleRejected:
                if self._mapped is None:
                    continue
            yield series, [reading for reading in map(_reading, points) if reading is not None]


class _PathMap:
    def __init__(self, fleet: str, rules: InputMap, hosts: Hosts) -> None:
        self._fleet = fleet
        self._sink = MappedSink(self, rules, hosts)
        self._taken: list[Sample] = []

    def readings(self, foreign: list[tuple[float, str, float]], now: float) -> list[Sample]:
        """Return the samples that (time, path, value) become, in the order of time, in which folds are made."""
        self._taken = []
        foreign.sort()
        paths = [path.encode("utf-8", "replace") for _, path, _ in foreign]
        self._sink.append(paths, [value for _, _, value in foreign], [at for at, _, _ in foreign], now)
        return self._taken

    def append(
        self, paths: Sequence[bytes], values: Sequence[float], times: Sequence[float], now: float, peer: str = ""
    ) -> Sequence[Refusal]:
        """Keep what the map hands on."""
        for path, value, at in zip(paths, values, times, strict=True):
            series = parse_path(path.decode("utf-8"))
            if series.fleet == self._fleet:
                self._taken.append(Sample(series, value, at))
        return ()

    def append_samples(self, samples: Sequence[Sample], now: float) -> Sequence[Refusal]:
        """Keep these too."""
        self._taken += samples
        return ()


def _reading(point: Any) -> tuple[float, float] | None:
    """Return (time, value) of a [value, time] pair; None where nothing was measured."""
    try:
        value, at = point
        reading = float(at), float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return reading if all(map(math.isfinite, reading)) else None


def _dotted_targets(fleet: Fleet) -> list[str]:
    groups = ",".join(group.key for group in fleet.groups)
    return [
        f"{PREFIX}.{fleet.name}.{{{groups}}}.*.{{{','.join(VmMetric)}}}",
        f"{PREFIX}.{fleet.name}.{QUEUE_SEGMENT}.{{{','.join(QueueMetric)}}}",
        f"{PREFIX}.{fleet.name}.{SIGNAL_SEGMENT}.*",
    ]


def _tagged_targets(fleet: Fleet) -> list[str]:
    groups = "|".join(group.key for group in fleet.groups)
    vm = f"seriesByTag('name=~^{PREFIX}\\.({'|'.join(VmMetric)})$','fleet={fleet.name}','group=~^({groups})$','vm!=')"
    queue = f"seriesByTag('name=~^{PREFIX}\\.({'|'.join(QueueMetric)})$','fleet={fleet.name}','{QUEUE_SEGMENT}!=')"
    return [vm, queue, f"seriesByTag('name=~^{PREFIX}\\.{SIGNAL_SEGMENT}\\.','fleet={fleet.name}')"]
