"""How every picture looks and is written: colours, style, kinds of file, the same bytes for the same data."""

from __future__ import annotations

import io
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
