"""Writes an evaluation into a folder: one HTML page, the numbers, and the figures (specification §7 to §9)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from domain.rules.oversubscription.risk import satisfied
from trainer.kit.intervals import FEWEST_CASES
from trainer.kit.report import Plot, Section, chip, document, escape, table, write_report
from trainer.oversubscription import drawings
from trainer.oversubscription.evaluation import ALPHAS, Evaluation, checks_of
from trainer.oversubscription.trials import CORRELATED, LEFT_OUT, OWN, PERSISTENT, SHIFTED, UNSEEN, Row


def write(folder: Path, found: Sequence[Evaluation], runs: Mapping[str, Sequence[Path]]) -> list[Path]:
    """Write report.html, summary.json and the figures as SVG; return the files. runs: folders of training runs."""
    plots = {done.start: plots_of(done) for done in found}
    if runs:
        plots["learning"] = {
            "curves": Plot(
                "Learning curves: a line for the mean over seeds, a band for their deviation.",
                drawings.learning(runs),
            )
        }
    data = [done.as_data() | {"checks": [check.as_data() for check in checks_of(done)]} for done in found]
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
            "Cores saved, and machines, against hot weeks. Saved cores alone can be gamed: the risk filter saves 80 % "
            "by construction, its machines show its worth.",
            drawings.savings(done),
        ),
        "risk": Plot(
            "Risk predicted by the analytic engine against the measured one; dashed: 5 points.", drawings.risk(done)
        ),
    }


def page(found: Sequence[Evaluation], plots: Mapping[str, Mapping[str, Plot]]) -> str:
    """Return the report as one page."""
    sections = []
    for done in found:
        parts = [
            _checks(done),
            _own(done),
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
    words = {True: "kept", False: "missed", None: "no verdict"}
    rows = [
        (escape(check.asked), escape(check.key), escape(check.found), chip(check.passed, words[check.passed]))
        for check in checks_of(done)
    ]
    caption = f"Acceptance figures, misses first; no verdict on fewer than {FEWEST_CASES} episodes"
    return table(("asked", "criterion", "found", "verdict"), rows, caption)


def _own(done: Evaluation) -> str:
    """Return the figures on the scenario's own week."""
    head = ["policy", "S-Cores", "machines", "PM-Hot-R", "C-Hot-R", "at most (95 %)", "assessed"]
    head += [f"keeps {alpha:g}" for alpha in ALPHAS]
    rows = []
    for label in dict.fromkeys(row["label"] for row in done.rows if row["kind"] == OWN):
        own = done.of(label)
        hot = float(np.mean([row["c_hot_r"] for row in own]))
        assessed = [row["c_hot_r_analytic"] for row in own if row["c_hot_r_analytic"] is not None]
        cells = [
            escape(label if len(own) == 1 else f"{label} ({len(own)} seeds)"),
            *(_spread(own, name) for name in ("s_cores", "peak_machines", "pm_hot_r", "c_hot_r")),
            f"{max(row['c_hot_r_upper_95'] for row in own):.1%} <small>of {own[0]['episodes']:,}</small>",
            f"{np.mean(assessed):.1%}" if assessed else "-",
            *("✓" if kept else "-" for kept in satisfied(hot, ALPHAS).values()),
        ]
        rows.append(cells)
    caption = f"The scenario's own week, {done.rows[0]['week']}; 300 episodes, 2,000 for policies that promise 0.95"
    return table(head, rows, caption)


def _over_weeks(done: Evaluation, kind: str, title: str) -> str:
    rows = []
    for label in dict.fromkeys(row["label"] for row in done.rows if row["kind"] == kind):
        own = done.of(label, kind)
        hot = [row["c_hot_r"] for row in own]
        saved, machines = (float(np.mean([row[name] for row in own])) for name in ("s_cores", "peak_machines"))
        hours = float(np.mean([row["mean_hot_hours"] for row in own]))
        cells = (f"{saved:.1%}", f"{machines:.4g}", f"{np.mean(hot):.1%}", f"{max(hot):.1%}", f"{hours:.2f}")
        rows.append((escape(label), *cells, f"{len(own)} × {own[0]['episodes']}"))
    head = ("policy", "S-Cores", "machines", "C-Hot-R, mean", "worst week", "hot hours a week", "weeks × episodes")
    return table(head, rows, title) if rows else ""


def _spread(rows: Sequence[Row], name: str) -> str:
    values = [row[name] for row in rows]
    form = ".4g" if name == "peak_machines" else ".1%"
    spread = f" ± {np.std(values):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{spread}"


_METHOD = """
<p>S-Cores is the share of the requested cores that was not reserved. It is shown next to the most machines in use at
once, as a policy that packs without reserving saves 80 % on paper. C-Hot-R is the share of weeks with three hours or
more in which any machine was hot; PM-Hot-R asks the same of the worst single machine.</p>
<p>No public source joins owners, sizes, arrivals and usage: levels and spread of the owners are those of PlanetLab,
daily shapes those of Azure, arrivals and the level of the Azure-like scenario are calibrated.</p>
<p>Unseen weeks are redrawn: negative binomial arrivals of shape 3 around each subscriber's daily course, VMs drawn
from its own. Shifted profiles move each subscriber's level and time of day; "before" keeps the rates, "re-" fits them
on the new profiles and shields them. VMs that persist keep 85 % of their variance as their level: the per-VM
rows hold if an operator believes that a VM's own level lasts, and measures it every hour.</p>
"""
