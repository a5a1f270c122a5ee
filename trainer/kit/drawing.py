"""How every picture looks and is written: colours, style, axes, kinds of file, the same bytes for the same data."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, GRID, PAPER = "#22303c", "#5b6873", "#e3e8ec", "#ffffff"
FLEET = ("#b9dcea", "#5aa9c9", "#1f6f94", "#0f3d57")
"""Shades of VM types, the smallest first."""
QUEUE, BUSY = "#e07b39", "#2f8f6b"
DARK: Mapping[str, str] = MappingProxyType(
    {
        INK: "#e4ebf0",
        SOFT: "#a3b1bd",
        GRID: "#3a4752",
        PAPER: "#1b242c",
        "#b9dcea": "#37708a",
        "#5aa9c9": "#4f9fc2",
        "#1f6f94": "#7cc4e2",
        "#0f3d57": "#cfeaf6",
        "#e07b39": "#f09a63",
        "#2f8f6b": "#6cc9a1",
        "#8a4fa3": "#c596d8",
        "#c23b4e": "#f08596",
        "#9a8321": "#d6bf5c",
        "#d27fb3": "#e6a3cd",
        "#6b7a86": "#9aa9b5",
    }
)
"""What stands in dark mode for a colour of a picture in a page; a colour that is not here stays."""
SMALLEST_PT, SMALLEST_PX = 9.0, 12
"""Letters of a picture, and of a page: a picture in a page is drawn so wide that its letters are that large."""
WIDEST = 1.5
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
    # Letters of a PDF stay letters, as printers of papers ask.
    "pdf.fonttype": 42,
}


def picture(
    figure: Callable[[], Figure],
    kind: str,
    *,
    style: Mapping[Any, Any] | None = None,
    dpi: int = 150,
) -> bytes:
    """Return what `figure` makes as `png`, `svg` or `pdf`; style: what differs from STYLE.

    Raises ValueError for an axis without a name and a unit, and for letters below SMALLEST_PT.
    """
    from matplotlib import rc_context

    content = io.BytesIO()
    # Without the time and the program, the bytes tell of the data alone.
    metadata = _NO_METADATA[kind]
    with rc_context({**STYLE, **(style or {})}):
        made = figure()
        _check(made)
        made.savefig(content, format=kind, dpi=dpi, metadata=metadata, facecolor=PAPER)
    return content.getvalue()


_NO_METADATA: Mapping[str, dict[str, None]] = MappingProxyType(
    {
        "svg": {"Date": None, "Creator": None},
        "png": {"Software": None},
        "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    }
)


def panel(axes: Axes, title: str = "", *, x: str = "", y: str = "") -> None:
    """Name a panel and its axes; x, y: `quantity, unit`, and `policy, by name` where names stand at the ticks.

    An axis whose ticks are those of the panel beside it needs no name; `picture` refuses any other without one.
    """
    if title:
        axes.set_title(title, loc="left", fontsize=9.5, color=INK)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.tick_params(length=0)


def _check(figure: Figure) -> None:
    from matplotlib.text import Text
    from matplotlib.ticker import LogFormatter

    for number, axes in enumerate(figure.axes):
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            if isinstance(axis.get_major_formatter(), LogFormatter):
                # Exponents would be smaller than the other letters.
                axis.set_major_formatter(lambda value, _: f"{value:g}")
                axis.set_minor_formatter(lambda value, _: "")
            drawn = axis.get_tick_params(which="major")
            shown = any(drawn.get(f"label{side}", False) for side in ("left", "right", "bottom", "top"))
            if not (axes.axison and axes.get_visible() and axis.get_visible() and shown):
                continue
            quantity, _, unit = axis.get_label_text().partition(", ")
            if not (quantity.strip() and unit.strip()):
                where = f"panel {number} ({axes.get_title(loc='left') or 'no title'}), {name} axis"
                raise ValueError(f"{where} is named {axis.get_label_text()!r}: name it 'quantity, unit'")
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        size = float(text.get_fontsize())
        if text.get_visible() and text.get_text().strip() and size < SMALLEST_PT:
            raise ValueError(f"{text.get_text()!r} has letters of {size:g} pt, below {SMALLEST_PT:g}")


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
    return _element(plotted(size, draw, "svg").decode("utf-8"))


def plotted(size: tuple[float, float], draw: Callable[[Figure], None], kind: str) -> bytes:
    """Return a plot of `size` inches as `svg`, `png` or `pdf`; the same data give the same bytes."""
    from matplotlib.figure import Figure

    def figure() -> Figure:
        made = Figure(figsize=size, layout="constrained")
        draw(made)
        return made

    return picture(figure, kind, style=_STYLE, dpi=100 if kind == "svg" else 200)


def _element(text: str) -> str:
    """Return the SVG element of a file, without what tells of the program that wrote it."""
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def themed(colour: str) -> str:
    """Return a colour as CSS that follows the page into dark mode."""
    return f"var(--c{colour.removeprefix('#')})" if colour in DARK else colour


def sheet() -> str:
    """Return the CSS in which `themed` colours are defined; on paper they are the light ones."""
    light, dark = (
        " ".join(f"--c{name.removeprefix('#')}: {colour};" for name, colour in colours)
        for colours in (((name, name) for name in DARK), DARK.items())
    )
    return f":root {{ {light} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def inlined(drawing: str, prefix: str) -> str:
    """Return an SVG file as an element of a page.

    Its ids begin with the prefix, so that several can stand in one page; `PREFIX-caption` is the id of its caption.
    Its colours follow the page. It is never so narrow that its letters are smaller than SMALLEST_PX, and never so wide
    that they are more than WIDEST times that.
    """
    drawing = re.sub(r'\bid="', f'id="{prefix}-', _element(drawing))
    drawing = re.sub(r"url\(#", f"url(#{prefix}-", drawing)
    drawing = re.sub(r'xlink:href="#', f'xlink:href="#{prefix}-', drawing)
    drawing = re.sub(r"(?<=: )#[0-9a-f]{6}\b", lambda found: themed(found[0]), drawing)
    whole = re.match(r'<svg[^>]*? width="([0-9.]+)pt"[^>]*>', drawing)
    assert whole is not None, "matplotlib writes the width first"
    width = math.ceil(float(whole[1]) * SMALLEST_PX / SMALLEST_PT)
    head = re.sub(r' (width|height)="[^"]*"', "", whole[0])
    widths = f"min-width: {width}px; max-width: {WIDEST * width:g}px"
    named = f'<svg role="img" aria-labelledby="{prefix}-caption" style="{widths}"'
    return named + head.removeprefix("<svg") + drawing[whole.end() :]
