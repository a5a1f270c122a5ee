"""A fleet over hours and days: its queue, sizes by type and cost at each decision, and the charts of them.

A chart is plain data for a template: lines and areas as SVG paths on a plane of CHART_WIDTH by CHART_HEIGHT, ticks with
their place in percent, and for every point the span of time in which the pointer shows its values.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from agent.autoscaling.decide import DecisionInputs
from agent.autoscaling.state import FleetStore
from agent.autoscaling.view import FleetStatus
from agent.kernel.text import money
from agent.rails.budget import dollars_per_hour
from domain.units import DAY_S, HOUR_S, MINUTE_S

CHART_WIDTH, CHART_HEIGHT = 600.0, 100.0
KEPT_S = HOUR_S
"""Of each fleet's history: read from the ledger once, then kept up from each decision that is looked at."""
SPANS = ((1, "1 hour"), (6, "6 hours"), (24, "24 hours"), (168, "7 days"))
"""Hours that the page offers, and what they are called."""
MOST_READ = 240
"""Decisions read for a longer chart; of more, every second, third and so on."""
_MOST_POINTS = 720
_MOST_TICKS = 6
_TIME_STEPS_S = (
    *(minutes * MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR_S for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_S for days in (1, 2, 5, 10)),
)


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """A fleet at a decision at `at` (epoch seconds); None where it was not measured, () where AWS was not read.

    waiting, running: jobs. in_service, requested: VMs by group. cost_per_hour: dollars, of the requested sizes.
    """

    at: float
    waiting: int | None = None
    running: int | None = None
    in_service: tuple[int, ...] = ()
    requested: tuple[int, ...] = ()
    cost_per_hour: float | None = None


