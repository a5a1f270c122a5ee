"""Writes an evaluation into a folder: one HTML page, the numbers, and the figures (specification §7 to §9)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from domain.rules.oversubscription.risk import satisfied
from trainer.kit.drawing import FLEET, INK, POLICIES, QUEUE, SOFT, panel, picture, svg
from trainer.kit.intervals import FEWEST_CASES
from trainer.kit.progress import CURVE_FILE, column, read_curve
from trainer.kit.report import Plot, Section, checks_table, document, escape, table, write_report
from trainer.kit.runs import RUN_FILE
from trainer.oversubscription.evaluation import (
    ALPHAS,
    CORRELATED,
    LEFT_OUT,
    OWN,
    PERSISTENT,
    SHIFTED,
    UNSEEN,
    Evaluation,
    Row,
    checks_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from trainer.oversubscription.episodes import Performance

_ASKED, _RESERVED, _HOT = FLEET[0], FLEET[2], QUEUE
SCORE = "score/best"
"""A figure that the curve of a search has, and no other."""
_STYLE: Any = {"text.parse_math": False, "axes.grid.axis": "y"}


def write(folder: Path, found: Sequence[Evaluation], runs: Mapping[str, Sequence[Path]]) -> list[Path]:
    """Write report.html, summary.json and the figures as SVG; return the files. runs: folders of training runs."""
    plots = {done.start: plots_of(done) for done in found}
    if runs:
        plots["learning"] = {
            "curves": Plot(
                "Learning curves: a line for the mean over seeds, a band for their deviation.",
                learning(runs),
            )
        }
    data = [done.as_data() | {"checks": [check.as_data("passed") for check in checks_of(done)]} for done in found]
    named = {f"{key}-{name}": plot for key, own in plots.items() for name, plot in own.items()}
    return write_report(folder, page(found, plots), _numbers(data), named)


def _numbers(data: Sequence[Mapping[str, Any]]) -> str:
    """Return JSON with a line for each row, so that two evaluations can be compared line by line."""

    def lines(value: Any) -> str:
        if isinstance(value, list):
            return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"
        return json.dumps(value, allow_nan=False)

    blocks = (",\n".join(f'"{name}": {lines(value)}' for name, value in one.items()) for one in data)
    return "[\n" + ",\n".join(f"{{\n{block}\n}}" for block in blocks) + "\n]\n"


def plots_of(done: Evaluation) -> dict[str, Plot]:
    """Return the figures of one evaluation by name."""
    return {
        "saved": Plot(
            "Cores and core-hours saved, and machines, against hot weeks; saved cores alone can be gamed. Large marks: "
            "the own week; small ones: unseen weeks.",
            savings(done),
        ),
        "rates": Plot(
            "Rates of the three largest subscribers by hour (published Figures 8 and 9); filled: mean usage of a VM.",
            rates(done),
        ),
        "risk": Plot("Risk predicted by the analytic engine against the measured one; dashed: 5 points.", risk(done)),
    }


def page(found: Sequence[Evaluation], plots: Mapping[str, Mapping[str, Plot]]) -> str:
    """Return the report as one page."""
    sections = []
    for done in found:
        parts = [
            _checks(done),
            own_week(done),
            _over_weeks(done, UNSEEN, "Unseen weeks"),
            _over_weeks(done, LEFT_OUT, "The packaged weeks in turn, by rates fitted on the others alone"),
            _over_weeks(done, SHIFTED, "Shifted profiles"),
            _over_weeks(done, CORRELATED, "VMs of a subscriber that move together"),
        ]
        parts += [_over_weeks(done, PERSISTENT, "VMs that keep their level (psi 0.85)")]
        parts += [plot.html(f"{done.start}-{name}") for name, plot in plots[done.start].items()]
        title = f"{done.scenario}, {done.start} start"
        sections.append(Section(f"{done.scenario}-{done.start}", title, "".join(parts)))
    if "learning" in plots:
        drawn = "".join(plot.html(f"learning-{name}") for name, plot in plots["learning"].items())
        sections.append(Section("learning", "Learning", drawn))
    sections.append(Section("method", "How to read this", _METHOD))
    return document("Oversubscription compared", sections)


def _checks(done: Evaluation) -> str:
    caption = f"Acceptance figures, misses first; no verdict on fewer than {FEWEST_CASES} episodes"
    return checks_table(checks_of(done), caption)


def own_week(done: Evaluation) -> str:
    """Return the figures on the scenario's own week, with those of the publication (its Tables 1, 2, 3 and 5)."""
    head = ["policy", "S-Cores", "core-hours", "machines", "PM-Hot-R", "C-Hot-R", "at most (95 %)", "assessed"]
    head += [*(f"keeps {alpha:g}" for alpha in ALPHAS), "published: S-Cores, PM-Hot-R, C-Hot-R"]
    published = dict(PUBLISHED.get((done.scenario, done.start), {})) if done.packaged else {}
    rows = []
    for label in dict.fromkeys(row["label"] for row in done.rows if row["kind"] == OWN):
        own = done.of(label)
        hot = float(np.mean([row["c_hot_r"] for row in own]))
        assessed = [row["c_hot_r_analytic"] for row in own if row["c_hot_r_analytic"] is not None]
        cells = [
            escape(label if len(own) == 1 else f"{label} ({len(own)} seeds)"),
            *(_spread(own, name) for name in ("s_cores", "s_core_hours", "peak_machines", "pm_hot_r", "c_hot_r")),
            f"{max(row['c_hot_r_upper_95'] for row in own):.1%} <small>of {own[0]['episodes']:,}</small>",
            f"{np.mean(assessed):.1%}" if assessed else "-",
            *("✓" if kept else "-" for kept in satisfied(hot, ALPHAS).values()),
            published.pop(label, "-"),
        ]
        rows.append(cells)
    # A method that this evaluation has not played.
    rows += [[label, *("-" for _ in head[2:]), figures] for label, figures in published.items()]
    caption = f"The scenario's own week, {done.rows[0]['week']}; 300 episodes, 2,000 for policies that promise 0.95"
    return table(head, rows, caption)


