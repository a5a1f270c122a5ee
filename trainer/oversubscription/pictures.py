"""Draws a week of the oversubscription simulator: cores reserved, machines, rates, chance of a hot hour."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domain.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trainer.oversubscription.episodes import Judged

SUFFIXES = (".png", ".svg")
_INK, _SOFT, _GRID = "#22303c", "#66737f", "#e3e8ec"
_ASKED, _RESERVED, _HOT = "#b9dcea", "#1f6f94", "#e07b39"
_STYLE: Any = {
    "font.size": 9.0,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.labelcolor": _SOFT,
    "axes.edgecolor": _GRID,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _GRID,
    "axes.axisbelow": True,
    "svg.fonttype": "none",
    "svg.hashsalt": "trimtab",
}


def check_picture(path: Path) -> None:
    """Raise BadInput unless the file's ending names a kind of picture that can be drawn."""
    if path.suffix.lower() not in SUFFIXES:
        raise BadInput("--plot", str(path), f"end the file's name with one of {', '.join(SUFFIXES)}")


def draw(judged: Judged, path: Path) -> None:
    """Write a picture of the week; the same week gives the same bytes. Raises BadInput."""
    check_picture(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    rows, hours = judged.hours(), np.arange(judged.task.scenario.hours)
    content = io.BytesIO()
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.0, 7.0), layout="constrained")
        cores, machines, rates, risk = figure.subplots(4, 1, sharex=True, height_ratios=(2.4, 1.4, 1.6, 1.4))
        cores.fill_between(hours, [row.cores_requested for row in rows], color=_ASKED, label="requested", step="post")
        cores.fill_between(hours, [row.cores_reserved for row in rows], color=_RESERVED, label="reserved", step="post")
        cores.legend(loc="upper left", frameon=False)
        _name(cores, "Cores of the VMs there")
        machines.step(hours, [row.machines_used for row in rows], where="post", color=_INK)
        _name(machines, f"Machines in use, {judged.peak_machines:g} at most")
        for n in range(judged.rates.shape[1]):
            rates.step(hours, judged.rates[:, n], where="post", linewidth=0.9)
        rates.set_ylim(0.0, 1.05)
        _name(rates, "Rate of each subscriber")
        if judged.by_hour is None:
            risk.hist(judged.sampled.hot_hours, bins=np.arange(0, judged.sampled.hot_hours.max() + 2) - 0.5, color=_HOT)
            _name(risk, "Hot hours by episode (the axis counts hours)")
        else:
            risk.fill_between(hours, judged.by_hour, color=_HOT, step="post")
            _name(risk, "Chance of a hot machine")
            risk.set_xlabel("hour of the week")
            risk.set_xticks(np.arange(0, len(hours) + 1, 24))
        figure.suptitle(_title(judged), x=0.01, ha="left", fontsize=11, fontweight="bold")
        metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
        figure.savefig(content, format=kind, dpi=150, facecolor="white", metadata=metadata)
    path.write_bytes(content.getvalue())


def _title(judged: Judged) -> str:
    saved = "-" if judged.s_cores is None else f"{judged.s_cores:.1%}"
    policy = judged.policy if len(judged.policy) <= 60 else f"{judged.policy[:57]}..."
    return f"{policy} on {judged.task.scenario.name}: {saved} saved, {judged.sampled.c_hot_r:.1%} hot weeks"


def _name(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=9.5, color=_INK)
    axes.tick_params(length=0)