class FleetHistory:
    """Keeps the last hour of each fleet, so that only newer decisions are read; safe for any thread."""

    def __init__(self, store: FleetStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._points: dict[str, deque[HistoryPoint]] = {}

    def last_hour(self, statuses: Sequence[FleetStatus], now: float) -> dict[str, tuple[HistoryPoint, ...]]:
        """Return by fleet its points at each decision of the last hour up to its status, in order.

        Fleets that lack the same decisions are read together. LedgerUnavailable when the newer ones cannot be read.
        """
        decided = [(status.fleet, status.last_decision.at) for status in statuses if status.last_decision is not None]
        with self._lock:
            wanted: dict[float, list[str]] = {}
            for fleet, last_at in decided:
                points = self._points.setdefault(fleet, deque(maxlen=_MOST_POINTS))
                if points and points[-1].at > last_at:
                    points.clear()  # the clock was set back
                since = math.nextafter(points[-1].at, math.inf) if points else now - KEPT_S
                if since <= last_at:
                    wanted.setdefault(since, []).append(fleet)
            for since, fleets in wanted.items():
                for inputs, decision in self._store.inputs_since(fleets, since):
                    self._points[decision.fleet].append(_point(decision.at, inputs))
            for fleet, _ in decided:
                points = self._points[fleet]
                while points and points[0].at < now - KEPT_S:
                    points.popleft()
            found = {fleet: tuple(self._points[fleet]) for fleet, _ in decided}
        return {status.fleet: found.get(status.fleet, ()) for status in statuses}

    def over(self, status: FleetStatus, now: float, span_s: float) -> tuple[HistoryPoint, ...]:
        """Return a fleet at no more than MOST_READ decisions of the last `span_s` seconds, in order.

        LedgerUnavailable when they cannot be read.
        """
        found = self._store.inputs(status.fleet, now - span_s, most=MOST_READ, skip_damaged=True)
        return tuple(_point(decision.at, inputs) for inputs, decision in found)


def _point(at: float, inputs: DecisionInputs) -> HistoryPoint:
    snapshot = inputs.snapshot
    if snapshot is None:
        return HistoryPoint(at)
    queue = snapshot.queue
    return HistoryPoint(
        at,
        None if queue is None else queue.waiting,
        None if queue is None else queue.running,
        tuple(group.in_service for group in snapshot.groups),
        snapshot.requested,
        dollars_per_hour(inputs.fleet, snapshot.requested),
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A line over time as SVG path data and the area below it, "" where nothing is known; `kind` chooses its look."""

    name: str
    kind: str
    path: str
    area: str
    most: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: its place from the left or the top in percent, and its text."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """The span of a chart in which the pointer shows a point's values: from `x`, `width` wide, on the chart's plane."""

    x: float
    width: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time with their axes; `label` says in words what they show, `unit` what the upright axis counts."""

    title: str
    unit: str
    label: str
    lines: tuple[Line, ...]
    values: tuple[Tick, ...]
    times: tuple[Tick, ...]
    hits: tuple[Hit, ...]


Values = Sequence[tuple[str, str, Callable[[HistoryPoint], float | None]]]
"""Of each line its name, its look, and its value at a point."""


def queue_chart(
    points: Sequence[HistoryPoint], now: float, begin: float | None = None, *, small: bool = False
) -> Chart:
    """Return the jobs that wait and run, from `begin` (None: an hour ago) to `now`.

    small: without times and values under the pointer.
    """
    lines = (
        ("waiting", "waiting", lambda point: point.waiting),
        ("running", "running", lambda point: point.running),
    )
    return _chart("Queue", "jobs", points, lines, (now - KEPT_S if begin is None else begin, now), _whole, small=small)


def size_charts(
    status: FleetStatus, points: Sequence[HistoryPoint], now: float, begin: float | None = None
) -> Iterator[Chart]:
    """Yield of each group the VMs in service beside those requested."""
    for place, group in enumerate(status.groups):
        lines: Values = (
            ("in service", "service", lambda point, k=place: _at(point.in_service, k)),  # type: ignore[misc]
            ("requested", "requested", lambda point, k=place: _at(point.requested, k)),  # type: ignore[misc]
        )
        title = f"{group.key} {group.vm_type}"
        yield _chart(title, "VMs", points, lines, (now - KEPT_S if begin is None else begin, now), _whole)


def cost_chart(points: Sequence[HistoryPoint], now: float, begin: float | None = None) -> Chart:
    """Return the dollars an hour that the requested sizes cost."""
    lines = (("cost per hour", "cost", lambda point: point.cost_per_hour),)
    return _chart("Cost per hour", "dollars", points, lines, (now - KEPT_S if begin is None else begin, now), money)


def _at(sizes: Sequence[int], place: int) -> int | None:
    return sizes[place] if place < len(sizes) else None


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _chart(
    title: str,
    unit: str,
    points: Sequence[HistoryPoint],
    lines: Values,
    span: tuple[float, float],
    text: Callable[[float], str],
    *,
    small: bool = False,
) -> Chart:
    begin, end = span
    seen = [point for point in points if begin <= point.at <= end]
    values = {name: [(point.at, value(point)) for point in seen] for name, _, value in lines}
    known = [value for of_line in values.values() for _, value in of_line if value is not None]
    step = value_step(max(known, default=0.0), whole=text is _whole)
    top = step * max(1, math.ceil(max(known, default=0.0) / step - 1e-9))
    drawn = tuple(line(name, kind, values[name], begin, end, top) for name, kind, _ in lines)
    most = ", ".join(f"{one.name} at most {text(one.most)}" for one in drawn)
    return Chart(
        title,
        unit,
        f"{title}, {unit}, {_moment(begin)} to {_moment(end)} UTC: {most}",
        drawn,
        tuple(Tick(100.0 - 100.0 * k * step / top, text(k * step)) for k in range(round(top / step) + 1)),
        () if small else tuple(time_ticks(begin, end)),
        () if small else tuple(_hits(seen, begin, end, lines, text)),
    )


def value_step(most: float, *, whole: bool) -> float:
    """Return the distance of ticks from 0 to at least `most`: 1, 2 or 5 times a power of ten, at most five of them."""
    least = max(most / 5.0, 1.0 if whole else 0.01)
    power = 10.0 ** math.floor(math.log10(least) + 1e-9)
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= least * (1.0 - 1e-9))


def time_ticks(begin: float, end: float) -> Iterator[Tick]:
    """Yield ticks at round times of day in UTC, at most about six."""
    span_s = end - begin
    step_s = next((step for step in _TIME_STEPS_S if span_s / step <= _MOST_TICKS), _TIME_STEPS_S[-1])
    at = math.ceil(begin / step_s) * step_s
    while at <= end:
        # A text at the very edge would be cut off.
        if 3.0 <= (place := 100.0 * (at - begin) / span_s) <= 97.0:
            yield Tick(round(place, 2), time_text(at, span_s))
        at += step_s


def time_text(at: float, span_s: float) -> str:
    """Return a time in UTC as 12:04, or as 21 Nov at midnight of a chart of a day or more."""
    moment = datetime.fromtimestamp(at, UTC)
    return moment.strftime("%d %b" if span_s >= DAY_S and at % DAY_S == 0.0 else "%H:%M")


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%d %b %H:%M")


def line(
    name: str, kind: str, points: Sequence[tuple[float, float | None]], start: float, end: float, top: float
) -> Line:
    """Return values by time (None: a gap) drawn from `start` to `end`, `top` being the height's value."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        elif start <= at <= end:
            runs[-1].append((CHART_WIDTH * (at - start) / (end - start), CHART_HEIGHT * (1.0 - value / top)))
    drawn = [run for run in runs if run]
    # A point alone would not show: it becomes a short dash.
    drawn = [run if len(run) > 1 else [run[0], (run[0][0] + 4.0, run[0][1])] for run in drawn]
    path = " ".join(_joined(run) for run in drawn)
    area = " ".join(f"{_joined(run)} V{CHART_HEIGHT:.1f} H{run[0][0]:.1f} Z" for run in drawn)
    return Line(name, kind, path, area, max((value for _, value in points if value is not None), default=0.0))


def _joined(run: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in run)


def _hits(
    points: Sequence[HistoryPoint], begin: float, end: float, lines: Values, text: Callable[[float], str]
) -> Iterator[Hit]:
    scale = CHART_WIDTH / (end - begin)
    middles = [(a.at + b.at) / 2.0 for a, b in pairwise(points)]
    for point, left, right in zip(points, [begin, *middles], [*middles, end], strict=False):
        values = ", ".join(
            f"{name} {'not measured' if (found := value(point)) is None else text(found)}" for name, _, value in lines
        )
        yield Hit(round(scale * (left - begin), 2), round(scale * (right - left), 2), f"{_moment(point.at)}: {values}")