def _over_weeks(done: Evaluation, kind: str, title: str) -> str:
    rows = []
    for label in dict.fromkeys(row["label"] for row in done.rows if row["kind"] == kind):
        own = done.of(label, kind)
        hot = [row["c_hot_r"] for row in own]
        names = ("s_cores", "s_core_hours", "peak_machines", "mean_hot_hours")
        saved, staying, machines, hours = (float(np.mean([row[name] for row in own])) for name in names)
        cells = (f"{saved:.1%}", f"{staying:.1%}", f"{machines:.4g}", f"{np.mean(hot):.1%}", f"{max(hot):.1%}")
        rows.append((escape(label), *cells, f"{hours:.2f}", f"{len(own)} × {own[0]['episodes']}"))
    head = (
        "policy",
        "S-Cores",
        "core-hours",
        "machines",
        "C-Hot-R, mean",
        "worst week",
        "hot hours",
        "weeks × episodes",
    )
    return table(head, rows, title) if rows else ""


def _spread(rows: Sequence[Row], name: str) -> str:
    values = [row[name] for row in rows]
    form = ".4g" if name == "peak_machines" else ".1%"
    spread = f" ± {np.std(values):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{spread}"


PUBLISHED: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("internal_like", "cold"): {
        "Grid-0.2": "80.0 %, 30.9 %, 97.2 %",
        "Grid-0.4": "60.0 %, 22.7 %, 72.7 %",
        "Grid-0.6": "40.0 %, 0 %, 0 %",
        "MA": "49.2 %, 0 %, 0 %",
        "SL": "49.9 %, 0.2 %, 0.6 %",
        "C2MARL 0.75": "66.1 %, 9.8 %, 21.9 %",
        "C2MARL 0.85": "61.7 %, 6.6 %, 13.9 %",
        "C2MARL 0.95": "59.9 %, 3.5 %, 4.7 %",
    },
    ("internal_like", "warm"): {
        "Grid-0.2": "80.0 %, 95.4 %",
        "Grid-0.4": "60.0 %, 100 %",
        "Grid-0.6": "40.0 %, 0 %",
        "MA": "49.2 %, 0 %",
        "SL": "49.9 %, 0.8 %",
        "C2MARL 0.75": "69.2 %, 11.6 %",
        "C2MARL 0.85": "65.1 %, 6.8 %",
        "C2MARL 0.95": "69.0 %, 3.5 %",
    },
    ("azure_like", "cold"): {
        **{f"Grid-{rate}": f"{saved} %, 100 %" for rate, saved in ((0.2, "80.0"), (0.4, "60.0"), (0.6, "40.0"))},
        "MA": "8.2 %, 0 %",
        "SL": "7.6 %, 0 %",
        "C2MARL 0.75": "15.3 %, 19.0 %",
        "C2MARL 0.85": "14.6 %, 8.3 %",
        "C2MARL 0.95": "10.4 %, 0 %",
    },
}
"""Tables 1 and 5, 2, and 3 of the publication: S-Cores, PM-Hot-R, and C-Hot-R where it has one."""
_METHOD = """
<p>S-Cores is the share of the requested cores that was not reserved; core-hours weighs each VM by the hours that it
stays. Both are shown next to the most machines in use at once, as a policy that packs without reserving saves 80 % on
paper. The published figures are of other clusters: compare the order of the methods and their ratios, not the
values. C-Hot-R is the share of weeks with three hours or
more in which any machine was hot; PM-Hot-R asks the same of the worst single machine.</p>
<p>No public source joins owners, sizes, arrivals and usage: levels and spread of the owners are those of PlanetLab,
daily shapes those of Azure, arrivals and the level of the Azure-like scenario are calibrated.</p>
<p>Unseen weeks are redrawn: negative binomial arrivals of shape 3 around each subscriber's daily course, VMs drawn
from its own. Shifted profiles move each subscriber's level and time of day; "before" keeps the rates, "re-" fits them
on the new profiles and shields them. VMs that persist keep 85 % of their variance as their level: the per-VM
rows hold if an operator believes that a VM's own level lasts, and measures it every hour.</p>
"""


