"""The report as one HTML file that needs nothing beside it: tables, plots, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.kernel.text import counted
from trainer.autoscaling.evaluation.suite import GROUPS, OWN, TITLES
from trainer.autoscaling.evaluation.summary import (
    PUBLISHED,
    PUBLISHED_RENT_CHANGE,
    PUBLISHED_TIME_CHANGE,
    SHUTDOWN_LIMIT_MIN,
    WORSE_LIMIT,
    FamilyResult,
    Summary,
    Trade,
    Verdict,
)
from trainer.kit.drawing import colours, themed
from trainer.kit.intervals import FEWEST_CASES, Comparison
from trainer.kit.report import Plot, Section, chip, document, escape, table


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
        content = f"<p>{escape(words)}</p>{plot.html(key)}"
        sections.append(Section(key, f"Importance of the inputs of {model}", content))
    sections.append(Section("method", "How to read this", _METHOD))
    return document("Autoscaling policies compared", sections, facts)


def _compared(summary: Summary, extras: Extras) -> list[Section]:
    """Return the sections of a comparison."""
    colour = colours(summary.policies)
    groups = [group for group in (*GROUPS, OWN) if any(f.split()[0] == group for f in summary.families)]
    sections = [
        Section("verdicts", "In short", _verdicts(summary, colour)),
        Section("overview", "Cost", _overview(summary, colour, extras)),
    ]
    sections += [
        Section(group, f"{group} — {TITLES[group]}", _group(summary, group, colour, extras)) for group in groups
    ]
    if summary.trades:
        sections.append(Section("published", "Compared with the published experiment", _published(summary)))
    if extras.pareto is not None:
        sections.append(Section("pareto", "Cost against delay", extras.pareto.html("pareto")))
    if extras.curves is not None:
        sections.append(Section("curves", "Learning curves", extras.curves.html("curves")))
    if summary.absences:
        sections.append(Section("absent", "Not run", _absences(summary)))
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
            [
                _policy(verdict.policy, colour),
                "reference" if reference else _relative(verdict.overall) + _partly(verdict, summary),
                "" if verdict.overall is None else _surely(verdict.overall),
                _worst(verdict, summary),
                _shutdown(verdict),
            ]
        )
    words = (
        "Cost is rent plus the penalty for waiting. The first figure is over all cases, families counting alike, "
        f"with its 95 % interval; each family is below.{_few(summary)}"
    )
    return f'<p class="soft">{escape(words)}</p>{table(head, rows, marked=_reference(summary))}'


def _reference(summary: Summary) -> tuple[int, ...]:
    return (summary.policies.index(summary.reference),)


def _partly(verdict: Verdict, summary: Summary) -> str:
    """Say so where a policy did not take part everywhere: its figure is not that of the others."""
    if verdict.families == len(summary.families):
        return ""
    return f" <small>on {verdict.families} of {len(summary.families)} families</small>"


def _few(summary: Summary) -> str:
    """Say of which families there is no verdict, since they have too few cases."""
    few = {one.family: one.cases for one in summary.results if one.cases < FEWEST_CASES}
    if not few:
        return ""
    named = ", ".join(f"{family} has {counted(cases, 'case')}" for family, cases in few.items())
    return f" From fewer than {FEWEST_CASES} cases there is no verdict: {named}."


def _surely(comparison: Comparison) -> str:
    """Return how sure it is that the cost is lower, on enough cases."""
    return _share(comparison.probability_lower) if _enough(comparison) else chip(None, "no verdict")


def _enough(comparison: Comparison) -> bool:
    return comparison.relative.cases >= FEWEST_CASES


def _worst(verdict: Verdict, summary: Summary) -> str:
    if verdict.cut_off:
        return chip(False, "cut off")
    if verdict.never_worse is None or verdict.worst_relative is None:
        return chip(None, "—")
    compared = [s.against for s in summary.results if s.policy == verdict.policy and s.against is not None]
    kept = None if (verdict.partial and verdict.never_worse) or not all(map(_enough, compared)) else verdict.never_worse
    return chip(kept, f"{_percent(verdict.worst_relative)} on {verdict.worst_family}")


def _shutdown(verdict: Verdict) -> str:
    if verdict.shutdown_min is None:
        return chip(None, "not measured")
    text = (
        f"{verdict.shutdown_min:.0f} min" if verdict.shutdown_released else f"not within {verdict.shutdown_min:.0f} min"
    )
    return chip(verdict.shuts_down, text)


def _overview(summary: Summary, colour: Mapping[str, str], extras: Extras) -> str:
    rows = []
    for policy in summary.policies:
        cells = [_policy(policy, colour)]
        for family in summary.families:
            result = summary.result(policy, family)
            cells.append("" if result is None else _cost_cell(result))
        rows.append(cells)
    titles = dict.fromkeys(f"{group}: {TITLES[group]}" for group in (f.split()[0] for f in summary.families))
    words = (
        "Mean dollars of an episode; below it the change against the reference, green or red where its interval "
        f"excludes 0 on {FEWEST_CASES} cases or more. {'. '.join(titles)}."
    )
    drawn = "" if extras.comparison is None else extras.comparison.html("comparison")
    costs = table(["policy", *summary.families], rows, marked=_reference(summary))
    return f'<p class="soft">{escape(words)}</p>{costs}{drawn}'


def _cost_cell(result: FamilyResult) -> str:
    if result.stuck:
        return f'{result.cost.mean:.2f}<br><small class="bad">{escape(result.stuck)}</small>'
    if result.against is None:
        return f"{result.cost.mean:.2f}"
    return f"{result.cost.mean:.2f}<br><small>{_relative(result.against, interval=False)}</small>"


_COLUMNS: Mapping[str, str] = {
    "rent $": "{rent:.2f}",
    "penalty $": "{penalty:.2f}",
    "run time min": "{run_time_min:.1f}",
    "wait s<br>mean / p95": "{mean_wait_s:.0f} / {p95_wait_s:.0f}",
    "allocated": "{allocated_ratio:.1%}",
    "busy": "{utilisation:.2f}",
    "idle core-h": "{idle_core_h:.1f}",
    "changes<br>/ refused": "{changes:.0f} / {refused:.0f}",
    "interrupted<br>/ core-s lost": "{interruptions:.1f} / {lost_core_s:,.0f}",
    "peak cores": "{peak_cores:.0f}",
}
"""Titles, and how the means of a family are shown."""
_HEAD = ("policy", "cost $", *_COLUMNS, "first core s", "idle shut-down min")


def _group(summary: Summary, group: str, colour: Mapping[str, str], extras: Extras) -> str:
    parts = []
    for family in (f for f in summary.families if f.split()[0] == group):
        results = [s for s in summary.results if s.family == family]
        marked = [place for place, s in enumerate(results) if s.policy == summary.reference]
        cases = max(s.cases for s in results)
        few = f"; no verdict from fewer than {FEWEST_CASES}" if cases < FEWEST_CASES else ""
        caption = f"{family}: means over {cases} case{'s' if cases > 1 else ''}{few}"
        parts.append(table(_HEAD, [_result_cells(s, colour) for s in results], caption, marked=marked))
    drawn = [plot.html(f"{group}-{k}") for k, plot in enumerate(extras.by_group.get(group, ()))]
    return "".join(parts + drawn)


def _result_cells(s: FamilyResult, colour: Mapping[str, str]) -> list[str]:
    stuck = f' <small class="bad">{escape(s.stuck)}</small>' if s.stuck else ""
    span = f"<br><small>{s.cost.low:.2f} – {s.cost.high:.2f}</small>" if s.cases > 1 else ""
    return [
        _policy(s.policy, colour),
        f"<b>{s.cost.mean:.2f}</b>{stuck}{span}",
        *(form.format(**s.means) for form in _COLUMNS.values()),
        "—" if s.first_core_s is None else f"{s.first_core_s:.0f}",
        escape(s.idle_text),
    ]


def _published(summary: Summary) -> str:
    head = ["policy", "run time min", "rent $", "CPU per allocated core", "allocated"]
    forms = ("{run_time_min:.0f}", "{rent:.2f}", "{utilisation:.2f}", "{allocated_ratio:.1%}")
    rows = [
        [f"{escape(name)} <small>published, one run</small>", *(form.format(**figures) for form in forms)]
        for name, figures in PUBLISHED.items()
    ]
    forms = ("{run_time_min:.1f}", *forms[1:])
    results = (s for s in summary.results if s.family == "T4")
    rows += [[escape(s.policy), *(form.format(**s.means) for form in forms)] for s in results]
    trades = [
        [
            escape(trade.policy),
            escape(trade.reference),
            _relative(trade.rent),
            _relative(trade.run_time),
            _trade_verdict(trade),
        ]
        for trade in summary.trades
    ]
    words = (
        f"Published: rent {PUBLISHED_RENT_CHANGE:+.1%} at {PUBLISHED_TIME_CHANGE:+.1%} run time against the 75 % "
        "threshold, one run of each on a live cloud. Here: the closed loop simulated, m5a prices, 300 s cool-down "
        "per type, boot times drawn, the same cases for every policy."
    )
    return (
        f"<p>{escape(words)}</p>{table(head, rows, marked=range(len(PUBLISHED)))}"
        f"{table(['policy', 'against', 'rent', 'run time', 'at least the published trade'], trades)}"
    )


def _trade_verdict(trade: Trade) -> str:
    if not _enough(trade.rent):
        return chip(None, f"no verdict from {counted(trade.rent.relative.cases, 'case')}")
    return chip(_as_published(trade), "yes" if _as_published(trade) else "no")


def _as_published(trade: Trade) -> bool:
    rent, run_time = trade.rent.relative.mean, trade.run_time.relative.mean
    return rent <= PUBLISHED_RENT_CHANGE and run_time <= PUBLISHED_TIME_CHANGE


def _absences(summary: Summary) -> str:
    grouped: dict[tuple[str, str], list[str]] = {}
    for absence in summary.absences:
        grouped.setdefault((absence.label, absence.reason), []).append(absence.family)
    rows = [
        [escape(label), escape(", ".join(dict.fromkeys(families))), str(len(families)), escape(reason)]
        for (label, reason), families in grouped.items()
    ]
    return table(["policy", "families", "cases", "why"], rows)


def _policy(policy: str, colour: Mapping[str, str]) -> str:
    name = escape(policy)
    return f'<span class="dot" style="background:{themed(colour[policy])}"></span><span title="{name}">{name}</span>'


def _relative(comparison: Comparison | None, *, interval: bool = True) -> str:
    if comparison is None:
        return "—"
    r = comparison.relative
    kind = "" if not _enough(comparison) else "good" if r.high < 0 else "bad" if r.low > 0 else ""
    span = f" <small>{_percent(r.low)} to {_percent(r.high)}</small>" if interval and r.cases > 1 else ""
    return f'<span class="{kind}">{_percent(r.mean)}</span>{span}'


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _share(probability: float) -> str:
    return "> 99.9 %" if probability > 0.999 else "< 0.1 %" if probability < 0.001 else f"{probability:.1%}"


_METHOD = """<dl>
<dt>cost</dt><dd>rent plus penalty of an episode in dollars, undiscounted; a waiting job costs 0.036 $ an hour</dd>
<dt>intervals</dt><dd>95 %, BCa bootstrap over cases; comparisons are paired: both policies meet the same jobs and
the same boot times, and both figures of a case are drawn together</dd>
<dt>sure it is cheaper</dt><dd>share of the resamples in which the policy costs less than the reference</dd>
<dt>cut off, changed nothing</dt><dd>a policy that left jobs unfinished at the world's last step, or a rule that
changed no VM: its cost is shown and compared with none</dd>
<dt>run time</dt><dd>minutes until the last job has ended</dd>
<dt>allocated</dt><dd>cores of ready VMs over the cores at the limits, mean over minutes</dd>
<dt>busy</dt><dd>busy over ready core-seconds</dd>
<dt>changes / refused</dt><dd>VMs added and removed, and VMs ordered in vain, per episode</dd>
<dt>first core</dt><dd>seconds from a burst that finds no free core to the first new core, mean</dd>
<dt>idle shutdown</dt><dd>minutes from an empty queue with nothing running to the minimum fleet, the longest of all
stretches of half an hour and more; "&gt;" where a new job came before it was reached; to one step</dd>
<dt>worlds</dt><dd>T1 and T2: the training world; T4: as published; T3, T5 and T6: as named at the top</dd>
</dl>"""
