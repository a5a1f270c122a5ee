"""Writes an evaluation into a folder: one HTML page, the numbers, and the figures (specification §7 to §9)."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from domain.rules.oversubscription.verdict import satisfied
from simulator.oversubscription.scenario import Scenario
from trainer.kit.drawing import prefixed
from trainer.kit.report import SHEET, Plot
from trainer.oversubscription import drawings
from trainer.oversubscription.criteria import checks_of
from trainer.oversubscription.evaluation import ALPHAS, Evaluation
from trainer.oversubscription.published import TABLES, Published
from trainer.oversubscription.trials import CORRELATED, LEFT_OUT, OWN, PERSISTENT, SHIFTED, UNSEEN, Row

PAGE, SUMMARY = "report.html", "summary.json"


def write(
    folder: Path, found: Sequence[Evaluation], scenario: Scenario, runs: Mapping[str, Sequence[Path]]
) -> list[Path]:
    """Write report.html, summary.json and the figures as SVG; return the files. runs: folders of training runs."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = {done.start: plots_of(done, scenario) for done in found}
    if runs:
        plots["learning"] = {
            "curves": Plot(
                "Learning curves, as in the published Figures 4 to 7: line for the mean over seeds, band for their "
                "deviation.",
                drawings.learning(runs),
            )
        }
    files = [folder / PAGE, folder / SUMMARY]
    files[0].write_text(page(found, plots), encoding="utf-8", newline="\n")
    data = [done.as_data() | {"checks": [check.as_data() for check in checks_of(done)]} for done in found]
    files[1].write_text(_numbers(data), encoding="utf-8", newline="\n")
    for key, named in plots.items():
        for name, plot in named.items():
            files.append(folder / f"{key}-{name}.svg")
            files[-1].write_text(plot.svg, encoding="utf-8", newline="\n")
    return files


def _numbers(data: Sequence[Mapping[str, Any]]) -> str:
    """Return JSON with a line for each row, so that two evaluations can be compared line by line."""

    def lines(value: Any) -> str:
        if isinstance(value, list):
            return "[\n" + ",\n".join(json.dumps(item, allow_nan=False) for item in value) + "\n]"
        return json.dumps(value, allow_nan=False)

    blocks = (",\n".join(f'"{name}": {lines(value)}' for name, value in one.items()) for one in data)
    return "[\n" + ",\n".join(f"{{\n{block}\n}}" for block in blocks) + "\n]\n"


def plots_of(done: Evaluation, scenario: Scenario) -> dict[str, Plot]:
    """Return the figures of one evaluation by name."""
    tables: dict[str, Plot] = {}
    if (done.scenario, done.start) in TABLES:
        tables["published"] = Plot(
            "The published tables beside ours. Their internal trace is not public: the order and what is safe compare, "
            "not the height.",
            drawings.published(done),
        )
    return tables | {
        "saved": Plot(
            "Cores saved, and machines, against hot weeks. Saved cores alone can be gamed: the risk filter saves 80 % "
            "by construction, its machines tell what it is worth.",
            drawings.savings(done),
        ),
        "risk": Plot(
            "Risk predicted by the analytic engine against what came of it; dashed: 5 points.", drawings.risk(done)
        ),
        "cases": Plot(
            "Two cases as in the published Figures 8 and 9. Lines: mean usage of one VM; dashed: rates over the week.",
            drawings.cases(done, scenario),
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
            _over_weeks(done, LEFT_OUT, "The packaged weeks in turn, by what was fitted on the others alone"),
            _over_weeks(done, SHIFTED, "Shifted profiles"),
            _over_weeks(done, CORRELATED, "VMs of a subscriber that move together"),
        ]
        parts += [_over_weeks(done, PERSISTENT, "VMs that keep a level of their own (psi 0.85)")]
        parts += [_drawn(f"{done.start}-{name}", plot) for name, plot in plots[done.start].items()]
        sections.append(f"<section><h2>{_e(done.scenario)}, {done.start} start</h2>{''.join(parts)}</section>")
    if "learning" in plots:
        drawn = "".join(_drawn(f"learning-{name}", plot) for name, plot in plots["learning"].items())
        sections.append(f"<section><h2>Learning</h2>{drawn}</section>")
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Oversubscription compared</title>\n<style>{SHEET}</style>\n<main>\n"
        f"<h1>Oversubscription compared</h1>\n{body}\n<section><h2>How to read this</h2>{_METHOD}</section>\n"
        "</main>\n</html>\n"
    )


def _checks(done: Evaluation) -> str:
    rows = [
        (
            f'<span class="chip {"good" if check.passed else "bad"}">{"yes" if check.passed else "no"}</span>',
            *(_e(check.key), _e(check.asked), _e(check.found)),
        )
        for check in checks_of(done)
    ]
    return _table(("kept", "", "asked", "found"), rows, "What was asked, misses first")