# Drawings.


def draw(judged: Performance, path: Path) -> None:
    """Write a picture of the week; the same week gives the same bytes."""
    kind = path.suffix.lower().removeprefix(".")
    path.write_bytes(picture(lambda: _figure(judged), kind, style=_STYLE))


def _figure(judged: Performance) -> Figure:
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


def _title(judged: Performance) -> str:
    saved = "-" if judged.s_cores is None else f"{judged.s_cores:.1%}"
    policy = judged.policy if len(judged.policy) <= 60 else f"{judged.policy[:57]}..."
    return f"{policy} on {judged.task.scenario.name}: {saved} saved, {judged.sampled.c_hot_r:.1%} hot weeks"


RESERVED = "held_out/reserved"
LEARNING = (
    (("hot_hours",), "hot hours of a training week", "hot, hours"),
    (("held_out/c_hot_r", "risk/mean"), "hot weeks of the greedy policy, or of the best rule", "hot weeks, share"),
    (("s_cores",), "cores saved in training", "saved, share of the cores"),
    ((RESERVED, "saved"), "saved by the greedy policy, or by the best rule", "saved, share"),
)
"""Figures of a learning curve with title and unit; of the share reserved the complement is drawn."""


def curve_of(folder: Path, names: Sequence[str]) -> list[tuple[float, float]]:
    """Return the weeks played and the value of the first of the figures that the run in a folder has."""
    rows, weeks = read_curve(folder / CURVE_FILE), 1.0 / 120.0
    if rows and SCORE in rows[0]:
        config = json.loads((folder / RUN_FILE).read_text("utf-8"))["config"]
        weeks = float(config["population"] * config["drawn"])
    for name in names:
        found = [(weeks * step, 1.0 - value if name == RESERVED else value) for step, value in column(rows, name)]
        if found:
            return found
    return []


