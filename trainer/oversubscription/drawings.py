"""The figures of the evaluation's report as SVG: learning curves, cases, risk predicted and realised, cores saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from domain.rules.oversubscription.usage import moments_of
from simulator.oversubscription.scenario import Scenario
from trainer.kit.drawing import INK, POLICIES, SOFT, svg
from trainer.kit.progress import CURVE_FILE, column, read_curve
from trainer.oversubscription.evaluation import Evaluation
from trainer.oversubscription.published import TABLES
from trainer.oversubscription.trials import OWN, UNSEEN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHOD_OF = {f"static {alpha}": f"C2MARL {alpha}" for alpha in ("0.75", "0.85", "0.95")}
"""Which published method stands beside our static optima: the learned one, as both promise the same."""
LEARNING = (
    ("hot_hours", "hot hours of a training week"),
    ("held_out/c_hot_r", "hot weeks of the greedy policy"),
    ("s_cores", "cores saved in training"),
    ("held_out/reserved", "cores saved by the greedy policy"),
)
"""Figures of a learning curve, and what they show; the share reserved is shown as its complement."""


def learning(runs: Mapping[str, Sequence[Path]]) -> str:
    """Draw learning curves by method, the mean over its seeds and their spread (published Figures 4 to 7)."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 2, sharex=True).ravel()
        for panel, (name, title) in zip(panels, LEARNING, strict=True):
            for place, (label, folders) in enumerate(runs.items()):
                curves = [column(read_curve(folder / CURVE_FILE), name) for folder in folders]
                curves = [curve for curve in curves if curve]
                if not curves:
                    continue
                steps = np.array([step for step, _ in min(curves, key=len)], dtype=np.float64)
                values = np.array([[value for _, value in curve[: len(steps)]] for curve in curves])
                values = 1.0 - values if name == "held_out/reserved" else values
                mean, spread, colour = values.mean(axis=0), values.std(axis=0), POLICIES[place % len(POLICIES)]
                panel.plot(steps / 120.0, mean, color=colour, lw=1.0, label=label)
                panel.fill_between(steps / 120.0, mean - spread, mean + spread, color=colour, alpha=0.25, lw=0)
            panel.set_title(title, loc="left", fontsize=9.5)
            panel.tick_params(length=0)
        for panel in panels[2:]:
            panel.set_xlabel("episodes")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=3)

    return svg((11.0, 5.6), draw)


def published(done: Evaluation) -> str:
    """Draw the published tables beside ours: cores saved and hot weeks of the worst machine, by method (§7)."""
    title, table = TABLES[done.scenario, done.start]
    ours = {METHOD_OF.get(row["label"], row["label"]): row for row in done.rows if row["kind"] == OWN}
    methods = list(reversed(table))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        places = np.arange(len(methods))
        for panel, name, what in zip(
            panels, ("s_cores", "pm_hot_r"), ("cores saved", "hot weeks of the worst machine"), strict=True
        ):
            theirs = [getattr(table[method], name) for method in methods]
            spread = [table[method].s_cores_std or 0.0 if name == "s_cores" else 0.0 for method in methods]
            panel.barh(
                places + 0.2, theirs, 0.36, color=SOFT, xerr=spread, ecolor=INK, error_kw={"lw": 0.7}, label="published"
            )
            found = [100.0 * ours[method][name] if method in ours else np.nan for method in methods]
            panel.barh(places - 0.2, found, 0.36, color=POLICIES[0], label="ours")
            panel.set_title(f"{what}, %", loc="left", fontsize=9.5)
            panel.tick_params(length=0)
        panels[0].set_yticks(places, methods)
        figure.suptitle(f"{title}; for C2MARL ours are static optima", x=0.01, ha="left", fontsize=9.5)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=2)

    return svg((9.0, 4.2), draw)