def _own(done: Evaluation) -> str:
    """Return the published tables beside ours."""
    title, published = TABLES.get((done.scenario, done.start), ("", {}))
    head = ["policy", "S-Cores", "machines", "PM-Hot-R", "C-Hot-R", "at most (95 %)", "assessed"]
    head += [f"keeps {alpha:g}" for alpha in ALPHAS]
    head += ["published S-Cores", "PM-Hot-R", "C-Hot-R"] if published else []
    rows: list[tuple[str, ...]] = []
    for label in dict.fromkeys(row["label"] for row in done.rows if row["kind"] == OWN):
        own = done.of(label)
        hot = float(np.mean([row["c_hot_r"] for row in own]))
        assessed = [row["c_hot_r_analytic"] for row in own if row["c_hot_r_analytic"] is not None]
        cells = [
            _e(label if len(own) == 1 else f"{label} ({len(own)} seeds)"),
            *(_spread(own, name) for name in ("s_cores", "peak_machines", "pm_hot_r", "c_hot_r")),
            f"{max(row['c_hot_r_upper_95'] for row in own):.1%} <small>of {own[0]['episodes']:,}</small>",
            f"{np.mean(assessed):.1%}" if assessed else "-",
            *("✓" if kept else "-" for kept in satisfied(hot, ALPHAS).values()),
        ]
        rows.append((*cells, *(_of(published.get(_method(label))) if published else ())))
    told = f"{title} and ours" if title else "The scenario's own week"
    return _table(head, rows, f"{told}: week {done.rows[0]['week']}; 300 episodes, 2,000 for what promises 0.95")


def _method(label: str) -> str:
    """Return the name that the published tables have for a policy: every learned one is their C2MARL."""
    return f"C2MARL {label.split()[-1]}" if label.startswith("C2MARL") and label.split()[-1][0] == "0" else label


def _of(line: Published | None) -> tuple[str, str, str]:
    if line is None:
        return "", "", ""
    spread = "" if line.s_cores_std is None else f" ± {line.s_cores_std:g}"
    risk = "-" if line.c_hot_r is None else f"{line.c_hot_r:g}"
    return f"{line.s_cores:g}{spread}", f"{line.pm_hot_r:g}", risk


def _over_weeks(done: Evaluation, kind: str, title: str) -> str:
    rows = []
    for label in dict.fromkeys(row["label"] for row in done.rows if row["kind"] == kind):
        own = done.of(label, kind)
        hot = [row["c_hot_r"] for row in own]
        saved, machines = (float(np.mean([row[name] for row in own])) for name in ("s_cores", "peak_machines"))
        hours = float(np.mean([row["mean_hot_hours"] for row in own]))
        cells = (f"{saved:.1%}", f"{machines:.4g}", f"{np.mean(hot):.1%}", f"{max(hot):.1%}", f"{hours:.2f}")
        rows.append((_e(label), *cells, f"{len(own)} × {own[0]['episodes']}"))
    head = ("policy", "S-Cores", "machines", "C-Hot-R, mean", "worst week", "hot hours a week", "weeks × episodes")
    return _table(head, rows, title) if rows else ""


def _spread(rows: Sequence[Row], name: str) -> str:
    values = [row[name] for row in rows]
    form = ".4g" if name == "peak_machines" else ".1%"
    spread = f" ± {np.std(values):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{spread}"


def _drawn(key: str, plot: Plot) -> str:
    return f'<p class="soft">{_e(plot.caption)}</p>{prefixed(plot.svg, key)}'


def _table(head: Iterable[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    top = "".join(f"<th>{_e(cell)}</th>" for cell in head)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><caption>{_e(caption)}</caption><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _e(text: str) -> str:
    return html.escape(str(text))


_METHOD = """
<p>S-Cores is the share of the requested cores that was not reserved. It stands next to the most machines in use at
once, as a policy that packs without reserving saves 80 % on paper. C-Hot-R is the share of weeks with three hours or
more in which any machine was hot; PM-Hot-R asks the same of the worst single machine.</p>
<p>The internal trace of the publication is not public, so its figures stand beside ours for their structure: which
simple rules are safe, and how much more the others save. No public source joins owners, sizes, arrivals and usage:
levels and spread of the owners are those of PlanetLab, daily shapes those of Azure, arrivals and the level of the
Azure-like scenario are calibrated.</p>
<p>Unseen weeks are drawn anew: negative binomial arrivals of shape 3 around each subscriber's daily course, VMs drawn
from its own. Shifted profiles move each subscriber's level and time of day; "before" keeps the rates, "anew" fits them
on the new profiles and shields them. VMs that persist keep 85 % of their variance as a level of their own: the per-VM
rows hold if an operator believes that a VM's own level lasts, and measures it every hour.</p>
"""
