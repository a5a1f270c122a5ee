"""How every picture looks and is written: colours, style, kinds of file, the same bytes for the same data."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from domain.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
INK, SOFT, GRID = "#22303c", "#66737f", "#e3e8ec"
FLEET = ("#b9dcea", "#5aa9c9", "#1f6f94", "#0f3d57")
"""Shades of VM types, the smallest first."""
QUEUE, BUSY = "#e07b39", "#2f8f6b"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": GRID,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "trimtab",
}


def check_plot_file(path: Path, suffixes: Sequence[str] = SUFFIXES) -> None:
    """Raise BadInput unless the file's ending names a kind of picture that can be drawn."""
    if path.suffix.lower() not in suffixes:
        raise BadInput("--plot", str(path), f"end the file's name with one of {', '.join(suffixes)}")


def picture(
    figure: Callable[[], Figure],
    kind: str,
    *,
    style: Mapping[Any, Any] | None = None,
    dpi: int = 150,
    transparent: bool = False,
) -> bytes:
    """Return what `figure` makes as `png` or `svg`; style: what differs from STYLE."""
    from matplotlib import rc_context

    content = io.BytesIO()
    # Without the time and the program, the bytes tell of the data alone.
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    with rc_context({**STYLE, **(style or {})}):
        face: Any = {"transparent": True} if transparent else {"facecolor": "white"}
        figure().savefig(content, format=kind, dpi=dpi, metadata=metadata, **face)
    return content.getvalue()


POLICIES = (
    "#1f6f94",
    "#e07b39",
    "#2f8f6b",
    "#8a4fa3",
    "#c23b4e",
    "#9a8321",
    "#5aa9c9",
    "#d27fb3",
    "#6b7a86",
    "#22303c",
)


_STYLE: Any = {
    "legend.frameon": False,
    "lines.solid_capstyle": "butt",
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}


def colours(policies: Sequence[str]) -> dict[str, str]:
    """Return a colour per policy, the same in every plot of a report."""
    return {policy: POLICIES[k % len(POLICIES)] for k, policy in enumerate(policies)}


def svg(size: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Return a plot of `size` inches as an SVG element; the same data give the same text."""
    from matplotlib.figure import Figure

    def figure() -> Figure:
        made = Figure(figsize=size, layout="constrained")
        draw(made)
        return made

    text = picture(figure, "svg", style=_STYLE, dpi=100, transparent=True).decode("utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return text[text.index("<svg") :]


def prefixed(drawing: str, prefix: str) -> str:
    """Return an SVG whose ids begin with a prefix, so that several can stand in one page."""
    drawing = re.sub(r'\bid="', f'id="{prefix}-', drawing)
    drawing = re.sub(r"url\(#", f"url(#{prefix}-", drawing)
    return re.sub(r'xlink:href="#', f'xlink:href="#{prefix}-', drawing)
