"""Reads a fleet's series from graphite-web's render API, for VMs that report to a Graphite of their own."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from domain.errors import CollectionFailed, SampleRejected
from domain.fleet import Fleet
from domain.samples import PREFIX, QUEUE_SEGMENT, QueueMetric, Sample, Series, VmMetric, parse_path

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

    Queries raw readings between explicit times: never with `maxDataPoints`, which would average them. Raises
    CollectionFailed when no usable response came within the timeout; the next request then reaches back to where the
    last response ended.
    """

    def __init__(self, fleet: Fleet, options: RenderOptions) -> None:
        self._fleet = fleet
        self._options = options
        self._targets = _tagged_targets(fleet) if options.tagged else _dotted_targets(fleet)
        # Uncompressed, so that a short response cannot unfold into a long one.
        headers = {"Accept-Encoding": "identity"}
        if options.authorization:
            headers["Authorization"] = options.authorization
        self._client = httpx.Client(headers=headers, timeout=options.timeout_s)
        self._read_until: float | None = None
        self._newest: dict[Series, float] = {}
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
        newest: dict[Series, float] = {}
        samples = []
        for series, points in self._parse(self._query(math.floor(since), until)):
            seen = self._newest.get(series, -math.inf)
            fresh = [(at, value) for at, value in points if seen < at <= until]
            samples += [Sample(series, value, at) for at, value in fresh]
            newest[series] = max((at for at, _ in fresh), default=seen)
        # A clock set back would hide what is measured from now on behind times that lie ahead.
        self._newest = {series: at for series, at in newest.items() if at <= until}
        self._read_until = until
        return samples

    def close(self) -> None:
        """Close the connection; the collector may still be used and opens a new one."""
        self._client.close()

    def _query(self, since: int, until: int) -> Any:
        form: dict[str, Any] = {
            "target": self._targets,
            "format": "json",
            "from": since,
            "until": until,
            "noNullPoints": "true",
            "noCache": "true",
        }
        url = f"{self._options.url.rstrip('/')}/render"
        try:
            with self._client.stream("POST", url, data=form) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._failed(f"status {response.status_code}")
                return json.loads(self._body(response))
        except httpx.HTTPError as error:
            raise self._failed(f"{type(error).__name__}: {error}") from None
        except (ValueError, RecursionError):
            raise self._failed("the response is not JSON") from None

    def _body(self, response: httpx.Response) -> bytes:
        """Read the body; httpx bounds the wait for each piece, this method the whole of it."""
        deadline = time.monotonic() + self._options.timeout_s
        body = bytearray()
        for piece in response.iter_raw():
            body += piece
            if len(body) > self._options.max_response_bytes:
                raise self._failed(f"the response is longer than {self._options.max_response_bytes} bytes")
            if time.monotonic() > deadline:
                raise self._failed(f"the response is not complete after {self._options.timeout_s:g} s")
        return bytes(body)

    def _parse(self, response: Any) -> Iterator[tuple[Series, list[tuple[float, float]]]]:
        """Yield each series of Trimtab's with its (time, value) pairs; other series and gaps are skipped."""
        if not isinstance(response, list):
            raise self._failed("the response is not a list of series")
        for item in response:
            target, points = (item.get("target"), item.get("datapoints")) if isinstance(item, dict) else (None, None)
            if not isinstance(target, str) or not isinstance(points, list):
                raise self._failed("a series has no target or no datapoints")
            try:
                series = parse_path(target)
            except SampleRejected:
                continue
            yield series, [reading for reading in map(_reading, points) if reading is not None]

    def _failed(self, why: str) -> CollectionFailed:
        # What answers there may send back what it was sent: an error of the protocol quotes the line.
        secret = (self._options.authorization or "").rpartition(" ")[2]
        shown = why.replace(secret, "***") if secret else why
        return CollectionFailed(f"graphite-web at {_without_credentials(self._options.url)}: {shown}")


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
    ]


def _tagged_targets(fleet: Fleet) -> list[str]:
    groups = "|".join(group.key for group in fleet.groups)
    vm = f"seriesByTag('name=~^{PREFIX}\\.({'|'.join(VmMetric)})$','fleet={fleet.name}','group=~^({groups})$','vm!=')"
    queue = f"seriesByTag('name=~^{PREFIX}\\.({'|'.join(QueueMetric)})$','fleet={fleet.name}','{QUEUE_SEGMENT}!=')"
    return [vm, queue]


def _without_credentials(url: str) -> str:
    """Return scheme, host and port of a URL, without credentials."""
    parsed = httpx.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii', 'replace')}"
