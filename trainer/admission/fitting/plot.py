"""A picture of the sizes of deployments, in the table and in the fitted populations."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trainer.admission.fitting.comparison import CLASS_STARTS
from trainer.kit.drawing import BUSY, QUEUE, check_plot_file, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainer.admission.fitting.report import FitReport

_TABLE, _FITS = "#0f3d57", (QUEUE, BUSY)


def draw_fit(report: FitReport, path: Path) -> None:
    """Write the picture: share of deployments above each size, and of the core-hours by size class."""
    check_plot_file(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind == "html":
        image = base64.b64encode(picture(lambda: _figure(report), "png")).decode("ascii")
        title = html.escape("Sizes of deployments: table and fits")
        path.write_text(
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
            f'<body><img alt="{title}" style="max-width:100%" src="data:image/png;base64,{image}"></body></html>\n',
            encoding="utf-8",
        )
        return
    path.write_bytes(picture(lambda: _figure(report), kind))


def _figure(report: FitReport) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    sizes, shares = figure.subplots(1, 2)
    sizes.step(*_above(report.histories.peak), where="post", color=_TABLE, lw=2.0, label="table")
    for fit, color in zip(report.fits, _FITS, strict=False):
        label = f"{fit.method}, distance {fit.comparison.distance:.1e}"
        sizes.step(*_above(fit.comparison.peak), where="post", color=color, lw=1.2, label=label)
    sizes.set(xscale="log", yscale="log", xlabel="most cores at a time", ylabel="share of deployments above")
    sizes.legend(frameon=False)
    bars = [("table", report.facts.core_hours_by_class, _TABLE)]
    bars += [
        (fit.method, fit.comparison.facts.core_hours_by_class, color)
        for fit, color in zip(report.fits, _FITS, strict=False)
    ]
    width = 0.8 / len(bars)
    places = np.arange(len(CLASS_STARTS))
    for i, (label, values, color) in enumerate(bars):
        shares.bar(places + (i - 0.5 * (len(bars) - 1)) * width, values, width, color=color, label=label)
    shares.set_xticks(places, [f"{start}" for start in CLASS_STARTS], rotation=45)
    shares.set(xlabel="most cores at a time, from", ylabel="share of core-hours")
    shares.legend(frameon=False)
    return figure


def _above(peak: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    sizes, counts = np.unique(peak, return_counts=True)
    above = 1.0 - np.cumsum(counts) / len(peak)
    # The last share is 0, which a log axis does not have.
    return sizes[:-1], above[:-1]
