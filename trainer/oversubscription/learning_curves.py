"""Draws how the learned oversubscription policy got better: cores saved and risk of the greedy policy, by episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from domain.errors import BadInput
from trainer.kit.drawing import INK, SOFT, picture
from trainer.kit.progress import CURVE_FILE, read_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAVED, RISK, KEPT = "#1f6f94", "#e07b39", "#0f3d57"
NEEDED = ("held_out/reserved", "held_out/c_hot_r_assessed")
Curve = Mapping[str, Sequence[float]]


def learning_curve(run: Path) -> Curve:
    """Return `episode`, `saved`, `risk` and `kept` (the most saved by a safe policy so far) of a run; BadInput."""
    path = run / CURVE_FILE
    if not path.is_file():
        raise BadInput("run", str(run), f"it has no {CURVE_FILE}: name a folder that training wrote")
    rows = [row for row in read_curve(path) if all(row.get(name) for name in NEEDED)]
    if not rows:
        raise BadInput("run", str(run), "its policy was never judged: name a run that was")
    best = [1.0 - float(row["best_cost"]) if row.get("best_cost") else float("nan") for row in rows]
    return {
        "episode": [float(row["update"]) for row in rows],
        "saved": [1.0 - float(row[NEEDED[0]]) for row in rows],
        "risk": [float(row[NEEDED[1]]) for row in rows],
        "kept": best,
    }


def draw_learning(curves: Mapping[str, Curve], allowed: float, path: Path, *, title: str) -> None:
    """Draw the runs as SVG, what is saved above the risk; allowed: share of hot weeks. Same data, same bytes."""
    if not curves:
        raise BadInput("curves", 0, "give at least one run")
    path.write_bytes(picture(lambda: _figure(curves, allowed, title), "svg"))


def _figure(curves: Mapping[str, Curve], allowed: float, title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for curve in curves.values():
        at = curve["episode"]
        above.plot(at, _percent(curve["saved"]), color=SAVED, linewidth=0.7, alpha=0.45)
        above.plot(at, _percent(curve["kept"]), color=KEPT, linewidth=1.6, drawstyle="steps-post")
        below.plot(at, np.maximum(_percent(curve["risk"]), 0.01), color=RISK, linewidth=0.7, alpha=0.6)
    below.axhline(100.0 * allowed, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
    below.set_yscale("log")
    lowest = min(min(curve["saved"]) for curve in curves.values())
    above.set_ylim(bottom=100.0 * max(lowest, 0.0) - 1.0)
    above.set_ylabel("cores saved, %")
    below.set_ylabel("hot weeks assessed, %")
    below.set_xlabel("episodes")
    runs = f"{len(curves)} seeds" if len(curves) > 1 else "one seed"
    above.set_title(
        f"{title}, {runs}: greedy policy (light), the best safe one so far (dark)", loc="left", fontsize=10, color=INK
    )
    return figure


def _percent(values: Sequence[float]) -> NDArray[np.float64]:
    return 100.0 * np.asarray(values, dtype=np.float64)
