"""The drawings of oversubscription: a week, learning curves, risk predicted and realised, cores saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.kit.drawing import FLEET, INK, POLICIES, QUEUE, SOFT, panel, picture, svg
from trainer.kit.progress import CURVE_FILE, column, read_curve
from trainer.oversubscription.evaluation import Evaluation
from trainer.oversubscription.trials import OWN, UNSEEN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainer.oversubscription.episodes import Judged

_ASKED, _RESERVED, _HOT = FLEET[0], FLEET[2], QUEUE
_STYLE: Any = {"text.parse_math": False, "axes.grid.axis": "y"}


def draw(judged: Judged, path: Path) -> None:
    """Write a picture of the week; the same week gives the same bytes."""
    kind = path.suffix.lower().removeprefix(".")
    path.write_bytes(picture(lambda: _figure(judged), kind, style=_STYLE))


def _figure(judged: Judged) -> Figure:
    from matplotlib.figure import Figure

    week, hours = judged.hours(), np.arange(judged.task.scenario.hours)
    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    cores, machines, rates, risk = figure.subplots(4, 1, sharex=True, height_ratios=(2.4, 1.4, 1.6, 1.4))
    cores.fill_between(hours, week["cores_requested"], color=_ASKED, label="requested", step="post")
    cores.fill_between(hours, week["cores_reserved"], color=_RESERVED, label="reserved", step="post")
    cores.legend(loc="upper left", frameon=False)
    panel(cores, "Cores of the VMs there", y="VMs, cores")
    machines.step(hours, week["machines_used"], where="post", color=INK)
    panel(machines, f"Machines in use, {judged.peak_machines:g} at most", y="in use, machines")
    for n in range(judged.rates.shape[1]):
        rates.step(hours, judged.rates[:, n], where="post", linewidth=0.9)
    rates.set_ylim(0.0, 1.05)
    panel(rates, "Rate of each subscriber", y="rate, share")
    if judged.by_hour is None:
        risk.hist(judged.sampled.hot_hours, bins=np.arange(0, judged.sampled.hot_hours.max() + 2) - 0.5, color=_HOT)
        # It does not share the hours of the week with the panels above it.
        rates.tick_params(labelbottom=True)
        panel(rates, x="time, hours of the week", y="rate, share")
        panel(risk, "Hot hours by episode", x="hot in a week, hours", y="weeks, episodes")
    else:
        risk.fill_between(hours, judged.by_hour, color=_HOT, step="post")
        panel(risk, "Chance of a hot machine", x="time, hours of the week", y="chance, share")
        risk.set_xticks(np.arange(0, len(hours) + 1, 24))
    figure.suptitle(_title(judged), x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _title(judged: Judged) -> str:
    saved = "-" if judged.s_cores is None else f"{judged.s_cores:.1%}"
    policy = judged.policy if len(judged.policy) <= 60 else f"{judged.policy[:57]}..."
    return f"{policy} on {judged.task.scenario.name}: {saved} saved, {judged.sampled.c_hot_r:.1%} hot weeks"


LEARNING = (
    ("hot_hours", "hot hours of a training week", "hot, hours"),
    ("held_out/c_hot_r", "hot weeks of the greedy policy", "hot weeks, share"),
    ("s_cores", "cores saved in training", "saved, share of the cores"),
    ("held_out/reserved", "cores saved by the greedy policy", "saved, share of the cores"),
)
"""Figures of a learning curve, what they show, and in which unit; the share reserved is shown as its complement."""


def learning(runs: Mapping[str, Sequence[Path]]) -> str:
    """Draw learning curves by method, the mean over its seeds and their spread (published Figures 4 to 7)."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 2, sharex=True).ravel()
        for place, (axes, (name, title, unit)) in enumerate(zip(panels, LEARNING, strict=True)):
            for method, (label, folders) in enumerate(runs.items()):
                curves = [column(read_curve(folder / CURVE_FILE), name) for folder in folders]
                curves = [curve for curve in curves if curve]
                if not curves:
                    continue
                steps = np.array([step for step, _ in min(curves, key=len)], dtype=np.float64)
                values = np.array([[value for _, value in curve[: len(steps)]] for curve in curves])
                values = 1.0 - values if name == "held_out/reserved" else values
                mean, spread, colour = values.mean(axis=0), values.std(axis=0), POLICIES[method % len(POLICIES)]
                axes.plot(steps / 120.0, mean, color=colour, lw=1.0, label=label)
                axes.fill_between(steps / 120.0, mean - spread, mean + spread, color=colour, alpha=0.25, lw=0)
            panel(axes, title, x="learned from, episodes" if place >= 2 else "", y=unit)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=3)

    return svg((11.0, 5.6), draw)


def risk(done: Evaluation) -> str:
    """Draw the risk that was predicted against what came of it (B7)."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        shown = [
            (colour, label, [point for point in done.points if point["unseen"] is unseen])
            for unseen, colour, label in ((False, SOFT, "own week"), (True, POLICIES[0], "unseen weeks"))
        ]
        files = dict.fromkeys(point["file"] for point in done.measured)
        shown += [
            (
                POLICIES[1 + at % (len(POLICIES) - 1)],
                f"usage of {name}",
                [point for point in done.measured if point["file"] == name],
            )
            for at, name in enumerate(files)
        ]
        for colour, label, points in shown:
            x, y = [p["predicted"] for p in points], [p["realised"] for p in points]
            axes.scatter(x, y, color=colour, s=18, label=label)
        axes.plot([0, 1], [0, 1], color=INK, lw=0.8)
        for offset in (-0.05, 0.05):
            axes.plot([0, 1], [offset, 1 + offset], color=SOFT, lw=0.7, ls=(0, (4, 3)))
        axes.set_xlim(0, 0.6)
        axes.set_ylim(0, 0.6)
        realised = f"realised in {done.extent.long_episodes:,} episodes, share of weeks"
        panel(axes, x="predicted with too many hot hours, share of weeks", y=realised)
        axes.legend(loc="upper left")

    return svg((5.6, 4.6), draw)


def savings(done: Evaluation) -> str:
    """Draw cores saved and machines against hot weeks, own week and unseen ones: saved cores alone can be gamed.

    What is hot in most weeks is left out.
    """

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2)
        shown = [row["label"] for row in done.rows if row["kind"] == OWN and row["c_hot_r"] < 0.5]
        named = (("cores saved", "saved, share of the cores"), ("machines at most", "in use at once, machines"))
        for axes, name, (title, unit) in zip(panels, ("s_cores", "peak_machines"), named, strict=True):
            for place, label in enumerate(dict.fromkeys(shown)):
                colour, marker = POLICIES[place % len(POLICIES)], "os^"[place // len(POLICIES) % 3]
                for kind, size in ((OWN, 34), (UNSEEN, 10)):
                    rows = done.of(label, kind)
                    x, y = [row["c_hot_r"] for row in rows], [row[name] for row in rows]
                    axes.scatter(x, y, s=size, color=colour, marker=marker, label=label if kind == OWN else None)
            axes.axvline(0.05, color=SOFT, lw=0.7, ls=(0, (4, 3)))
            panel(axes, title, x="hot weeks, share (large: own week, small: unseen)", y=unit)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper")

    return svg((11.0, 4.2), draw)
