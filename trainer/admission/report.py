"""Writes what was found into a folder: one HTML page that needs nothing beside it, the figures, and the numbers."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from trainer.admission import drawings
from trainer.admission.bootstrap import Estimate
from trainer.admission.figures import LEVELS, Findings, as_data, ends_text, gain_text
from trainer.admission.fronts import FEWEST_FAILING, FLOOR, Metric, Standing
from trainer.kit.drawing import prefixed
from trainer.kit.report import SHEET, Plot

PAGE, SUMMARY = "report.html", "summary.json"


def write(folder: Path, found: Sequence[Findings], configuration: Mapping[str, Any]) -> list[Path]:
    """Write report.html, summary.json and one .svg per figure; return the files in that order."""
    files = [folder / PAGE, folder / SUMMARY]
    plots = [plots_of(one) for one in found]
    files[0].write_text(page(found, plots, configuration), encoding="utf-8", newline="\n")
    text = json.dumps(as_data(found, configuration), indent=1)
    files[1].write_text(text + "\n", encoding="utf-8", newline="\n")
    for one, named in zip(found, plots, strict=True):
        for name, plot in named.items():
            file = folder / f"{one.preset_name}-{one.experiment.name}-{name}.svg"
            file.write_text(plot.svg, encoding="utf-8", newline="\n")
            files.append(file)
    return files


def plots_of(found: Findings) -> dict[str, Plot]:
    """Return an experiment's figures by name."""
    plots = {
        "fronts": Plot(
            "Utilisation against refused scale-outs. A point is one threshold; the thin lines are 95 % intervals over "
            f"runs. Rates below {drawings.SMALLEST:g} stand at the left edge.",
            drawings.fronts(found),
        ),
        "gains": Plot(
            "Gain of one rule over another at equal risk, primary metric. Hollow: fewer than "
            f"{FEWEST_FAILING} runs fail there, so the interval says little.",
            drawings.gains(found),
        ),
        "reached": Plot("Utilisation at each level of risk, primary metric.", drawings.by_ladder(found)),
    }
    if any(s.failing_runs for standings in found.standings.values() for s in standings):
        plots["months"] = Plot(
            "When it goes wrong: each rule at its last threshold within 1e-3.", drawings.over_months(found)
        )
        plots["runs"] = Plot(
            "How few runs carry the failures: each rule at its last threshold within 1e-3.",
            drawings.shares_of_runs(found),
        )
    return plots


def page(found: Sequence[Findings], plots: Sequence[Mapping[str, Plot]], configuration: Mapping[str, Any]) -> str:
    """Return the report as one page."""
    sections, links = [], []
    for one, named in zip(found, plots, strict=True):
        key = f"{one.preset_name}-{one.experiment.name}"
        title = f"{one.preset_name}: {one.experiment.title}"
        links.append(f'<a href="#{_e(key)}">{_e(title)}</a>')
        drawn = "".join(
            f'<p class="soft">{_e(plot.caption)}</p>{prefixed(plot.svg, f"{key}-{name}")}'
            for name, plot in named.items()
        )
        sections.append(
            f'<section id="{_e(key)}"><h2>{_e(title)}</h2>\n<p class="soft">{_e(_facts(one))}</p>'
            f"{_gains(one)}{_ratios(one)}{_bounds(one)}{drawn}{_standings(one)}</section>"
        )
    told = {"code": str(configuration["code"]), "hours of a run": f"{configuration['hours']:g}"}
    facts = "".join(f"<dt>{_e(name)}</dt><dd>{_e(text)}</dd>" for name, text in told.items())
    body = "\n".join(sections)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Rules of admission compared</title>\n<style>{SHEET}</style>\n<main>\n"
        f"<h1>Rules of admission compared</h1>\n<dl>{facts}</dl>\n<nav>{' '.join(links)}</nav>\n{body}\n"
        f'<section id="method"><h2>How to read this</h2>{_METHOD}</section>\n</main>\n</html>\n'
    )


def _facts(found: Findings) -> str:
    first = next(iter(found.standings.values()))[0]
    return f"{first.runs} runs, seeds {first.first_seed} to {first.last_seed}, the same for every rule."


def _gains(found: Findings) -> str:
    head = ["challenger", "against", *(f"{metric.value} {sla:g}" for metric in Metric for sla in LEVELS)]
    rows = [[_e(m.challenger), _e(m.base), *(_e(gain_text(g)) for g in m.gains)] for m in found.meetings]
    return _table(head, rows, "Points of utilisation gained at equal risk")


def _ratios(found: Findings) -> str:
    head = ["challenger", "against", "at", "utilisation", *(f"{metric.value}" for metric in Metric)]
    rows = [
        [
            _e(m.challenger),
            _e(m.base),
            _e(m.ratios[0].cell.policy),
            f"{m.ratios[0].utilisation:.3f}",
            *(_estimate(r.ratio, ".3g") for r in m.ratios),
        ]
        for m in found.meetings
    ]
    return _table(head, rows, "The challenger's failures as a share of the base's, at equal utilisation")


def _bounds(found: Findings) -> str:
    if not found.of_bound:
        return ""
    rows = [[_e(name), _estimate(estimate, ".3f")] for name, estimate in found.of_bound.items()]
    return _table(["rule", "share"], rows, "Utilisation at 1e-3 as a share of what fits without any promise")


def _standings(found: Findings) -> str:
    head = ["policy", "hash", "obs", "runs", "utilisation", "primary", "pooled", "failing runs", "worst run's share"]
    parts = [_table(head, map(_cells, standings), name) for name, standings in found.standings.items()]
    return f"<details><summary>All thresholds</summary>{''.join(parts)}</details>"


def _cells(found: Standing) -> list[str]:
    labels = f" {found.cell.labels}" if found.cell.labels else ""
    return [
        _e(found.cell.policy),
        found.cell.policy_hash,
        f"{found.cell.observations}{labels}",
        str(found.runs),
        _estimate(found.utilisation, ".3f"),
        _estimate(found.primary, ".2g"),
        _estimate(found.pooled, ".2g"),
        str(found.failing_runs),
        "-" if isnan(found.largest_share) else f"{found.largest_share:.0%}",
    ]


def _estimate(estimate: Estimate, form: str) -> str:
    if isnan(estimate.value):
        return "beyond the thresholds tried"
    return f"{estimate.value:{form}} <small>{_e(ends_text(estimate, form=form))}</small>"


def _table(head: Iterable[str], rows: Iterable[Sequence[str]], caption: str) -> str:
    top = "".join(f"<th>{_e(cell)}</th>" for cell in head)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll"><table><caption>{_e(caption)}</caption><thead><tr>{top}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def _e(text: str) -> str:
    return html.escape(text)


_METHOD = f"""
<p>A run is three years of one cluster. Its deployments, and all that happens to each of them once it is inside, are
drawn before any rule is asked, so all rules of a comparison meet the same deployments with the same futures.</p>
<p>The primary metric is the mean over all months of all runs of the share of a month's scale-out requests that were
refused; pooled is all refusals over all requests. A few runs carry most failures, so the two differ.</p>
<p>Gain at equal risk: each rule's front of thresholds is read where it reaches the level, with the logarithm of the
rate (of {FLOOR:g} at least) linear in utilisation between two thresholds; the gain is the difference. Intervals are
95 % bootstrap intervals over runs, 10,000 resamples: bias-corrected and accelerated, or of percentiles, which is said,
where a figure is not defined on every resample. With fewer than {FEWEST_FAILING} runs that fail at the first threshold
beyond the level their number is told beside the interval, and at 1e-4 the comparison counts as not resolved.</p>
"""
