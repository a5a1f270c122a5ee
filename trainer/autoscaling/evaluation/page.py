"""The report as one HTML file that needs nothing beside it: tables, plots, and how to read them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from trainer.autoscaling.evaluation.suite import GROUPS, TITLES
from trainer.autoscaling.evaluation.summary import (
    PUBLISHED,
    PUBLISHED_RENT_CHANGE,
    PUBLISHED_TIME_CHANGE,
    SHUTDOWN_LIMIT_MIN,
    WORSE_LIMIT,
    Standing,
    Summary,
    Trade,
    Verdict,
)
from trainer.kit.drawing import colours, prefixed
from trainer.kit.intervals import Comparison, Interval
from trainer.kit.report import SHEET, Plot

FEW_CASES = 8
"""Below so many cases a bootstrap interval is too narrow to be trusted."""


@dataclass(frozen=True, slots=True)
class Extras:
    """What a report may show beside the summary: plots by group (T1..T6), by section, and further tables as HTML."""

    by_group: Mapping[str, Sequence[Plot]] = field(default_factory=dict)
    comparison: Plot | None = None
    pareto: Plot | None = None
    curves: Plot | None = None
    importance: Sequence[tuple[str, str, Plot]] = ()
    """Model, words about it, plot."""


def page(summary: Summary | None, extras: Extras, facts: Mapping[str, str]) -> str:
    """Return the page, without a summary that of the importances alone.

    facts: what was run, name to text, shown at its top.
    """
    sections = [] if summary is None else _compared(summary, extras)
    for place, (model, words, plot) in enumerate(extras.importance):
        key = f"importance{place}"
        sections.append((key, f"Importance of the inputs of {model}", f"<p>{_e(words)}</p>{_plot(plot, key)}"))
    sections.append(("method", "How to read this", _METHOD))
    links = " ".join(f'<a href="#{key}">{_e(title.partition(" — ")[0])}</a>' for key, title, _ in sections)
    parts = (f'<section id="{key}"><h2>{_e(title)}</h2>\n{content}</section>' for key, title, content in sections)
    body = "\n".join(parts)
    told = "".join(f"<dt>{_e(name)}</dt><dd>{_e(text)}</dd>" for name, text in facts.items())
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Autoscaling policies compared</title>\n<style>{SHEET}</style>\n<main>\n"
        f"<h1>Autoscaling policies compared</h1>\n<dl>{told}</dl>\n<nav>{links}</nav>\n{body}\n</main>\n</html>\n"
    )


def _compared(summary: Summary, extras: Extras) -> list[tuple[str, str, str]]:
    """Return the sections of a comparison: key, title, content."""
    colour = colours(summary.policies)
    groups = [group for group in GROUPS if any(f.split()[0] == group for f in summary.families)]
    sections = [
        ("verdicts", "In short", _verdicts(summary, colour)),
        ("overview", "Cost", _overview(summary, colour, extras)),
    ]
    sections += [(group, f"{group} — {TITLES[group]}", _group(summary, group, colour, extras)) for group in groups]
    if summary.trades:
        sections.append(("published", "Beside the published experiment", _published(summary)))
    if extras.pareto is not None:
        sections.append(("pareto", "Cost against delay", _plot(extras.pareto, "pareto")))
    if extras.curves is not None:
        sections.append(("curves", "Learning curves", _plot(extras.curves, "curves")))
    if summary.absences:
        sections.append(("absent", "Not run", _absences(summary)))
    return sections


def _verdicts(summary: Summary, colour: Mapping[str, str]) -> str:
    head = [
        "policy",
        f"cost against {summary.reference}",
        "sure it is cheaper",
        f"at most {WORSE_LIMIT:+.0%} on every family",
        f"minimum fleet within {SHUTDOWN_LIMIT_MIN:.0f} min",
    ]
    rows = []
    for verdict in summary.verdicts:
        reference = verdict.policy == summary.reference
        rows.append(
            (
                reference,
                [
                    _policy(verdict.policy, colour),
                    "reference" if reference else _relative(verdict.overall) + _partly(verdict, summary),
                    "" if verdict.overall is None else _share(verdict.overall.probability_lower),
                    _worst(verdict),
                    _shutdown(verdict),
                ],
            )
        )
    words = (
        "Cost is rent plus the penalty for waiting. The first figure is over all cases, families counting alike, "
        "with its 95 % interval; the families one by one stand below."
    )
    return f'<p class="soft">{_e(words)}</p>{_table(head, rows)}'


def _partly(verdict: Verdict, summary: Summary) -> str:
    """Say so where a policy did not take part everywhere: its figure is not that of the others."""
    if verdict.families == len(summary.families):
        return ""
    return f" <small>on {verdict.families} of {len(summary.families)} families</small>"


def _worst(verdict: Verdict) -> str:
    if verdict.never_worse is None or verdict.worst_relative is None:
        return _chip(None, "—")
    kept = None if verdict.partial and verdict.never_worse else verdict.never_worse
    return _chip(kept, f"{_percent(verdict.worst_relative)} on {verdict.worst_family}")


def _shutdown(verdict: Verdict) -> str:
    if verdict.shutdown_min is None:
        return _chip(None, "not measured")
    text = (
        f"{verdict.shutdown_min:.0f} min" if verdict.shutdown_released else f"not within {verdict.shutdown_min:.0f} min"
    )
    return _chip(verdict.shuts_down, text)


def _overview(summary: Summary, colour: Mapping[str, str], extras: Extras) -> str:
    rows = []
    for policy in summary.policies:
        cells = [_policy(policy, colour)]
        for family in summary.families:
            standing = summary.standing(policy, family)
            cells.append("" if standing is None else _cost_cell(standing))
        rows.append((policy == summary.reference, cells))
    words = (
        "Mean dollars of an episode; below it the change against the reference, green or red where its interval "
        "excludes 0."
    )
    drawn = "" if extras.comparison is None else _plot(extras.comparison, "comparison")
    return f'<p class="soft">{_e(words)}</p>{_table(["policy", *summary.families], rows)}{drawn}'


def _cost_cell(standing: Standing) -> str:
    if standing.against is None:
        return f"{standing.cost.mean:.2f}"
    return f"{standing.cost.mean:.2f}<br><small>{_relative(standing.against, interval=False)}</small>"


def _group(summary: Summary, group: str, colour: Mapping[str, str], extras: Extras) -> str:
    head = [
        "policy",
        "cost $",
        "rent $",
        "penalty $",
        "run time min",
        "wait s<br>mean / p95",
        "allocated",
        "busy",
        "idle core-h",
        "changes<br>/ refused",
        "interrupted<br>/ core-s lost",
        "peak cores",
        "first core s",
        "idle shut-down min",
    ]
    parts = []
    for family in (f for f in summary.families if f.split()[0] == group):
        standings = [s for s in summary.standings if s.family == family]
        rows = [(s.policy == summary.reference, _standing_cells(s, colour)) for s in standings]
        cases = max(s.cases for s in standings)
        few = "; too few for the interval to mean much" if cases < FEW_CASES else ""
        parts.append(_table(head, rows, f"{family}: means over {cases} case{'s' if cases > 1 else ''}{few}"))
    drawn = [_plot(plot, f"{group}-{k}") for k, plot in enumerate(extras.by_group.get(group, ()))]
    return "".join(parts + drawn)


def _standing_cells(s: Standing, colour: Mapping[str, str]) -> list[str]:
    idle = "—" if s.idle_worst_min is None else f"{'' if s.idle_released else '&gt; '}{s.idle_worst_min:.0f}"
    truncated = f' <small class="bad">{s.truncated} cut off</small>' if s.truncated else ""
    return [
        _policy(s.policy, colour),
        f"<b>{s.cost.mean:.2f}</b>{truncated}" + (f"<br>{_span(s.cost)}" if s.cases > 1 else ""),
        f"{s.rent:.2f}",
        f"{s.penalty:.2f}",
        f"{s.run_time_min:.1f}",
        f"{s.mean_wait_s:.0f} / {s.p95_wait_s:.0f}",
        f"{s.allocated_ratio:.1%}",
        f"{s.utilisation:.2f}",
        f"{s.idle_core_h:.1f}",
        f"{s.changes:.0f} / {s.refused:.0f}",
        f"{s.interruptions:.1f} / {s.lost_core_s:,.0f}",
        f"{s.peak_cores:.0f}",
        "—" if s.first_core_s is None else f"{s.first_core_s:.0f}",
        idle,
    ]


def _published(summary: Summary) -> str:
    head = ["policy", "run time min", "rent $", "CPU per allocated core", "allocated"]
    rows: list[tuple[bool, list[str]]] = [
        (
            True,
            [
                f"{_e(name)} <small>published, one run</small>",
                f"{figures['run_time_min']:.0f}",
                f"{figures['rent']:.2f}",
                f"{figures['utilisation']:.2f}",
                f"{figures['allocated_ratio']:.1%}",
            ],
        )
        for name, figures in PUBLISHED.items()
    ]
    for s in (s for s in summary.standings if s.family == "T4"):
        cells = [f"{s.run_time_min:.1f}", f"{s.rent:.2f}", f"{s.utilisation:.2f}", f"{s.allocated_ratio:.1%}"]
        rows.append((False, [_e(s.policy), *cells]))
    trades = [
        (
            False,
            [
                _e(trade.policy),
                _e(trade.reference),
                _relative(trade.rent),
                _relative(trade.run_time),
                _chip(
                    _as_published(trade),
                    "yes" if _as_published(trade) else "no",
                ),
            ],
        )
        for trade in summary.trades
    ]
    words = (
        f"Published: rent {PUBLISHED_RENT_CHANGE:+.1%} at {PUBLISHED_TIME_CHANGE:+.1%} run time against the 75 % "
        "threshold, one run of each on a live cloud. Here: the closed loop simulated, m5a prices, 300 s cool-down "
        "per type, boot times drawn, the same cases for every policy."
    )
    return (
        f"<p>{_e(words)}</p>{_table(head, rows)}"
        f"{_table(['policy', 'against', 'rent', 'run time', 'at least the published trade'], trades)}"
    )


def _as_published(trade: Trade) -> bool:
    rent, run_time = trade.rent.relative.mean, trade.run_time.relative.mean
    return rent <= PUBLISHED_RENT_CHANGE and run_time <= PUBLISHED_TIME_CHANGE


def _absences(summary: Summary) -> str:
    grouped: dict[tuple[str, str], list[str]] = {}
    for absence in summary.absences:
        grouped.setdefault((absence.label, absence.reason), []).append(absence.family)
    rows = [
        (False, [_e(label), _e(", ".join(dict.fromkeys(families))), str(len(families)), _e(reason)])
        for (label, reason), families in grouped.items()
    ]
    return _table(["policy", "families", "cases", "why"], rows)


def _table(head: Iterable[str], rows: Iterable[tuple[bool, Sequence[str]]], caption: str = "") -> str:
    top = "".join(f"<th>{cell if '<br>' in cell else _e(cell)}</th>" for cell in head)
    body = "\n".join(
        f"<tr{' class=reference' if marked else ''}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for marked, cells in rows
    )
    named = f"<caption>{_e(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{named}<thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _plot(plot: Plot, prefix: str) -> str:
    return f'<p class="soft">{_e(plot.caption)}</p>{prefixed(plot.svg, prefix)}'


def _policy(policy: str, colour: Mapping[str, str]) -> str:
    return (
        f'<span class="dot" style="background:{colour[policy]}"></span><span title="{_e(policy)}">{_e(policy)}</span>'
    )


def _relative(comparison: Comparison | None, *, interval: bool = True) -> str:
    if comparison is None:
        return "—"
    r = comparison.relative
    kind = "good" if r.high < 0 else "bad" if r.low > 0 else ""
    span = f" <small>{_percent(r.low)} to {_percent(r.high)}</small>" if interval else ""
    return f'<span class="{kind}">{_percent(r.mean)}</span>{span}'


def _span(interval: Interval) -> str:
    return f"<small>{interval.low:.2f} – {interval.high:.2f}</small>"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _share(probability: float) -> str:
    return "> 99.9 %" if probability > 0.999 else "< 0.1 %" if probability < 0.001 else f"{probability:.1%}"


def _chip(kept: bool | None, text: str) -> str:
    kind = "none" if kept is None else "good" if kept else "bad"
    return f'<span class="chip {kind}">{_e(text)}</span>'


def _e(text: str) -> str:
    return html.escape(text)


_METHOD = """<dl>
<dt>cost</dt><dd>rent plus penalty of an episode in dollars, undiscounted; a waiting job costs 0.036 $ an hour</dd>
<dt>intervals</dt><dd>95 %, BCa bootstrap over cases; comparisons are paired: both policies meet the same jobs and
the same boot times, and both figures of a case are drawn together</dd>
<dt>sure it is cheaper</dt><dd>share of the resamples in which the policy costs less than the reference</dd>
<dt>run time</dt><dd>minutes until the last job has ended</dd>
<dt>allocated</dt><dd>cores of ready VMs over the cores at the limits, mean over minutes</dd>
<dt>busy</dt><dd>busy over ready core-seconds</dd>
<dt>changes / refused</dt><dd>VMs added and removed, and VMs ordered in vain, per episode</dd>
<dt>first core</dt><dd>seconds from a burst that finds no free core to the first new core, mean</dd>
<dt>idle shutdown</dt><dd>minutes from an empty queue with nothing running to the minimum fleet, the longest of all
stretches of half an hour and more; "&gt;" where a new job came before it was reached; to one step</dd>
<dt>worlds</dt><dd>T1 and T2: the training world; T4: as published; T3, T5 and T6: as named at the top</dd>
</dl>"""
