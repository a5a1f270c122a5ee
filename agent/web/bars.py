"""The page's drawings: where the pieces of a fleet bar and of a queue line lie, as numbers for SVG attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.autoscaling.status import GroupStatus

LINE_WIDTH, LINE_HEIGHT = 600.0, 64.0
_TOP_MARGIN = 4.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a bar from `x` on, `width` wide, both in percent; `kind` chooses its look."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """A group's VMs side by side, and where on the same scale the requested size lies (percent; None: not known)."""

    pieces: tuple[Piece, ...]
    requested: float | None


def bar_scale(groups: Sequence[GroupStatus]) -> int:
    """Return how many VMs the whole width stands for: one scale for all groups of a fleet, so that they compare."""
    return max([1, *(max(_total(g), g.requested or 0, g.desired or 0) for g in groups)])


def bar(group: GroupStatus, scale: int) -> Bar:
    """Return the bar of a group: VMs that report, silent ones, those that boot, overdue ones, those that drain."""
    x, pieces = 0.0, []
    for kind, count in _counts(group):
        if count > 0:
            width = 100.0 * count / scale
            pieces.append(Piece(kind, round(x, 3), round(width, 3)))
            x += width
    asked = None if group.requested is None else round(100.0 * group.requested / scale, 3)
    return Bar(tuple(pieces), asked)


def _counts(group: GroupStatus) -> tuple[tuple[str, int], ...]:
    warm, silent = group.warm or 0, group.silent or 0
    return (
        ("reporting", max(0, warm - silent)),
        ("silent", min(warm, silent)),
        ("booting", group.booting or 0),
        ("overdue", group.overdue or 0),
        ("draining", group.draining or 0),
    )


def _total(group: GroupStatus) -> int:
    return sum(count for _, count in _counts(group))


@dataclass(frozen=True, slots=True)
class Line:
    """A line over time as SVG path data, the area below it, and the largest value; "" where nothing is known."""

    path: str
    area: str
    most: int


def line(points: Sequence[tuple[float, int | None]], start: float, end: float, top: int) -> Line:
    """Return values by time (None: a gap) drawn from `start` to `end`, `top` being the height's value."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        elif start <= at <= end:
            x = LINE_WIDTH * (at - start) / (end - start)
            y = LINE_HEIGHT - (LINE_HEIGHT - _TOP_MARGIN) * value / max(1, top)
            runs[-1].append((x, y))
    drawn = [run for run in runs if run]
    # A point alone would not show: it becomes a short dash.
    drawn = [run if len(run) > 1 else [run[0], (run[0][0] + 4.0, run[0][1])] for run in drawn]
    path = " ".join(_joined(run) for run in drawn)
    area = " ".join(
        f"{_joined(run)} L{run[-1][0]:.1f},{LINE_HEIGHT:.1f} L{run[0][0]:.1f},{LINE_HEIGHT:.1f} Z" for run in drawn
    )
    return Line(path, area, max((value for _, value in points if value is not None), default=0))


def _joined(run: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in run)