def learning(runs: Mapping[str, Sequence[Path]]) -> str:
    """Draw learning curves by method, the mean over its seeds and their spread (published Figures 4 to 7)."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(2, 2, sharex=True).ravel()
        for place, (axes, (figures, title, unit)) in enumerate(zip(panels, LEARNING, strict=True)):
            for method, (label, folders) in enumerate(runs.items()):
                curves = [curve_of(folder, figures) for folder in folders]
                curves = [curve for curve in curves if curve]
                if not curves:
                    continue
                steps = np.array([step for step, _ in min(curves, key=len)], dtype=np.float64)
                values = np.array([[value for _, value in curve[: len(steps)]] for curve in curves])
                mean, spread, colour = values.mean(axis=0), values.std(axis=0), POLICIES[method % len(POLICIES)]
                axes.plot(steps, mean, color=colour, lw=1.0, label=label)
                axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.25, lw=0)
            panel(axes, title, x="learned from, weeks played" if place >= 2 else "", y=unit)
        handles, names = panels[1].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper right", ncols=3)

    return svg((11.0, 5.6), draw)


def rates(done: Evaluation) -> str:
    """Draw the rates of some policies hour by hour above the mean usage."""
    data = done.by_hour

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(data["subscribers"]), sharey=True, squeeze=False)[0]
        usage, hours = np.array(data["usage"]), np.arange(len(data["usage"]))
        for place, (axes, subscriber) in enumerate(zip(panels, data["subscribers"], strict=True)):
            axes.fill_between(hours, usage[:, place], color=SOFT, step="post", lw=0)
            for at, (label, found) in enumerate(data["rates"].items()):
                axes.step(hours, np.array(found)[:, place], where="post", color=POLICIES[at], lw=1.0, label=label)
            axes.set_ylim(0.0, 1.05)
            panel(axes, f"subscriber {subscriber}", x="time, hours of the week", y="" if place else "rate, share")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=3)

    return svg((13.0, 3.4), draw)


def risk(done: Evaluation) -> str:
    """Draw realised against predicted risk (B7)."""

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


SAVED = (
    ("s_cores", "cores saved", "saved, share of the cores"),
    ("s_core_hours", "core-hours saved", "saved, share of the core-hours"),
    ("peak_machines", "machines at most", "in use at once, machines"),
)
"""Figures of a row with title and unit."""
FAR = ("No-oversub", "Grid-0.6", "risk filter")
"""Policies that are left out of the picture: its scale would hide the differences of the others."""


def savings(done: Evaluation) -> str:
    """Draw savings and machines against hot weeks: a large mark for the own week, small ones for unseen weeks.

    Policies that are hot in most weeks are left out, and those of FAR.
    """

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(SAVED))
        own = [row for row in done.rows if row["kind"] == OWN and row["label"] not in FAR]
        shown = [row["label"] for row in own if row["c_hot_r"] < 0.5]
        for axes, (name, title, unit) in zip(panels, SAVED, strict=True):
            for place, label in enumerate(dict.fromkeys(shown)):
                colour, marker = POLICIES[place % len(POLICIES)], "os^"[place // len(POLICIES) % 3]
                for kind, size in ((OWN, 34), (UNSEEN, 10)):
                    rows = done.of(label, kind)
                    x, y = [row["c_hot_r"] for row in rows], [row[name] for row in rows]
                    axes.scatter(x, y, s=size, color=colour, marker=marker, label=label if kind == OWN else None)
            axes.axvline(0.05, color=SOFT, lw=0.7, ls=(0, (4, 3)))
            panel(axes, title, x="hot weeks, share", y=unit)
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper")

    return svg((13.0, 4.2), draw)