def cases(done: Evaluation, scenario: Scenario) -> str:
    """Draw two cases (published Figures 8 and 9): two subscribers whose peaks differ, and one of short-lived VMs."""
    mean = moments_of(scenario.mu, scenario.sd)[0]
    week = scenario.week(scenario.weeks[0])
    stay = [float((week.departure - week.arrival)[week.subscriber == n].mean()) for n in range(scenario.subscribers)]
    apart = mean - mean.mean(axis=1, keepdims=True)
    length = np.maximum(np.linalg.norm(apart, axis=1), 1e-12)
    # By cosine: a subscriber whose usage never changes goes along with nobody, and stands apart from nobody.
    shared = apart @ apart.T / np.outer(length, length) + np.eye(scenario.subscribers) * 9.0
    first, second = np.unravel_index(int(shared.argmin()), shared.shape) if scenario.subscribers > 1 else (0, 0)
    hours = np.arange(scenario.hours)
    labels = [label for label in done.schedules if label != "MA"][:4]

    def draw(figure: Figure) -> None:
        shown = ((first, second), (int(np.argmin(stay)),))
        titles = ("Figure 8: peaks that alternate", f"Figure 9: VMs that stay {min(stay):.0f} h")
        for panel, subscribers, title in zip(figure.subplots(2, 1, sharex=True), shown, titles, strict=True):
            for at, n in enumerate(dict.fromkeys(subscribers)):
                colour = POLICIES[at]
                usage = mean[n, hours % 24]
                panel.plot(hours, usage, color=colour, lw=1.6, label=f"subscriber {n}, mean usage of a VM")
                for style, label in zip(((0, (5, 2)), (0, (1, 1.5)), "dashdot", (0, (8, 3))), labels, strict=False):
                    rates = np.array(done.schedules[label])[:, n]
                    panel.step(hours, rates, color=colour, lw=0.9, ls=style, where="post", label=f"  rate by {label}")
            panel.set_title(title, loc="left", fontsize=9.5)
            panel.set_ylim(0.0, 1.05)
            panel.tick_params(length=0)
            panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7.5)
        panel.set_xlabel("hour of the week")

    return svg((11.0, 5.6), draw)


def risk(done: Evaluation) -> str:
    """Draw the risk that was predicted against what came of it (B7)."""

    def draw(figure: Figure) -> None:
        panel = figure.subplots()
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
            panel.scatter(x, y, color=colour, s=18, label=label)
        panel.plot([0, 1], [0, 1], color=INK, lw=0.8)
        for offset in (-0.05, 0.05):
            panel.plot([0, 1], [offset, 1 + offset], color=SOFT, lw=0.7, ls=(0, (4, 3)))
        panel.set_xlim(0, 0.6)
        panel.set_ylim(0, 0.6)
        panel.set_xlabel("predicted share of weeks with too many hot hours")
        panel.set_ylabel(f"realised in {done.extent.long_episodes:,}")
        panel.legend(loc="upper left")
        panel.tick_params(length=0)

    return svg((5.6, 4.6), draw)


def savings(done: Evaluation) -> str:
    """Draw cores saved and machines against hot weeks, own week and unseen ones: saved cores alone can be gamed.

    What is hot in most weeks is left out.
    """

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2)
        shown = [row["label"] for row in done.rows if row["kind"] == OWN and row["c_hot_r"] < 0.5]
        for panel, name, title in zip(
            panels, ("s_cores", "peak_machines"), ("cores saved", "machines at most"), strict=True
        ):
            for place, label in enumerate(dict.fromkeys(shown)):
                colour, marker = POLICIES[place % len(POLICIES)], "os^"[place // len(POLICIES) % 3]
                for kind, size in ((OWN, 34), (UNSEEN, 10)):
                    rows = done.of(label, kind)
                    x, y = [row["c_hot_r"] for row in rows], [row[name] for row in rows]
                    panel.scatter(x, y, s=size, color=colour, marker=marker, label=label if kind == OWN else None)
            panel.axvline(0.05, color=SOFT, lw=0.7, ls=(0, (4, 3)))
            panel.set_xlabel("hot weeks (large: own week, small: unseen)")
            panel.set_title(title, loc="left", fontsize=9.5)
            panel.tick_params(length=0)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper", fontsize=7.5)

    return svg((11.0, 4.2), draw)
